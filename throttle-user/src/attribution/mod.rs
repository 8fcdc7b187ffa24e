//! Requests over the timeline: where each one's wall time went.
//!
//! A request's window is tiled by the states of its thread; the shares sum to the wall time to the nanosecond, and what is
//! not known is shown as `unknown`, never spread.

mod course;
#[cfg(test)]
mod properties;

pub use course::{Doing, Stretch};

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::Sum,
    ops::Add,
};

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
        thread::{Departure, Segment, State},
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

/// Why a request's shares are not the whole truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "because")]
pub enum Incomplete {
    /// Records were lost while it was served.
    RecordsLost,
    /// A worker left its cgroup for one that is not watched.
    Left(Departure),
    /// It is not known what a worker did for some time.
    NotSeen {
        /// The worker.
        tid: u32,
    },
}

impl std::fmt::Display for Incomplete {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RecordsLost => f.write_str("what records said that were lost while it was served"),
            Self::Left(departure) => write!(f, "what thread {} did after it left its cgroup", departure.tid),
            Self::NotSeen { tid } => write!(f, "what thread {tid} did for some time"),
        }
    }
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
    /// If not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}

/// A timeline made ready to be asked about many requests.
pub struct Attribution<'a> {
    timeline: &'a Timeline,
    setting: &'a Setting,
    /// Path of the cgroup the requests run in, leaf first.
    path: &'a [CgroupId],
    /// Marks of each level on each CPU.
    marks: BTreeMap<(CgroupId, u32), Spans>,
    departures: Vec<Departure>,
}

impl<'a> Attribution<'a> {
    /// For requests served by threads of `leaf`.
    #[must_use]
    pub fn new(timeline: &'a Timeline, setting: &'a Setting, leaf: &'a CgroupId) -> Self {
        let (path, departures) = (setting.path(leaf), timeline.departures(setting));
        Self { timeline, setting, path, marks: marks(timeline), departures }
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
        let workers: Vec<WorkerShare> = request.workers.iter().map(|worker| self.worker(worker)).collect();
        let critical_path = (critical.tid, shares.unknown_ns);
        let incomplete = self.incomplete(window, &workers, critical_path);
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
            complete: incomplete.is_empty(),
            incomplete,
            shares,
        })
    }

    /// Why a request is not known whole; `critical_path`: its thread, and what is unknown of it in the whole window.
    fn incomplete(&self, window: Span, workers: &[WorkerShare], critical_path: (u32, DurationNs)) -> Vec<Incomplete> {
        let lost = self.timeline.gaps.iter().any(|gap| gap.span.start < window.end && window.start < gap.span.end);
        let of_workers = workers.iter().map(|worker| (worker.worker.tid, worker.shares.unknown_ns));
        let unknown: BTreeSet<u32> = of_workers
            .chain([critical_path])
            .filter(|(_, unknown)| *unknown != DurationNs::ZERO)
            .map(|(tid, _)| tid)
            .collect();
        let why = |tid: u32| {
            let mut of_thread = self.departures.iter().rev().filter(|departure| departure.tid == tid);
            let left = of_thread.find(|departure| departure.at_ns < window.end);
            left.map_or(Incomplete::NotSeen { tid }, |&departure| Incomplete::Left(departure))
        };
        lost.then_some(Incomplete::RecordsLost).into_iter().chain(unknown.into_iter().map(why)).collect()
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
        for Stretch { span, doing, uncharged } in self.course(thread, window) {
            let length = span.length();
            match doing {
                Doing::OnCpu { .. } => {
                    shares.on_cpu_ns += length - uncharged;
                    shares.runqueue_ns += uncharged;
                    shares.uncharged_ns += uncharged;
                }
                Doing::Waiting { .. } => shares.runqueue_ns += length,
                Doing::Blocked => shares.blocked_ns += length,
                Doing::Unknown => shares.unknown_ns += length,
                Doing::Throttled { own, .. } => {
                    held.push(span);
                    let share = if own { &mut shares.throttled_own_ns } else { &mut shares.throttled_ancestor_ns };
                    *share += length;
                }
            }
        }
        (shares, held)
    }

    /// A thread's segments in a window, each with the path of the cgroup it was in: a thread that was moved is held by the limits
    /// of where it is.
    fn segments(&self, thread: u32, window: Span) -> impl Iterator<Item = (&[CgroupId], Segment)> + '_ {
        let line = self.timeline.threads.get(&thread);
        line.into_iter().flat_map(move |line| {
            line.within(window).map(|segment| {
                let leaf = line.stays.iter().rev().find(|stay| stay.since <= segment.span.start);
                (leaf.map_or(self.path, |stay| self.setting.path(&stay.cgroup)), segment)
            })
        })
    }

    /// When one of these levels was out of quota on a CPU.
    fn marked(&self, levels: &[CgroupId], cpu: u32, window: Span) -> Spans {
        let of = levels.iter().filter_map(|&level| self.marks.get(&(level, cpu)));
        Spans::union(of.flat_map(|spans| spans.within(window)))
    }

    fn both(&self, thread: u32, window: Span) -> DurationNs {
        self.segments(thread, window)
            .map(|(path, segment)| match (segment.state, path) {
                (State::Throttled { cpu }, [own, above @ ..]) => {
                    let own = self.marked(std::slice::from_ref(own), cpu, segment.span);
                    own.intersect(&self.marked(above, cpu, segment.span)).total()
                }
                _ => DurationNs::ZERO,
            })
            .sum()
    }

    fn grid(&self, level: usize, at: MonoNs) -> Option<Grid> {
        Grid::at(self.timeline.boundaries_of(*self.path.get(level)?), at)
    }
}

/// Marks of each level on each CPU.
fn marks(timeline: &Timeline) -> BTreeMap<(CgroupId, u32), Spans> {
    let mut spans: BTreeMap<(CgroupId, u32), Vec<Span>> = BTreeMap::new();
    for throttle in &timeline.throttles {
        spans.entry((throttle.cgroup, throttle.cpu)).or_default().push(throttle.span(timeline.end()));
    }
    spans.into_iter().map(|(key, spans)| (key, Spans::union(spans))).collect()
}
