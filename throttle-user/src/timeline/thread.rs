//! States of threads over time.
//!
//! A waiting thread whose queue is throttled is throttled, not waiting. Before 6.18 the whole queue is: the state follows
//! the marks of its CPU. From 6.18 on each thread is taken off by itself, on its way to user mode, and until then really
//! waits for a CPU.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CountsFrom, Setting,
    gap::Gap,
    interval::{Span, Spans},
    level::{Changes, EndedBy, LevelTracker, Throttle},
};
use crate::{
    event::{CgroupId, Event, Left, OnCpu, What},
    time::{DurationNs, MonoNs},
};

/// What a thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum State {
    /// On a CPU.
    Running {
        /// The CPU.
        cpu: u32,
    },
    /// Runnable, waiting for a CPU.
    Waiting {
        /// CPU whose queue it is on.
        cpu: u32,
    },
    /// Runnable, held by a CPU limit.
    Throttled {
        /// CPU whose queue it is on.
        cpu: u32,
    },
    /// Asleep.
    Blocked,
    /// Not known.
    Unknown,
}

/// A stretch of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// When.
    pub span: Span,
    /// What.
    pub state: State,
    /// Of a running stretch, time the scheduler charged to nobody: taken by a hypervisor, or by interrupts where the kernel
    /// accounts for them.
    pub uncharged: DurationNs,
}

impl Segment {
    /// The part inside a window; what was not charged is taken to lie evenly in it.
    pub(super) fn clip(self, window: Span) -> Self {
        let span = self.span.clip(window);
        let share = u128::from(self.uncharged.0) * u128::from(span.length().0);
        let uncharged = share.checked_div(u128::from(self.span.length().0)).unwrap_or(0);
        Self { span, uncharged: DurationNs(u64::try_from(uncharged).unwrap_or(0)), ..self }
    }
}

/// One thread's life as far as it was seen: segments in order, without holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLine {
    /// Leaf cgroup at the last event.
    pub cgroup: CgroupId,
    /// Segments.
    pub segments: Vec<Segment>,
}

impl ThreadLine {
    /// Segments that meet a window, clipped to it.
    pub fn within(&self, window: Span) -> impl Iterator<Item = Segment> + '_ {
        let first = self.segments.partition_point(|segment| segment.span.end <= window.start);
        self.segments[first..]
            .iter()
            .take_while(move |segment| segment.span.start < window.end)
            .map(move |segment| segment.clip(window))
            .filter(|segment| !segment.span.is_empty())
    }

    /// Spans on a CPU.
    pub fn running(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        self.segments.iter().filter_map(|segment| match segment.state {
            State::Running { cpu } => Some((cpu, segment.span)),
            _ => None,
        })
    }

    /// Spans of which nothing is known.
    pub fn unknown(&self) -> impl Iterator<Item = Span> + '_ {
        let unknown = self.segments.iter().filter(|segment| segment.state == State::Unknown);
        unknown.map(|segment| segment.span)
    }

    /// Spans held by a limit.
    pub fn throttled(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        self.segments.iter().filter_map(|segment| match segment.state {
            State::Throttled { cpu } => Some((cpu, segment.span)),
            _ => None,
        })
    }
}

/// Ends the hold of threads where their levels were released unseen: the end of such a throttle is known only later, and may by
/// then lie before another one's start.
pub(super) fn release(threads: &mut BTreeMap<u32, ThreadLine>, throttles: &[Throttle], setting: &Setting, end: MonoNs) {
    let unseen = |throttle: &Throttle| matches!(throttle.ended_by, Some(EndedBy::Grant | EndedBy::Boundary));
    if !throttles.iter().any(unseen) {
        return;
    }
    for line in threads.values_mut() {
        let path = setting.path(&line.cgroup);
        let marks = |cpu: u32| {
            let of = throttles.iter().filter(|throttle| throttle.cpu == cpu && path.contains(&throttle.cgroup));
            Spans::union(of.map(|throttle| throttle.span(end)))
        };
        // Where records were lost it is not known which of them the end was.
        let sure = |segment: &Segment, cpu: u32| {
            !throttles.iter().any(|throttle| {
                !throttle.complete
                    && throttle.cpu == cpu
                    && path.contains(&throttle.cgroup)
                    && !throttle.span(end).clip(segment.span).is_empty()
            })
        };
        let segments = line.segments.iter().flat_map(|&segment| match segment.state {
            State::Throttled { cpu } if sure(&segment, cpu) => {
                held(segment, cpu, &marks(cpu), setting.counts_from == CountsFrom::Task)
            }
            _ => vec![segment],
        });
        line.segments = segments.collect();
    }
}

