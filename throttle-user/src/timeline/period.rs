//! One record a CFS period of a limited cgroup.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Setting, Timeline,
    boundary::Boundary,
    gap,
    interval::{Span, Spans, Steps},
    level::{EndedBy, Throttle},
    thread::State,
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
    /// Time on CPU of the cgroup's threads and its descendants'. Absent, as all that needs threads to be followed, where they are
    /// not: not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_ns: Option<DurationNs>,
    /// From the period's start to the first throttle in it; absent = quota not exhausted in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted_after_ns: Option<DurationNs>,
    /// Most threads on CPU at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_parallelism: Option<u32>,
    /// Throttles of the own quota.
    pub throttles: Vec<PeriodThrottle>,
    /// Time in which some CPU's queue was throttled by the own quota.
    pub throttled_wall_ns: DurationNs,
    /// Time in which some thread of the cgroup was held by a limit, its own or an ancestor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_wall_ns: Option<DurationNs>,
    /// Time in which threads were held and none of the cgroup ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fully_held_ns: Option<DurationNs>,
    /// Integral of min(idle CPUs, held threads): CPU time that was there and denied. Absent also where idle CPUs were not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_idle_ns: Option<DurationNs>,
    /// False: records were lost in it, or it is not known what some thread of the cgroup did.
    pub complete: bool,
}

impl PeriodRecord {
    /// The same without what needs threads to be followed: they were not, or not all the time.
    #[must_use]
    pub fn without_threads(self) -> Self {
        Self {
            used_ns: None,
            peak_parallelism: None,
            held_wall_ns: None,
            fully_held_ns: None,
            denied_idle_ns: None,
            ..self
        }
    }
}

/// Threads of a cgroup and its descendants: what ran, what was held.
pub struct Activity {
    running: Steps,
    held: Steps,
    held_union: Spans,
    stopped: Spans,
    /// When it was not known what some thread did.
    unknown: Spans,
}

impl Activity {
    /// Of the threads while they were in a cgroup whose path holds `cgroup`.
    #[must_use]
    pub fn of(timeline: &Timeline, setting: &Setting, cgroup: CgroupId) -> Self {
        let under = |leaf: CgroupId| setting.path(&leaf).contains(&cgroup);
        let (mut running, mut held, mut unknown) = (vec![], vec![], vec![]);
        for segment in timeline.threads.values().flat_map(|line| line.inside(under)) {
            match segment.state {
                State::Running { .. } => running.push(segment.span),
                State::Throttled { .. } => held.push(segment.span),
                State::Unknown => unknown.push(segment.span),
                State::Waiting { .. } | State::Blocked => {}
            }
        }
        let held_union = Spans::union(held.iter().copied());
        Self {
            stopped: held_union.minus(&Spans::union(running.iter().copied())),
            held_union,
            unknown: Spans::union(unknown),
            running: Steps::depth(running),
            held: Steps::depth(held),
        }
    }

    /// When some thread was held.
    #[must_use]
    pub fn held(&self) -> &Spans {
        &self.held_union
    }

    /// When threads were held and none ran.
    #[must_use]
    pub fn stopped(&self) -> &Spans {
        &self.stopped
    }

    /// Time on CPU inside a window.
    #[must_use]
    pub fn used(&self, window: Span) -> DurationNs {
        self.running.within(window).map(|(span, count)| times(span, count)).sum()
    }

    /// Time inside a window in which threads were held and none ran.
    #[must_use]
    pub fn fully_held(&self, window: Span) -> DurationNs {
        self.stopped.total_within(window)
    }

    /// Integral over a window of min(idle CPUs, held threads); `None` if idle CPUs were not measured, or not all the time.
    #[must_use]
    pub fn denied_idle(&self, timeline: &Timeline, window: Span) -> Option<DurationNs> {
        let idle = timeline.idle_cpus(window)?;
        let denied = |(span, held): (Span, u32)| {
            idle.within(span).map(|(span, idle)| times(span, idle.min(held))).sum::<DurationNs>()
        };
        Some(self.held.within(window).map(denied).sum())
    }

    fn peak(&self, window: Span) -> u32 {
        self.running.within(window).map(|(_, count)| count).max().unwrap_or(0)
    }
}

/// A span's length, as often as `count`.
fn times(span: Span, count: u32) -> DurationNs {
    DurationNs(span.length().0.saturating_mul(u64::from(count)))
}

/// A cgroup's own throttles on each CPU, in order; those of one CPU do not overlap.
struct OwnThrottles<'a>(BTreeMap<u32, Vec<&'a Throttle>>);

impl<'a> OwnThrottles<'a> {
    fn of(timeline: &'a Timeline, cgroup: CgroupId) -> Self {
        let mut cpus: BTreeMap<u32, Vec<&Throttle>> = BTreeMap::new();
        for throttle in timeline.throttles.iter().filter(|throttle| throttle.cgroup == cgroup) {
            cpus.entry(throttle.cpu).or_default().push(throttle);
        }
        Self(cpus)
    }

