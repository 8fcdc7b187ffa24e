//! Throttle edges of each level on each CPU.
//!
//! A *mark* is the kernel's `cfs_rq.throttled`: this group's own quota is out on this CPU. The kernel counts time only from
//! an instant that differs by version (up to 6.5 the mark itself, to 6.17 the first queued entity, from 6.18 the first task taken
//! off), to the end of the mark. That it is counting is read with each event; when it began is the time of the first such event.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::{CountsFrom, Setting, boundary::Grid, interval::Span};
use crate::{
    event::{CgroupId, Event, OnCpu, QueueState, Release, TimerRun, What},
    time::{DurationNs, MonoNs},
};

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
    /// When each mark last ended.
    cleared: HashMap<(CgroupId, u32), MonoNs>,
    /// The last run of each period timer that was seen: a point of the grid and the distance of points.
    seen: HashMap<CgroupId, Grid>,
    suffering: HashMap<(CgroupId, u32), MonoNs>,
    done: Vec<Throttle>,
    hierarchy: Vec<HierarchyThrottle>,
}

impl<'a> LevelTracker<'a> {
    pub(super) fn new(setting: &'a Setting) -> Self {
        Self {
            setting,
            open: BTreeMap::new(),
            granted: HashMap::new(),
            cleared: HashMap::new(),
            seen: HashMap::new(),
            suffering: HashMap::new(),
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

    /// When the last level of a path that is not held any more was released on a CPU. Ends that were not traced are found
    /// late, so this is not always the end found last.
    pub(super) fn released(&self, leaf: CgroupId, cpu: u32) -> Option<MonoNs> {
        self.setting.path(&leaf).iter().filter_map(|&level| self.cleared.get(&(level, cpu)).copied()).max()
    }

    /// CPUs on which a level is out of quota.
    pub(super) fn marked_cpus(&self, level: CgroupId) -> u32 {
        let count = self.open.range((level, 0)..=(level, u32::MAX)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    pub(super) fn observe(&mut self, event: &Event) -> Changes {
        let mut changes = Changes::default();
        match &event.what {
            What::Switch { prev, next, .. } => {
                for side in [prev, next].into_iter().flatten() {
                    self.levels(side, event.cpu, event.at, &mut changes);
                    self.count(side, event.cpu, event.at);
                }
            }
            What::Wakeup { task, target_cpu, .. } => {
                self.levels(task, *target_cpu, event.at, &mut changes);
                self.count(task, *target_cpu, event.at);
            }
            What::Queue(queue) => self.queue(queue, event.at, &mut changes),
            What::Period(run) => {
                self.nobody_listed(run, &mut changes);
                self.seen.insert(run.cgroup, Grid { point: run.expires, period: run.period });
            }
            What::Slack(run) => self.nobody_listed(run, &mut changes),
            What::Migrate { .. } | What::Exit { .. } => {}
        }
        changes
    }

    /// A timer found no throttled CPU: whatever was still open is over.
    fn nobody_listed(&mut self, run: &TimerRun, changes: &mut Changes) {
        if run.throttled_cpus > 0 || run.truncated {
            return;
        }
        let over: Vec<_> = self.open.range((run.cgroup, 0)..=(run.cgroup, u32::MAX)).map(|(&key, _)| key).collect();
        for (level, cpu) in over {
            self.clear(level, cpu, run.entry, EndedBy::Later, changes);
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
                self.set(level, cpu, at, changes);
            } else {
                self.clear(level, cpu, at, EndedBy::Later, changes);
            }
        }
    }

    /// Takes over for which levels the kernel was counting. Its clocks start when the first task is really held, which is not
    /// always when the quota runs out: a level that runs out while its task is being held by another one is not counted at all
    /// on 6.18 (`record_throttle_clock` looks at the levels out of quota as the task is taken off).
    fn count(&mut self, task: &OnCpu, cpu: u32, at: MonoNs) {
        let setting = self.setting;
        for (distance, &level) in setting.path(&task.cgroup).iter().enumerate() {
            if task.counting.contains(distance)
                && let Some(throttle) = self.open.get_mut(&(level, cpu))
            {
                throttle.start.get_or_insert(at);
            }
            if task.counting_local.contains(distance) {
                self.suffering.entry((level, cpu)).or_insert(at);
            }
        }
    }

    fn queue(&mut self, queue: &QueueState, at: MonoNs, changes: &mut Changes) {
        // It was on the list at entry, so it was throttled then even if no event had shown it.
        self.set(queue.cgroup, queue.cpu, queue.entry, changes);
        if !queue.throttled {
            self.clear(queue.cgroup, queue.cpu, at, queue.release.into(), changes);
        } else if queue.runtime_remaining > 0 {
            self.granted.insert((queue.cgroup, queue.cpu), at);
        }
    }

    fn set(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs, changes: &mut Changes) {
        if self.marked(cgroup, cpu) {
            return;
        }
        let throttle = Throttle { cgroup, cpu, marked: at, start: None, end: None, ended_by: None, complete: true };
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
        let at = at.max(throttle.marked);
        self.done.push(Throttle { end: Some(at), ended_by: Some(by), ..throttle });
        changes.cleared.push((cgroup, cpu));
        self.cleared.insert((cgroup, cpu), at);
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
            let at = self.released(key.0, cpu).unwrap_or(at);
            if let Some(start) = self.suffering.remove(&key) {
                self.hierarchy.push(HierarchyThrottle {
                    cgroup: key.0,
                    cpu,
                    start,
                    end: Some(at.max(start)),
                    complete: true,
                });
            }
        }
    }

    /// A queue released with something in it is queued again with its parent, up to the first ancestor that is itself out of
    /// quota. From then on that one holds something, and is counted; no event shows it (6.6 to 6.17: kernel/sched/fair.c,
    /// `unthrottle_cfs_rq` and `enqueue_entity`).
    fn pass_on(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs) {
        let setting = self.setting;
        for &above in setting.path(&cgroup).iter().skip(1) {
            if self.held(above, cpu) {
                self.suffering.entry((above, cpu)).or_insert(at);
            }
            if let Some(throttle) = self.open.get_mut(&(above, cpu)) {
                throttle.start.get_or_insert(at);
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
        let Self { setting: _, open, granted: _, cleared: _, seen: _, suffering, mut done, mut hierarchy } = self;
        done.extend(open.into_values());
        done.sort_by_key(|throttle| (throttle.marked, throttle.cgroup, throttle.cpu));
        hierarchy.extend(suffering.into_iter().map(|((cgroup, cpu), start)| HierarchyThrottle {
            cgroup,
            cpu,
            start,
            end: None,
            complete: true,
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
            tracker.observe(event);
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