/// The parts of a throttled segment in which it was held and in which it waited. `once`: released, it is not held again without
/// having run.
fn held(segment: Segment, cpu: u32, marks: &Spans, once: bool) -> Vec<Segment> {
    let held: Vec<Span> = marks.within(segment.span).collect();
    if held.first().is_none_or(|first| first.start != segment.span.start) {
        // Held by a level that is not known.
        return vec![segment];
    }
    let waited =
        |from: MonoNs, to: MonoNs| Segment { span: Span::new(from, to), state: State::Waiting { cpu }, ..segment };
    let mut parts = vec![];
    let mut from = segment.span.start;
    for span in held.into_iter().take(if once { 1 } else { usize::MAX }) {
        parts.push(waited(from, span.start));
        parts.push(Segment { span, ..segment });
        from = span.end;
    }
    parts.push(waited(from, segment.span.end));
    parts.retain(|part| !part.span.is_empty());
    parts
}

struct Open {
    cgroup: CgroupId,
    since: MonoNs,
    state: State,
    exiting: bool,
    /// Another thread had this number before.
    reused: bool,
    /// Since its last event records were lost, or its limit was lifted.
    doubted: bool,
    segments: Vec<Segment>,
    /// The CPU's account of uncharged time as the running stretch began.
    uncharged: Option<DurationNs>,
}

/// The arrival the scheduler notes and the switch that is traced lie this close together.
const ARRIVAL_SLOP: DurationNs = DurationNs::from_micros(100);

impl Open {
    /// Makes the thread run on `cpu` up to now, as it must have since it `arrived` there; returns whether that was news, that
    /// is, whether its switch-in was not traced. Some kernels do not fire every tracepoint.
    fn was_running_until(&mut self, now: MonoNs, cpu: u32, arrived: Option<MonoNs>) -> bool {
        let known = matches!(self.state, State::Running { cpu: on } if on == cpu);
        // The two clocks are read at slightly different points of one switch.
        let arrived = arrived.map(|arrived| {
            let close = !known && arrived + ARRIVAL_SLOP >= self.since;
            if close { arrived.max(self.since) } else { arrived }
        });
        match arrived {
            // In line with the switch-in that was seen.
            Some(arrived) if known && arrived <= self.since + ARRIVAL_SLOP => {
                self.fit(now, cpu, arrived);
                false
            }
            None if known => false,
            // Runnable or held until it arrived: only the switch-in is missing.
            Some(arrived)
                if arrived >= self.since && matches!(self.state, State::Waiting { .. } | State::Throttled { .. }) =>
            {
                self.turn(arrived, State::Running { cpu });
                true
            }
            // More is missing: what it did before it arrived is not known.
            Some(arrived) if arrived >= self.since || self.state == State::Unknown => {
                if self.segments.is_empty() && !self.reused {
                    self.since = self.since.min(arrived);
                }
                self.state = State::Unknown;
                self.turn(arrived.max(self.since), State::Running { cpu });
                true
            }
            _ => {
                let begins_here = self.since == now;
                self.state = State::Unknown;
                !begins_here
            }
        }
    }

    /// Fits the running stretch to what the scheduler charges: it stops charging as it begins to switch and charges the next
    /// one from there, while the tracepoint comes after the pick, later when a balance, an interrupt or a hypervisor comes
    /// between. What lies between the end of the charge and the tracepoint counts as waiting.
    fn fit(&mut self, now: MonoNs, cpu: u32, arrived: MonoNs) {
        if arrived > self.since {
            let charged_until = MonoNs(now.0 - arrived.since(self.since).0);
            self.turn(charged_until, State::Waiting { cpu });
        } else if let Some(last) = self.segments.last_mut()
            && matches!(last.state, State::Waiting { .. })
            && last.span.end == self.since
            && last.span.start < arrived
            && arrived < self.since
        {
            last.span.end = arrived;
            self.since = arrived;
        }
    }

