//! The smallest limit that would have let a group run without being throttled.
//!
//! A group is never throttled if its CPU use between two refills stays within the quota. The grid of refills may lie
//! anywhere, so the safe quota is the largest use in any window of one period's length.

use serde::{Deserialize, Serialize};

use crate::model::nested::DEFAULT_SLICE;
use crate::time::{DurationNs, MonoNs};

/// What one thread did for one request (or over any stretch with a fixed start).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadUse {
    /// When it was on a CPU: (start, end), ascending, disjoint.
    pub on_cpu: Vec<(MonoNs, MonoNs)>,
    /// When it was throttled: (start, end), ascending, disjoint from each other and from `on_cpu`.
    pub throttled: Vec<(MonoNs, MonoNs)>,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallestLimit {
    /// Window and period the answer holds for.
    pub period: DurationNs,
    /// Largest CPU use in any window: the smallest quota that is safe at any phase.
    pub quota: DurationNs,
    /// The quota as a Kubernetes limit, rounded up to a whole millicore.
    pub limit_millicores: u64,
    /// Most threads on CPUs at one instant.
    pub peak_threads: u64,
    /// Set if slices alone may still throttle the group at that quota.
    pub caveat: Option<SliceCaveat>,
}

/// Each CPU takes a whole slice at once, so with many waking together the first ones can empty the pool although the use
/// is below the quota (`kernel/sched/fair.c`, `__assign_cfs_rq_runtime`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceCaveat {
    /// Quota that covers a slice for each of the peak threads.
    pub quota: DurationNs,
    /// The same as a limit, rounded up.
    pub limit_millicores: u64,
}

/// The smallest limit for `threads` at `period`, as if none had been throttled: each thread's own throttled time is cut out
/// of its course, so what it ran afterwards moves forward to where it would have run. `None` if nothing ran or the
/// period is zero.
#[must_use]
pub fn smallest_limit(threads: &[ThreadUse], period: DurationNs) -> Option<SmallestLimit> {
    if period == DurationNs::ZERO {
        return None;
    }
    let intervals: Vec<(MonoNs, MonoNs)> = threads.iter().flat_map(without_throttling).collect();
    let steps = Steps::new(&intervals);
    let quota = steps.largest_use(period.0);
    if quota == 0 {
        return None;
    }
    let peak_threads = steps.running.iter().copied().max().unwrap_or(0);
    let for_slices = DEFAULT_SLICE.0 * peak_threads;
    let caveat = (peak_threads > 1 && quota < for_slices)
        .then(|| SliceCaveat { quota: DurationNs(for_slices), limit_millicores: millicores(for_slices, period) });
    let limit_millicores = millicores(quota, period);
    Some(SmallestLimit { period, quota: DurationNs(quota), limit_millicores, peak_threads, caveat })
}

/// The thread's CPU intervals with the throttled time before each cut out.
fn without_throttling(thread: &ThreadUse) -> Vec<(MonoNs, MonoNs)> {
    let mut throttled = thread.throttled.iter().peekable();
    let mut cut = 0;
    let mut moved = Vec::with_capacity(thread.on_cpu.len());
    for &(start, end) in &thread.on_cpu {
        while let Some((from, to)) = throttled.next_if(|(from, _)| *from < start) {
            cut += to.since(*from).0;
        }
        moved.push((MonoNs(start.0.saturating_sub(cut)), MonoNs(end.0.saturating_sub(cut))));
    }
    moved
}

/// CPU use over time: how many threads run between one edge and the next.
struct Steps {
    /// Instants at which the number changes, ascending.
    edges: Vec<u64>,
    /// Threads running from each edge to the next; 0 after the last.
    running: Vec<u64>,
    /// CPU time used before each edge.
    used: Vec<u64>,
}

impl Steps {
    fn new(intervals: &[(MonoNs, MonoNs)]) -> Self {
        let mut changes: Vec<(u64, bool)> = intervals
            .iter()
            .filter(|(start, end)| end > start)
            .flat_map(|(start, end)| [(start.0, true), (end.0, false)])
            .collect();
        changes.sort_unstable();
        let mut steps = Self { edges: Vec::new(), running: Vec::new(), used: Vec::new() };
        let (mut running, mut used, mut last) = (0, 0, 0);
        for (at, starts) in changes {
            used += running * (at - last);
            // Ends sort before starts at the same instant, so the number never counts both.
            running = if starts { running + 1 } else { running - 1 };
            last = at;
            if steps.edges.last() == Some(&at) {
                steps.running.pop();
                steps.running.push(running);
            } else {
                steps.edges.push(at);
                steps.running.push(running);
                steps.used.push(used);
            }
        }
        steps
    }

