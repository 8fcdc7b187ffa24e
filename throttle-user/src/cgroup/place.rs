//! Where in the tree a scratch group may be made.
//!
//! Owns the choice only; nothing is changed here. v1 allows children anywhere. v2 allows a limited child only where cpu is, or can be,
//! in `cgroup.subtree_control`, which a group with processes of its own may not have, the root excepted (the "no internal process"
//! rule, `Documentation/admin-guide/cgroup-v2.rst`).

use std::path::{Component, Path, PathBuf};

use super::group::{Group, GroupError};
use super::hierarchy::{Hierarchy, HierarchyError, Version};

/// A parent for a scratch group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The parent.
    pub(super) parent: Group,
    /// v2: cpu must first be enabled for its children.
    pub(super) enable_cpu: bool,
}

/// There is no place for a scratch group.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The parent asked for is not a group of the cpu hierarchy.
    #[error("--parent {}: {why}; give a group of the cpu controller's hierarchy, below {}", asked.display(), mount.display())]
    NotAGroup {
        /// What was asked for.
        asked: PathBuf,
        /// What is wrong with it.
        why: &'static str,
        /// Where the hierarchy is mounted.
        mount: PathBuf,
    },
    /// No candidate can have children with a CPU limit.
    #[error(
        "no cgroup here can have children with a CPU limit: {looked_at}. Move the processes of one of them to a leaf group, have cpu \
         enabled in its parent's cgroup.subtree_control, or name another group with --parent"
    )]
    Nowhere {
        /// The candidates, each with what is in the way.
        looked_at: String,
    },
    /// The tree could not be read.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The own group could not be found.
    #[error(transparent)]
    Hierarchy(#[from] HierarchyError),
}

/// The group `asked` for, if it will do; else on v1 the group of this process, or the mount where that is out of sight; on v2, from this
/// process's group upwards, the first whose children have cpu already, or else the first whose children can be given it.
///
/// # Errors
/// [`PlaceError`].
pub(super) fn choose(hierarchy: &Hierarchy, asked: Option<&Path>) -> Result<Place, PlaceError> {
    let nearest = match asked {
        Some(asked) => named(hierarchy, asked)?,
        None => match hierarchy.own_group() {
            Ok(own) => own,
            Err(HierarchyError::Hidden { .. }) => hierarchy.root(),
            Err(error) => return Err(error.into()),
        },
    };
    if hierarchy.version == Version::V1 {
        return Ok(Place { parent: nearest, enable_cpu: false });
    }
    let mut candidates = Vec::new();
    for path in nearest.path().ancestors().take_while(|path| path.starts_with(&hierarchy.mount)) {
        candidates.push(Candidate::look(Group::new(Version::V2, path.to_owned()))?);
        if asked.is_some() {
            break;
        }
    }
    pick(&candidates)
}

/// `asked` as a group: an absolute path below the mount, or a path relative to the mount.
fn named(hierarchy: &Hierarchy, asked: &Path) -> Result<Group, PlaceError> {
    let refuse = |why| PlaceError::NotAGroup { asked: asked.to_owned(), why, mount: hierarchy.mount.clone() };
    let inside = asked.strip_prefix(&hierarchy.mount).unwrap_or(asked);
    if inside.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(refuse("it is not below the mount"));
    }
    let group = hierarchy.group(inside);
    if !group.path().is_dir() {
        return Err(refuse("there is no such group"));
    }
    Ok(group)
}

/// What decides whether a v2 group may be a parent.
struct Candidate {
    group: Group,
    /// The root is exempt from the "no internal process" rule; it alone has no `cgroup.type` (`CFTYPE_NOT_ON_ROOT`).
    is_root: bool,
    /// Not part of a threaded subtree.
    is_domain: bool,
    /// `cpu` in `cgroup.controllers`.
    has_cpu: bool,
    /// `cpu` in `cgroup.subtree_control`.
    gives_cpu: bool,
    has_processes: bool,
}

impl Candidate {
    fn look(group: Group) -> Result<Self, GroupError> {
        let lists_cpu = |text: &str| text.split_whitespace().any(|name| name == "cpu");
        let kind = group.read_if_there("cgroup.type")?;
        let is_domain = kind.as_deref().is_none_or(|kind| kind.trim_end() == "domain");
        Ok(Self {
            is_root: kind.is_none(),
            is_domain,
            has_cpu: lists_cpu(&group.read("cgroup.controllers")?),
            gives_cpu: lists_cpu(&group.read("cgroup.subtree_control")?),
            // Not readable in a threaded group, which is out of the question anyway.
            has_processes: is_domain && !group.processes()?.is_empty(),
            group,
        })
    }

