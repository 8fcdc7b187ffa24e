//! Throttle edges of each level on each CPU.
//!
//! A *mark* is the kernel's `cfs_rq.throttled`: this group's own quota is out on this CPU. The kernel counts time only from
//! an instant that differs by version (up to 6.5 the mark itself, to 6.17 the first queued entity, from 6.18 the first task taken
//! off), to the end of the mark. From 6.18 on that instant is read off the kernel's own clocks: it is the time of the first event
//! that shows one of them run.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::{CountsFrom, Setting, boundary::Grid, interval::Span};
use crate::{
    event::{CgroupId, Event, OnCpu, QueueState, Release, TimerRun, What},
    time::{DurationNs, MonoNs},
};

/// A timer's entry is stamped after it looked at the list of throttled queues, at most this much.
const LOOK: DurationNs = DurationNs::from_micros(20);

/// A remote call is carried out sooner than this, as a rule.
const CALL_TAKES: DurationNs = DurationNs::from_micros(200);
/// A remote call that was not seen within this was not traced.
const CALL_OVERDUE: DurationNs = DurationNs::from_millis(10);

/// How a throttle was seen to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// Period timer: exact to the length of its callback.
    Period,
    /// Slack timer, inside a period.
    Slack,
    /// Remote call sent by a timer's CPU.
    Csd,
    /// The timer granted runtime but the remote call that ends it was not traced: ended at the grant, tens of microseconds
    /// early.
    Grant,
    /// The period timer must have run but was not traced: ended at the boundary, tens of microseconds early.
    Boundary,
    /// A later event showed it over: it ended at or before then (limit written, task moved, CPU taken offline).
    Later,
}

impl From<Release> for EndedBy {
    fn from(release: Release) -> Self {
        match release {
            Release::Period => Self::Period,
            Release::Slack => Self::Slack,
            Release::Csd => Self::Csd,
        }
    }
}

/// One throttle of one level on one CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttle {
    /// The level whose quota ran out.
    pub cgroup: CgroupId,
    /// The CPU.
    pub cpu: u32,
    /// First event that showed the mark.
    pub marked: MonoNs,
    /// From when the kernel counts it; `None` = nobody suffered.
    pub start: Option<MonoNs>,
    /// End; `None` = still throttled at the last event.
    pub end: Option<MonoNs>,
    /// How the end was seen.
    pub ended_by: Option<EndedBy>,
    /// False: records were lost while it lasted.
    pub complete: bool,
}

impl Throttle {
    /// From the mark to the end, or to `until` while it lasts.
    #[must_use]
    pub fn span(&self, until: MonoNs) -> Span {
        Span::new(self.marked, self.end.unwrap_or(until))
    }

    /// What the kernel adds to `throttled_time` for it: nothing before it ends.
    #[must_use]
    pub fn counted(&self) -> DurationNs {
        match (self.start, self.end) {
            (Some(start), Some(end)) => end.since(start),
            _ => DurationNs::ZERO,
        }
    }
}

/// A stretch in which a cgroup's queue on a CPU was throttled by itself or an ancestor, with somebody suffering: what the
/// kernel counts in `cpu.stat.local`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HierarchyThrottle {
    /// The cgroup that suffered.
    pub cgroup: CgroupId,
    /// The CPU.
    pub cpu: u32,
    /// First victim.
    pub start: MonoNs,
    /// When the last level was released; `None` = not yet.
    pub end: Option<MonoNs>,
    /// False: records were lost while it lasted.
    pub complete: bool,
}

impl HierarchyThrottle {
    /// From start to end, or to `until` while it lasts.
    #[must_use]
    pub fn span(&self, until: MonoNs) -> Span {
        Span::new(self.start, self.end.unwrap_or(until))
    }
}

/// What an event changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Marks set: (level, CPU).
    pub set: Vec<(CgroupId, u32)>,
    /// Marks cleared: (level, CPU).
    pub cleared: Vec<(CgroupId, u32)>,
}

