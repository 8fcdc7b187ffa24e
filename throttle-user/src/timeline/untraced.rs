//! Period timer runs that were not traced although they must have been there. Not every kernel fires every tracepoint.
//!
//! An armed timer runs at its next point, and stays armed if the group drew on its pool or is throttled: at the first run
//! without either it is marked idle, at the second it stops (kernel/sched/fair.c, `do_sched_cfs_period_timer`).

use std::collections::BTreeMap;

use super::{
    Setting,
    boundary::Boundary,
    interval::{Span, Spans},
    level::Throttle,
    thread::{State, ThreadLine},
};
use crate::{
    event::CgroupId,
    time::{DurationNs, MonoNs},
};

/// More runs in a row do not go untraced: a stamp is wrong. Seen were single ones, of tens of thousands.
const MOST_IN_A_ROW: usize = 1_000;
/// Cells of a grid that are looked at without a run in them, at most: an hour of the shortest period there is, 1 ms, without a rest.
const MOST_CELLS: u64 = 3_600_000;

/// Adds the missing runs to those seen; also returns the stretches in which more are missing than can be.
pub(super) fn add(seen: Vec<Boundary>, activity: &Activity, end: MonoNs) -> (Vec<Boundary>, Vec<Span>) {
    let mut all = Vec::with_capacity(seen.len());
    let mut broken = vec![];
    let mut cells = MOST_CELLS;
    let mut seen = seen.into_iter().peekable();
    while let Some(boundary) = seen.next() {
        let until = seen.peek().map_or(end, |next| next.due);
        let missing = missing(&boundary, activity, until, &mut cells);
        if missing.is_none() {
            broken.push(Span::new(boundary.due, until));
        }
        all.push(boundary);
        all.extend(missing.into_iter().flatten());
    }
    (all, broken)
}

/// The runs between one that was seen and `until`; `None` = more than can be.
fn missing(seen: &Boundary, activity: &Activity, until: MonoNs, cells: &mut u64) -> Option<Vec<Boundary>> {
    let mut found = vec![];
    let mut last = seen.clone();
    if last.period == DurationNs::ZERO || last.quota.is_none() {
        return Some(found);
    }
    // A run may come late, but within the period, else it would stand for more than one.
    let until = until + DurationNs(last.period.0 / 2);
    let mut idle = !last.throttled();
    loop {
        let due = last.next_due();
        if due + last.period > until || due == last.due {
            return Some(found);
        }
        *cells = cells.checked_sub(1)?;
        let drew = activity.drew(refill(&last), due);
        let throttled_cpus = activity.throttled_cpus(due);
        let armed = last.active || drew;
        let stays = armed && (drew || throttled_cpus > 0 || !idle);
        idle = throttled_cpus == 0;
        last = last.untraced(due, throttled_cpus, stays);
        if armed {
            found.push(last.clone());
            if found.len() > MOST_IN_A_ROW {
                return None;
            }
        } else {
            // Nothing happens before the next cell in which somebody is active.
            let Some(next) = activity.next(due) else { return Some(found) };
            let rest = next.since(due).0 / last.period.0;
            last.due = due + DurationNs(rest.saturating_mul(last.period.0));
        }
    }
}

/// From the point of the grid to when the pool was surely refilled: what was drawn before then is over.
fn refill(run: &Boundary) -> Span {
    Span::new(run.due, if run.inferred { run.due + LATE } else { run.exit })
}

/// A timer's run is over this long after its point, as a rule.
const LATE: DurationNs = DurationNs::from_millis(1);

/// A CPU may keep this much of a pool over any number of idle periods (kernel/sched/fair.c, `min_cfs_rq_runtime`).
const KEPT_LOCALLY: DurationNs = DurationNs::from_millis(1);
/// And this much as long as some thread of the group is runnable there (`sysctl_sched_cfs_bandwidth_slice`, the default).
const SLICE: DurationNs = DurationNs::from_millis(5);

/// A running thread is charged at least this often: at the tick, and `CONFIG_HZ` is 100 or more.
const TICK: DurationNs = DurationNs::from_millis(10);

