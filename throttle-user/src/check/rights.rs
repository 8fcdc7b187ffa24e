//! What this process may do, and settings of the system that decide it.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::{Fact, Section, kernel::sysctl, line};
use crate::probe::prerequisites::{self, Held, Needed};

/// What was read.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Each capability that observing takes, and whether this process has it.
    pub capabilities: Vec<(Needed, Held)>,
    /// Whether it may make cgroups where its user may not write.
    pub overrides_permissions: bool,
    /// Limit on locked memory, bytes; `None` = could not be read. `u64::MAX` = none.
    pub locked_memory: Option<u64>,
    /// `kernel.unprivileged_bpf_disabled`
    pub unprivileged_bpf_disabled: Option<u64>,
    /// `kernel.bpf_stats_enabled`
    pub bpf_stats: Option<u64>,
    /// `/sys/kernel/security/lockdown`; `None` = the kernel has no such thing, or does not show it.
    pub lockdown: Option<String>,
}

impl Rights {
    /// Reads them.
    #[must_use]
    pub fn read() -> Self {
        Self {
            capabilities: prerequisites::held(),
            overrides_permissions: prerequisites::overrides_permissions(),
            locked_memory: getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft),
            unprivileged_bpf_disabled: sysctl("kernel.unprivileged_bpf_disabled"),
            bpf_stats: sysctl("kernel.bpf_stats_enabled"),
            lockdown: line("/sys/kernel/security/lockdown"),
        }
    }

    /// Judges them.
    #[must_use]
    pub fn section(&self) -> Section {
        let mut facts: Vec<Fact> = self.capabilities.iter().map(|(needed, held)| capability(needed, *held)).collect();
        // Whether it is needed, the self-test shows.
        facts.push(Fact::plain(
            "CAP_DAC_OVERRIDE",
            if self.overrides_permissions {
                "held; needed for scratch groups alone, where this user may not write"
            } else {
                "missing; scratch groups can be made where this user may write alone"
            },
        ));
        facts.push(self.locked_memory.map_or_else(
            || Fact::unknown("locked memory", "its limit counts before 5.11 only"),
            |bytes| Fact::plain("locked memory", format!("{}; counts before 5.11 only", limit(bytes))),
        ));
        facts.push(self.unprivileged_bpf_disabled.map_or_else(
            || Fact::plain("unprivileged BPF", "this kernel has no such switch"),
            |setting| {
                let meaning = if setting == 0 { "allowed to all, of no use here" } else { "needs CAP_BPF" };
                Fact::plain("unprivileged BPF", format!("kernel.unprivileged_bpf_disabled {setting}: {meaning}"))
            },
        ));
        facts.push(match self.bpf_stats {
            None => Fact::unknown("BPF statistics", "kernel.bpf_stats_enabled cannot be read"),
            Some(0) => Fact::good("BPF statistics", "off"),
            Some(_) => Fact::less(
                "BPF statistics",
                "on",
                "each run of a hook reads the clock twice more, and what is observed is slower by that: sysctl \
                 kernel.bpf_stats_enabled=0",
            ),
        });
        facts.push(match self.lockdown.as_deref() {
            None => Fact::plain("lockdown", "not in this kernel, or securityfs is not mounted"),
            Some(setting) if setting.contains("[confidentiality]") => Fact::less(
                "lockdown",
                "confidentiality",
                "probes may not read kernel memory: timers, releases and moves are not seen (lockdown=integrity would do)",
            ),
            Some(setting) => Fact::good("lockdown", setting),
        });
        Section::new("rights", facts)
    }

    /// The first capability that is needed and missing, if any.
    #[must_use]
    pub fn missing(&self) -> Option<&'static str> {
        self.capabilities.iter().find(|(_, held)| *held == Held::No).map(|(needed, _)| needed.name)
    }
}

fn capability(needed: &Needed, held: Held) -> Fact {
    match held {
        Held::Itself => Fact::good(needed.name, "held"),
        Held::ByAdmin => Fact::good(needed.name, "held by way of CAP_SYS_ADMIN"),
        Held::No => Fact::fatal(
            needed.name,
            "missing",
            format!("{}: run as root, or grant it (in a pod: securityContext.capabilities.add)", needed.reason),
        ),
    }
}

fn limit(bytes: u64) -> String {
    if bytes == RLIM_INFINITY { "no limit".to_owned() } else { format!("{} KiB", bytes / 1_024) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Grade;

    fn rights() -> Rights {
        Rights {
            capabilities: prerequisites::NEEDED.iter().map(|&needed| (needed, Held::Itself)).collect(),
            overrides_permissions: true,
            locked_memory: Some(RLIM_INFINITY),
            unprivileged_bpf_disabled: Some(2),
            bpf_stats: Some(0),
            lockdown: None,
        }
    }

    fn of(rights: &Rights, name: &str) -> Fact {
        rights.section().facts.into_iter().find(|fact| fact.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn a_missing_capability_is_fatal_and_says_what_it_is_for() {
        let mut rights = rights();
        assert_eq!(rights.missing(), None);
        rights.capabilities[1].1 = Held::No;
        assert_eq!(rights.missing(), Some("CAP_PERFMON"));
        let fact = of(&rights, "CAP_PERFMON");
        assert_eq!((fact.grade, fact.found.as_str()), (Grade::Fatal, "missing"));
        assert!(fact.costs.is_some_and(|costs| costs.contains("kernel memory") && costs.contains("securityContext")));
        rights.capabilities[1].1 = Held::ByAdmin;
        assert_eq!(of(&rights, "CAP_PERFMON").grade, Grade::Good);
    }

    #[test]
    fn statistics_and_lockdown_cost_something_and_no_limit_is_not_a_number() {
        assert_eq!(of(&rights(), "locked memory").found, "no limit; counts before 5.11 only");
        assert_eq!(of(&rights(), "BPF statistics").grade, Grade::Good);
        let strict = Rights {
            bpf_stats: Some(1),
            lockdown: Some("none integrity [confidentiality]".to_owned()),
            locked_memory: Some(8 << 20),
            ..rights()
        };
        assert_eq!((of(&strict, "BPF statistics").grade, of(&strict, "lockdown").grade), (Grade::Less, Grade::Less));
        assert!(of(&strict, "locked memory").found.starts_with("8192 KiB"));
        let unread = Rights { bpf_stats: None, ..rights() };
        assert_eq!(of(&unread, "BPF statistics").grade, Grade::Unknown);
    }
}