    fn turn(&mut self, at: MonoNs, state: State) {
        let span = Span::new(self.since, at);
        if !span.is_empty() {
            self.segments.push(Segment { span, state: self.state, uncharged: DurationNs::ZERO });
        }
        self.since = self.since.max(at);
        self.state = state;
    }
}

pub(super) struct ThreadTracker<'a> {
    setting: &'a Setting,
    /// First event of all: what happened before it could not be seen.
    begin: MonoNs,
    /// Since when records may be missing.
    lost_since: Option<MonoNs>,
    live: BTreeMap<u32, Open>,
    ended: BTreeMap<u32, ThreadLine>,
    /// Switches and wakeups that must have been there and were not traced.
    untraced: u64,
}

impl<'a> ThreadTracker<'a> {
    pub(super) fn new(setting: &'a Setting, begin: MonoNs) -> Self {
        Self { setting, begin, lost_since: None, live: BTreeMap::new(), ended: BTreeMap::new(), untraced: 0 }
    }

    pub(super) fn observe(&mut self, event: &Event, changes: &Changes, levels: &LevelTracker<'_>) {
        if let What::Switch { prev: Some(prev), ran, .. } = &event.what {
            self.was_running(prev, *ran, event);
        }
        self.follow_marks(event.at, changes, levels);
        match &event.what {
            What::Switch { prev, left, uncharged, next, .. } => {
                if let Some(prev) = prev {
                    self.leave(prev, left.unwrap_or(Left::Preempted), event, levels);
                    self.charge(prev.thread, *uncharged);
                }
                if let Some(next) = next {
                    self.arrive(next, event);
                    if let Some(open) = self.live.get_mut(&next.thread) {
                        open.uncharged = *uncharged;
                    }
                }
            }
            What::Wakeup { task, target_cpu, new } => {
                if *new {
                    self.begin(task.thread, task.cgroup, event.at);
                }
                self.wake(task, *target_cpu, event.at, levels);
            }
            What::Migrate { thread, cgroup, dest_cpu } => {
                self.migrate(*thread, *cgroup, *dest_cpu, event.at, levels);
            }
            What::Exit { thread, cgroup } => self.entry(*thread, *cgroup, event.at).exiting = true,
            What::Period(run) if run.quota.is_none() => self.lifted(run.cgroup, event.at),
            What::Period(_) | What::Slack(_) | What::Queue(_) => {}
        }
    }

    /// A limit is gone: a probe that looks at limited groups only says nothing more of what was under it.
    fn lifted(&mut self, level: CgroupId, at: MonoNs) {
        for open in self.live.values_mut() {
            if self.setting.path(&open.cgroup).contains(&level) {
                open.turn(at, State::Unknown);
                open.doubted = true;
            }
        }
    }

    /// Records of a CPU were lost up to now: what a thread does is not known until its next event. A thread that runs on another
    /// CPU is sure to be there.
    pub(super) fn doubt(&mut self, gap: Gap) {
        self.lost_since.get_or_insert(gap.span.start);
        for open in self.live.values_mut() {
            if !matches!(open.state, State::Running { cpu } if cpu != gap.cpu) {
                open.turn(gap.span.end, State::Unknown);
                open.doubted = true;
                open.uncharged = None;
            }
        }
    }

    /// Whether it is not known of some thread of a level what it does.
    pub(super) fn unknown_under(&self, level: CgroupId) -> bool {
        let unknown = |open: &&Open| open.state == State::Unknown;
        self.live.values().filter(unknown).any(|open| self.setting.path(&open.cgroup).contains(&level))
    }

