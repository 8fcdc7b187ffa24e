//! From events to what was going on: throttle intervals by level and CPU, states of threads, period boundaries, idle CPUs.
//!
//! [`Timeline::build`] is pure: it takes the events of one observer and returns the timeline and its gaps, and cannot fail.
//! What is not known is `Unknown`, never guessed.

pub mod boundary;
pub mod gap;
pub mod idle;
pub mod interval;
pub mod level;
pub mod period;
pub mod thread;

#[cfg(test)]
mod bounds;
#[cfg(test)]
pub(crate) mod properties;
#[cfg(test)]
pub(crate) mod simulated;

use std::collections::BTreeMap;

use crate::{
    event::{CgroupId, Event, Release, What},
    time::{DurationNs, MonoNs},
};
use boundary::Boundary;
use gap::Gap;
use interval::{Span, Spans};
use level::{HierarchyThrottle, LevelTracker, Throttle};
use thread::{State, ThreadLine, ThreadTracker};

/// From what instant the kernel counts a throttle (kernel/sched/fair.c). It decides who is held: before 6.18 the whole queue of a
/// CPU, from then on each task by itself. The instant itself is read off the kernel's clocks, see [`level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountsFrom {
    /// Up to 6.5: from the throttle itself, also with nothing queued.
    Mark,
    /// 6.6 to 6.17: from when something is queued.
    Queued,
    /// From 6.18: from when the first task is taken off.
    Task,
}

/// What the timeline must know besides the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// For each cgroup that can hold tasks: its path of ids, itself first, then parent and so on.
    pub paths: BTreeMap<CgroupId, Vec<CgroupId>>,
    /// How this kernel counts.
    pub counts_from: CountsFrom,
    /// CPUs that are online.
    pub cpus: u32,
    /// Until when the observer surely watched, where that is known: a timer that must have run until then and was not seen was not
    /// traced. Absent = until its last event.
    pub watched_until: Option<MonoNs>,
}

impl Setting {
    /// Path of a cgroup; a cgroup not listed is a path of its own.
    #[must_use]
    pub fn path<'a>(&'a self, leaf: &'a CgroupId) -> &'a [CgroupId] {
        self.paths.get(leaf).map_or(std::slice::from_ref(leaf), Vec::as_slice)
    }
}

/// What one observer saw.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// First to last event.
    pub span: Option<Span>,
    /// Throttles of each level on each CPU, in order of their start.
    pub throttles: Vec<Throttle>,
    /// Stretches in which a cgroup's queue on a CPU was throttled by any level, with somebody suffering.
    pub hierarchy: Vec<HierarchyThrottle>,
    /// Threads by id.
    pub threads: BTreeMap<u32, ThreadLine>,
    /// Period boundaries of each limited cgroup, in order.
    pub boundaries: BTreeMap<CgroupId, Vec<Boundary>>,
    /// When each CPU was idle; a CPU without any idle switch is absent: not measured.
    pub idle: BTreeMap<u32, Spans>,
    /// Stretches in which records were lost that may have said whether a CPU was idle.
    pub idle_unknown: Spans,
    /// Stretches with lost records.
    pub gaps: Vec<Gap>,
    /// Tracepoints that must have fired and did not: switches, wakeups and period timers. Not losses of ours: see
    /// ARCHITECTURE.md.
    pub untraced: u64,
}

impl Timeline {
    /// Builds the timeline of `events`, which may come in any order across CPUs.
    #[must_use]
    pub fn build(mut events: Vec<Event>, setting: &Setting) -> Self {
        // A CPU's own records are in order of their sequence numbers; time orders CPUs among each other. Records of one
        // timer run share a time stamp and are kept in order by the sequence.
        events.sort_by_key(|event| (event.at, event.cpu, event.seq));
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return Self::default() };
        let end = MonoNs(last.at.0 + 1);
        let span = Span::new(first.at, setting.watched_until.map_or(end, |until| until.max(end)));
        let found = gap::find(&events);
        let gaps: Vec<Gap> = found.iter().map(|&(_, gap)| gap).collect();
        let mut losses = found.iter().peekable();
        let mut levels = LevelTracker::new(setting);
        let mut threads = ThreadTracker::new(setting, span.start);
        let mut boundaries: BTreeMap<CgroupId, Vec<Boundary>> = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            if let Some((_, gap)) = losses.next_if(|(end, _)| *end == index) {
                levels.doubt(gap.span.end);
                threads.doubt(*gap);
            }
            if let What::Period(run) = &event.what {
                let marked = levels.marked_cpus(run.cgroup);
                boundaries.entry(run.cgroup).or_default().push(Boundary::new(event, run, marked));
            }
            if let Some((leaf, cpu, arrived)) = threads.untraced_arrival(event) {
                let changes = levels.clear_path(leaf, cpu, arrived);
                threads.follow_marks(arrived, &changes, &levels);
            }
            let changes = levels.observe(event, &listed(&events[index..]));
            threads.observe(event, &changes, &levels);
            // Threads that were waiting as their queue was throttled, or that were moved to a throttled queue, suffer without
            // an event of their own.
            if setting.counts_from == CountsFrom::Queued
                && (!changes.set.is_empty() || matches!(event.what, What::Migrate { .. }))
            {
                threads.held().for_each(|(leaf, cpu)| levels.suffer(leaf, cpu, event.at));
                let unsure = |level: &CgroupId| !gaps.is_empty() && threads.unknown_under(*level);
                changes
                    .set
                    .iter()
                    .filter(|(level, _)| unsure(level))
                    .for_each(|&(level, cpu)| levels.spoil(level, cpu));
            }
        }
        let changes = levels.last(span.end);
        threads.follow_marks(span.end, &changes, &levels);
        let (mut threads, mut untraced) = threads.finish(span.end);
        gap::blank(&mut threads, &gaps);
        let (mut throttles, mut hierarchy) = levels.finish();
        for throttle in &mut throttles {
            throttle.complete &= !gap::touches(&gaps, throttle.span(span.end));
        }
        for throttle in &mut hierarchy {
            throttle.complete &= !gap::touches(&gaps, throttle.span(span.end));
        }
        thread::release(&mut threads, &throttles, setting, span.end);
        let boundaries: BTreeMap<_, _> = boundaries
            .into_iter()
            .map(|(cgroup, seen)| {
                let between = Drew::new(setting, cgroup, &throttles, &threads, span.end);
                (cgroup, boundary::with_untraced(seen, &between, span.end))
            })
            .collect();
        untraced += boundaries.values().flatten().filter(|boundary| boundary.inferred).count() as u64;
        let (idle, idle_unknown) = idle::spans(&events, &found, span);
        Self { span: Some(span), throttles, hierarchy, threads, boundaries, idle, idle_unknown, gaps, untraced }
    }

    /// Boundaries of a cgroup, in order.
    #[must_use]
    pub fn boundaries_of(&self, cgroup: CgroupId) -> &[Boundary] {
        self.boundaries.get(&cgroup).map_or(&[], Vec::as_slice)
    }

    /// End of what was seen.
    #[must_use]
    pub fn end(&self) -> MonoNs {
        self.span.map_or(MonoNs(0), |span| span.end)
    }
}

