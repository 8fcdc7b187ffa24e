//! States of threads over time.
//!
//! A waiting thread whose queue is throttled is throttled, not waiting. Before 6.18 the whole queue is: the state follows
//! the marks of its CPU. From 6.18 on each thread is taken off by itself, on its way to user mode, and until then really
//! waits for a CPU.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CountsFrom, Setting,
    interval::Span,
    level::{Changes, LevelTracker},
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
            .map(move |segment| Segment { span: segment.span.clip(window), ..*segment })
            .filter(|segment| !segment.span.is_empty())
    }

    /// Spans on a CPU.
    pub fn running(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        self.segments.iter().filter_map(|segment| match segment.state {
            State::Running { cpu } => Some((cpu, segment.span)),
            _ => None,
        })
    }

    /// Spans held by a limit.
    pub fn throttled(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        self.segments.iter().filter_map(|segment| match segment.state {
            State::Throttled { cpu } => Some((cpu, segment.span)),
            _ => None,
        })
    }
}

struct Open {
    cgroup: CgroupId,
    since: MonoNs,
    state: State,
    exiting: bool,
    segments: Vec<Segment>,
}

/// The arrival the scheduler notes and the switch that is traced lie this close together.
const ARRIVAL_SLOP: DurationNs = DurationNs::from_micros(100);

impl Open {
    /// Makes the thread run on `cpu` up to now, as it must have since it `arrived` there; returns whether that was news, that
    /// is, whether its switch-in was not traced. Some kernels do not fire every tracepoint.
    fn was_running_until(&mut self, now: MonoNs, cpu: u32, arrived: Option<MonoNs>) -> bool {
        let known = matches!(self.state, State::Running { cpu: on } if on == cpu);
        // The two clocks are read at slightly different points of one switch.
        let arrived =
            arrived.map(|arrived| if arrived + ARRIVAL_SLOP >= self.since { arrived.max(self.since) } else { arrived });
        match arrived {
            // In line with the switch-in that was seen.
            Some(arrived) if known && arrived <= self.since + ARRIVAL_SLOP => false,
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
                if self.segments.is_empty() {
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

    fn turn(&mut self, at: MonoNs, state: State) {
        let span = Span::new(self.since, at);
        if !span.is_empty() {
            self.segments.push(Segment { span, state: self.state });
        }
        self.since = self.since.max(at);
        self.state = state;
    }
}

pub(super) struct ThreadTracker<'a> {
    setting: &'a Setting,
    /// First event of all: what happened before it could not be seen.
    begin: MonoNs,
    live: BTreeMap<u32, Open>,
    ended: BTreeMap<u32, ThreadLine>,
    /// Switches and wakeups that must have been there and were not traced.
    untraced: u64,
}

impl<'a> ThreadTracker<'a> {
    pub(super) fn new(setting: &'a Setting, begin: MonoNs) -> Self {
        Self { setting, begin, live: BTreeMap::new(), ended: BTreeMap::new(), untraced: 0 }
    }

    pub(super) fn observe(&mut self, event: &Event, changes: &Changes, levels: &LevelTracker<'_>) {
        self.follow_marks(event, changes, levels);
        match &event.what {
            What::Switch { prev, left, ran, next, .. } => {
                if let Some(prev) = prev {
                    let arrived = ran.map(|ran| MonoNs(event.at.0.saturating_sub(ran.0)));
                    self.leave(prev, left.unwrap_or(Left::Preempted), arrived, event, levels);
                }
                if let Some(next) = next {
                    self.arrive(next, event);
                }
            }
            What::Wakeup { task, target_cpu, .. } => self.wake(task, *target_cpu, event.at, levels),
            What::Migrate { thread, cgroup, dest_cpu } => {
                self.migrate(*thread, *cgroup, *dest_cpu, event.at, levels);
            }
            What::Exit { thread, cgroup } => self.entry(*thread, *cgroup, event.at).exiting = true,
            What::Period(_) | What::Slack(_) | What::Queue(_) => {}
        }
    }

    /// Leaf cgroup and CPU of every thread that is held by a limit.
    pub(super) fn held(&self) -> impl Iterator<Item = (CgroupId, u32)> + '_ {
        self.live.values().filter_map(|open| match open.state {
            State::Throttled { cpu } => Some((open.cgroup, cpu)),
            _ => None,
        })
    }

    fn per_task(&self) -> bool {
        self.setting.counts_from == CountsFrom::Task
    }

    /// Marks set or cleared move threads between waiting and throttled.
    fn follow_marks(&mut self, event: &Event, changes: &Changes, levels: &LevelTracker<'_>) {
        if changes.set.is_empty() && changes.cleared.is_empty() {
            return;
        }
        for open in self.live.values_mut() {
            let path = self.setting.path(&open.cgroup);
            match open.state {
                State::Throttled { cpu } if !levels.held(open.cgroup, cpu) => {
                    let cleared = changes.cleared.iter().filter(|(level, on, _)| *on == cpu && path.contains(level));
                    if let Some(&(_, _, last)) = cleared.max_by_key(|(_, _, at)| *at) {
                        open.turn(last, State::Waiting { cpu });
                    }
                }
                State::Waiting { cpu }
                    if self.setting.counts_from != CountsFrom::Task
                        && changes.set.iter().any(|(level, on)| *on == cpu && path.contains(level)) =>
                {
                    open.turn(event.at, State::Throttled { cpu });
                }
                _ => {}
            }
        }
    }

    fn entry(&mut self, thread: u32, cgroup: CgroupId, at: MonoNs) -> &mut Open {
        let open = self.live.entry(thread).or_insert_with(|| Open {
            cgroup,
            since: at,
            state: State::Unknown,
            exiting: false,
            segments: vec![],
        });
        open.cgroup = cgroup;
        open
    }

    fn leave(&mut self, task: &OnCpu, left: Left, arrived: Option<MonoNs>, event: &Event, levels: &LevelTracker<'_>) {
        let cpu = event.cpu;
        let held = !self.per_task() && levels.held(task.cgroup, cpu);
        // Unknown threads begin where the scheduler says this one arrived.
        let open = self.entry(task.thread, task.cgroup, arrived.unwrap_or(event.at));
        let untraced = open.was_running_until(event.at, cpu, arrived);
        self.untraced += u64::from(untraced && arrived.is_none_or(|arrived| arrived >= self.begin));
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
        open.turn(event.at, State::Running { cpu: event.cpu });
        self.untraced += u64::from(untraced);
    }

    fn wake(&mut self, task: &OnCpu, cpu: u32, at: MonoNs, levels: &LevelTracker<'_>) {
        let held = !self.per_task() && levels.held(task.cgroup, cpu);
        let open = self.entry(task.thread, task.cgroup, at);
        if matches!(open.state, State::Blocked | State::Unknown) {
            open.turn(at, if held { State::Throttled { cpu } } else { State::Waiting { cpu } });
        }
    }

    fn migrate(&mut self, thread: u32, cgroup: CgroupId, cpu: u32, at: MonoNs, levels: &LevelTracker<'_>) {
        let held = levels.held(cgroup, cpu);
        let per_task = self.per_task();
        let open = self.entry(thread, cgroup, at);
        match open.state {
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
            line.segments.push(Segment { span, state: State::Unknown });
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
