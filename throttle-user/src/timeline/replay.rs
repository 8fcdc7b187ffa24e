//! Events in order through the state machines, and what is put together once they are through: the same for a whole recording and
//! for a live one.

use std::collections::BTreeMap;

use super::{
    Broken, CountsFrom, Setting, Timeline,
    boundary::Boundary,
    follow::ThreadTracker,
    gap::{self, Gap},
    idle::IdleTracker,
    interval::{Span, Spans},
    level::{HierarchyThrottle, Throttle},
    levels::LevelTracker,
    release,
    thread::ThreadLine,
    unseen,
    untraced::{self, Activity},
};
use crate::{
    event::{CgroupId, Event, Release, What},
    time::MonoNs,
};

/// What of the records after an event must be known as it is taken in.
pub(super) struct Ahead {
    /// The CPUs whose queues a timer run reported.
    pub(super) listed: Vec<u32>,
    /// A grant whose call is carried out later, and was traced.
    pub(super) answered: bool,
}

impl Ahead {
    /// The CPUs whose queues a timer run reported, out of the events after it.
    pub(super) fn listed<'a>(run: &Event, after: impl IntoIterator<Item = &'a Event>) -> Vec<u32> {
        let release = match run.what {
            What::Period(_) => Release::Period,
            What::Slack(_) => Release::Slack,
            _ => return vec![],
        };
        after
            .into_iter()
            .take_while(|event| (event.at, event.cpu) == (run.at, run.cpu))
            .filter_map(|event| match &event.what {
                What::Queue(queue) if queue.release == release => Some(queue.cpu),
                _ => None,
            })
            .collect()
    }
}

/// All state machines.
pub(super) struct Replay<'a> {
    /// First event of all.
    pub(super) begin: MonoNs,
    pub(super) setting: &'a Setting,
    pub(super) levels: LevelTracker<'a>,
    pub(super) threads: ThreadTracker<'a>,
    pub(super) idle: IdleTracker,
    /// Boundaries seen.
    pub(super) boundaries: BTreeMap<CgroupId, Vec<Boundary>>,
    pub(super) gaps: Vec<Gap>,
}

impl<'a> Replay<'a> {
    /// `begin`: the first event of all.
    pub(super) fn new(setting: &'a Setting, begin: MonoNs) -> Self {
        Self {
            begin,
            setting,
            levels: LevelTracker::new(setting),
            threads: ThreadTracker::new(setting, begin),
            idle: IdleTracker::new(begin),
            boundaries: BTreeMap::new(),
            gaps: vec![],
        }
    }

