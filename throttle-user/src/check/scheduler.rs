//! Other things that hold threads up, or let them past their limits: what looks like throttling and is not.

use super::{Fact, Section, line};
use crate::{run::environment, time::DurationNs};

/// What was read.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// `/sys/kernel/sched_ext/state`; `None` = the kernel has no such thing.
    pub sched_ext: Option<String>,
    /// Whether `/sys` is there to look into.
    pub sysfs: bool,
    /// CPU time that the hypervisor took from all CPUs since boot; `None` = could not be read.
    pub stolen: Option<DurationNs>,
}

impl Scheduler {
    /// Reads it.
    #[must_use]
    pub fn read() -> Self {
        Self {
            sched_ext: line("/sys/kernel/sched_ext/state"),
            sysfs: std::path::Path::new("/sys/kernel").is_dir(),
            stolen: environment::stolen(),
        }
    }

    /// Judges it.
    #[must_use]
    pub fn section(&self) -> Section {
        let sched_ext = match self.sched_ext.as_deref() {
            None if self.sysfs => Fact::good("sched_ext", "not in this kernel"),
            None => {
                Fact::unknown("sched_ext", "/sys is not mounted: whether a scheduler in BPF is loaded is not known")
            }
            Some("disabled") => Fact::good("sched_ext", "no scheduler loaded"),
            Some(state) => Fact::less(
                "sched_ext",
                state,
                "threads under the loaded scheduler are not subject to CFS bandwidth control: it enforces their limits its own way or \
                 not at all, and that is not seen",
            ),
        };
        let stolen = match self.stolen {
            None => Fact::unknown("steal time", "/proc/stat cannot be read: time that a hypervisor takes is not known"),
            Some(DurationNs::ZERO) => Fact::good("steal time", "none since boot"),
            Some(stolen) => Fact::plain(
                "steal time",
                format!(
                    "{} ms since boot, in steps of 10: time in which no thread here could run",
                    stolen.0 / 1_000_000
                ),
            ),
        };
        Section::new("look-alikes", vec![sched_ext, stolen])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Grade;

    fn grades(sched_ext: Option<&str>, sysfs: bool, stolen: Option<u64>) -> [Grade; 2] {
        let scheduler =
            Scheduler { sched_ext: sched_ext.map(str::to_owned), sysfs, stolen: stolen.map(DurationNs::from_millis) };
        let facts = scheduler.section().facts;
        [facts[0].grade, facts[1].grade]
    }

    #[test]
    fn a_loaded_scheduler_costs_something_and_what_cannot_be_read_is_unknown() {
        assert_eq!(grades(None, true, Some(0)), [Grade::Good, Grade::Good]);
        assert_eq!(grades(Some("disabled"), true, Some(30)), [Grade::Good, Grade::Plain]);
        assert_eq!(grades(Some("enabled"), true, None), [Grade::Less, Grade::Unknown]);
        assert_eq!(grades(None, false, Some(0))[0], Grade::Unknown);
    }
}