    /// Leaf cgroup and CPU of every thread that is held by a limit.
    pub(super) fn held(&self) -> impl Iterator<Item = (CgroupId, u32)> + '_ {
        self.live.values().filter_map(|open| match open.state {
            State::Throttled { cpu } => Some((open.cgroup, cpu)),
            _ => None,
        })
    }

    /// A held thread that leaves a CPU must have been released before it arrived there, although neither was traced: its leaf
    /// cgroup, the CPU, and when it arrived.
    pub(super) fn untraced_arrival(&self, event: &Event) -> Option<(CgroupId, u32, MonoNs)> {
        let What::Switch { prev: Some(prev), ran: Some(ran), .. } = &event.what else { return None };
        let open = self.live.get(&prev.thread)?;
        let arrived = MonoNs(event.at.0.saturating_sub(ran.0));
        let held = matches!(open.state, State::Throttled { .. }) && arrived >= open.since;
        held.then_some((prev.cgroup, event.cpu, arrived))
    }

    /// Notes of the stretch that just ended how much of it was charged to nobody.
    fn charge(&mut self, thread: u32, now: Option<DurationNs>) {
        let Some(open) = self.live.get_mut(&thread) else { return };
        if let Some((before, now)) = open.uncharged.take().zip(now)
            && let Some(ran) =
                open.segments.iter_mut().rev().take(2).find(|last| matches!(last.state, State::Running { .. }))
        {
            ran.uncharged = now.saturating_sub(before).min(ran.span.length());
        }
    }

    fn per_task(&self) -> bool {
        self.setting.counts_from == CountsFrom::Task
    }

    /// Marks set or cleared move threads between waiting and throttled.
    pub(super) fn follow_marks(&mut self, at: MonoNs, changes: &Changes, levels: &LevelTracker<'_>) {
        if changes.set.is_empty() && changes.cleared.is_empty() {
            return;
        }
        for open in self.live.values_mut() {
            let path = self.setting.path(&open.cgroup);
            match open.state {
                State::Throttled { cpu }
                    if !levels.held(open.cgroup, cpu)
                        && changes.cleared.iter().any(|(level, on)| *on == cpu && path.contains(level)) =>
                {
                    open.turn(levels.relieved(open.cgroup, cpu).min(at), State::Waiting { cpu });
                }
                State::Waiting { cpu }
                    if self.setting.counts_from != CountsFrom::Task
                        && changes.set.iter().any(|(level, on)| *on == cpu && path.contains(level)) =>
                {
                    open.turn(at, State::Throttled { cpu });
                }
                _ => {}
            }
        }
    }

    /// A thread that is not new and was not seen before may have been there since records were lost.
    fn entry(&mut self, thread: u32, cgroup: CgroupId, at: MonoNs) -> &mut Open {
        let since = self.lost_since.map_or(at, |lost| lost.min(at));
        self.begin(thread, cgroup, since)
    }

    fn begin(&mut self, thread: u32, cgroup: CgroupId, since: MonoNs) -> &mut Open {
        let ended = &self.ended;
        let open = self.live.entry(thread).or_insert_with(|| Open {
            cgroup,
            // After the last thread of this number, if there was one.
            since: ended
                .get(&thread)
                .and_then(|line| line.segments.last())
                .map_or(since, |last| since.max(last.span.end)),
            reused: ended.contains_key(&thread),
            state: State::Unknown,
            exiting: false,
            doubted: false,
            segments: vec![],
            uncharged: None,
        });
        open.cgroup = cgroup;
        open
    }

    /// Whoever leaves a CPU ran on it.
    fn was_running(&mut self, task: &OnCpu, ran: Option<DurationNs>, event: &Event) {
        let arrived = ran.map(|ran| MonoNs(event.at.0.saturating_sub(ran.0)));
        let begin = self.begin;
        // Unknown threads begin where the scheduler says this one arrived.
        let open = self.entry(task.thread, task.cgroup, arrived.unwrap_or(event.at));
        let untraced = !std::mem::take(&mut open.doubted) & open.was_running_until(event.at, event.cpu, arrived);
        self.untraced += u64::from(untraced && arrived.is_none_or(|arrived| arrived >= begin));
    }

    fn leave(&mut self, task: &OnCpu, left: Left, event: &Event, levels: &LevelTracker<'_>) {
        let cpu = event.cpu;
        let held = !self.per_task() && levels.held(task.cgroup, cpu);
        let open = self.entry(task.thread, task.cgroup, event.at);
        let state = match left {
            Left::Blocked => State::Blocked,
            Left::Throttled => State::Throttled { cpu },
            Left::Preempted if held => State::Throttled { cpu },
            Left::Preempted => State::Waiting { cpu },
        };
        open.turn(event.at, state);
        if open.exiting && left == Left::Blocked {
            self.end(task.thread, event.at);
        }
    }

    fn arrive(&mut self, task: &OnCpu, event: &Event) {
        let open = self.entry(task.thread, task.cgroup, event.at);
        let untraced = matches!(open.state, State::Blocked | State::Running { .. });
        if untraced {
            // A wakeup or a switch-out was not traced.
            open.state = State::Unknown;
        }
        open.doubted = false;
        open.turn(event.at, State::Running { cpu: event.cpu });
        self.untraced += u64::from(untraced);
    }

    fn wake(&mut self, task: &OnCpu, cpu: u32, at: MonoNs, levels: &LevelTracker<'_>) {
        let held = !self.per_task() && levels.held(task.cgroup, cpu);
        let open = self.entry(task.thread, task.cgroup, at);
        if matches!(open.state, State::Blocked | State::Unknown) {
            open.doubted = false;
            open.turn(at, if held { State::Throttled { cpu } } else { State::Waiting { cpu } });
        }
    }

    fn migrate(&mut self, thread: u32, cgroup: CgroupId, cpu: u32, at: MonoNs, levels: &LevelTracker<'_>) {
        let held = levels.held(cgroup, cpu) && levels.granted_long_before(cgroup, cpu, at).is_none();
        let per_task = self.per_task();
        let sure = levels.sure(cgroup, cpu);
        let open = self.entry(thread, cgroup, at);
        if let State::Throttled { cpu: from } = open.state
            && let Some(granted) = levels.granted_long_before(cgroup, from, at)
        {
            open.turn(granted, State::Waiting { cpu: from });
        }
        match open.state {
            State::Throttled { .. } if !sure => open.turn(at, State::Unknown),
            State::Waiting { .. } if !sure && !per_task => open.turn(at, State::Unknown),
            State::Throttled { .. } if held => open.turn(at, State::Throttled { cpu }),
            State::Throttled { .. } => open.turn(at, State::Waiting { cpu }),
            State::Waiting { .. } if held && !per_task => open.turn(at, State::Throttled { cpu }),
            State::Waiting { .. } => open.turn(at, State::Waiting { cpu }),
            State::Running { .. } | State::Blocked | State::Unknown => {}
        }
    }

    /// A thread id may be used again: the next thread of that id starts a line of its own only if none is kept yet, else
    /// its segments are appended after a hole of unknown.
    fn end(&mut self, thread: u32, at: MonoNs) {
        let Some(mut open) = self.live.remove(&thread) else { return };
        open.turn(at, State::Blocked);
        self.keep(thread, open);
    }

    fn keep(&mut self, thread: u32, open: Open) {
        let line = self.ended.entry(thread).or_insert_with(|| ThreadLine { cgroup: open.cgroup, segments: vec![] });
        line.cgroup = open.cgroup;
        if let (Some(last), Some(first)) = (line.segments.last(), open.segments.first())
            && last.span.end < first.span.start
        {
            let span = Span::new(last.span.end, first.span.start);
            line.segments.push(Segment { span, state: State::Unknown, uncharged: DurationNs::ZERO });
        }
        line.segments.extend(open.segments);
    }

    /// The lines of all threads, and how many switches and wakeups were not traced.
    pub(super) fn finish(mut self, end: MonoNs) -> (BTreeMap<u32, ThreadLine>, u64) {
        for (thread, mut open) in std::mem::take(&mut self.live) {
            let state = open.state;
            open.turn(end, state);
            self.keep(thread, open);
        }
        (self.ended, self.untraced)
    }
}
