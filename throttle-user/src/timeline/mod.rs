//! From events to what was going on: throttle intervals by level and CPU, states of threads, period boundaries, idle CPUs.
//!
//! [`Timeline::build`] is pure: it takes the events of one observer and returns the timeline and its gaps, and cannot fail.
//! What is not known is `Unknown`, never guessed.

pub mod boundary;
mod follow;
pub mod gap;
pub mod idle;
pub mod interval;
pub mod level;
mod levels;
pub mod live;
mod open;
pub mod period;
mod release;
mod replay;
pub mod thread;
mod unseen;
mod untraced;

#[cfg(test)]
mod bounds;
#[cfg(test)]
pub(crate) mod properties;
#[cfg(test)]
pub(crate) mod simulated;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    event::{CgroupId, Event},
    time::{DurationNs, MonoNs},
};
use boundary::Boundary;
use gap::Gap;
use interval::{Span, Spans, Steps};
use level::{HierarchyThrottle, Throttle};
use levels::Grant;
use replay::{Ahead, Replay, assemble};
use thread::{Departure, Stay, ThreadLine};

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
    /// Cgroups whose threads are followed (`tasks` detail). Of any other only the edges were recorded.
    pub followed: BTreeSet<CgroupId>,
    /// How this kernel counts.
    pub counts_from: CountsFrom,
    /// CPUs that are online.
    pub cpus: u32,
    /// Until when the observer surely watched, where that is known: a timer that must have run until then and was not seen was not
    /// traced. Absent = until its last event.
    pub watched_until: Option<MonoNs>,
    /// Records that each CPU tried to write until the observer stopped, where that is known: more than were seen is a loss, also
    /// after a CPU's last record.
    pub tried: BTreeMap<u32, u64>,
}

impl Setting {
    /// Of nothing yet.
    const fn none() -> Self {
        Self {
            paths: BTreeMap::new(),
            followed: BTreeSet::new(),
            counts_from: CountsFrom::Mark,
            cpus: 0,
            watched_until: None,
            tried: BTreeMap::new(),
        }
    }

    /// Whether the threads of a cgroup are followed.
    #[must_use]
    pub fn follows(&self, cgroup: CgroupId) -> bool {
        self.followed.contains(&cgroup)
    }

    /// Whether the threads of a cgroup and of all that are known below it are followed.
    #[must_use]
    pub fn follows_all_under(&self, cgroup: CgroupId) -> bool {
        self.follows(cgroup)
            && self.paths.iter().filter(|(_, path)| path.contains(&cgroup)).all(|(&leaf, _)| self.follows(leaf))
    }

    /// Path of a cgroup; a cgroup not listed is a path of its own.
    #[must_use]
    pub fn path<'a>(&'a self, leaf: &'a CgroupId) -> &'a [CgroupId] {
        self.paths.get(leaf).map_or(std::slice::from_ref(leaf), Vec::as_slice)
    }
}

/// A stretch in which nothing that is said of a cgroup can be right: its first or its last stamp is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Broken {
    /// The cgroup.
    pub cgroup: CgroupId,
    /// From one of its records to the next.
    #[serde(flatten)]
    pub span: Span,
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
    /// The same as a set of instants.
    pub lost: Spans,
    /// Stretches in which there may have been threads that no record shows, because it was lost.
    pub unseen: Spans,
    /// Stretches in which a period timer must have run more often than can have gone untraced: the recording is broken there.
    pub broken: Vec<Broken>,
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
        let (Some(first), Some(last)) = (events.first(), events.last()) else {
            let seen = Span::new(MonoNs(0), setting.watched_until.unwrap_or_default());
            let gaps = gap::find(&[], &setting.tried, seen).into_iter().map(|(_, gap)| gap).collect();
            return Self { gaps, ..Self::default() };
        };
        let end = last.at + DurationNs(1);
        let span = Span::new(first.at, setting.watched_until.map_or(end, |until| until.max(end)));
        let found = gap::find(&events, &setting.tried, span);
        let mut losses = found.iter().peekable();
        let answered = levels::answered(&events);
        let mut replay = Replay::new(setting, span.start);
        events.iter().for_each(|event| replay.announce(event));
        for (index, event) in events.iter().enumerate() {
            let ahead = Ahead {
                listed: Ahead::listed(&events[index], &events[index + 1..]),
                answered: Grant::of(event).is_some_and(|grant| answered.contains(&grant)),
            };
            let gap = losses.next_if(|(at, _)| *at == index).map(|&(_, gap)| gap);
            replay.step(event, &ahead, gap);
        }
        replay.end(losses.map(|&(_, gap)| gap), span.end);
        assemble(replay.finish(span.end), setting, span)
    }

    /// Boundaries of a cgroup, in order.
    #[must_use]
    pub fn boundaries_of(&self, cgroup: CgroupId) -> &[Boundary] {
        self.boundaries.get(&cgroup).map_or(&[], Vec::as_slice)
    }

    /// Threads that went where they are not followed, in order.
    #[must_use]
    pub fn departures(&self, setting: &Setting) -> Vec<Departure> {
        let left = |tid: u32, stays: &[Stay]| match stays {
            [before, after] if setting.follows(before.cgroup) && !setting.follows(after.cgroup) => {
                Some(Departure { tid, cgroup: before.cgroup, at_ns: after.since })
            }
            _ => None,
        };
        let of = |(&tid, line): (&u32, &ThreadLine)| {
            line.stays.windows(2).filter_map(|stays| left(tid, stays)).collect::<Vec<_>>()
        };
        let mut departures: Vec<Departure> = self.threads.iter().flat_map(of).collect();
        departures.sort_by_key(|departure| (departure.at_ns, departure.tid));
        departures
    }

    /// How many CPUs were idle at each instant of a window; `None` = not measured, or not all the time.
    #[must_use]
    pub fn idle_cpus(&self, window: Span) -> Option<Steps> {
        let measured = !self.idle.is_empty() && self.idle_unknown.within(window).next().is_none();
        measured.then(|| Steps::depth(self.idle.values().flat_map(|spans| spans.within(window))))
    }

    /// End of what was seen.
    #[must_use]
    pub fn end(&self) -> MonoNs {
        self.span.map_or(MonoNs(0), |span| span.end)
    }
}