/// The state machine over all levels and CPUs.
pub(super) struct LevelTracker<'a> {
    setting: &'a Setting,
    open: BTreeMap<(CgroupId, u32), Throttle>,
    /// Grants seen for open throttles whose end on another CPU is still to come.
    granted: HashMap<(CgroupId, u32), MonoNs>,
    /// The last point of each period grid whose timer run was seen, and the distance of points.
    seen: HashMap<CgroupId, Grid>,
    /// Since when somebody suffers, and whether that instant is sure.
    suffering: HashMap<(CgroupId, u32), (MonoNs, bool)>,
    /// End of the last throttle.
    ended: HashMap<(CgroupId, u32), MonoNs>,
    /// Times that records were lost, and until when.
    losses: u32,
    lost_until: MonoNs,
    /// Losses when an event last showed a level on a CPU: fewer than now means that its mark is not sure.
    shown: HashMap<(CgroupId, u32), u32>,
    done: Vec<Throttle>,
    hierarchy: Vec<HierarchyThrottle>,
}

impl<'a> LevelTracker<'a> {
    pub(super) fn new(setting: &'a Setting) -> Self {
        Self {
            setting,
            open: BTreeMap::new(),
            granted: HashMap::new(),
            seen: HashMap::new(),
            suffering: HashMap::new(),
            ended: HashMap::new(),
            losses: 0,
            lost_until: MonoNs(0),
            shown: HashMap::new(),
            done: vec![],
            hierarchy: vec![],
        }
    }

    /// Whether a level is out of quota on a CPU.
    pub(super) fn marked(&self, level: CgroupId, cpu: u32) -> bool {
        self.open.contains_key(&(level, cpu))
    }

    /// Whether a task of `leaf` is held on a CPU by some level.
    pub(super) fn held(&self, leaf: CgroupId, cpu: u32) -> bool {
        self.setting.path(&leaf).iter().any(|&level| self.marked(level, cpu))
    }

    /// Records were lost: no mark is sure until an event shows it again.
    pub(super) fn doubt(&mut self, until: MonoNs) {
        self.losses += 1;
        self.lost_until = until;
    }

    /// Whether it is sure by which levels a task of `leaf` is held on a CPU.
    pub(super) fn sure(&self, leaf: CgroupId, cpu: u32) -> bool {
        self.setting.path(&leaf).iter().all(|&level| self.sure_of(level, cpu))
    }

    fn sure_of(&self, level: CgroupId, cpu: u32) -> bool {
        self.losses == 0 || self.shown.get(&(level, cpu)) == Some(&self.losses)
    }

    fn shows(&mut self, level: CgroupId, cpu: u32) {
        if self.losses > 0 {
            self.shown.insert((level, cpu), self.losses);
        }
    }

    /// It is not sure since when a level's throttle on a CPU counts.
    pub(super) fn spoil(&mut self, level: CgroupId, cpu: u32) {
        if let Some(throttle) = self.open.get_mut(&(level, cpu)) {
            throttle.complete = false;
        }
        if let Some((_, sure)) = self.suffering.get_mut(&(level, cpu)) {
            *sure = false;
        }
    }

    /// When the last of the levels that held a task of `leaf` on a CPU was released. The level whose end was seen last need not
    /// be the one that ended last.
    pub(super) fn relieved(&self, leaf: CgroupId, cpu: u32) -> MonoNs {
        let ends = self.setting.path(&leaf).iter().filter_map(|&level| self.ended.get(&(level, cpu)));
        ends.copied().max().unwrap_or_default()
    }

    /// When all levels that hold a task of `leaf` on a CPU were granted runtime, if that was so long before `at` that they must have
    /// been released since, though it was not traced.
    pub(super) fn granted_long_before(&self, leaf: CgroupId, cpu: u32, at: MonoNs) -> Option<MonoNs> {
        let held = self.setting.path(&leaf).iter().filter(|&&level| self.marked(level, cpu));
        let grants: Option<Vec<MonoNs>> = held.map(|&level| self.granted.get(&(level, cpu)).copied()).collect();
        grants?.into_iter().max().filter(|&grant| grant + CALL_TAKES < at)
    }

