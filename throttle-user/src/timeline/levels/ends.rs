//! Ends that no event shows: what else tells that a level was released, and when.

use std::collections::{BTreeSet, HashMap};

use super::LevelTracker;
use crate::{
    event::{CgroupId, Event, QueueState, Release, TimerRun, What},
    time::{DurationNs, MonoNs},
    timeline::level::{Changes, EndedBy, Throttle},
};

/// A timer's entry is stamped after it looked at the list of throttled queues, at most this much.
const LOOK: DurationNs = DurationNs::from_micros(20);

/// A period timer runs within this of its point of the grid, as a rule.
const LATE: DurationNs = DurationNs::from_micros(500);
/// A remote call is carried out sooner than this, as a rule.
pub(super) const CALL_TAKES: DurationNs = DurationNs::from_micros(200);
/// A remote call that was not seen within this was not traced.
pub(super) const CALL_OVERDUE: DurationNs = DurationNs::from_millis(10);

/// Runtime given to a queue on another CPU, whose throttle ends with a remote call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::timeline) struct Grant {
    level: CgroupId,
    cpu: u32,
    at: MonoNs,
}

impl Grant {
    /// If an event is one.
    pub(in crate::timeline) fn of(event: &Event) -> Option<Self> {
        match &event.what {
            What::Queue(queue) if queue.release != Release::Csd && queue.throttled && queue.runtime_remaining > 0 => {
                Some(Self { level: queue.cgroup, cpu: queue.cpu, at: event.at })
            }
            _ => None,
        }
    }
}

/// A grant whose call is still to come.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) at: MonoNs,
    /// Something may be queued there, which the release passes on to the level above.
    pub(super) holds: bool,
}

/// Grants and the calls that follow them, in order. The record of a call answers the last grant of its queue: a hypervisor may keep
/// the queue's CPU from it for tens of milliseconds, and until then the queue is throttled.
#[derive(Default)]
pub(in crate::timeline) struct Grants {
    open: HashMap<(CgroupId, u32), MonoNs>,
    answered: BTreeSet<Grant>,
}

impl Grants {
    pub(in crate::timeline) fn note(&mut self, event: &Event) {
        let What::Queue(queue) = &event.what else { return };
        let key = (queue.cgroup, queue.cpu);
        if let Some(Grant { at, .. }) = Grant::of(event) {
            self.open.insert(key, at);
        } else if let Some(at) = self.open.remove(&key)
            && queue.release == Release::Csd
        {
            self.answered.insert(Grant { level: key.0, cpu: key.1, at });
        }
    }

    /// Whether a grant's call was traced; `None` = not yet.
    pub(in crate::timeline) fn decided(&self, grant: Grant) -> Option<bool> {
        if self.answered.contains(&grant) {
            return Some(true);
        }
        (self.open.get(&(grant.level, grant.cpu)) != Some(&grant.at)).then_some(false)
    }

    /// A grant is not asked for again.
    pub(in crate::timeline) fn forget(&mut self, grant: Grant) {
        self.answered.remove(&grant);
        if self.open.get(&(grant.level, grant.cpu)) == Some(&grant.at) {
            self.open.remove(&(grant.level, grant.cpu));
        }
    }
}

/// The grants of a whole recording that were answered.
pub(in crate::timeline) fn answered(events: &[Event]) -> BTreeSet<Grant> {
    let mut grants = Grants::default();
    events.iter().for_each(|event| grants.note(event));
    grants.answered
}

