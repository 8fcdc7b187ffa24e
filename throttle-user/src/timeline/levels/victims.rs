//! From when a throttle counts: somebody has to suffer from it.

use super::LevelTracker;
use crate::{
    event::{CgroupId, OnCpu},
    time::MonoNs,
    timeline::{CountsFrom, level::Throttle},
};

impl LevelTracker<'_> {
    /// Takes over for which levels the kernel was counting. From 6.18 on its clocks start when the first task is really held, which
    /// is not always when the quota runs out: a level that runs out while its task is being held by another one is not counted at
    /// all (`record_throttle_clock` looks at the levels out of quota as the task is taken off).
    pub(super) fn count(&mut self, task: &OnCpu, cpu: u32, at: MonoNs) {
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

    /// A runnable thread of `leaf` is held on a CPU: somebody suffers in the queues up to the first one that is marked. That one is
    /// queued no further up: to the levels above it is as if nobody were there (6.6 to 6.17: kernel/sched/fair.c,
    /// `throttle_cfs_rq`; of the levels that run out in one switch the lowest is throttled first, `put_prev_task_fair`).
    pub(in crate::timeline) fn suffer(&mut self, leaf: CgroupId, cpu: u32, at: MonoNs) {
        let setting = self.setting;
        let path = setting.path(&leaf);
        for (distance, &level) in path.iter().enumerate() {
            self.suffers_since(level, &path[distance..], cpu, at);
            self.counts_since(level, cpu, at);
            if self.marked(level, cpu) {
                return;
            }
        }
    }

    /// Somebody suffers in a level's queue on a CPU from the levels above that are marked there, the level itself among them.
    pub(super) fn suffers_since(&mut self, level: CgroupId, above: &[CgroupId], cpu: u32, at: MonoNs) {
        if self.suffering.contains_key(&(level, cpu)) {
            return;
        }
        let held: Vec<&Throttle> = above.iter().filter_map(|&above| self.open.get(&(above, cpu))).collect();
        if let Some(held_since) = held.iter().map(|throttle| throttle.marked).min() {
            let sure = held.iter().all(|throttle| throttle.complete) && self.first_held(held_since, above, cpu, at);
            self.suffering.insert((level, cpu), (at, sure));
        }
    }

    /// Whether a victim at `at` is surely the first one of levels that hold a CPU since `held_since`. From 6.18 on it stays held, unshown,
    /// when one of them takes over from another.
    fn first_held(&self, held_since: MonoNs, levels: &[CgroupId], cpu: u32, at: MonoNs) -> bool {
        let took_over = |since| {
            let ended = levels.iter().filter_map(move |&level| self.ended.get(&(level, cpu)));
            ended.filter(move |ended| ended.at >= since)
        };
        if self.losses == 0 || self.setting.counts_from != CountsFrom::Task {
            return self.first_victim(held_since, at);
        }
        match took_over(held_since).map(|ended| ended.marked).min() {
            None => self.first_victim(held_since, at),
            // Only the last throttle of each level is known here: what more than one take over from may go back further.
            Some(since) => {
                took_over(since).count() == 1
                    && took_over(since).all(|ended| ended.complete)
                    && self.first_victim(since, at)
            }
        }
    }

    /// A level's throttle on a CPU counts, if it did not before.
    pub(super) fn counts_since(&mut self, level: CgroupId, cpu: u32, at: MonoNs) {
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
    pub(super) fn first_victim(&self, held_since: MonoNs, at: MonoNs) -> bool {
        self.losses == 0
            || match self.setting.counts_from {
                // Victims show themselves, one by one.
                CountsFrom::Task => held_since > self.lost_until,
                CountsFrom::Queued | CountsFrom::Mark => held_since == at,
            }
    }

    /// Whether a throttle without a victim may have had one that was never seen.
    pub(super) fn victims_unseen(&self, throttle: &Throttle) -> bool {
        self.losses > 0 && throttle.start.is_none() && self.setting.counts_from == CountsFrom::Queued
    }

    /// A queue released with something in it is queued again with its parent, up to the first ancestor that is itself out of
    /// quota. From then on that one holds something, and is counted; no event shows it (6.6 to 6.17: kernel/sched/fair.c,
    /// `unthrottle_cfs_rq` and `enqueue_entity`).
    pub(super) fn pass_on(&mut self, cgroup: CgroupId, cpu: u32, at: MonoNs) {
        let setting = self.setting;
        // After a loss there may be one that was never seen, and was held by the level above before.
        let sure = self.losses == 0;
        for &above in setting.path(&cgroup).iter().skip(1) {
            if self.held(above, cpu) {
                let from = at.max(self.relieved(above, cpu));
                let suffering = self.suffering.entry((above, cpu)).or_insert((from, sure));
                if from < suffering.0 {
                    *suffering = (from, suffering.1 && sure);
                }
            }
            // This release may be known only after others were seen to wait for the level above: then that one counts sooner.
            let counts = |throttle: &mut Throttle| {
                let from = at.max(throttle.marked);
                if throttle.start.is_none_or(|start| start > from) {
                    throttle.start = Some(from);
                    throttle.complete &= sure;
                }
            };
            if let Some(throttle) = self.open.get_mut(&(above, cpu)) {
                counts(throttle);
                return;
            }
            // Or even after the level above was released.
            let since = self.done.iter_mut().rev().skip(1).take_while(|done| done.end.is_some_and(|end| end > at));
            if let Some(throttle) =
                since.filter(|done| (done.cgroup, done.cpu) == (above, cpu)).find(|done| done.marked <= at)
            {
                counts(throttle);
                return;
            }
        }
    }

    /// Whether something is queued under a level on a CPU. Unless all who may be there are followed, and none was lost sight of,
    /// something may be.
    pub(super) fn may_hold_one(&self, level: CgroupId, cpu: u32) -> bool {
        let under = |leaf: &CgroupId| self.setting.path(leaf).contains(&level);
        let all_followed = self.setting.paths.keys().filter(|leaf| under(leaf)).all(|&leaf| self.setting.follows(leaf));
        !all_followed || self.losses > 0 || self.queued.iter().any(|(leaf, on)| *on == cpu && under(leaf))
    }
}
