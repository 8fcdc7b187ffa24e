//! One piece of work of one thread under a chain of quotas: what is known at its start, and what becomes of it.
//!
//! The accounting is in [`super::chain`].

use serde::{Deserialize, Serialize};

use crate::model::bandwidth::Bandwidth;
use crate::model::chain::{Chain, Piece};
use crate::time::DurationNs;

/// One level at the start of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Its quota, period and burst.
    pub bandwidth: Bandwidth,
    /// From the start to its next refill, at most one period.
    pub to_refill: DurationNs,
    /// What its global pool holds.
    pub pool: DurationNs,
    /// What this CPU's local pool still holds from before: at most 1 ms after the group slept.
    pub leftover: DurationNs,
}

impl Level {
    /// A level that nobody used for a period, or with a burst for two: a pool as full as it gets, nothing held locally. A level
    /// that is left alone is refilled twice before its timer stops, whatever it has (`do_sched_cfs_period_timer`).
    #[must_use]
    pub fn full(bandwidth: Bandwidth, to_refill: DurationNs) -> Self {
        Self { bandwidth, to_refill, pool: bandwidth.quota() + bandwidth.burst(), leftover: DurationNs::ZERO }
    }
}

/// How finely the kernel accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charging {
    /// `sched_cfs_bandwidth_slice_us`, 5 ms unless changed; `None`: runtime is drawn as it is used, nothing is held locally.
    pub slice: Option<DurationNs>,
    /// `None`: use is charged the instant a level runs out.
    pub tick: Option<Tick>,
}

/// The scheduler tick of the CPU the thread runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// 1 s / HZ.
    pub length: DurationNs,
    /// From the start to the first tick.
    pub to_first: DurationNs,
}

impl Charging {
    /// No slices, no tick: what the closed form assumes.
    pub const EXACT: Self = Self { slice: None, tick: None };
}

/// The kernel's default slice, `sysctl_sched_cfs_bandwidth_slice` in `kernel/sched/fair.c`.
pub const DEFAULT_SLICE: DurationNs = DurationNs::from_millis(5);
/// What a CPU keeps of its local pool when the group leaves it, `min_cfs_rq_runtime` in `kernel/sched/fair.c`.
pub const KEPT_LOCALLY: DurationNs = DurationNs::from_millis(1);

/// What became of the work. All times count from its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// Start to finish.
    pub wall: DurationNs,
    /// Every time the thread was throttled, in order.
    pub waits: Vec<Wait>,
    /// Per level, as given: refills that found it throttled, the growth of its `nr_throttled`.
    pub throttled_periods: Vec<u64>,
}

/// One stretch in which the thread could not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// When it was taken off.
    pub start: DurationNs,
    /// When the last of the levels was refilled.
    pub end: DurationNs,
    /// The levels that were out at the start; never empty.
    pub out: Vec<Out>,
}

/// A level that was out of quota in a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Out {
    /// Index in the chain as given.
    pub level: usize,
    /// When a refill brought it above zero: at most the end of the wait.
    pub refilled: DurationNs,
}

/// Runs `work` of CPU through the `levels`, in any order; none of them means no limit.
#[must_use]
pub fn simulate(work: DurationNs, levels: &[Level], charging: &Charging) -> Course {
    let mut chain = Chain::new(levels, charging);
    let Piece { end, waits, .. } = chain.work(work);
    Course { wall: end, waits, throttled_periods: chain.throttled_periods() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(length: u64) -> DurationNs {
        DurationNs::from_millis(length)
    }

    fn level(quota: u64, period: u64, to_refill: u64) -> Level {
        Level::full(Bandwidth::new(ms(quota), ms(period)).expect("valid"), ms(to_refill))
    }

    #[test]
    fn levels_that_run_out_together_are_waited_for_until_the_later_refill() {
        // 0 ####10............30..........50##55   both out at 10, refilled at 30 and at 50
        let course = simulate(ms(15), &[level(10, 100, 30), level(10, 100, 50)], &Charging::EXACT);
        let out = vec![Out { level: 0, refilled: ms(30) }, Out { level: 1, refilled: ms(50) }];
        assert_eq!(course.waits, [Wait { start: ms(10), end: ms(50), out }]);
        assert_eq!((course.wall, course.throttled_periods), (ms(55), vec![1, 1]));
    }

    #[test]
    fn only_the_level_that_is_out_is_named() {
        let course = simulate(ms(15), &[level(80, 100, 20), level(10, 100, 50)], &Charging::EXACT);
        assert_eq!(course.waits, [Wait { start: ms(10), end: ms(50), out: vec![Out { level: 1, refilled: ms(50) }] }]);
        assert_eq!(course.throttled_periods, [0, 1]);
    }

    #[test]
    fn debt_larger_than_the_quota_is_paid_over_several_periods() {
        // The tick at 4 ms finds 1 ms of quota overdrawn by 3: refills leave -2, -1, 0 and at last 1.
        let tick = Tick { length: ms(4), to_first: ms(4) };
        let charging = Charging { slice: Some(DEFAULT_SLICE), tick: Some(tick) };
        let course = simulate(ms(5), &[level(1, 100, 50)], &charging);
        let out = vec![Out { level: 0, refilled: ms(350) }];
        assert_eq!(course.waits, [Wait { start: ms(4), end: ms(350), out }]);
        assert_eq!((course.wall, course.throttled_periods), (ms(351), vec![4]));
    }

    #[test]
    fn what_is_left_locally_at_the_start_comes_before_the_pool() {
        let start = Level { leftover: ms(1), ..level(10, 100, 50) };
        let charging = Charging { slice: Some(DEFAULT_SLICE), tick: None };
        assert_eq!(simulate(ms(12), &[start], &charging).waits[0].start, ms(11));
    }

    #[test]
    fn a_level_that_is_not_out_keeps_one_millisecond_over_anothers_wait() {
        // The inner level runs 8 of every 10 ms. At 8 ms the outer one holds 2 ms of its second slice and keeps 1; its
        // refill at 9 tops the pool up to 20. It lasts for 21 ms more from 10 on: 10..18, 20..28, 30..35.
        let charging = Charging { slice: Some(DEFAULT_SLICE), tick: None };
        let course = simulate(ms(40), &[level(8, 10, 10), level(20, 100, 9)], &charging);
        let first_outer = course.waits.iter().find(|wait| wait.out.iter().any(|out| out.level == 1));
        assert_eq!(first_outer.map(|wait| (wait.start, wait.end)), Some((ms(35), ms(109))));
    }

    #[test]
    fn burst_lets_a_refill_add_to_an_unused_pool() {
        let plain = level(20, 100, 10);
        let bursting = Level { bandwidth: plain.bandwidth.with_burst(ms(5)).expect("at most the quota"), ..plain };
        // At 10 ms half the pool is left: topped up to 20, or to 25.
        assert_eq!(simulate(ms(50), &[plain], &Charging::EXACT).waits[0].start, ms(30));
        assert_eq!(simulate(ms(50), &[bursting], &Charging::EXACT).waits[0].start, ms(35));
    }
}
