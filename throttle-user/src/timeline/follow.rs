//! The state machine that follows threads through events.
//!
//! A waiting thread whose queue is throttled is throttled, not waiting. Before 6.18 the whole queue is: the state follows
//! the marks of its CPU. From 6.18 on each thread is taken off by itself, on its way to user mode, and until then really
//! waits for a CPU.

use std::collections::BTreeMap;

use super::{
    CountsFrom, Setting,
    gap::Gap,
    interval::Span,
    level::Changes,
    levels::LevelTracker,
    open::Open,
    thread::{Segment, State, Stay, ThreadLine},
};
use crate::{
    event::{CgroupId, Event, Left, OnCpu, What},
    time::{DurationNs, MonoNs},
};

#[derive(Clone)]
pub(super) struct ThreadTracker<'a> {
    setting: &'a Setting,
    /// First event of all: what happened before it could not be seen.
    begin: MonoNs,
    /// Since when records may be missing.
    lost_since: Option<MonoNs>,
    live: BTreeMap<u32, Open>,
    ended: BTreeMap<u32, ThreadLine>,
    /// Threads and the cgroups that a record of a move shows them in, and when: of others it is not known when they moved.
    announced: BTreeMap<(u32, CgroupId), MonoNs>,
    /// Switches and wakeups that must have been there and were not traced.
    untraced: u64,
}

impl<'a> ThreadTracker<'a> {
    pub(super) fn new(setting: &'a Setting, begin: MonoNs) -> Self {
        Self {
            setting,
            begin,
            lost_since: None,
            live: BTreeMap::new(),
            ended: BTreeMap::new(),
            announced: BTreeMap::new(),
            untraced: 0,
        }
    }