    /// Largest use in any window of `length`. Use in a window changes linearly while neither end meets an edge, so the
    /// largest is found with an edge at one of the ends.
    fn largest_use(&self, length: u64) -> u64 {
        let (mut ahead, mut behind) = (0, 0);
        let mut largest = 0;
        for (&edge, &used) in self.edges.iter().zip(&self.used) {
            largest = largest.max(self.used_before(edge.saturating_add(length), &mut ahead) - used);
            largest = largest.max(used - self.used_before(edge.saturating_sub(length), &mut behind));
        }
        largest
    }

    /// CPU time used before `at`; `cursor` only moves forward, `at` must not go back.
    fn used_before(&self, at: u64, cursor: &mut usize) -> u64 {
        while self.edges.get(*cursor + 1).is_some_and(|&edge| edge <= at) {
            *cursor += 1;
        }
        let since = at.saturating_sub(self.edges[*cursor]);
        self.used[*cursor] + self.running[*cursor] * since
    }
}

fn millicores(quota: u64, period: DurationNs) -> u64 {
    u64::try_from((u128::from(quota) * 1000).div_ceil(u128::from(period.0))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(at: u64) -> MonoNs {
        MonoNs(at * 1_000_000)
    }

    fn thread(on_cpu: &[(u64, u64)], throttled: &[(u64, u64)]) -> ThreadUse {
        let stamps = |spans: &[(u64, u64)]| spans.iter().map(|&(from, to)| (ms(from), ms(to))).collect();
        ThreadUse { on_cpu: stamps(on_cpu), throttled: stamps(throttled) }
    }

    const PERIOD: DurationNs = DurationNs::from_millis(100);

    #[test]
    fn one_request_a_second_needs_its_work_as_quota() {
        let requests = [thread(&[(0, 60)], &[]), thread(&[(1_000, 1_061)], &[])];
        let seen = smallest_limit(&requests, PERIOD).expect("something ran");
        assert_eq!((seen.quota, seen.limit_millicores, seen.caveat), (DurationNs::from_millis(61), 610, None));
    }

    #[test]
    fn a_throttled_request_is_judged_by_what_it_wanted_and_not_by_what_it_got() {
        let throttled = thread(&[(0, 20), (80, 100), (180, 200)], &[(20, 80), (100, 180)]);
        let seen = smallest_limit(std::slice::from_ref(&throttled), PERIOD).expect("something ran");
        assert_eq!(seen.limit_millicores, 600);
        let as_it_ran = ThreadUse { throttled: Vec::new(), ..throttled };
        assert_eq!(smallest_limit(&[as_it_ran], PERIOD).map(|seen| seen.limit_millicores), Some(400));
    }

    #[test]
    fn a_limit_is_rounded_up_to_the_next_millicore() {
        let one_ns_more = ThreadUse { on_cpu: vec![(MonoNs(0), MonoNs(10_000_001))], throttled: Vec::new() };
        assert_eq!(smallest_limit(&[one_ns_more], PERIOD).map(|seen| seen.limit_millicores), Some(101));
    }

    #[test]
    fn many_short_threads_at_once_need_a_slice_each() {
        let fan_out: Vec<ThreadUse> = (0..8).map(|_| thread(&[(10, 12)], &[])).collect();
        let seen = smallest_limit(&fan_out, PERIOD).expect("something ran");
        assert_eq!((seen.limit_millicores, seen.peak_threads), (160, 8));
        assert_eq!(seen.caveat, Some(SliceCaveat { quota: DurationNs::from_millis(40), limit_millicores: 400 }));
    }

    #[test]
    fn nothing_run_gives_no_limit() {
        assert_eq!(smallest_limit(&[], PERIOD), None);
        assert_eq!(smallest_limit(&[thread(&[(5, 5)], &[])], PERIOD), None);
        assert_eq!(smallest_limit(&[thread(&[(5, 6)], &[])], DurationNs::ZERO), None);
    }

    proptest! {
        #[test]
        fn the_largest_use_is_the_one_found_by_trying_every_window(
            spans in prop::collection::vec((0u64..60, 1u64..20), 1..12), period in 1u64..40,
        ) {
            let intervals: Vec<_> = spans.iter().map(|&(at, length)| (MonoNs(at), MonoNs(at + length))).collect();
            let in_window = |from: i64| -> i64 {
                let to = from + period.cast_signed();
                intervals.iter().map(|(start, end)| {
                    (end.0.cast_signed().min(to) - start.0.cast_signed().max(from)).max(0)
                }).sum()
            };
            let tried = (-40..90).map(in_window).max().expect("windows");
            prop_assert_eq!(Steps::new(&intervals).largest_use(period).cast_signed(), tried);
            let answer = smallest_limit(
                &intervals.iter().map(|&span| ThreadUse { on_cpu: vec![span], throttled: Vec::new() }).collect::<Vec<_>>(),
                DurationNs(period),
            ).expect("something ran");
            prop_assert!(answer.limit_millicores * period >= answer.quota.0 * 1000);
            prop_assert!((answer.limit_millicores - 1) * period < answer.quota.0 * 1000);
        }
    }
}
