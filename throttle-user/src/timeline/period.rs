//! One record a CFS period of a limited cgroup.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    Setting, Timeline,
    boundary::Boundary,
    gap,
    interval::{Span, Spans, depth},
    level::EndedBy,
};
use crate::{
    event::CgroupId,
    time::{DurationNs, MonoNs},
};

/// A throttle of the cgroup's own quota on one CPU, clipped to the period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodThrottle {
    /// The CPU.
    pub cpu: u32,
    /// From the mark, or from the period's start.
    pub start_ns: MonoNs,
    /// To the release, or to the period's end.
    pub end_ns: MonoNs,
    /// What released it; absent when it lasted beyond the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_by: Option<EndedBy>,
}

/// What happened between two refills of a cgroup's quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodRecord {
    /// The cgroup.
    pub cgroup: CgroupId,
    /// Number of the boundary that ends it, from 0 within the recording.
    pub index: u64,
    /// Grid point it starts at, `CLOCK_MONOTONIC` ns.
    pub start_ns: MonoNs,
    /// Grid point it ends at.
    pub end_ns: MonoNs,
    /// Periods it stands for: more than 1 when the timer came late.
    pub periods: u64,
    /// Quota; absent = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_ns: Option<DurationNs>,
    /// Period.
    pub period_ns: DurationNs,
    /// Burst.
    pub burst_ns: DurationNs,
    /// Time on CPU of the cgroup's threads and its descendants'.
    pub used_ns: DurationNs,
    /// From the period's start to the first throttle in it; absent = quota not exhausted in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted_after_ns: Option<DurationNs>,
    /// Most threads on CPU at once.
    pub peak_parallelism: u32,
    /// Throttles of the own quota.
    pub throttles: Vec<PeriodThrottle>,
    /// Time in which some CPU's queue was throttled by the own quota.
    pub throttled_wall_ns: DurationNs,
    /// Time in which some thread of the cgroup was held by a limit, its own or an ancestor's.
    pub held_wall_ns: DurationNs,
    /// Time in which threads were held and none of the cgroup ran.
    pub fully_held_ns: DurationNs,
    /// Integral of min(idle CPUs, held threads): CPU time that was there and denied. Absent = idle CPUs not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_idle_ns: Option<DurationNs>,
    /// False: records were lost in it, or it is not known what some thread of the cgroup did.
    pub complete: bool,
}

/// Threads of a cgroup and its descendants: what ran, what was held.
pub struct Activity {
    running: Vec<Span>,
    ran: Spans,
    held: Vec<Span>,
    held_union: Spans,
    /// When it was not known what some thread did.
    unknown: Spans,
}

impl Activity {
    /// Of the threads whose path holds `cgroup`.
    #[must_use]
    pub fn of(timeline: &Timeline, setting: &Setting, cgroup: CgroupId) -> Self {
        let lines = timeline.threads.values().filter(|line| setting.path(&line.cgroup).contains(&cgroup));
        let (mut running, mut held, mut unknown) = (vec![], vec![], vec![]);
        for line in lines {
            unknown.extend(line.unknown());
            running.extend(line.running().map(|(_, span)| span));
            held.extend(line.throttled().map(|(_, span)| span));
        }
        running.sort_unstable();
        held.sort_unstable();
        Self {
            ran: Spans::union(running.iter().copied()),
            held_union: Spans::union(held.iter().copied()),
            unknown: Spans::union(unknown),
            running,
            held,
        }
    }

    /// When some thread was held.
    #[must_use]
    pub fn held(&self) -> &Spans {
        &self.held_union
    }

    /// When threads were held and none ran.
    #[must_use]
    pub fn stopped(&self) -> Spans {
        self.held_union.minus(&self.ran)
    }

    /// Time on CPU inside a window.
    #[must_use]
    pub fn used(&self, window: Span) -> DurationNs {
        clipped(&self.running, window).map(Span::length).sum()
    }

    /// Time inside a window in which threads were held and none ran.
    #[must_use]
    pub fn fully_held(&self, window: Span) -> DurationNs {
        let held: DurationNs = self.held_union.total_within(window);
        let both: DurationNs = self.held_union.within(window).map(|span| self.ran.total_within(span)).sum();
        held - both
    }

    /// Integral over a window of min(idle CPUs, held threads); `None` if idle CPUs were not measured, or not all the time.
    #[must_use]
    pub fn denied_idle(&self, timeline: &Timeline, window: Span) -> Option<DurationNs> {
        if timeline.idle.is_empty() || timeline.idle_unknown.within(window).next().is_some() {
            return None;
        }
        let held = depth(clipped(&self.held, window));
        let idle: Vec<_> = held
            .windows(2)
            .filter(|pair| pair[0].1 > 0)
            .map(|pair| {
                let span = Span::new(pair[0].0, pair[1].0);
                let steps = depth(timeline.idle.values().flat_map(|spans| spans.within(span)));
                steps
                    .windows(2)
                    .map(|step| step[1].0.since(step[0].0).0 * u64::from(step[0].1.min(pair[0].1)))
                    .sum::<u64>()
            })
            .collect();
        Some(DurationNs(idle.into_iter().sum()))
    }