    /// Those that meet a window, in the order of their marks, clipped to it.
    fn within(&self, window: Span, end: MonoNs) -> Vec<(&'a Throttle, Span)> {
        let of_cpu = |throttles: &Vec<&'a Throttle>| {
            let first = throttles.partition_point(|throttle| throttle.span(end).end <= window.start);
            let last = throttles.partition_point(|throttle| throttle.marked < window.end).max(first);
            let clipped = throttles[first..last].iter().map(|&throttle| (throttle, throttle.span(end).clip(window)));
            clipped.filter(|(_, span)| !span.is_empty()).collect::<Vec<_>>()
        };
        let mut within: Vec<_> = self.0.values().flat_map(of_cpu).collect();
        within.sort_by_key(|(throttle, _)| (throttle.marked, throttle.cpu));
        within
    }

    /// The first mark in a window.
    fn first_mark(&self, window: Span) -> Option<MonoNs> {
        let of_cpu = |throttles: &Vec<&Throttle>| {
            let first = throttles.partition_point(|throttle| throttle.marked < window.start);
            throttles.get(first).map(|throttle| throttle.marked).filter(|&marked| window.contains(marked))
        };
        self.0.values().filter_map(of_cpu).min()
    }
}

/// Period records of one cgroup, one a boundary at which a quota was set.
#[must_use]
pub fn records(timeline: &Timeline, setting: &Setting, cgroup: CgroupId) -> Vec<PeriodRecord> {
    let recorder = Recorder::new(timeline, setting, cgroup);
    let counted = timeline.boundaries_of(cgroup).iter().filter(|boundary| is_counted(boundary));
    counted.zip(0..).map(|(boundary, index)| recorder.record(boundary, index)).collect()
}

/// Whether a boundary ends periods that the kernel counts.
pub(super) fn is_counted(boundary: &Boundary) -> bool {
    boundary.quota.is_some() && boundary.periods > 0
}

/// Makes the records of one cgroup.
pub(super) struct Recorder<'a> {
    timeline: &'a Timeline,
    cgroup: CgroupId,
    throttles: OwnThrottles<'a>,
    activity: Activity,
    /// Its threads are followed.
    followed: bool,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(timeline: &'a Timeline, setting: &Setting, cgroup: CgroupId) -> Self {
        Self {
            timeline,
            cgroup,
            throttles: OwnThrottles::of(timeline, cgroup),
            activity: Activity::of(timeline, setting, cgroup),
            followed: setting.follows_all_under(cgroup),
        }
    }

    /// The record of the period, or periods, that a boundary ends.
    pub(super) fn record(&self, boundary: &Boundary, index: u64) -> PeriodRecord {
        let Self { timeline, cgroup, ref throttles, ref activity, followed } = *self;
        // A late timer ends several periods at once; the cell runs from one period before its due point to its last one.
        let end = boundary.due + DurationNs((boundary.periods.saturating_sub(1)).saturating_mul(boundary.period.0));
        let start = MonoNs(boundary.due.0.saturating_sub(boundary.period.0));
        let window = Span::new(start, end);
        let within = throttles.within(window, timeline.end());
        let exhausted = throttles.first_mark(window);
        let throttles: Vec<PeriodThrottle> = within
            .iter()
            .map(|&(throttle, span)| PeriodThrottle {
                cpu: throttle.cpu,
                start_ns: span.start,
                end_ns: span.end,
                released_by: throttle
                    .ended_by
                    .filter(|_| throttle.end.is_some_and(|end| end <= window.end + RELEASE_SLOP)),
            })
            .collect();
        let wall = Spans::union(throttles.iter().map(|throttle| Span::new(throttle.start_ns, throttle.end_ns)));
        let seen_whole = timeline.span.is_some_and(|seen| seen.start <= window.start);
        let known = Span::new(window.start, known_from(timeline, boundary, cgroup));
        PeriodRecord {
            cgroup,
            index,
            start_ns: window.start,
            end_ns: window.end,
            periods: boundary.periods,
            quota_ns: boundary.quota,
            period_ns: boundary.period,
            burst_ns: boundary.burst,
            used_ns: followed.then(|| activity.used(window)),
            exhausted_after_ns: exhausted.map(|at| at.since(window.start)),
            peak_parallelism: followed.then(|| activity.peak(window)),
            throttled_wall_ns: wall.total(),
            held_wall_ns: followed.then(|| activity.held_union.total_within(window)),
            fully_held_ns: followed.then(|| activity.fully_held(window)),
            denied_idle_ns: activity.denied_idle(timeline, window).filter(|_| followed),
            complete: seen_whole
                && !boundary.truncated
                && !gap::touches(&timeline.lost, known)
                && timeline.unseen.within(window).next().is_none()
                && within.iter().all(|(throttle, _)| throttle.complete)
                && activity.unknown.within(window).next().is_none(),
            throttles,
        }
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
    let crossed = grid.cell(MonoNs(window.end.0 - 1)).saturating_sub(grid.cell(window.start)).saturating_add(1);
    // Held stretches may share a cell, with each other or with the next; they are in order.
    let (mut throttled, mut counted_to) = (0_i64, i64::MIN);
    for span in held.iter().filter(|span| !span.is_empty()) {
        let (first, last) =
            (grid.cell(span.start).max(counted_to), grid.cell(MonoNs(span.end.0 - 1)).saturating_add(1));
        throttled = throttled.saturating_add(last.saturating_sub(first).max(0));
        counted_to = last.max(counted_to);
    }
    (u32::try_from(crossed).unwrap_or(u32::MAX), u32::try_from(throttled).unwrap_or(u32::MAX))
}
