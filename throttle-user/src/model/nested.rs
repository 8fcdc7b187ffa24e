//! One thread under a chain of quotas, simulated step by step as the kernel accounts it.
//!
//! Every level is charged the same CPU time, from a local pool that takes slices of the global one. A charge happens at
//! the tick, so a level is found empty late and the excess is debt. All levels found empty at that charge are out; the
//! thread goes on at the last of their refills (`kernel/sched/fair.c`: `account_cfs_rq_runtime`, `throttle_cfs_rq`,
//! `distribute_cfs_runtime`, `return_cfs_rq_runtime`). Same inputs, same result. No other thread takes part.

use serde::{Deserialize, Serialize};

use crate::model::bandwidth::Bandwidth;
use crate::model::signed;
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
    let slice = charging.slice.map(|slice| signed(slice).max(1));
    let tick = charging.tick.filter(|tick| tick.length > DurationNs::ZERO);
    let mut queues: Vec<Queue> = levels.iter().map(Queue::new).collect();
    let mut waits = Vec::new();
    let mut left = signed(work);
    let (mut now, mut charged) = (0, 0);
    for queue in &mut queues {
        queue.take(slice);
    }
    while left > 0 {
        if queues.iter().any(|queue| queue.throttled) {
            let (end, wait) = sit_out(now, &mut queues);
            waits.push(wait);
            (now, charged) = (end, end);
            continue;
        }
        let refill = queues.iter().map(|queue| queue.next_refill).min().unwrap_or(i64::MAX);
        let charge = match tick {
            Some(tick) => next_tick(&tick, now),
            None => queues.iter().map(|queue| charged + queue.until_empty(slice)).min().unwrap_or(i64::MAX),
        };
        let stop = (now + left).min(refill).min(charge);
        left -= stop - now;
        now = stop;
        // Drawing as used means drawing from the pool of before the refill.
        let charge_now = now == charge || (slice.is_none() && tick.is_none());
        if charge_now {
            queues.iter_mut().for_each(|queue| queue.local -= now - charged);
            charged = now;
        }
        if charge_now && slice.is_none() {
            queues.iter_mut().for_each(Queue::draw);
        }
        queues.iter_mut().filter(|queue| queue.next_refill == now).for_each(|queue| queue.refill(now));
        if charge_now {
            queues.iter_mut().for_each(|queue| queue.take(slice));
        }
    }
    Course {
        wall: unsigned(now),
        waits,
        throttled_periods: queues.iter().map(|queue| queue.throttled_periods).collect(),
    }
}

/// One level's accounts on the thread's CPU, in ns; times from the start.
struct Queue {
    quota: i64,
    period: i64,
    burst: i64,
    pool: i64,
    local: i64,
    next_refill: i64,
    throttled: bool,
    throttled_periods: u64,
    refilled: i64,
}

impl Queue {
    fn new(level: &Level) -> Self {
        Self {
            quota: signed(level.bandwidth.quota()),
            period: signed(level.bandwidth.period()),
            burst: signed(level.bandwidth.burst()),
            pool: signed(level.pool),
            local: signed(level.leftover),
            next_refill: signed(level.to_refill),
            throttled: false,
            throttled_periods: 0,
            refilled: 0,
        }
    }

    /// Run time until a charge would find this level empty.
    fn until_empty(&self, slice: Option<i64>) -> i64 {
        if slice.is_some() { self.local } else { self.local + self.pool }
    }

    /// Without slices: what was used beyond the local pool comes from the global one.
    fn draw(&mut self) {
        self.grant(-self.local);
    }

    /// Replenishes an empty local pool up to a slice, and throttles if that fails.
    fn take(&mut self, slice: Option<i64>) {
        if self.local <= 0 {
            self.grant(slice.unwrap_or(0) - self.local);
            self.throttled = self.until_empty(slice) <= 0;
        }
    }

    /// The period timer: tops the pool up, and pays a throttled queue's debt plus 1 ns if that lasts.
    fn refill(&mut self, now: i64) {
        self.pool = (self.pool + self.quota).min(self.quota + self.burst);
        self.next_refill += self.period;
        if self.throttled {
            self.throttled_periods += 1;
            self.grant(1 - self.local);
            self.throttled = self.local <= 0;
            self.refilled = now;
        }
    }

    /// The group leaves the CPU for another level's sake: all but 1 ms goes back to the pool. (A child of a throttled
    /// parent keeps its slice before 6.18, where the thread stays queued in it.)
    fn give_back(&mut self) {
        let excess = (self.local - signed(KEPT_LOCALLY)).max(0);
        self.local -= excess;
        self.pool += excess;
    }

    fn grant(&mut self, wanted: i64) {
        let granted = wanted.min(self.pool).max(0);
        self.pool -= granted;
        self.local += granted;
    }
}

/// Lets refills pass until no level is throttled any more.
fn sit_out(start: i64, queues: &mut [Queue]) -> (i64, Wait) {
    let out: Vec<usize> = (0..queues.len()).filter(|&level| queues[level].throttled).collect();
    queues.iter_mut().filter(|queue| !queue.throttled).for_each(Queue::give_back);
    let mut now = start;
    while queues.iter().any(|queue| queue.throttled) {
        now = queues.iter().map(|queue| queue.next_refill).min().unwrap_or(now);
        queues.iter_mut().filter(|queue| queue.next_refill == now).for_each(|queue| queue.refill(now));
    }
    let out = out.into_iter().map(|level| Out { level, refilled: unsigned(queues[level].refilled) }).collect();
    (now, Wait { start: unsigned(start), end: unsigned(now), out })
}

/// The first tick after `now`.
fn next_tick(tick: &Tick, now: i64) -> i64 {
    let (length, first) = (signed(tick.length), signed(tick.to_first));
    if now < first { first } else { first + ((now - first) / length + 1) * length }
}

fn unsigned(ns: i64) -> DurationNs {
    DurationNs(u64::try_from(ns).unwrap_or(0))
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
