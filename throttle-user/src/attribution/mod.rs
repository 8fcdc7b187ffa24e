//! Requests over the timeline: where each one's wall time went.
//!
//! A request's window is tiled by the states of its thread; the shares sum to the wall time to the nanosecond, and what is
//! not known is shown as `unknown`, never spread.

#[cfg(test)]
mod properties;

use std::{iter::Sum, ops::Add};

use serde::{Deserialize, Serialize};

use crate::{
    event::CgroupId,
    request::{ServerSpan, WorkerSpan},
    time::{DurationNs, MonoNs},
    timeline::{
        Setting, Timeline,
        boundary::Grid,
        interval::{Span, Spans},
        period::cells_crossed,
        thread::State,
    },
};

/// Where a stretch of wall time went. The six parts sum to it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// On a CPU.
    pub on_cpu_ns: DurationNs,
    /// Held while the own cgroup was out of quota on that CPU (an ancestor may have been as well).
    pub throttled_own_ns: DurationNs,
    /// Held while only ancestors were out of quota.
    pub throttled_ancestor_ns: DurationNs,
    /// Runnable and not held: waiting for a CPU, be it in the run queue or while a hypervisor had taken the CPU away.
    pub runqueue_ns: DurationNs,
    /// Asleep.
    pub blocked_ns: DurationNs,
    /// Not known.
    pub unknown_ns: DurationNs,
    /// Part of `runqueue_ns`: on a CPU by the switches, and charged to nobody by the scheduler (steal; interrupts where the kernel
    /// accounts for them). A thread's own CPU clock leaves it out as well.
    pub uncharged_ns: DurationNs,
}

impl Shares {
    /// Sum of the six parts.
    #[must_use]
    pub fn total(&self) -> DurationNs {
        let Self {
            on_cpu_ns,
            throttled_own_ns,
            throttled_ancestor_ns,
            runqueue_ns,
            blocked_ns,
            unknown_ns,
            uncharged_ns: _,
        } = *self;
        [on_cpu_ns, throttled_own_ns, throttled_ancestor_ns, runqueue_ns, blocked_ns, unknown_ns].into_iter().sum()
    }

    /// Held by any limit.
    #[must_use]
    pub fn throttled(&self) -> DurationNs {
        self.throttled_own_ns + self.throttled_ancestor_ns
    }
}

impl Add for Shares {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let Self {
            on_cpu_ns,
            throttled_own_ns,
            throttled_ancestor_ns,
            runqueue_ns,
            blocked_ns,
            unknown_ns,
            uncharged_ns,
        } = other;
        Self {
            on_cpu_ns: self.on_cpu_ns + on_cpu_ns,
            throttled_own_ns: self.throttled_own_ns + throttled_own_ns,
            throttled_ancestor_ns: self.throttled_ancestor_ns + throttled_ancestor_ns,
            runqueue_ns: self.runqueue_ns + runqueue_ns,
            blocked_ns: self.blocked_ns + blocked_ns,
            unknown_ns: self.unknown_ns + unknown_ns,
            uncharged_ns: self.uncharged_ns + uncharged_ns,
        }
    }
}

impl Sum for Shares {
    fn sum<I: Iterator<Item = Self>>(shares: I) -> Self {
        shares.fold(Self::default(), Add::add)
    }
}

/// One worker's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerShare {
    /// The worker as it saw itself.
    #[serde(flatten)]
    pub worker: WorkerSpan,
    /// From its start to its finish.
    pub wall_ns: DurationNs,
    /// Where that went.
    #[serde(flatten)]
    pub shares: Shares,
}

/// One request, explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestShare {
    /// First start to last finish.
    pub wall_ns: DurationNs,
    /// Where it went, along the critical path: the worker that finished last.
    #[serde(flatten)]
    pub shares: Shares,
    /// Time during which the own cgroup and an ancestor were out of quota together; part of `throttled_own_ns`.
    pub throttled_both_ns: DurationNs,
    /// Periods of the own cgroup that the request touched; absent = no limit, or no boundary seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub periods: Option<u32>,
    /// Of those, periods in which it was held; 0 without a limit.
    pub throttled_periods: u32,
    /// Time from the last refill of the own cgroup to the request's start; absent as `periods`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_ns: Option<DurationNs>,
    /// For each limited level, leaf first: time from the request's start to the level's next refill.
    pub to_refill_ns: Vec<Option<DurationNs>>,
    /// CPU time of all workers by their own clocks.
    pub cpu_time_ns: DurationNs,
    /// Thread of the critical path.
    pub critical_tid: u32,
    /// Every worker.
    pub workers: Vec<WorkerShare>,
    /// No records were lost in the window and nothing is unknown, of any worker.
    pub complete: bool,
}

/// A timeline made ready to be asked about many requests.
pub struct Attribution<'a> {
    timeline: &'a Timeline,
    /// Path of the cgroup the requests run in, leaf first.
    path: &'a [CgroupId],
    /// Marks of each level of the path on each CPU.
    marks: Vec<std::collections::BTreeMap<u32, Spans>>,
}

