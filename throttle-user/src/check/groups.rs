//! Cgroups: where the cpu controller is, and what this process is under itself.

use super::{Fact, Section};
use crate::cgroup::{Group, Hierarchy, HierarchyError, Version, tree};

/// What was read.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Where the controller is, or why it is nowhere.
    pub hierarchy: Result<Hierarchy, String>,
    /// Directory of the own group and the limited groups from it upwards, each with its limit; or why it is not known.
    pub own: Result<(String, Vec<String>), String>,
}

impl Groups {
    /// Reads them.
    #[must_use]
    pub fn read(hierarchy: &Result<Hierarchy, HierarchyError>) -> Self {
        let own = match hierarchy {
            Err(_) => Err("there is no cpu controller".to_owned()),
            Ok(hierarchy) => hierarchy.own_group().map_err(|error| error.to_string()).and_then(|own| {
                let limits = limits_from(hierarchy, &own).map_err(|error| format!("{error:#}"))?;
                Ok((own.path().display().to_string(), limits))
            }),
        };
        let hierarchy = match hierarchy {
            Ok(hierarchy) => Ok(hierarchy.clone()),
            Err(error) => Err(error.to_string()),
        };
        Self { hierarchy, own }
    }

    /// Judges them.
    #[must_use]
    pub fn section(&self) -> Section {
        let mut facts = Vec::new();
        match &self.hierarchy {
            Err(why) => facts.push(Fact::fatal("cpu controller", "not to be seen", why)),
            Ok(Hierarchy { version, mount, mount_root }) => {
                let version = match version {
                    Version::V1 => "v1",
                    Version::V2 => "v2",
                };
                facts.push(Fact::good("cpu controller", format!("cgroup {version} at {}", mount.display())));
                if mount_root.as_os_str() != "/" {
                    facts.push(Fact::less(
                        "part of the hierarchy",
                        format!("only {}", mount_root.display()),
                        "limits of groups above it are not seen; mount the whole hierarchy",
                    ));
                }
            }
        }
        match &self.own {
            Err(why) => facts.push(Fact::unknown("own cgroup", why)),
            Ok((path, limits)) => {
                facts.push(Fact::plain("own cgroup", path));
                facts.push(if limits.is_empty() {
                    Fact::good("limits on this process", "none")
                } else {
                    let costs =
                        "client and observer may be held as well as what they measure; --parent names another place";
                    Fact::less("limits on this process", limits.join(", "), costs)
                });
            }
        }
        Section::new("cgroups", facts)
    }
}

/// Limited groups from `own` upwards, as far as they can be seen.
fn limits_from(hierarchy: &Hierarchy, own: &Group) -> Result<Vec<String>, crate::cgroup::GroupError> {
    let limited = tree::ancestors(hierarchy, own)?.into_iter().filter(tree::Node::is_limited);
    Ok(limited.filter_map(|node| Some(format!("{} ({})", node.group.path().display(), node.bandwidth?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Grade;

    fn groups() -> Groups {
        let hierarchy = Hierarchy { version: Version::V2, mount: "/sys/fs/cgroup".into(), mount_root: "/".into() };
        Groups { hierarchy: Ok(hierarchy), own: Ok(("/sys/fs/cgroup/a".to_owned(), vec![])) }
    }

    fn grades(groups: &Groups) -> Vec<(String, Grade)> {
        groups.section().facts.into_iter().map(|fact| (fact.name, fact.grade)).collect()
    }

    #[test]
    fn without_a_cpu_controller_nothing_can_be_observed() {
        let none = Groups { hierarchy: Err("no cpu controller".to_owned()), own: Err("none".to_owned()) };
        assert_eq!(grades(&none)[0], ("cpu controller".to_owned(), Grade::Fatal));
        assert_eq!(grades(&none)[1].1, Grade::Unknown);
        assert!(grades(&groups()).iter().all(|(_, grade)| *grade < Grade::Unknown));
    }

    #[test]
    fn a_limit_on_the_observer_itself_costs_something_and_is_named() {
        let limited = Groups { own: Ok(("/cg/a".to_owned(), vec!["/cg (20 ms per 100 ms)".to_owned()])), ..groups() };
        let fact = limited.section().facts.pop().expect("the last fact");
        assert_eq!((fact.grade, fact.found.as_str()), (Grade::Less, "/cg (20 ms per 100 ms)"));
    }

    #[test]
    fn a_mount_that_shows_only_a_part_is_named() {
        let mut part = groups();
        if let Ok(hierarchy) = &mut part.hierarchy {
            hierarchy.mount_root = "/kubepods/x".into();
        }
        assert!(grades(&part).contains(&("part of the hierarchy".to_owned(), Grade::Less)));
    }
}
