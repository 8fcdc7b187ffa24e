//! The machine a run was made on, and what of the requirements it met.

use std::{fs, path::Path, process::Command};

use nix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::{Hierarchy, Version},
    event::{Era, HookReport, KernelFacts},
    time::{ClockAnchor, DurationNs},
    timeline::CountsFrom,
};

/// Facts about the machine. `None` = could not be read, never a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// `uname -r`
    pub kernel: String,
    /// `uname -m`
    pub machine: String,
    /// CPUs online.
    pub cpus: u32,
    /// Model name of the first CPU.
    pub cpu_model: Option<String>,
    /// Ticks a second (`CONFIG_HZ`).
    pub hz: Option<u32>,
    /// Version of the hierarchy that has the cpu controller.
    pub cgroup_version: Version,
    /// How this kernel throttles.
    pub era: Era,
    /// From what instant this kernel counts a throttle.
    pub counts_from: CountsFrom,
    /// Whether the ends of throttles on other CPUs are traced exactly.
    pub csd_tracepoints: bool,
    /// `kernel.sched_cfs_bandwidth_slice_us`
    pub slice_us: Option<u64>,
    /// Current clock source.
    pub clocksource: Option<String>,
    /// One-minute load average before the run.
    pub load_before: Option<f64>,
    /// Version of this program.
    pub program: String,
    /// Commit of the source tree the run was started in, with `-dirty` when it had changes; `None` outside a git checkout.
    pub git_commit: Option<String>,
    /// The clocks, tied together at the start.
    pub clock: ClockAnchor,
}

/// A requirement of the study and whether this machine met it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// What is wanted.
    pub name: String,
    /// Whether it was there.
    pub met: bool,
    /// What was found, and what follows when it is missing.
    pub found: String,
}

impl Environment {
    /// Reads the machine's facts.
    #[must_use]
    pub fn gather(hierarchy: &Hierarchy, kernel: &KernelFacts) -> Self {
        let (release, machine) = kernel_name();
        Self {
            kernel: release,
            machine,
            cpus: cpus_online(),
            cpu_model: cpu_model(),
            hz: hz(),
            cgroup_version: hierarchy.version,
            era: kernel.era,
            counts_from: counts_from(kernel),
            csd_tracepoints: kernel.csd_tracepoints,
            slice_us: slice_us(),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            load_before: load_average(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            git_commit: git_commit(),
            clock: ClockAnchor::take(),
        }
    }

    /// The study's requirements against these facts, and against what became of the observer's hooks.
    #[must_use]
    pub fn requirements(&self, hooks: &[HookReport]) -> Vec<Requirement> {
        let requirement = |name: &str, met, found: String| Requirement { name: name.to_owned(), met, found };
        let cpus = f64::from(self.cpus);
        let mut all = vec![
            requirement(
                "at least two CPUs, so that client and observer do not take the workload's",
                self.cpus >= 2,
                format!("{} online", self.cpus),
            ),
            requirement(
                "load average below the number of CPUs before the run",
                self.load_before.is_some_and(|load| load < cpus),
                self.load_before.map_or_else(|| "not readable".to_owned(), |load| format!("{load:.2}")),
            ),
            requirement(
                "the kernel counts throttling by any level (cpu.stat.local, 6.6+)",
                self.counts_from != CountsFrom::Mark,
                match self.counts_from {
                    CountsFrom::Mark => "absent: the union of levels cannot be compared with the kernel's".to_owned(),
                    CountsFrom::Queued | CountsFrom::Task => "present".to_owned(),
                },
            ),
            requirement(
                "exact ends of throttles on all CPUs (direct era, or csd tracepoints of 6.5+)",
                self.csd_tracepoints || self.era == Era::Direct,
                format!(
                    "{} era, csd tracepoints {}",
                    self.era,
                    if self.csd_tracepoints { "present" } else { "absent" }
                ),
            ),
        ];
        all.extend(hooks.iter().filter(|hook| !hook.is_required).map(|hook| {
            let lost = if hook.is_missing() { format!("; without it {}", hook.without) } else { String::new() };
            requirement(
                &format!("optional tracepoint {} where this kernel needs it", hook.tracepoint),
                !hook.is_missing(),
                format!("{}{lost}", hook.state),
            )
        }));
        all
    }
}

/// How a kernel counts, by its fields (kernel/sched/fair.c: 79462e8c879a came in 6.6 together with
/// `throttled_clock_self`; eb962f251fbb in 6.18).
#[must_use]
pub fn counts_from(kernel: &KernelFacts) -> CountsFrom {
    match (kernel.era, kernel.local_counter) {
        (Era::Task, _) => CountsFrom::Task,
        (_, true) => CountsFrom::Queued,
        (_, false) => CountsFrom::Mark,
    }
}

/// The one-minute load average.
#[must_use]
pub fn load_average() -> Option<f64> {
    line("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

/// CPU time that the hypervisor took from all CPUs since boot (`/proc/stat`, in ticks of 10 ms); `None` = not readable.
/// A thread's own CPU clock leaves it out where the kernel has `CONFIG_PARAVIRT_TIME_ACCOUNTING`; switches do not show it.
#[must_use]
pub fn stolen() -> Option<DurationNs> {
    use procfs::CurrentSI as _;
    let ticks = procfs::KernelStats::current().ok()?.total.steal?;
    Some(DurationNs(ticks.saturating_mul(1_000_000_000) / procfs::ticks_per_second().max(1)))
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// `uname -r` and `uname -m`.
#[must_use]
pub fn kernel_name() -> (String, String) {
    use nix::sys::utsname::UtsName;
    let uname = nix::sys::utsname::uname().ok();
    let text = |of: fn(&UtsName) -> &std::ffi::OsStr| {
        uname.as_ref().map_or_else(|| "unknown".to_owned(), |uname| of(uname).to_string_lossy().into_owned())
    };
    (text(UtsName::release), text(UtsName::machine))
}

/// How much of a group's quota a CPU takes at once, us.
#[must_use]
pub fn slice_us() -> Option<u64> {
    line("/proc/sys/kernel/sched_cfs_bandwidth_slice_us")?.parse().ok()
}

/// CPUs online.
#[must_use]
pub fn cpus_online() -> u32 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN)
        .ok()
        .flatten()
        .and_then(|count| u32::try_from(count).ok())
        .unwrap_or(1)
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(value.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// Ticks a second: the resolution of the coarse clock is one tick (`kernel/time/posix-timers.c`, `posix_get_coarse_res`), rounded to
/// a nanosecond. Needs no file of the kernel's configuration, which many machines do not have.
#[must_use]
pub fn hz() -> Option<u32> {
    let tick = ClockId::CLOCK_MONOTONIC_COARSE.res().ok()?;
    let ns = u64::try_from(tick.tv_nsec()).ok().filter(|&ns| ns > 0 && tick.tv_sec() == 0)?;
    u32::try_from((1_000_000_000 + ns / 2) / ns).ok()
}

fn git_commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(Path::new(".")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    Some(if dirty { format!("{commit}-dirty") } else { commit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tick_is_that_of_the_kernels_configuration_where_that_is_there() {
        let hz = hz().expect("every Linux has the coarse clock");
        assert!((100..=1_000).contains(&hz), "{hz}");
        if let Some(procfs::ConfigSetting::Value(value)) =
            procfs::kernel_config().ok().and_then(|config| config.get("CONFIG_HZ").cloned())
        {
            assert_eq!(value, hz.to_string());
        }
    }
}