    /// CPUs on which a level is out of quota.
    pub(super) fn marked_cpus(&self, level: CgroupId) -> u32 {
        let count = self.open.range((level, 0)..=(level, u32::MAX)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// `listed`: the CPUs whose queues a timer run reported.
    pub(super) fn observe(&mut self, event: &Event, listed: &[u32]) -> Changes {
        let mut changes = self.lapse(event.at, CALL_OVERDUE);
        match &event.what {
            What::Switch { prev, next, .. } => {
                if let Some(prev) = prev {
                    self.levels(prev, event.cpu, event.at, &mut changes);
                    self.eats(prev.cgroup, event.cpu);
                    self.count(prev, event.cpu, event.at);
                }
                if let Some(next) = next {
                    self.levels(next, event.cpu, event.at, &mut changes);
                    self.count(next, event.cpu, event.at);
                }
            }
            What::Wakeup { task, target_cpu, .. } => {
                self.levels(task, *target_cpu, event.at, &mut changes);
                self.count(task, *target_cpu, event.at);
            }
            What::Queue(queue) => self.queue(queue, event.at, &mut changes),
            What::Period(run) => {
                // A run that came late stands for all points of the grid up to its next one.
                let last = MonoNs(run.next_expires.0.saturating_sub(run.period.0)).max(run.expires);
                let grid = Grid { point: last, period: run.period };
                let follows =
                    self.seen.get(&run.cgroup).is_some_and(|before| before.point + before.period == run.expires);
                if follows {
                    // No run was missed: what is over ended otherwise.
                    self.seen.insert(run.cgroup, grid);
                }
                self.unlisted(run, event.at, listed, &mut changes);
                self.seen.insert(run.cgroup, grid);
            }
            What::Slack(run) => self.unlisted(run, event.at, listed, &mut changes),
            What::Migrate { .. } | What::Exit { .. } => {}
        }
        changes
    }

    /// Nothing more will be seen: grants that were surely carried out before end their throttles.
    pub(super) fn last(&mut self, end: MonoNs) -> Changes {
        self.lapse(end, CALL_TAKES)
    }

    /// Grants older than `overdue` ended their throttles, though it was not traced.
    fn lapse(&mut self, now: MonoNs, overdue: DurationNs) -> Changes {
        let mut changes = Changes::default();
        if self.granted.is_empty() {
            return changes;
        }
        let mut lapsed: Vec<_> =
            self.granted.iter().filter(|(_, granted)| **granted + overdue < now).map(|(&key, _)| key).collect();
        lapsed.sort_unstable();
        for (level, cpu) in lapsed {
            self.clear(level, cpu, now, EndedBy::Later, &mut changes);
        }
        changes
    }

    /// A timer lists all CPUs throttled at its entry: whatever was open before it looked and is not listed is over.
    fn unlisted(&mut self, run: &TimerRun, exit: MonoNs, listed: &[u32], changes: &mut Changes) {
        if run.truncated || listed.len() != run.throttled_cpus as usize {
            return;
        }
        let over: Vec<_> = self
            .open
            .range((run.cgroup, 0)..=(run.cgroup, u32::MAX))
            .filter(|((_, cpu), throttle)| !listed.contains(cpu) && throttle.marked + LOOK <= run.entry)
            .map(|(&key, _)| key)
            .collect();
        for (level, cpu) in over {
            self.clear(level, cpu, run.entry.min(exit), EndedBy::Later, changes);
        }
    }

    /// No level of a path was out of quota on a CPU at an instant.
    pub(super) fn clear_path(&mut self, leaf: CgroupId, cpu: u32, at: MonoNs) -> Changes {
        let mut changes = Changes::default();
        let setting = self.setting;
        for &level in setting.path(&leaf) {
            self.clear(level, cpu, at, EndedBy::Later, &mut changes);
        }
        changes
    }

    /// Takes over the marks that a task showed on its path.
    fn levels(&mut self, task: &OnCpu, cpu: u32, at: MonoNs, changes: &mut Changes) {
        let setting = self.setting;
        for (distance, &level) in setting.path(&task.cgroup).iter().enumerate() {
            if task.levels.contains(distance) {
                if self.granted.get(&(level, cpu)).is_some_and(|&granted| granted + CALL_TAKES < at) {
                    // Released since by a call that was not traced, and out of quota again.
                    self.clear(level, cpu, at, EndedBy::Later, changes);
                }
                self.set(level, cpu, at, changes);
            } else {
                self.clear(level, cpu, at, EndedBy::Later, changes);
            }
            self.shows(level, cpu);
        }
    }

    /// A thread ran on a queue that is throttled (6.18): a grant given meanwhile, just above zero, is gone again.
    fn eats(&mut self, leaf: CgroupId, cpu: u32) {
        for &level in self.setting.path(&leaf) {
            self.granted.remove(&(level, cpu));
        }
    }

    /// Takes over for which levels the kernel was counting. From 6.18 on its clocks start when the first task is really held, which
    /// is not always when the quota runs out: a level that runs out while its task is being held by another one is not counted at
    /// all (`record_throttle_clock` looks at the levels out of quota as the task is taken off).
    fn count(&mut self, task: &OnCpu, cpu: u32, at: MonoNs) {
        let setting = self.setting;
        let path = setting.path(&task.cgroup);
        for (distance, &level) in path.iter().enumerate() {
            if task.counting_local.contains(distance) {
                self.suffers_since(level, &path[distance..], cpu, at);
            }
            if task.counting.contains(distance) {
                self.counts_since(level, cpu, at);
            }
        }
    }

    /// A runnable thread of `leaf` is held on a CPU: somebody suffers under the levels marked there.
    pub(super) fn suffer(&mut self, leaf: CgroupId, cpu: u32, at: MonoNs) {
        let setting = self.setting;
        let path = setting.path(&leaf);
        for (distance, &level) in path.iter().enumerate() {
            self.suffers_since(level, &path[distance..], cpu, at);
            self.counts_since(level, cpu, at);
        }
    }

    /// Somebody suffers in a level's queue on a CPU from the levels above that are marked there, the level itself among them.
    fn suffers_since(&mut self, level: CgroupId, above: &[CgroupId], cpu: u32, at: MonoNs) {
        let above: Vec<&Throttle> = above.iter().filter_map(|&above| self.open.get(&(above, cpu))).collect();
        if let Some(held_since) = above.iter().map(|throttle| throttle.marked).min() {
            let sure = above.iter().all(|throttle| throttle.complete) && self.first_victim(held_since, at);
            self.suffering.entry((level, cpu)).or_insert((at, sure));
        }
    }

    /// A level's throttle on a CPU counts, if it did not before.
    fn counts_since(&mut self, level: CgroupId, cpu: u32, at: MonoNs) {
        let first = self.open.get(&(level, cpu)).is_some_and(|throttle| self.first_victim(throttle.marked, at));
        if let Some(throttle) = self.open.get_mut(&(level, cpu))
            && throttle.start.is_none()
        {
            throttle.start = Some(at);
            throttle.complete &= first;
        }
    }

    /// Whether a victim at `at` is surely the first one of a queue throttled since `held_since`: after a loss there may be
    /// threads that were never seen.
    fn first_victim(&self, held_since: MonoNs, at: MonoNs) -> bool {
        self.losses == 0
            || match self.setting.counts_from {
                // Victims show themselves, one by one.
                CountsFrom::Task => held_since > self.lost_until,
                CountsFrom::Queued | CountsFrom::Mark => held_since == at,
            }
    }

    /// Whether a throttle without a victim may have had one that was never seen.
    fn victims_unseen(&self, throttle: &Throttle) -> bool {
        self.losses > 0 && throttle.start.is_none() && self.setting.counts_from == CountsFrom::Queued
    }

    /// A queue counts the levels that are out of quota over it. From 6.18 on a level can run out while the same thread is picked
    /// again: no switch shows that, but this count does. Which level it is, is clear if there is only one that can be.
    fn unshown(&mut self, queue: &QueueState, at: MonoNs, changes: &mut Changes) {
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

    fn queue(&mut self, queue: &QueueState, at: MonoNs, changes: &mut Changes) {
        self.unshown(queue, at, changes);
        let key = (queue.cgroup, queue.cpu);
        if !queue.throttled
            && !self.open.contains_key(&key)
            && self.ended.get(&key).is_some_and(|&end| end > queue.entry)
        {
            // Released by a call while this callback ran.
            return;
        }
        // It was on the list at entry, so it was throttled then even if no event had shown it.
        self.set(queue.cgroup, queue.cpu, queue.entry.min(at), changes);
        self.shows(queue.cgroup, queue.cpu);
        if !queue.throttled {
            self.clear(queue.cgroup, queue.cpu, at, queue.release.into(), changes);
        } else if queue.runtime_remaining > 0 {
            self.granted.insert((queue.cgroup, queue.cpu), at);
        } else {
            // Work in the kernel ate the grant before the call came (6.18).
            self.granted.remove(&(queue.cgroup, queue.cpu));
        }
    }

    fn set(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs, changes: &mut Changes) {
        if self.marked(cgroup, cpu) {
            return;
        }
        // An entry that was reported late lies before the end of the one before at most by what its callback took.
        let at = self.ended.get(&(cgroup, cpu)).map_or(at, |&ended| at.max(ended));
        let start = (self.setting.counts_from == CountsFrom::Mark).then_some(at);
        let complete = self.sure_of(cgroup, cpu);
        let throttle = Throttle { cgroup, cpu, marked: at, start, end: None, ended_by: None, complete };
        self.open.insert((cgroup, cpu), throttle);
        changes.set.push((cgroup, cpu));
    }

    fn clear(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs, by: EndedBy, changes: &mut Changes) {
        let Some(throttle) = self.open.remove(&(cgroup, cpu)) else { return };
        let granted = self.granted.remove(&(cgroup, cpu));
        let (at, by) = match by {
            EndedBy::Later => self.sooner(&throttle, granted, at),
            seen => (at, seen),
        };
        // Suffering may have been seen after the instant at which it must have ended: that instant was not seen.
        let at = at.max(throttle.start.unwrap_or(throttle.marked)).max(throttle.marked);
        // An end that was not seen may have been among the records lost since.
        let lost = matches!(by, EndedBy::Grant | EndedBy::Boundary) && self.losses > 0 && at <= self.lost_until;
        let complete = throttle.complete && !lost && !self.victims_unseen(&throttle);
        self.ended.insert((cgroup, cpu), at);
        self.done.push(Throttle { end: Some(at), ended_by: Some(by), complete, ..throttle });
        changes.cleared.push((cgroup, cpu));
        if self.setting.counts_from == CountsFrom::Queued && throttle.start.is_some() {
            self.pass_on(cgroup, cpu, at);
        }
        let released: Vec<_> = self
            .suffering
            .keys()
            .copied()
            .filter(|&(sufferer, on)| {
                on == cpu && self.setting.path(&sufferer).contains(&cgroup) && !self.held(sufferer, cpu)
            })
            .collect();
        for key in released {
            if let Some((start, complete)) = self.suffering.remove(&key) {
                self.hierarchy.push(HierarchyThrottle {
                    cgroup: key.0,
                    cpu,
                    start,
                    end: Some(self.relieved(key.0, cpu).max(start)),
                    complete: complete && !lost,
                });
            }
        }
    }

    /// A queue released with something in it is queued again with its parent, up to the first ancestor that is itself out of
    /// quota. From then on that one holds something, and is counted; no event shows it (6.6 to 6.17: kernel/sched/fair.c,
    /// `unthrottle_cfs_rq` and `enqueue_entity`).
    fn pass_on(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs) {
        let setting = self.setting;
        let sure = self.sure_of(cgroup, cpu);
        for &above in setting.path(&cgroup).iter().skip(1) {
            if self.held(above, cpu) {
                let from = at.max(self.relieved(above, cpu));
                self.suffering.entry((above, cpu)).or_insert((from, sure));
            }
            if let Some(throttle) = self.open.get_mut(&(above, cpu)) {
                if throttle.start.is_none() {
                    throttle.start = Some(at.max(throttle.marked));
                    throttle.complete &= sure;
                }
                return;
            }
        }
    }

    /// When a throttle ended that an event shows over although nothing showed its end: at a grant whose remote call was not
    /// traced, or at a boundary whose timer run was not.
    fn sooner(&self, throttle: &Throttle, granted: Option<MonoNs>, shown: MonoNs) -> (MonoNs, EndedBy) {
        // While a CPU is throttled the timer is armed: it runs at every point of the grid.
        let boundary = self.seen.get(&throttle.cgroup).filter(|grid| grid.period != DurationNs::ZERO).map(|grid| {
            let from = throttle.marked.max(grid.point);
            from + grid.to_next(from)
        });
        match (granted, boundary) {
            (Some(granted), _) => (granted.min(shown), EndedBy::Grant),
            (None, Some(due)) if due < shown => (due, EndedBy::Boundary),
            _ => (shown, EndedBy::Later),
        }
    }

    /// All throttles, those still open included, in order of their start.
    pub(super) fn finish(self) -> (Vec<Throttle>, Vec<HierarchyThrottle>) {
        let open: Vec<_> = self
            .open
            .values()
            .map(|throttle| Throttle {
                complete: throttle.complete && !self.victims_unseen(throttle),
                ..throttle.clone()
            })
            .collect();
        let Self { suffering, mut done, mut hierarchy, .. } = self;
        done.extend(open);
        done.sort_by_key(|throttle| (throttle.marked, throttle.cgroup, throttle.cpu));
        hierarchy.extend(suffering.into_iter().map(|((cgroup, cpu), (start, complete))| HierarchyThrottle {
            cgroup,
            cpu,
            start,
            end: None,
            complete,
        }));
        hierarchy.sort_by_key(|throttle| (throttle.start, throttle.cgroup, throttle.cpu));
        (done, hierarchy)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::event::{Left, Levels};

    const CONTAINER: CgroupId = CgroupId(2);
    const POD: CgroupId = CgroupId(1);

    fn event(at: u64, what: What) -> Event {
        Event { at: MonoNs(at), cpu: 0, seq: 0, what }
    }

    /// A task of the container leaves with both levels out of quota, of which the kernel counts the container alone: its
    /// queue went first, so the pod's was empty by the time its own quota was found out.
    fn both_out(at: u64) -> Event {
        let prev = OnCpu {
            thread: 7,
            cgroup: CONTAINER,
            levels: Levels(0b11),
            counting: Levels(0b01),
            counting_local: Levels(0b01),
            hierarchy: true,
        };
        let what = What::Switch {
            prev: Some(prev),
            left: Some(Left::Throttled),
            ran: None,
            uncharged: None,
            next: None,
            from_idle: false,
            to_idle: false,
        };
        event(at, what)
    }

    fn released(at: u64, cgroup: CgroupId, still_held: u32) -> Event {
        let queue = QueueState {
            cgroup,
            cpu: 0,
            entry: MonoNs(at),
            throttled: false,
            throttle_count: still_held,
            runtime_remaining: 1,
            release: Release::Period,
        };
        event(at, What::Queue(queue))
    }

    fn counted(counts_from: CountsFrom, events: &[Event]) -> (BTreeMap<CgroupId, u64>, BTreeMap<CgroupId, u64>) {
        let paths = BTreeMap::from([(CONTAINER, vec![CONTAINER, POD]), (POD, vec![POD])]);
        let setting = Setting { paths, counts_from, cpus: 1, watched_until: None };
        let mut tracker = LevelTracker::new(&setting);
        for event in events {
            tracker.observe(event, &[]);
        }
        let (own, any) = tracker.finish();
        (
            own.iter().map(|throttle| (throttle.cgroup, throttle.counted().0)).collect(),
            any.iter().map(|throttle| (throttle.cgroup, throttle.span(MonoNs(0)).length().0)).collect(),
        )
    }

    #[test]
    fn a_pod_still_out_of_quota_is_counted_from_when_its_container_is_released_into_it() {
        let events = [both_out(100), released(110, CONTAINER, 1), released(130, POD, 0)];
        let (own, any) = counted(CountsFrom::Queued, &events);
        assert_eq!(own, BTreeMap::from([(CONTAINER, 10), (POD, 20)]));
        assert_eq!(any, BTreeMap::from([(CONTAINER, 30), (POD, 20)]));
    }

    #[test]
    fn a_pod_released_before_its_container_never_held_anything() {
        let events = [both_out(100), released(110, POD, 0), released(130, CONTAINER, 0)];
        let (own, any) = counted(CountsFrom::Queued, &events);
        assert_eq!(own, BTreeMap::from([(CONTAINER, 30), (POD, 0)]));
        assert_eq!(any, BTreeMap::from([(CONTAINER, 30)]));
    }

    #[test]
    fn where_tasks_are_held_one_by_one_the_pods_clock_does_not_start_by_itself() {
        let events = [both_out(100), released(110, CONTAINER, 1), released(130, POD, 0)];
        assert_eq!(counted(CountsFrom::Task, &events).0, BTreeMap::from([(CONTAINER, 10), (POD, 0)]));
    }
}
