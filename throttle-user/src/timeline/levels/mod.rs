//! The state machine over all levels and CPUs: marks set and cleared, by what each event shows.

mod doubt;
mod ends;
mod victims;

use std::collections::{BTreeMap, HashMap};

use super::{
    CountsFrom, Setting,
    boundary::Grid,
    level::{Changes, EndedBy, HierarchyThrottle, Throttle},
    replay::Ahead,
};
use crate::{
    event::{CgroupId, Event, OnCpu, QueueState, What},
    time::MonoNs,
};
use ends::{CALL_OVERDUE, CALL_TAKES, Given};
pub(super) use ends::{Grant, Grants, answered};

/// The last throttle of a level on a CPU.
#[derive(Clone, Copy)]
struct Ended {
    marked: MonoNs,
    at: MonoNs,
    complete: bool,
}

/// What is known of every level on every CPU.
pub(super) struct LevelTracker<'a> {
    setting: &'a Setting,
    open: BTreeMap<(CgroupId, u32), Throttle>,
    /// Grants seen for open throttles whose end on another CPU is still to come.
    granted: HashMap<(CgroupId, u32), Given>,
    /// The last point of each period grid whose timer run was seen, and the distance of points.
    seen: HashMap<CgroupId, Grid>,
    /// Since when somebody suffers, and whether that instant is sure.
    suffering: HashMap<(CgroupId, u32), (MonoNs, bool)>,
    /// The last throttle that ended.
    ended: HashMap<(CgroupId, u32), Ended>,
    /// Times that records were lost, and until when.
    losses: u32,
    lost_until: MonoNs,
    /// Losses when an event last showed a level on a CPU: fewer than now means that its mark is not sure.
    shown: HashMap<(CgroupId, u32), u32>,
    /// Leaf cgroup and CPU of every followed thread that is queued and does not run.
    queued: Vec<(CgroupId, u32)>,
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
            queued: vec![],
            done: vec![],
            hierarchy: vec![],
        }
    }

    /// The same state under another setting.
    pub(super) fn under<'b>(self, setting: &'b Setting) -> LevelTracker<'b> {
        let Self {
            setting: _,
            open,
            granted,
            seen,
            suffering,
            ended,
            losses,
            lost_until,
            shown,
            queued,
            done,
            hierarchy,
        } = self;
        LevelTracker {
            setting,
            open,
            granted,
            seen,
            suffering,
            ended,
            losses,
            lost_until,
            shown,
            queued,
            done,
            hierarchy,
        }
    }

    /// Whether some level is out of quota somewhere.
    pub(super) fn any_marked(&self) -> bool {
        !self.open.is_empty()
    }

    /// Before an event: who is queued, by leaf cgroup and CPU.
    pub(super) fn know_queued(&mut self, queued: impl Iterator<Item = (CgroupId, u32)>) {
        self.queued.clear();
        self.queued.extend(queued);
    }

    /// Whether a level is out of quota on a CPU.
    pub(super) fn marked(&self, level: CgroupId, cpu: u32) -> bool {
        self.open.contains_key(&(level, cpu))
    }

    /// Whether a task of `leaf` is held on a CPU by some level.
    pub(super) fn held(&self, leaf: CgroupId, cpu: u32) -> bool {
        self.setting.path(&leaf).iter().any(|&level| self.marked(level, cpu))
    }

    /// When the last of the levels that held a task of `leaf` on a CPU was released. The level whose end was seen last need not
    /// be the one that ended last.
    pub(super) fn relieved(&self, leaf: CgroupId, cpu: u32) -> MonoNs {
        let ends = self.setting.path(&leaf).iter().filter_map(|&level| self.ended.get(&(level, cpu)));
        ends.map(|ended| ended.at).max().unwrap_or_default()
    }

    /// CPUs on which a level is out of quota.
    pub(super) fn marked_cpus(&self, level: CgroupId) -> u32 {
        let count = self.open.range((level, 0)..=(level, u32::MAX)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    pub(super) fn observe(&mut self, event: &Event, ahead: &Ahead) -> Changes {
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
            What::Queue(queue) => self.queue(queue, event, ahead.answered, &mut changes),
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
                self.unlisted(run, event.at, &ahead.listed, run.expires, &mut changes);
                self.seen.insert(run.cgroup, grid);
            }
            What::Slack(run) => self.unlisted(run, event.at, &ahead.listed, run.entry, &mut changes),
            What::Migrate { .. } | What::Exit { .. } | What::Attach { .. } => {}
        }
        changes
    }

    /// Takes over the marks that a task showed on its path.
    fn levels(&mut self, task: &OnCpu, cpu: u32, at: MonoNs, changes: &mut Changes) {
        let setting = self.setting;
        for (distance, &level) in setting.path(&task.cgroup).iter().enumerate() {
            if task.levels.contains(distance) {
                if self.granted.get(&(level, cpu)).is_some_and(|given| given.at + CALL_TAKES < at) {
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

    fn queue(&mut self, queue: &QueueState, &Event { at, cpu, .. }: &Event, answered: bool, changes: &mut Changes) {
        self.unshown(queue, cpu, at, changes);
        let key = (queue.cgroup, queue.cpu);
        if !queue.throttled
            && !self.open.contains_key(&key)
            && self.ended.get(&key).is_some_and(|ended| ended.at > queue.entry)
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
            if !answered {
                let holds = self.may_hold_one(queue.cgroup, queue.cpu);
                self.granted.insert((queue.cgroup, queue.cpu), Given { at, holds });
            }
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
        let at = self.ended.get(&(cgroup, cpu)).map_or(at, |ended| at.max(ended.at));
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
            EndedBy::Later => self.sooner(&throttle, granted.map(|given| given.at), at),
            seen => (at, seen),
        };
        // Suffering may have been seen after the instant at which it must have ended: that instant was not seen.
        let at = at.max(throttle.start.unwrap_or(throttle.marked)).max(throttle.marked);
        // An end that was not seen may have been among the records lost since.
        let lost = matches!(by, EndedBy::Grant | EndedBy::Boundary) && self.losses > 0 && at <= self.lost_until;
        let complete = throttle.complete && !lost && !self.victims_unseen(&throttle);
        self.ended.insert((cgroup, cpu), Ended { marked: throttle.marked, at, complete });
        self.done.push(Throttle { end: Some(at), ended_by: Some(by), complete, ..throttle });
        changes.cleared.push((cgroup, cpu));
        // Who was queued at a grant may have been moved away since.
        let held_one = || {
            granted.filter(|_| by == EndedBy::Grant).map_or_else(|| self.may_hold_one(cgroup, cpu), |given| given.holds)
        };
        if self.setting.counts_from == CountsFrom::Queued && throttle.start.is_some() && held_one() {
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

    /// Throttles that are still open.
    fn lasting(&self) -> Vec<Throttle> {
        let sure = |throttle: &Throttle| throttle.complete && !self.victims_unseen(throttle);
        self.open.values().map(|throttle| Throttle { complete: sure(throttle), ..throttle.clone() }).collect()
    }

    /// Throttles that ended since last asked, and those that are still open.
    pub(super) fn take_ended(&mut self) -> (Vec<Throttle>, Vec<Throttle>) {
        (std::mem::take(&mut self.done), self.lasting())
    }

    /// What was before an instant is not asked for again.
    pub(super) fn forget(&mut self, before: MonoNs) {
        self.ended.retain(|_, ended| ended.at > before);
        self.hierarchy.clear();
    }

    /// A cgroup is gone, and its queues with it.
    pub(super) fn forget_group(&mut self, cgroup: CgroupId) {
        self.open.retain(|(level, _), _| *level != cgroup);
        self.granted.retain(|(level, _), _| *level != cgroup);
        self.suffering.retain(|(level, _), _| *level != cgroup);
        self.ended.retain(|(level, _), _| *level != cgroup);
        self.shown.retain(|(level, _), _| *level != cgroup);
        self.seen.remove(&cgroup);
    }

    /// All throttles, those still open included, in order of their start.
    pub(super) fn finish(self) -> (Vec<Throttle>, Vec<HierarchyThrottle>) {
        let open = self.lasting();
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
    use crate::event::{Left, Levels, Release};

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
            exempt: false,
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

    /// With the task queued all the while.
    fn counted(counts_from: CountsFrom, events: &[Event]) -> (BTreeMap<CgroupId, u64>, BTreeMap<CgroupId, u64>) {
        counted_with(counts_from, events, &[(CONTAINER, 0)])
    }

    fn counted_with(
        counts_from: CountsFrom,
        events: &[Event],
        queued: &[(CgroupId, u32)],
    ) -> (BTreeMap<CgroupId, u64>, BTreeMap<CgroupId, u64>) {
        let paths = BTreeMap::from([(CONTAINER, vec![CONTAINER, POD]), (POD, vec![POD])]);
        let setting = Setting {
            followed: paths.keys().copied().collect(),
            paths,
            counts_from,
            cpus: 1,
            watched_until: None,
            tried: BTreeMap::new(),
        };
        let mut tracker = LevelTracker::new(&setting);
        tracker.know_queued(queued.iter().copied());
        let answered = answered(events);
        for event in events {
            let answered = Grant::of(event).is_some_and(|grant| answered.contains(&grant));
            tracker.observe(event, &Ahead { listed: vec![], answered });
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
    fn a_pod_into_which_an_empty_container_is_released_is_not_counted() {
        let events = [both_out(100), released(110, CONTAINER, 1), released(130, POD, 0)];
        let (own, _) = counted_with(CountsFrom::Queued, &events, &[]);
        assert_eq!(own, BTreeMap::from([(CONTAINER, 10), (POD, 0)]));
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

    fn remote(at: u64, by: Release, throttled: bool) -> Event {
        let queue = QueueState {
            cgroup: CONTAINER,
            cpu: 0,
            entry: MonoNs(at - 10),
            throttled,
            throttle_count: u32::from(throttled),
            runtime_remaining: 1,
            release: by,
        };
        event(at, What::Queue(queue))
    }

    #[test]
    fn a_call_that_a_hypervisor_held_up_ends_the_throttle_when_it_comes_and_one_never_traced_at_the_grant() {
        const MS: u64 = 1_000_000;
        let mut out = both_out(100 * MS);
        if let What::Switch { prev: Some(prev), .. } = &mut out.what {
            prev.levels = Levels(0b01);
        }
        let other = event(180 * MS, What::Exit { thread: 9, cgroup: CONTAINER });
        let grant = remote(150 * MS, Release::Period, true);
        let late = [out.clone(), grant.clone(), other.clone(), remote(182 * MS, Release::Csd, false)];
        assert_eq!(counted(CountsFrom::Task, &late).0, BTreeMap::from([(CONTAINER, 82 * MS)]));
        assert_eq!(counted(CountsFrom::Task, &[out, grant, other]).0, BTreeMap::from([(CONTAINER, 50 * MS)]));
    }

    #[test]
    fn a_count_shows_a_level_above_unless_it_is_read_from_another_cpu_in_the_middle_of_the_release() {
        let mut out = both_out(100);
        if let What::Switch { prev: Some(prev), .. } = &mut out.what {
            prev.levels = Levels(0b01);
        }
        let here = released(110, CONTAINER, 1);
        let there = Event { cpu: 1, ..here.clone() };
        let after = released(130, POD, 0);
        assert_eq!(counted(CountsFrom::Task, &[out.clone(), there]).1, BTreeMap::from([(CONTAINER, 10)]));
        assert_eq!(counted(CountsFrom::Task, &[out, here, after]).1, BTreeMap::from([(CONTAINER, 30)]));
    }
}