    /// The same state under another setting.
    pub(super) fn under<'b>(self, setting: &'b Setting) -> Replay<'b> {
        let Self { begin, setting: _, levels, threads, idle, boundaries, gaps } = self;
        let (levels, threads) = (levels.under(setting), threads.under(setting));
        Replay { begin, setting, levels, threads, idle, boundaries, gaps }
    }

    /// An event that is yet to come. A record of a move may come after the first one that shows it.
    pub(super) fn announce(&mut self, event: &Event) {
        if let What::Attach { thread, cgroup, .. } = event.what {
            self.threads.announce(thread, cgroup, event.at);
        }
    }

    /// Takes in the next event in order; `gap`: the loss that it ends.
    pub(super) fn step(&mut self, event: &Event, ahead: &Ahead, gap: Option<Gap>) {
        let Self { begin: _, setting, levels, threads, idle, boundaries, gaps } = self;
        if let Some(gap) = gap {
            gaps.push(gap);
            levels.doubt(gap.span.end);
            threads.doubt(gap);
        }
        idle.observe(event, gap);
        if let What::Period(run) = &event.what {
            let marked = levels.marked_cpus(run.cgroup);
            boundaries.entry(run.cgroup).or_default().push(Boundary::new(event, run, marked));
        }
        if let Some((leaf, cpu, arrived)) = threads.untraced_arrival(event) {
            let changes = levels.clear_path(leaf, cpu, arrived);
            threads.follow_marks(arrived, &changes, levels);
        }
        if setting.counts_from == CountsFrom::Queued && levels.any_marked() {
            levels.know_queued(threads.queued());
        }
        let changes = levels.observe(event, ahead);
        threads.observe(event, &changes, levels);
        // Threads that were waiting as their queue was throttled, or that were moved to a throttled queue, suffer without
        // an event of their own.
        if setting.counts_from == CountsFrom::Queued
            && (!changes.set.is_empty() || matches!(event.what, What::Migrate { .. } | What::Attach { .. }))
        {
            threads.held().for_each(|(leaf, cpu)| levels.suffer(leaf, cpu, event.at));
            let unsure = |level: &CgroupId| !gaps.is_empty() && threads.unknown_under(*level);
            changes.set.iter().filter(|(level, _)| unsure(level)).for_each(|&(level, cpu)| levels.spoil(level, cpu));
        }
    }

    /// Nothing more comes. `lost`: losses that no event ends.
    pub(super) fn end(&mut self, lost: impl IntoIterator<Item = Gap>, end: MonoNs) {
        for gap in lost {
            self.gaps.push(gap);
            self.levels.doubt(gap.span.end);
            self.threads.doubt(gap);
            self.idle.lose(gap);
        }
        let changes = self.levels.last(end);
        self.threads.follow_marks(end, &changes, &self.levels);
    }

    /// What came out, up to `end`.
    pub(super) fn finish(self, end: MonoNs) -> Parts {
        let (threads, untraced) = self.threads.finish(end);
        let (throttles, hierarchy) = self.levels.finish();
        let (idle, idle_unknown) = self.idle.finish(end);
        Parts {
            threads,
            untraced,
            throttles,
            hierarchy,
            idle,
            idle_unknown,
            boundaries: self.boundaries,
            gaps: self.gaps,
        }
    }
}

/// What the state machines found.
pub(super) struct Parts {
    pub(super) threads: BTreeMap<u32, ThreadLine>,
    /// Switches and wakeups that must have been there and were not traced.
    pub(super) untraced: u64,
    pub(super) throttles: Vec<Throttle>,
    pub(super) hierarchy: Vec<HierarchyThrottle>,
    pub(super) idle: BTreeMap<u32, Spans>,
    pub(super) idle_unknown: Spans,
    /// Those seen.
    pub(super) boundaries: BTreeMap<CgroupId, Vec<Boundary>>,
    pub(super) gaps: Vec<Gap>,
}

/// What only the whole shows: what a loss blanks, ends found out later, timer runs that were not traced.
pub(super) fn assemble(parts: Parts, setting: &Setting, span: Span) -> Timeline {
    let Parts { mut threads, mut untraced, mut throttles, mut hierarchy, idle, idle_unknown, boundaries, gaps } = parts;
    gap::blank(&mut threads, &gaps);
    let lost = gap::instants(&gaps);
    for throttle in &mut throttles {
        throttle.complete &= !gap::touches(&lost, throttle.span(span.end));
    }
    for throttle in &mut hierarchy {
        throttle.complete &= !gap::touches(&lost, throttle.span(span.end));
    }
    release::release(&mut threads, &throttles, setting, span.end);
    let mut broken = vec![];
    let boundaries: BTreeMap<_, _> = boundaries
        .into_iter()
        .map(|(cgroup, seen)| {
            let activity = Activity::new(setting, cgroup, &throttles, &threads, span.end);
            let (all, broken_off) = untraced::add(seen, &activity, span.end);
            broken.extend(broken_off.into_iter().map(|span| Broken { cgroup, span }));
            (cgroup, all)
        })
        .collect();
    untraced += boundaries.values().flatten().filter(|boundary| boundary.inferred).count() as u64;
    let unseen = unseen::threads(&gaps, &idle, &throttles, &boundaries, setting.cpus, span);
    Timeline {
        span: Some(span),
        throttles,
        hierarchy,
        threads,
        boundaries,
        idle,
        idle_unknown,
        gaps,
        lost,
        unseen,
        broken,
        untraced,
    }
}
