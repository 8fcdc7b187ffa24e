//! Period boundaries: runs of a group's period timer.

use serde::{Deserialize, Serialize};

use crate::{
    event::{Event, KernelCounters, TimerRun},
    time::{DurationNs, MonoNs},
};

/// One run of a period timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boundary {
    /// The instant it was due: a point of the group's period grid.
    pub due: MonoNs,
    /// Entry of the callback.
    pub entry: MonoNs,
    /// Exit of the callback: the refill lies between entry and exit.
    pub exit: MonoNs,
    /// Periods that ended here: 1, or more when the timer came late (the kernel's overrun).
    pub periods: u64,
    /// Quota; `None` = no limit (the timer runs out).
    pub quota: Option<DurationNs>,
    /// Period.
    pub period: DurationNs,
    /// Burst.
    pub burst: DurationNs,
    /// Global pool left before the refill.
    pub pool_left: DurationNs,
    /// CPUs on the group's throttled list at entry.
    pub throttled_cpus: u32,
    /// CPUs that the edges seen so far say were throttled. Differs from `throttled_cpus` only where a throttle happened
    /// without any event (for example by a load balancer's move).
    pub marked_cpus: u32,
    /// More CPUs were throttled than the probe lists.
    pub truncated: bool,
    /// The timer is armed again: there must be a run at the next point of the grid.
    pub active: bool,
    /// Not traced, but it must have been: see [`super::untraced`].
    pub inferred: bool,
    /// The kernel's counters at exit, beside; absent when inferred.
    pub kernel: Option<KernelCounters>,
}

impl Boundary {
    pub(super) fn new(event: &Event, run: &TimerRun, marked_cpus: u32) -> Self {
        // hrtimer_forward_now moves the expiry by whole periods, and returns how many (kernel/time/hrtimer.c).
        let moved = run.next_expires.since(run.expires).0;
        Self {
            due: run.expires,
            entry: run.entry,
            exit: event.at,
            periods: moved.checked_div(run.period.0).unwrap_or(0),
            quota: run.quota,
            period: run.period,
            burst: run.burst,
            pool_left: run.runtime_before,
            throttled_cpus: run.throttled_cpus,
            marked_cpus,
            truncated: run.truncated,
            active: run.active,
            inferred: false,
            kernel: Some(run.kernel),
        }
    }

    /// Next point of the grid.
    #[must_use]
    pub fn next_due(&self) -> MonoNs {
        self.due + DurationNs(self.periods.saturating_mul(self.period.0))
    }

    /// A run that was not traced, one period after `self` or more.
    pub(super) fn untraced(&self, due: MonoNs, throttled_cpus: u32, active: bool) -> Self {
        Self {
            due,
            entry: due,
            exit: due,
            periods: 1,
            throttled_cpus,
            marked_cpus: throttled_cpus,
            truncated: false,
            active,
            inferred: true,
            kernel: None,
            ..self.clone()
        }
    }

    /// Whether some CPU was throttled as the period ended: the kernel then adds the periods to `nr_throttled`.
    #[must_use]
    pub fn throttled(&self) -> bool {
        self.throttled_cpus > 0
    }
}

/// Period rolls seen: what the kernel counts as `nr_periods` (kernel/sched/fair.c, `do_sched_cfs_period_timer`: counted
/// whenever a quota is set).
#[must_use]
pub fn rolls(boundaries: &[Boundary]) -> u64 {
    total(boundaries.iter().filter(|boundary| boundary.quota.is_some()))
}

/// Periods that ended with a throttled CPU: what the kernel counts as `nr_throttled`.
#[must_use]
pub fn throttled_rolls(boundaries: &[Boundary]) -> u64 {
    total(boundaries.iter().filter(|boundary| boundary.quota.is_some() && boundary.throttled()))
}

fn total<'a>(boundaries: impl Iterator<Item = &'a Boundary>) -> u64 {
    boundaries.fold(0, |sum, boundary| sum.saturating_add(boundary.periods))
}

/// A group's period grid: the points at which its quota is refilled. Fixed for the life of the group while the period is
/// not changed, also across idle stretches (`start_cfs_bandwidth` forwards by whole periods).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Any point of the grid.
    pub point: MonoNs,
    /// Distance of points.
    pub period: DurationNs,
}

impl Grid {
    /// The grid at `at`: from the last boundary seen up to then, else from the next one.
    #[must_use]
    pub fn at(boundaries: &[Boundary], at: MonoNs) -> Option<Self> {
        let after = boundaries.partition_point(|boundary| boundary.due <= at);
        let near = after.checked_sub(1).and_then(|last| boundaries.get(last)).or_else(|| boundaries.get(after))?;
        (near.period != DurationNs::ZERO).then_some(Self { point: near.due, period: near.period })
    }

    /// Time from the last grid point at or before `at`.
    #[must_use]
    pub fn phase(&self, at: MonoNs) -> DurationNs {
        let period = i128::from(self.period.0);
        let offset = (i128::from(at.0) - i128::from(self.point.0)).rem_euclid(period);
        DurationNs(u64::try_from(offset).unwrap_or(0))
    }

    /// Time from `at` to the next grid point; a whole period on a point itself.
    #[must_use]
    pub fn to_next(&self, at: MonoNs) -> DurationNs {
        self.period - self.phase(at)
    }

    /// Number of the cell that holds `at`, counted from the grid's `point`.
    #[must_use]
    pub fn cell(&self, at: MonoNs) -> i64 {
        let cell = (i128::from(at.0) - i128::from(self.point.0)).div_euclid(i128::from(self.period.0));
        i64::try_from(cell).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_and_next_refill_hold_before_and_after_the_known_point() {
        let grid = Grid { point: MonoNs(1_000), period: DurationNs(100) };
        for (at, phase, cell) in [(1_000, 0, 0), (1_030, 30, 0), (1_250, 50, 2), (970, 70, -1), (900, 0, -1)] {
            assert_eq!(grid.phase(MonoNs(at)), DurationNs(phase), "{at}");
            assert_eq!(grid.to_next(MonoNs(at)), DurationNs(100 - phase), "{at}");
            assert_eq!(grid.cell(MonoNs(at)), cell, "{at}");
        }
    }
}