/// What the rest of the timeline says about a group between its boundaries.
pub(super) struct Activity {
    /// The group's throttles on each CPU.
    throttled: BTreeMap<u32, Vec<Span>>,
    /// When each CPU ran the group's threads, in order, and how much of each stretch was charged to nobody.
    ran: BTreeMap<u32, Vec<(Span, DurationNs)>>,
    /// When each CPU had a thread of the group that ran or waited there, or may have had.
    runnable: BTreeMap<u32, Spans>,
}

impl Activity {
    pub(super) fn new(
        setting: &Setting,
        cgroup: CgroupId,
        throttles: &[Throttle],
        threads: &BTreeMap<u32, ThreadLine>,
        end: MonoNs,
    ) -> Self {
        let mut ran: BTreeMap<u32, Vec<(Span, DurationNs)>> = BTreeMap::new();
        let mut runnable: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
        let under = |leaf: CgroupId| setting.path(&leaf).contains(&cgroup);
        for segment in threads.values().flat_map(|line| line.inside(under)) {
            match segment.state {
                State::Running { cpu } => {
                    ran.entry(cpu).or_default().push((segment.span, segment.uncharged));
                    runnable.entry(cpu).or_default().push(segment.span);
                }
                State::Waiting { cpu } | State::Throttled { cpu } => {
                    runnable.entry(cpu).or_default().push(segment.span);
                }
                State::Unknown => {
                    (0..setting.cpus).for_each(|cpu| runnable.entry(cpu).or_default().push(segment.span));
                }
                State::Blocked => {}
            }
        }
        ran.values_mut().for_each(|spans| spans.sort_unstable());
        let mut throttled: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
        for throttle in throttles.iter().filter(|throttle| throttle.cgroup == cgroup) {
            throttled.entry(throttle.cpu).or_default().push(throttle.span(end));
        }
        throttled.values_mut().for_each(|spans| spans.sort_unstable());
        let runnable = runnable.into_iter().map(|(cpu, spans)| (cpu, Spans::union(spans))).collect();
        Self { throttled, ran, runnable }
    }

    /// What a CPU may have had left of an earlier pool after a refill. Whoever wakes up while the timer runs may have drawn just before.
    fn kept(&self, cpu: u32, refill: Span) -> DurationNs {
        let meanwhile = Span::new(MonoNs(refill.start.0.saturating_sub(1)), refill.end + DurationNs(1));
        let was_runnable = self.runnable.get(&cpu).is_some_and(|spans| spans.within(meanwhile).next().is_some());
        if was_runnable { SLICE } else { KEPT_LOCALLY }
    }

    /// CPUs that were throttled as the period that ends at `due` ended.
    fn throttled_cpus(&self, due: MonoNs) -> u32 {
        let at_due = |spans: &&Vec<Span>| {
            let before = spans.partition_point(|span| span.start < due);
            spans[..before].last().is_some_and(|last| due <= last.end)
        };
        u32::try_from(self.throttled.values().filter(at_due).count()).unwrap_or(u32::MAX)
    }

    /// Whether the group surely drew on its pool from a refill to the next point, so that its timer was armed.
    fn drew(&self, refill: Span, due: MonoNs) -> bool {
        let window = Span::new(refill.end, due);
        let began = |spans: &Vec<Span>| {
            let before = spans.partition_point(|span| span.start < window.start);
            spans.get(before).is_some_and(|next| next.start < window.end)
        };
        self.throttled.values().any(began)
            || self.ran.iter().any(|(&cpu, ran)| charged(ran, window) > self.kept(cpu, refill))
    }

    /// The first instant from `at` on at which the group ran or was throttled.
    fn next(&self, at: MonoNs) -> Option<MonoNs> {
        let ran = self.ran.values().filter_map(|spans| {
            let over = spans.partition_point(|(span, _)| span.end <= at);
            spans.get(over).map(|(span, _)| span.start.max(at))
        });
        let throttled = self.throttled.values().filter_map(|spans| {
            let over = spans.partition_point(|span| span.end <= at);
            spans.get(over).map(|span| span.start.max(at))
        });
        ran.chain(throttled).min()
    }
}