impl LevelTracker<'_> {
    /// Grants older than `overdue` ended their throttles, though it was not traced.
    pub(super) fn lapse(&mut self, now: MonoNs, overdue: DurationNs) -> Changes {
        let mut changes = Changes::default();
        if self.granted.is_empty() {
            return changes;
        }
        let mut lapsed: Vec<_> =
            self.granted.iter().filter(|(_, given)| given.at + overdue < now).map(|(&key, _)| key).collect();
        lapsed.sort_unstable();
        for (level, cpu) in lapsed {
            self.clear(level, cpu, now, EndedBy::Later, &mut changes);
        }
        changes
    }

    /// Nothing more will be seen: grants that were surely carried out before end their throttles.
    pub(in crate::timeline) fn last(&mut self, end: MonoNs) -> Changes {
        self.lapse(end, CALL_TAKES)
    }

    /// A timer lists all CPUs throttled at its entry: whatever was open before it looked and is not listed is over. `due`: when it
    /// should have run.
    pub(super) fn unlisted(
        &mut self,
        run: &TimerRun,
        exit: MonoNs,
        listed: &[u32],
        due: MonoNs,
        changes: &mut Changes,
    ) {
        if run.truncated || listed.len() != run.throttled_cpus as usize {
            return;
        }
        let over: Vec<_> = self
            .open
            .range((run.cgroup, 0)..=(run.cgroup, u32::MAX))
            .filter(|((_, cpu), throttle)| !listed.contains(cpu) && throttle.marked + LOOK <= run.entry)
            // It is not this run that ended it: something before it did, as a rule the one before its point of the grid.
            .map(|(&key, throttle)| (key, if throttle.marked < due { due } else { run.entry }))
            .collect();
        for ((level, cpu), by) in over {
            self.clear(level, cpu, by.min(exit), EndedBy::Later, changes);
        }
    }

    /// No level of a path was out of quota on a CPU at an instant.
    pub(in crate::timeline) fn clear_path(&mut self, leaf: CgroupId, cpu: u32, at: MonoNs) -> Changes {
        let mut changes = Changes::default();
        let setting = self.setting;
        for &level in setting.path(&leaf) {
            self.clear(level, cpu, at, EndedBy::Later, &mut changes);
        }
        changes
    }

    /// A thread ran on a queue that is throttled (6.18): a grant given meanwhile, just above zero, is gone again.
    pub(super) fn eats(&mut self, leaf: CgroupId, cpu: u32) {
        for &level in self.setting.path(&leaf) {
            self.granted.remove(&(level, cpu));
        }
    }

    /// A queue counts the levels that are out of quota over it. From 6.18 on a level can run out while the same thread is picked
    /// again: no switch shows that, but this count does. Which level it is, is clear if there is only one that can be.
    pub(super) fn unshown(&mut self, queue: &QueueState, at: MonoNs, changes: &mut Changes) {
        let setting = self.setting;
        let above = &setting.path(&queue.cgroup)[1..];
        let known = above.iter().filter(|&&level| self.marked(level, queue.cpu)).count() + usize::from(queue.throttled);
        let missing = (queue.throttle_count as usize).saturating_sub(known);
        if missing == 0 {
            return;
        }
        let mut can_be: Vec<CgroupId> = above.iter().copied().filter(|&level| !self.marked(level, queue.cpu)).collect();
        if can_be.len() > missing {
            can_be.retain(|level| self.seen.contains_key(level));
        }
        if can_be.len() == missing {
            can_be.into_iter().for_each(|level| self.set(level, queue.cpu, at, changes));
        }
    }

    /// When a throttle ended that an event shows over although nothing showed its end: at a grant whose remote call was not
    /// traced, or at a boundary whose timer run was not.
    pub(super) fn sooner(&self, throttle: &Throttle, granted: Option<MonoNs>, shown: MonoNs) -> (MonoNs, EndedBy) {
        if let Some(granted) = granted {
            return (granted.min(shown), EndedBy::Grant);
        }
        let Some(grid) = self.seen.get(&throttle.cgroup).filter(|grid| grid.period != DurationNs::ZERO) else {
            return (shown, EndedBy::Later);
        };
        // While a CPU is throttled the timer is armed: it runs at every point of the grid, a little late.
        let from = throttle.marked.max(grid.point);
        let due = from + grid.to_next(from);
        let before = MonoNs(due.0.saturating_sub(grid.period.0));
        if due < shown {
            (due, EndedBy::Boundary)
        } else if before > grid.point && throttle.marked <= before + LATE {
            // Marked between a point of the grid and its timer run, and over before the next point.
            (throttle.marked, EndedBy::Boundary)
        } else {
            (shown, EndedBy::Later)
        }
    }

    /// When all levels that hold a task of `leaf` on a CPU were granted runtime, if that was so long before `at` that they must have
    /// been released since, though it was not traced.
    pub(in crate::timeline) fn granted_long_before(&self, leaf: CgroupId, cpu: u32, at: MonoNs) -> Option<MonoNs> {
        let held = self.setting.path(&leaf).iter().filter(|&&level| self.marked(level, cpu));
        let grants: Option<Vec<MonoNs>> =
            held.map(|&level| self.granted.get(&(level, cpu)).map(|given| given.at)).collect();
        grants?.into_iter().max().filter(|&grant| grant + CALL_TAKES < at)
    }
}