impl<'a> Attribution<'a> {
    /// For requests served by threads of `leaf`.
    #[must_use]
    pub fn new(timeline: &'a Timeline, setting: &'a Setting, leaf: &'a CgroupId) -> Self {
        let path = setting.path(leaf);
        let marks = path.iter().map(|&level| marks(timeline, level)).collect();
        Self { timeline, path, marks }
    }

    /// Explains one request; `None` if it has no worker.
    #[must_use]
    pub fn explain(&self, request: &ServerSpan) -> Option<RequestShare> {
        let critical = request.critical()?;
        let window = Span::new(request.started_ns, request.finished_ns);
        let (shares, held) = self.tile(critical.tid, window);
        let own = self.grid(0, window.start);
        let (periods, throttled_periods) = own.map_or((None, 0), |grid| {
            let (crossed, throttled) = cells_crossed(grid, window, &held);
            (Some(crossed), throttled)
        });
        let lost = self.timeline.gaps.iter().any(|gap| gap.span.start < window.end && window.start < gap.span.end);
        let workers: Vec<WorkerShare> = request.workers.iter().map(|worker| self.worker(worker)).collect();
        let unknown = workers.iter().map(|worker| worker.shares.unknown_ns).sum::<DurationNs>() + shares.unknown_ns;
        Some(RequestShare {
            wall_ns: window.length(),
            throttled_both_ns: self.both(critical.tid, window),
            periods,
            throttled_periods,
            phase_ns: own.map(|grid| grid.phase(window.start)),
            to_refill_ns: (0..self.path.len())
                .map(|level| self.grid(level, window.start).map(|grid| grid.to_next(window.start)))
                .collect(),
            cpu_time_ns: request.cpu_time(),
            critical_tid: critical.tid,
            workers,
            complete: !lost && unknown == DurationNs::ZERO,
            shares,
        })
    }

    fn worker(&self, worker: &WorkerSpan) -> WorkerShare {
        let window = Span::new(worker.started_ns, worker.finished_ns);
        let (shares, _) = self.tile(worker.tid, window);
        WorkerShare { worker: worker.clone(), wall_ns: window.length(), shares }
    }

    /// Tiles a thread's window, with `unknown` where nothing is known of the thread; also returns the stretches in which it
    /// was held.
    #[must_use]
    pub fn tile(&self, thread: u32, window: Span) -> (Shares, Vec<Span>) {
        let mut shares = Shares::default();
        let mut held = vec![];
        let mut covered = DurationNs::ZERO;
        for segment in self.timeline.threads.get(&thread).into_iter().flat_map(|line| line.within(window)) {
            let length = segment.span.length();
            covered += length;
            match segment.state {
                State::Running { .. } => {
                    shares.on_cpu_ns += length - segment.uncharged;
                    shares.runqueue_ns += segment.uncharged;
                    shares.uncharged_ns += segment.uncharged;
                }
                State::Waiting { .. } => shares.runqueue_ns += length,
                State::Blocked => shares.blocked_ns += length,
                State::Unknown => shares.unknown_ns += length,
                State::Throttled { cpu } => {
                    held.push(segment.span);
                    let own = self.marked(0, cpu, segment.span);
                    shares.throttled_own_ns += own;
                    shares.throttled_ancestor_ns += length - own;
                }
            }
        }
        shares.unknown_ns += window.length() - covered;
        (shares, held)
    }

    fn marked(&self, level: usize, cpu: u32, window: Span) -> DurationNs {
        self.marks
            .get(level)
            .and_then(|cpus| cpus.get(&cpu))
            .map_or(DurationNs::ZERO, |spans| spans.total_within(window))
    }

    fn both(&self, thread: u32, window: Span) -> DurationNs {
        let segments = self.timeline.threads.get(&thread).into_iter().flat_map(|line| line.within(window));
        segments
            .map(|segment| match segment.state {
                State::Throttled { cpu } => {
                    let on_cpu = |level: usize| self.marks.get(level).and_then(|cpus| cpus.get(&cpu));
                    let above = Spans::union(
                        (1..self.path.len()).filter_map(on_cpu).flat_map(|spans| spans.within(segment.span)),
                    );
                    let own = Spans::union(on_cpu(0).into_iter().flat_map(|spans| spans.within(segment.span)));
                    own.intersect(&above).total()
                }
                _ => DurationNs::ZERO,
            })
            .sum()
    }

    fn grid(&self, level: usize, at: MonoNs) -> Option<Grid> {
        Grid::at(self.timeline.boundaries_of(*self.path.get(level)?), at)
    }
}

/// Marks of a level on each CPU.
fn marks(timeline: &Timeline, level: CgroupId) -> std::collections::BTreeMap<u32, Spans> {
    let mut spans: std::collections::BTreeMap<u32, Vec<Span>> = std::collections::BTreeMap::new();
    for throttle in timeline.throttles.iter().filter(|throttle| throttle.cgroup == level) {
        spans.entry(throttle.cpu).or_default().push(throttle.span(timeline.end()));
    }
    spans.into_iter().map(|(cpu, spans)| (cpu, Spans::union(spans))).collect()
}
