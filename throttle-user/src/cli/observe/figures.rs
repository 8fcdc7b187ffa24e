//! What the daemon takes down of itself.

use procfs::{WithCurrentSystemInfo as _, process::Process};

use crate::{
    exporter::{ProcessFigures, ProgramFigures},
    probe::{Observer, observer::ProgramCost},
    time::{ClockAnchor, DurationNs, process_cpu},
};

/// Programs attached; `counted`: the kernel counts what they cost.
pub(super) fn programs(observer: &Observer, counted: bool) -> Vec<ProgramFigures> {
    let figures = |cost: ProgramCost| {
        let ran = DurationNs(u64::try_from(cost.run_time.as_nanos()).unwrap_or(u64::MAX));
        ProgramFigures { program: cost.program, cost: counted.then_some((ran, cost.runs)) }
    };
    observer.costs().into_iter().map(figures).collect()
}

/// This process; `None` where `/proc` does not tell.
pub(super) fn process() -> Option<ProcessFigures> {
    let stat = Process::myself().ok()?.stat().ok()?;
    let clock = ClockAnchor::take();
    // Since boot, in clock ticks; the boot is where CLOCK_BOOTTIME began.
    let since_boot = u128::from(stat.starttime) * 1_000_000_000 / u128::from(procfs::ticks_per_second());
    let boot = clock.realtime_ns.saturating_sub(clock.boottime_ns);
    Some(ProcessFigures {
        cpu: process_cpu(),
        resident_bytes: stat.rss_bytes().get(),
        started_realtime_ns: boot.saturating_add(u64::try_from(since_boot).ok()?),
    })
}
