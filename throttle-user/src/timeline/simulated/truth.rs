//! What really happened in the simulated kernel, kept in the words of the timeline.

use std::collections::BTreeMap;

use crate::{
    event::CgroupId,
    time::{DurationNs, MonoNs},
    timeline::{
        interval::{Span, Spans},
        level::{EndedBy, HierarchyThrottle, Throttle},
        thread::{Segment, State},
    },
};

/// A run of a period timer, as far as it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roll {
    pub(crate) due: MonoNs,
    pub(crate) entry: MonoNs,
    pub(crate) exit: MonoNs,
    pub(crate) periods: u64,
    pub(crate) throttled_cpus: u32,
}

/// What really happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    pub(crate) threads: BTreeMap<u32, Vec<Segment>>,
    pub(crate) throttles: Vec<Throttle>,
    pub(crate) hierarchy: Vec<HierarchyThrottle>,
    pub(crate) rolls: BTreeMap<CgroupId, Vec<Roll>>,
    pub(crate) idle: BTreeMap<u32, Spans>,
}

/// Writes the truth down as it happens.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    open_threads: BTreeMap<u32, (MonoNs, State)>,
    open_throttles: BTreeMap<(CgroupId, u32), Throttle>,
    open_hierarchy: BTreeMap<(CgroupId, u32), MonoNs>,
    idle_since: BTreeMap<u32, MonoNs>,
    idle: BTreeMap<u32, Vec<Span>>,
    truth: Truth,
}

impl Recorder {
    /// A thread is in a state from `at` on.
    pub(super) fn thread(&mut self, thread: u32, at: MonoNs, state: State) {
        if let Some((since, before)) = self.open_threads.insert(thread, (at, state)) {
            self.segment(thread, Span::new(since, at), before);
        }
    }

    /// A thread is no more.
    pub(super) fn ended(&mut self, thread: u32, at: MonoNs) {
        if let Some((since, before)) = self.open_threads.remove(&thread) {
            self.segment(thread, Span::new(since, at), before);
        }
    }

    fn segment(&mut self, thread: u32, span: Span, state: State) {
        if !span.is_empty() {
            self.truth.threads.entry(thread).or_default().push(Segment { span, state, uncharged: DurationNs::ZERO });
        }
    }

    /// An event shows a level's mark on a CPU.
    pub(super) fn shown(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs, counted: bool) {
        self.open_throttles.entry((cgroup, cpu)).or_insert_with(|| Throttle {
            cgroup,
            cpu,
            marked: at,
            start: counted.then_some(at),
            end: None,
            ended_by: None,
            complete: true,
        });
    }

    /// Somebody suffers from a marked level.
    pub(super) fn counted(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs) {
        if let Some(throttle) = self.open_throttles.get_mut(&(cgroup, cpu)) {
            throttle.start.get_or_insert(at);
        }
    }

    /// Somebody suffers in a group's queue, from whatever level.
    pub(super) fn suffers(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs) {
        self.open_hierarchy.entry((cgroup, cpu)).or_insert(at);
    }

    /// A level is released on a CPU.
    pub(super) fn released(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs, by: EndedBy) {
        if let Some(throttle) = self.open_throttles.remove(&(cgroup, cpu)) {
            self.truth.throttles.push(Throttle { end: Some(at), ended_by: Some(by), ..throttle });
        }
    }

    /// No level holds a group on a CPU any more.
    pub(super) fn relieved(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs) {
        if let Some(start) = self.open_hierarchy.remove(&(cgroup, cpu)) {
            self.truth.hierarchy.push(HierarchyThrottle { cgroup, cpu, start, end: Some(at), complete: true });
        }
    }

    pub(super) fn rolled(&mut self, cgroup: CgroupId, roll: Roll) {
        self.truth.rolls.entry(cgroup).or_default().push(roll);
    }

    pub(super) fn idle_from(&mut self, cpu: u32, at: MonoNs) {
        self.idle_since.insert(cpu, at);
    }

    pub(super) fn idle_until(&mut self, cpu: u32, at: MonoNs) {
        if let Some(since) = self.idle_since.remove(&cpu) {
            self.idle.entry(cpu).or_default().push(Span::new(since, at));
        }
    }

    /// Closes everything at the end of what was seen.
    pub(super) fn finish(mut self, seen: Span) -> Truth {
        for (thread, (since, state)) in std::mem::take(&mut self.open_threads) {
            self.segment(thread, Span::new(since, seen.end), state);
        }
        for cpu in self.idle_since.keys().copied().collect::<Vec<_>>() {
            self.idle_until(cpu, seen.end);
        }
        let mut truth = self.truth;
        truth.idle = self
            .idle
            .into_iter()
            .map(|(cpu, spans)| (cpu, Spans::union(spans.into_iter().map(|span| span.clip(seen)))))
            .collect();
        truth.throttles.extend(self.open_throttles.into_values());
        truth.throttles.sort_by_key(|throttle| (throttle.marked, throttle.cgroup, throttle.cpu));
        let open = self.open_hierarchy.into_iter();
        truth.hierarchy.extend(open.map(|((cgroup, cpu), start)| HierarchyThrottle {
            cgroup,
            cpu,
            start,
            end: None,
            complete: true,
        }));
        truth.hierarchy.sort_by_key(|throttle| (throttle.start, throttle.cgroup, throttle.cpu));
        truth
    }
}