    fn peak(&self, window: Span) -> u32 {
        depth(clipped(&self.running, window)).into_iter().map(|(_, count)| count).max().unwrap_or(0)
    }
}

/// Spans (sorted by start) clipped to a window. Spans of different threads overlap, so the scan starts at the first.
fn clipped(spans: &[Span], window: Span) -> impl Iterator<Item = Span> + '_ {
    let last = spans.partition_point(|span| span.start < window.end);
    spans[..last].iter().map(move |span| span.clip(window)).filter(|span| !span.is_empty())
}

/// Period records of one cgroup, one a boundary at which a quota was set.
#[must_use]
pub fn records(timeline: &Timeline, setting: &Setting, cgroup: CgroupId) -> Vec<PeriodRecord> {
    let activity = Activity::of(timeline, setting, cgroup);
    timeline
        .boundaries_of(cgroup)
        .iter()
        .filter(|boundary| boundary.quota.is_some() && boundary.periods > 0)
        .zip(0..)
        .map(|(boundary, index)| record(timeline, boundary, index, cgroup, &activity))
        .collect()
}

fn record(timeline: &Timeline, boundary: &Boundary, index: u64, cgroup: CgroupId, activity: &Activity) -> PeriodRecord {
    // A late timer ends several periods at once; the cell runs from one period before its due point to its last one.
    let end = boundary.due + DurationNs((boundary.periods - 1) * boundary.period.0);
    let start = MonoNs(boundary.due.0.saturating_sub(boundary.period.0));
    let window = Span::new(start, end);
    let within: Vec<_> = timeline
        .throttles
        .iter()
        .filter(|throttle| throttle.cgroup == cgroup)
        .map(|throttle| (throttle, throttle.span(timeline.end()).clip(window)))
        .filter(|(_, span)| !span.is_empty())
        .collect();
    let throttles: Vec<PeriodThrottle> = within
        .iter()
        .map(|&(throttle, span)| PeriodThrottle {
            cpu: throttle.cpu,
            start_ns: span.start,
            end_ns: span.end,
            released_by: throttle.ended_by.filter(|_| throttle.end.is_some_and(|end| end <= window.end + RELEASE_SLOP)),
        })
        .collect();
    let exhausted = timeline
        .throttles
        .iter()
        .filter(|throttle| throttle.cgroup == cgroup && window.contains(throttle.marked))
        .map(|throttle| throttle.marked)
        .min();
    let wall = Spans::union(throttles.iter().map(|throttle| Span::new(throttle.start_ns, throttle.end_ns)));
    let seen_whole = timeline.span.is_some_and(|seen| seen.start <= window.start);
    PeriodRecord {
        cgroup,
        index,
        start_ns: window.start,
        end_ns: window.end,
        periods: boundary.periods,
        quota_ns: boundary.quota,
        period_ns: boundary.period,
        burst_ns: boundary.burst,
        used_ns: activity.used(window),
        exhausted_after_ns: exhausted.map(|at| at.since(window.start)),
        peak_parallelism: activity.peak(window),
        throttled_wall_ns: wall.total(),
        held_wall_ns: activity.held_union.total_within(window),
        fully_held_ns: activity.fully_held(window),
        denied_idle_ns: activity.denied_idle(timeline, window),
        complete: seen_whole
            && !boundary.truncated
            && !gap::touches(&timeline.gaps, Span::new(window.start, known_from(timeline, boundary, cgroup)))
            && within.iter().all(|(throttle, _)| throttle.complete)
            && activity.unknown.within(window).next().is_none(),
        throttles,
    }
}

/// When it was known that a period had ended: at the run of its timer, or, if that was not traced, at the next one.
fn known_from(timeline: &Timeline, boundary: &Boundary, cgroup: CgroupId) -> MonoNs {
    let boundaries = timeline.boundaries_of(cgroup);
    let later = boundaries.partition_point(|other| other.due < boundary.due);
    boundaries[later..].iter().find(|other| !other.inferred).map_or(timeline.end(), |next| next.exit)
}

/// The release follows the grid point by the timer's latency; later than this it belongs to another period.
pub const RELEASE_SLOP: DurationNs = DurationNs::from_millis(1);

/// Grid cells of a cgroup in which a thread was held: (cells crossed by the window, cells with held time).
#[must_use]
pub fn cells_crossed(grid: super::boundary::Grid, window: Span, held: &[Span]) -> (u32, u32) {
    if window.is_empty() {
        return (0, 0);
    }
    let crossed = grid.cell(MonoNs(window.end.0 - 1)) - grid.cell(window.start) + 1;
    let throttled: BTreeSet<i64> = held
        .iter()
        .filter(|span| !span.is_empty())
        .flat_map(|span| grid.cell(span.start)..=grid.cell(MonoNs(span.end.0 - 1)))
        .collect();
    (u32::try_from(crossed).unwrap_or(u32::MAX), u32::try_from(throttled.len()).unwrap_or(u32::MAX))
}