    /// The same state under another setting.
    pub(super) fn under<'b>(self, setting: &'b Setting) -> ThreadTracker<'b> {
        let Self { setting: _, begin, lost_since, live, ended, announced, untraced } = self;
        ThreadTracker { setting, begin, lost_since, live, ended, announced, untraced }
    }

    /// A record shows a thread's move to a cgroup.
    pub(super) fn announce(&mut self, thread: u32, cgroup: CgroupId, at: MonoNs) {
        self.announced.insert((thread, cgroup), at);
    }

    /// Switches and wakeups that must have been there and were not traced, so far.
    pub(super) fn untraced(&self) -> u64 {
        self.untraced
    }

    /// What was before an instant is not asked for again; but for the last stretch of each thread, which may still be fitted.
    pub(super) fn forget(&mut self, before: MonoNs) {
        for open in self.live.values_mut() {
            let over = open.segments.partition_point(|segment| segment.span.end <= before);
            open.segments.drain(..over.min(open.segments.len().saturating_sub(1)));
        }
        self.ended.retain(|_, line| line.segments.last().is_some_and(|last| last.span.end > before));
        let live = &self.live;
        self.announced.retain(|(thread, _), at| *at > before || live.contains_key(thread));
    }

    /// A cgroup is gone, and whoever was in it.
    pub(super) fn forget_group(&mut self, cgroup: CgroupId) {
        self.live.retain(|_, open| open.cgroup() != cgroup);
    }

    /// Losses lie so far back that they say nothing of what is there now.
    pub(super) fn trust(&mut self) {
        self.lost_since = None;
    }

    pub(super) fn observe(&mut self, event: &Event, changes: &Changes, levels: &LevelTracker<'_>) {
        if let What::Switch { prev: Some(prev), ran, .. } = &event.what
            && self.follows(prev.thread, prev.cgroup, event.at)
        {
            self.was_running(prev, *ran, event);
        }
        self.follow_marks(event.at, changes, levels);
        match &event.what {
            What::Switch { prev, left, uncharged, next, .. } => {
                if let Some(prev) = prev
                    && self.setting.follows(prev.cgroup)
                {
                    self.leave(prev, left.unwrap_or(Left::Preempted), event, levels);
                    self.charge(prev.thread, *uncharged);
                }
                if let Some(next) = next
                    && self.follows(next.thread, next.cgroup, event.at)
                {
                    self.arrive(next, event);
                    if let Some(open) = self.live.get_mut(&next.thread) {
                        open.uncharged = *uncharged;
                    }
                }
            }
            What::Wakeup { task, target_cpu, new } => {
                if self.follows(task.thread, task.cgroup, event.at) {
                    if *new {
                        self.begin(task.thread, task.cgroup, event.at);
                    }
                    self.wake(task, *target_cpu, event.at, levels);
                }
            }
            What::Migrate { thread, cgroup, dest_cpu } => {
                if self.follows(*thread, *cgroup, event.at) {
                    self.migrate(*thread, *cgroup, *dest_cpu, event.at, levels);
                }
            }
            What::Exit { thread, cgroup } => {
                if self.follows(*thread, *cgroup, event.at) {
                    self.entry(*thread, *cgroup, event.at, event.at).exiting = true;
                }
            }
            What::Attach { thread, cgroup, blocked } => {
                if self.follows(*thread, *cgroup, event.at) {
                    self.attach(*thread, *cgroup, *blocked, event.at, levels);
                }
            }
            What::Period(run) if run.quota.is_none() => self.lifted(run.cgroup, event.at),
            What::Period(_) | What::Slack(_) | What::Queue(_) => {}
        }
    }

    /// Whether the threads of a cgroup are followed. One that was, and is now seen in another cgroup, has left.
    fn follows(&mut self, thread: u32, cgroup: CgroupId, at: MonoNs) -> bool {
        if self.setting.follows(cgroup) {
            return true;
        }
        if let Some(mut open) = self.live.remove(&thread) {
            if !self.announced.contains_key(&(thread, cgroup)) {
                open.state = State::Unknown;
            }
            open.turn(at, State::Unknown);
            open.moves(at, cgroup);
            self.keep(thread, open);
        }
        false
    }

    /// A thread was moved to a cgroup whose threads are followed.
    fn attach(&mut self, thread: u32, cgroup: CgroupId, blocked: bool, at: MonoNs, levels: &LevelTracker<'_>) {
        if !self.live.contains_key(&thread) {
            let open = self.begin(thread, cgroup, at);
            open.stays = vec![Stay { since: at, cgroup }];
            open.doubted = true;
            if blocked {
                open.turn(at, State::Blocked);
            }
            return;
        }
        let per_task = self.per_task();
        let Some(open) = self.live.get_mut(&thread).filter(|open| open.cgroup() != cgroup) else { return };
        // A thread that is held stays so only if its queue in the new group is held as well (from 6.18 on
        // kernel/sched/fair.c, `enqueue_throttled_task`).
        let there = |cpu: u32| if levels.held(cgroup, cpu) { State::Throttled { cpu } } else { State::Waiting { cpu } };
        let state = match open.state {
            State::Throttled { cpu } | State::Waiting { cpu } if !levels.sure(cgroup, cpu) => State::Unknown,
            State::Throttled { cpu } => there(cpu),
            State::Waiting { cpu } if !per_task && !open.exempt => there(cpu),
            other => other,
        };
        open.turn(at, state);
        open.moves(at, cgroup);
    }

    /// A limit is gone: a probe that looks at limited groups only says nothing more of what was under it.
    fn lifted(&mut self, level: CgroupId, at: MonoNs) {
        for open in self.live.values_mut() {
            if self.setting.path(&open.cgroup()).contains(&level) {
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
        self.live.values().filter(unknown).any(|open| self.setting.path(&open.cgroup()).contains(&level))
    }

    /// Leaf cgroup and CPU of every thread that is queued and does not run.
    pub(super) fn queued(&self) -> impl Iterator<Item = (CgroupId, u32)> + '_ {
        self.live.values().filter_map(|open| match open.state {
            State::Throttled { cpu } | State::Waiting { cpu } => Some((open.cgroup(), cpu)),
            _ => None,
        })
    }

    /// Leaf cgroup and CPU of every thread that is held by a limit.
    pub(super) fn held(&self) -> impl Iterator<Item = (CgroupId, u32)> + '_ {
        self.live.values().filter_map(|open| match open.state {
            State::Throttled { cpu } => Some((open.cgroup(), cpu)),
            _ => None,
        })
    }

    /// A held thread that leaves a CPU must have been released before it arrived there, although neither was traced: its leaf
    /// cgroup, the CPU, and when it arrived.
    pub(super) fn untraced_arrival(&self, event: &Event) -> Option<(CgroupId, u32, MonoNs)> {
        let What::Switch { prev: Some(prev), ran: Some(ran), .. } = &event.what else { return None };
        let open = self.live.get(&prev.thread).filter(|open| open.cgroup() == prev.cgroup)?;
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
            let leaf = open.cgroup();
            let path = self.setting.path(&leaf);
            match open.state {
                State::Throttled { cpu }
                    if !levels.held(open.cgroup(), cpu)
                        && changes.cleared.iter().any(|(level, on)| *on == cpu && path.contains(level)) =>
                {
                    open.turn(levels.relieved(open.cgroup(), cpu).min(at), State::Waiting { cpu });
                }
                State::Waiting { cpu }
                    if self.setting.counts_from != CountsFrom::Task
                        && !open.exempt
                        && changes.set.iter().any(|(level, on)| *on == cpu && path.contains(level)) =>
                {
                    open.turn(at, State::Throttled { cpu });
                }
                _ => {}
            }
        }
    }

    /// A thread that is not new and was not seen before may have been there since records were lost. `since`: it surely was there
    /// from then on.
    fn entry(&mut self, thread: u32, cgroup: CgroupId, since: MonoNs, now: MonoNs) -> &mut Open {
        let since = self.lost_since.map_or(since, |lost| lost.min(since));
        let announced = self.announced.contains_key(&(thread, cgroup));
        let open = self.begin(thread, cgroup, since);
        if open.cgroup() != cgroup {
            if !announced {
                // Nothing says when since its last event it was moved.
                open.state = State::Unknown;
                open.doubted = true;
            }
            open.moves(now, cgroup);
        }
        open
    }

    fn begin(&mut self, thread: u32, cgroup: CgroupId, since: MonoNs) -> &mut Open {
        let ended = &self.ended;
        self.live.entry(thread).or_insert_with(|| {
            // After the last thread of this number, if there was one.
            let before = ended.get(&thread).and_then(|line| line.segments.last()).map(|last| last.span.end);
            Open {
                stays: vec![Stay { since: before.unwrap_or_default(), cgroup }],
                since: before.map_or(since, |end| since.max(end)),
                reused: ended.contains_key(&thread),
                state: State::Unknown,
                exiting: false,
                exempt: false,
                doubted: false,
                segments: vec![],
                uncharged: None,
            }
        })
    }

    /// Whoever leaves a CPU ran on it.
    fn was_running(&mut self, task: &OnCpu, ran: Option<DurationNs>, event: &Event) {
        let arrived = ran.map(|ran| MonoNs(event.at.0.saturating_sub(ran.0)));
        let begin = self.begin;
        // Unknown threads begin where the scheduler says this one arrived.
        let open = self.entry(task.thread, task.cgroup, arrived.unwrap_or(event.at), event.at);
        let untraced = !std::mem::take(&mut open.doubted) & open.was_running_until(event.at, event.cpu, arrived);
        self.untraced += u64::from(untraced && arrived.is_none_or(|arrived| arrived >= begin));
    }

    fn leave(&mut self, task: &OnCpu, left: Left, event: &Event, levels: &LevelTracker<'_>) {
        let cpu = event.cpu;
        let held = !self.per_task() && !task.exempt && levels.held(task.cgroup, cpu);
        let open = self.entry(task.thread, task.cgroup, event.at, event.at);
        open.exempt = task.exempt;
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
        let open = self.entry(task.thread, task.cgroup, event.at, event.at);
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
        let held = !self.per_task() && !task.exempt && levels.held(task.cgroup, cpu);
        let open = self.entry(task.thread, task.cgroup, at, at);
        open.exempt = task.exempt;
        if matches!(open.state, State::Blocked | State::Unknown) {
            open.doubted = false;
            open.turn(at, if held { State::Throttled { cpu } } else { State::Waiting { cpu } });
        }
    }

    fn migrate(&mut self, thread: u32, cgroup: CgroupId, cpu: u32, at: MonoNs, levels: &LevelTracker<'_>) {
        let held = levels.held(cgroup, cpu) && levels.granted_long_before(cgroup, cpu, at).is_none();
        let per_task = self.per_task();
        let sure = levels.sure(cgroup, cpu);
        let open = self.entry(thread, cgroup, at, at);
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
            State::Waiting { .. } if held && !per_task && !open.exempt => open.turn(at, State::Throttled { cpu }),
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
        let line = self.ended.entry(thread).or_insert_with(|| ThreadLine { stays: vec![], segments: vec![] });
        let there = line.stays.last().map(|stay| stay.cgroup);
        line.stays.extend(open.stays.into_iter().skip_while(|stay| Some(stay.cgroup) == there));
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
