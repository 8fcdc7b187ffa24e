//! Throttle edges of each level on each CPU.
//!
//! A *mark* is the kernel's `cfs_rq.throttled`: this group's own quota is out on this CPU. The kernel counts time only from
//! an instant that differs by version (up to 6.5 the mark itself, to 6.17 the first queued entity, from 6.18 the first task taken
//! off), to the end of the mark. From 6.18 on that instant is read off the kernel's own clocks: it is the time of the first event
//! that shows one of them run.

use serde::{Deserialize, Serialize};

use super::interval::Span;
use crate::{
    event::{CgroupId, Release},
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
