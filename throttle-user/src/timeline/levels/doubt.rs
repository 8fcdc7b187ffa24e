//! What is no longer sure because records were lost.

use super::LevelTracker;
use crate::{event::CgroupId, time::MonoNs};

impl LevelTracker<'_> {
    /// Records were lost: no mark is sure until an event shows it again.
    pub(in crate::timeline) fn doubt(&mut self, until: MonoNs) {
        self.losses += 1;
        self.lost_until = until;
    }

    /// Losses lie so far back that timers have listed since what is throttled.
    pub(in crate::timeline) fn trust(&mut self) {
        self.losses = 0;
        self.shown.clear();
    }

    /// Whether it is sure by which levels a task of `leaf` is held on a CPU.
    pub(in crate::timeline) fn sure(&self, leaf: CgroupId, cpu: u32) -> bool {
        self.setting.path(&leaf).iter().all(|&level| self.sure_of(level, cpu))
    }

    pub(super) fn sure_of(&self, level: CgroupId, cpu: u32) -> bool {
        self.losses == 0 || self.shown.get(&(level, cpu)) == Some(&self.losses)
    }

    pub(super) fn shows(&mut self, level: CgroupId, cpu: u32) {
        if self.losses > 0 {
            self.shown.insert((level, cpu), self.losses);
        }
    }

    /// It is not sure since when a level's throttle on a CPU counts.
    pub(in crate::timeline) fn spoil(&mut self, level: CgroupId, cpu: u32) {
        if let Some(throttle) = self.open.get_mut(&(level, cpu)) {
            throttle.complete = false;
        }
        if let Some((_, sure)) = self.suffering.get_mut(&(level, cpu)) {
            *sure = false;
        }
    }
}
