//! The kernel: its BTF, how it throttles, and what it counts itself.

use super::{Fact, Section, line};
use crate::{
    event::Era,
    probe::{
        KernelLayout,
        prerequisites::{self, KERNEL_BTF},
    },
    run::environment,
};

/// What was read of it.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// `uname -r` and `uname -m`.
    pub name: String,
    /// CPUs online.
    pub cpus: u32,
    /// Ticks a second.
    pub hz: Option<u32>,
    /// `kernel.sched_cfs_bandwidth_slice_us`
    pub slice_us: Option<u64>,
    /// Whether this binary has its eBPF object.
    pub is_built: bool,
    /// Length of its BTF, bytes, and what that says; or why nothing.
    pub btf: Result<(u64, KernelLayout), String>,
}

impl Kernel {
    /// Reads it. `layout` is what BTF says, or why it says nothing.
    #[must_use]
    pub fn read(layout: Result<KernelLayout, String>) -> Self {
        let length = std::fs::metadata(KERNEL_BTF).map(|file| file.len()).unwrap_or(0);
        let (release, machine) = environment::kernel_name();
        Self {
            name: format!("{release} {machine}"),
            cpus: environment::cpus_online(),
            hz: environment::hz(),
            slice_us: environment::slice_us(),
            is_built: prerequisites::is_built(),
            btf: layout.map(|layout| (length, layout)),
        }
    }

    /// Judges it.
    #[must_use]
    pub fn section(&self) -> Section {
        let mut facts = vec![
            Fact::plain("kernel", &self.name),
            if self.cpus >= 2 {
                Fact::good("CPUs online", self.cpus.to_string())
            } else {
                Fact::less(
                    "CPUs online",
                    self.cpus.to_string(),
                    "client and observer take CPU time from what they measure",
                )
            },
            self.hz.map_or_else(
                || Fact::unknown("tick", "by how much a quota may be overrun is not known"),
                |hz| Fact::plain("tick", format!("{hz} Hz: a quota may be overrun by {} ms", 1e3 / f64::from(hz))),
            ),
            self.slice_us.map_or_else(
                || Fact::unknown("slice", "how much of a quota a CPU takes at once is not known"),
                |slice| Fact::plain("slice", format!("a CPU takes {} ms of a quota at once", DurationMs(slice))),
            ),
            if self.is_built {
                Fact::good("eBPF object", "in this binary")
            } else {
                let build = "there is nothing to load: cargo xtask setup, then build again";
                Fact::fatal("eBPF object", "not in this binary", build)
            },
        ];
        match &self.btf {
            Err(why) => facts.push(Fact::fatal("BTF", "does not serve", why)),
            Ok((length, layout)) => {
                facts.push(Fact::good("BTF", format!("{KERNEL_BTF}, {:.1} MB", megabytes(*length))));
                facts.extend(fields(layout));
            }
        }
        Section::new("kernel", facts)
    }
}

/// Microseconds, shown as milliseconds without trailing zeros.
struct DurationMs(u64);

impl std::fmt::Display for DurationMs {
    #[expect(clippy::cast_precision_loss, reason = "display only; far below 2^53")]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0 as f64 / 1e3)
    }
}

#[expect(clippy::cast_precision_loss, reason = "display only; far below 2^53")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// What its fields say.
fn fields(layout: &KernelLayout) -> Vec<Fact> {
    let era = match layout.facts.era {
        Era::Direct => "direct: queues are held, the timer releases them on all CPUs",
        Era::Async => "async: queues are held, other CPUs are released by a call",
        Era::Task => "task: each thread is held by itself, on its way to user mode",
    };
    let has = |name, there: bool, found: &str, costs: &str| {
        if there { Fact::good(name, found) } else { Fact::less(name, "absent", costs) }
    };
    vec![
        Fact::plain("throttling", era),
        if layout.facts.local_counter {
            Fact::good("cpu.stat.local", "counts throttling by any level")
        } else {
            let costs = "time throttled by any level cannot be compared with the kernel's (it counts it from 6.6 on)";
            Fact::less("cpu.stat.local", "does not count throttling", costs)
        },
        has(
            "arrivals",
            layout.notes_arrivals(),
            "noted by the scheduler",
            "switches that the kernel did not trace cannot be told from the others (CONFIG_SCHED_INFO)",
        ),
        has(
            "time charged to nobody",
            layout.notes_uncharged(),
            "noted by the scheduler",
            "time that interrupts or a hypervisor took from a running thread counts as its own",
        ),
        has(
            "threads of a process",
            layout.lists_threads(),
            "can be listed",
            "of a process that is moved to another cgroup only the main thread is seen to move",
        ),
    ]
}

/// A number below `/proc/sys`; `None` = not there, or not to be read.
pub(super) fn sysctl(name: &str) -> Option<u64> {
    line(&format!("/proc/sys/{}", name.replace('.', "/")))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cgroup::Version, check::Grade, probe::btf};

    fn kernel() -> Kernel {
        let blob = include_bytes!("../../tests/data/btf/6.1-amd64.btf");
        let layout = btf::resolve(blob, Version::V2).expect("a kernel that can be observed");
        Kernel {
            name: "6.1".to_owned(),
            cpus: 2,
            hz: Some(250),
            slice_us: Some(5_000),
            is_built: true,
            btf: Ok((5_200_000, layout)),
        }
    }

    fn of(kernel: &Kernel, name: &str) -> Fact {
        kernel.section().facts.into_iter().find(|fact| fact.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn what_is_not_known_is_not_a_figure() {
        let kernel = Kernel { hz: None, slice_us: None, ..kernel() };
        for name in ["tick", "slice"] {
            let fact = of(&kernel, name);
            assert_eq!((fact.grade, fact.found.as_str()), (Grade::Unknown, "not measured"));
        }
    }

    #[test]
    fn an_old_kernel_lacks_the_local_counter_and_nothing_else() {
        let kernel = kernel();
        let lacking: Vec<_> = kernel.section().facts.into_iter().filter(|fact| fact.grade > Grade::Unknown).collect();
        assert_eq!(lacking.iter().map(|fact| fact.name.as_str()).collect::<Vec<_>>(), ["cpu.stat.local"]);
        assert!(of(&kernel, "throttling").found.starts_with("direct"));
        assert_eq!(of(&kernel, "tick").found, "250 Hz: a quota may be overrun by 4 ms");
    }

    #[test]
    fn a_field_that_is_missing_costs_what_it_tells() {
        let mut kernel = kernel();
        if let Ok((_, layout)) = &mut kernel.btf {
            // What a field has that BTF does not show.
            layout.layout.task_last_arrival = u32::MAX;
        }
        let fact = of(&kernel, "arrivals");
        assert_eq!(fact.grade, Grade::Less);
        assert!(fact.costs.is_some_and(|costs| costs.contains("CONFIG_SCHED_INFO")));
        assert_eq!(of(&kernel, "time charged to nobody").grade, Grade::Good);
    }

    #[test]
    fn without_btf_or_object_nothing_can_be_observed() {
        let kernel = Kernel { is_built: false, btf: Err("no such file".to_owned()), ..kernel() };
        assert_eq!((of(&kernel, "eBPF object").grade, of(&kernel, "BTF").grade), (Grade::Fatal, Grade::Fatal));
        assert!(of(&kernel, "BTF").costs.is_some_and(|costs| costs.contains("no such file")));
    }
}