/// The CPUs whose queues a timer run, the first of `events`, reported.
fn listed(events: &[Event]) -> Vec<u32> {
    let Some((run, release)) = events.first().and_then(|event| match event.what {
        What::Period(_) => Some((event, Release::Period)),
        What::Slack(_) => Some((event, Release::Slack)),
        _ => None,
    }) else {
        return vec![];
    };
    events[1..]
        .iter()
        .take_while(|event| (event.at, event.cpu) == (run.at, run.cpu))
        .filter_map(|event| match &event.what {
            What::Queue(queue) if queue.release == release => Some(queue.cpu),
            _ => None,
        })
        .collect()
}

/// What the rest of the timeline says about a group between its boundaries.
struct Drew {
    throttled: Vec<Span>,
    /// When each CPU ran the group's threads.
    ran: BTreeMap<u32, Spans>,
    /// When each CPU had a thread of the group that ran or waited there, or may have had.
    runnable: BTreeMap<u32, Spans>,
}

/// A CPU may keep this much of a pool over any number of idle periods (kernel/sched/fair.c, `min_cfs_rq_runtime`).
const KEPT_LOCALLY: DurationNs = DurationNs::from_millis(1);
/// And this much as long as some thread of the group is runnable there (`sysctl_sched_cfs_bandwidth_slice`, the default).
const SLICE: DurationNs = DurationNs::from_millis(5);

/// A running thread is charged at least this often: at the tick, and `CONFIG_HZ` is 100 or more.
const TICK: DurationNs = DurationNs::from_millis(10);

impl Drew {
    fn new(
        setting: &Setting,
        cgroup: CgroupId,
        throttles: &[Throttle],
        threads: &BTreeMap<u32, ThreadLine>,
        end: MonoNs,
    ) -> Self {
        let (mut ran, mut runnable): (BTreeMap<u32, Vec<Span>>, BTreeMap<u32, Vec<Span>>) = Default::default();
        let lines = threads.values().filter(|line| setting.path(&line.cgroup).contains(&cgroup));
        for segment in lines.flat_map(|line| &line.segments) {
            match segment.state {
                State::Running { cpu } => {
                    ran.entry(cpu).or_default().push(segment.span);
                    runnable.entry(cpu).or_default().push(segment.span);
                }
                State::Waiting { cpu } | State::Throttled { cpu } => {
                    runnable.entry(cpu).or_default().push(segment.span)
                }
                State::Unknown => {
                    (0..setting.cpus).for_each(|cpu| runnable.entry(cpu).or_default().push(segment.span));
                }
                State::Blocked => {}
            }
        }
        let united = |spans: BTreeMap<u32, Vec<Span>>| {
            spans.into_iter().map(|(cpu, spans)| (cpu, Spans::union(spans))).collect()
        };
        Self {
            throttled: throttles
                .iter()
                .filter(|throttle| throttle.cgroup == cgroup)
                .map(|throttle| throttle.span(end))
                .collect(),
            ran: united(ran),
            runnable: united(runnable),
        }
    }

    /// What a CPU may have had left of the pool at an instant.
    fn kept(&self, cpu: u32, at: MonoNs) -> DurationNs {
        let before = Span::new(MonoNs(at.0.saturating_sub(1)), at);
        let was_runnable = self.runnable.get(&cpu).is_some_and(|spans| spans.within(before).next().is_some());
        if was_runnable { SLICE } else { KEPT_LOCALLY }
    }
}

impl boundary::Between for Drew {
    fn throttled_cpus(&self, due: MonoNs) -> u32 {
        let count = self.throttled.iter().filter(|span| span.start < due && due <= span.end).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn drew(&self, window: Span) -> bool {
        self.throttled.iter().any(|span| window.contains(span.start))
            || self.ran.iter().any(|(&cpu, ran)| charged(ran, window) > self.kept(cpu, window.start))
    }
}

/// What of the time run in a window was surely charged in it: what ran on at its end perhaps not since the last tick.
fn charged(ran: &Spans, window: Span) -> DurationNs {
    let runs_on = ran.within(Span::new(MonoNs(window.end.0.saturating_sub(1)), window.end)).next().is_some();
    let end = if runs_on { MonoNs(window.end.0.saturating_sub(TICK.0)) } else { window.end };
    ran.total_within(Span::new(window.start, end))
}