/// What of the time run in a window was surely charged in it: what ran on at its end perhaps not since the last tick, and what a
/// hypervisor took from a stretch may have been taken inside the window.
fn charged(ran: &[(Span, DurationNs)], window: Span) -> DurationNs {
    let first = ran.partition_point(|(span, _)| span.end <= window.start);
    let within = || ran[first..].iter().take_while(|(span, _)| span.start < window.end);
    let runs_on = within().last().is_some_and(|(span, _)| span.end >= window.end);
    let end = if runs_on { MonoNs(window.end.0.saturating_sub(TICK.0)) } else { window.end };
    let surely = Span::new(window.start, end);
    within().map(|(span, uncharged)| span.clip(surely).length().saturating_sub(*uncharged)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn run(due: u64, period: u64, active: bool) -> Boundary {
        let (due, period) = (MonoNs(due), DurationNs(period));
        Boundary {
            due,
            entry: due,
            exit: due,
            periods: 1,
            quota: Some(DurationNs(period.0 / 2)),
            period,
            burst: DurationNs::ZERO,
            pool_left: DurationNs::ZERO,
            throttled_cpus: 0,
            marked_cpus: 0,
            truncated: false,
            active,
            inferred: false,
            kernel: None,
        }
    }

    fn running(from: u64, to: u64) -> Activity {
        let span = Span::new(MonoNs(from), MonoNs(to));
        Activity {
            throttled: BTreeMap::new(),
            ran: BTreeMap::from([(0, vec![(span, DurationNs::ZERO)])]),
            runnable: BTreeMap::from([(0, Spans::union([span]))]),
        }
    }

    #[test]
    fn a_stamp_at_the_end_of_time_breaks_the_recording_there_and_nothing_else() {
        let seen = vec![run(MS, MS, true), run(u64::MAX - 5, MS, true)];
        let (all, broken) = add(seen.clone(), &running(0, u64::MAX), MonoNs(u64::MAX));
        assert_eq!(all, seen);
        assert_eq!(broken.first(), Some(&Span::new(MonoNs(MS), MonoNs(u64::MAX - 5))));
    }

    #[test]
    fn a_period_too_short_to_be_true_ends_the_search() {
        let seen = vec![run(MS, 1, false), run(u64::MAX / 2, 1, false)];
        let (all, broken) = add(seen, &running(2 * MS, u64::MAX / 2), MonoNs(u64::MAX));
        assert_eq!((all.len(), broken.len()), (2, 2));
    }

    #[test]
    fn a_rest_of_a_year_costs_no_search_and_hides_nothing() {
        let year = 365 * 86_400_000 * MS;
        let seen = vec![run(100 * MS, 100 * MS, false), run(year + 1_000 * MS, 100 * MS, true)];
        // It drew long before the timer was seen again: in three periods, and at the fourth point the timer stops.
        let (all, broken) = add(seen, &running(year + 100 * MS, year + 400 * MS), MonoNs(year + 1_000 * MS));
        assert_eq!(broken, []);
        let due: Vec<u64> = all.iter().filter(|run| run.inferred).map(|run| (run.due.0 - year) / MS).collect();
        assert_eq!(due, [200, 300, 400, 500]);
    }

    #[test]
    fn time_that_a_hypervisor_took_draws_on_no_pool() {
        let seen = || vec![run(100 * MS, 100 * MS, false), run(500 * MS, 100 * MS, true)];
        let mut activity = running(210 * MS, 216 * MS);
        let inferred = |activity: &Activity| add(seen(), activity, MonoNs(500 * MS)).0.len() - 2;
        assert_eq!(inferred(&activity), 2);
        activity.ran.values_mut().flatten().for_each(|(_, uncharged)| *uncharged = DurationNs(5 * MS + 1));
        assert_eq!(inferred(&activity), 0);
    }

    #[test]
    fn one_run_missing_between_two_is_put_back() {
        let seen = vec![run(MS, MS, true), run(3 * MS, MS, true)];
        let (all, broken) = add(seen, &running(0, 3 * MS), MonoNs(3 * MS));
        assert_eq!(
            all.iter().map(|run| (run.due.0 / MS, run.inferred)).collect::<Vec<_>>(),
            [(1, false), (2, true), (3, false)]
        );
        assert_eq!(broken, []);
    }
}