    /// What is in the way, if anything is.
    fn obstacle(&self) -> Option<&'static str> {
        match self {
            Self { is_domain: false, .. } => Some("is threaded"),
            Self { has_cpu: false, .. } => Some("has no cpu controller"),
            Self { gives_cpu: false, is_root: false, has_processes: true, .. } => Some("has processes of its own"),
            _ => None,
        }
    }
}

fn pick(candidates: &[Candidate]) -> Result<Place, PlaceError> {
    let fits = |candidate: &&Candidate| candidate.obstacle().is_none();
    let ready = candidates.iter().filter(fits).find(|candidate| candidate.gives_cpu);
    match ready.or_else(|| candidates.iter().find(fits)) {
        Some(found) => Ok(Place { parent: found.group.clone(), enable_cpu: !found.gives_cpu }),
        None => {
            let said = candidates.iter().map(|candidate| {
                format!("{} {}", candidate.group.path().display(), candidate.obstacle().unwrap_or("would do"))
            });
            Err(PlaceError::Nowhere { looked_at: said.collect::<Vec<_>>().join(", ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn candidate(path: &str, has_cpu: bool, gives_cpu: bool, has_processes: bool) -> Candidate {
        let group = Group::new(Version::V2, path.into());
        Candidate { is_root: path == "/cg", group, is_domain: true, has_cpu, gives_cpu, has_processes }
    }

    #[test]
    fn a_login_session_finds_the_nearest_ancestor_whose_children_have_cpu() {
        let chain = [
            candidate("/cg/user.slice/user-0.slice/session-1.scope", false, false, true),
            candidate("/cg/user.slice/user-0.slice", true, false, false),
            candidate("/cg/user.slice", true, true, false),
            candidate("/cg", true, true, true),
        ];
        let place = pick(&chain).expect("a place");
        assert_eq!((place.parent.path(), place.enable_cpu), (Path::new("/cg/user.slice"), false));
    }

    #[test]
    fn the_root_may_have_processes_and_is_given_cpu_when_no_group_has_it() {
        let chain = [candidate("/cg/a", false, false, true), candidate("/cg", true, false, true)];
        let place = pick(&chain).expect("a place");
        assert_eq!((place.parent.path(), place.enable_cpu), (Path::new("/cg"), true));
    }

    #[test]
    fn a_container_with_processes_in_its_topmost_group_is_refused_with_the_reason() {
        let mut top = candidate("/cg", true, false, true);
        top.is_root = false;
        let said = pick(&[top]).expect_err("nowhere").to_string();
        assert!(said.contains("/cg has processes of its own") && said.contains("--parent"), "{said}");
    }

    #[test]
    fn a_threaded_group_is_passed_over() {
        let threaded = Candidate { is_domain: false, ..candidate("/cg/t", true, true, false) };
        let place = pick(&[threaded, candidate("/cg", true, true, true)]).expect("a place");
        assert_eq!(place.parent.path(), Path::new("/cg"));
    }

    #[test]
    fn a_parent_is_named_absolutely_or_below_the_mount_and_nowhere_else() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("a")).expect("made");
        let hierarchy = Hierarchy { version: Version::V1, mount: dir.path().to_owned(), mount_root: "/".into() };
        let place = |asked: &Path| choose(&hierarchy, Some(asked));
        assert_eq!(place(Path::new("a")).expect("a place").parent.path(), dir.path().join("a"));
        assert_eq!(place(&dir.path().join("a")).expect("a place").parent.path(), dir.path().join("a"));
        assert_eq!(place(dir.path()).expect("a place").parent, hierarchy.root());
        for asked in ["/etc", "../x", "a/../../x", "b"] {
            assert!(matches!(place(Path::new(asked)), Err(PlaceError::NotAGroup { .. })), "{asked}");
        }
    }

    #[test]
    fn a_candidate_is_read_from_its_files() {
        let dir = tempfile::tempdir().expect("a directory");
        for (file, text) in [
            ("cgroup.type", "domain\n"),
            ("cgroup.controllers", "cpuset cpu\n"),
            ("cgroup.subtree_control", "cpuset\n"),
            ("cgroup.procs", "0\n"),
        ] {
            fs::write(dir.path().join(file), text).expect("written");
        }
        let found = Candidate::look(Group::new(Version::V2, dir.path().to_owned())).expect("read");
        assert!(!found.is_root && found.is_domain && found.has_cpu && !found.gives_cpu && found.has_processes);
        assert_eq!(found.obstacle(), Some("has processes of its own"));
    }
}
