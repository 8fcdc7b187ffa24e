//! One thread over time: what it was doing, and in which cgroup.

use serde::{Deserialize, Serialize};

use super::interval::Span;
use crate::{
    event::CgroupId,
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
    /// Of a running stretch, time the scheduler charged to nobody: taken by a hypervisor, or by interrupts where the kernel
    /// accounts for them.
    pub uncharged: DurationNs,
}

impl Segment {
    /// The part inside a window; what was not charged is taken to lie evenly in it.
    pub(super) fn clip(self, window: Span) -> Self {
        let span = self.span.clip(window);
        let share = u128::from(self.uncharged.0) * u128::from(span.length().0);
        let uncharged = share.checked_div(u128::from(self.span.length().0)).unwrap_or(0);
        Self { span, uncharged: DurationNs(u64::try_from(uncharged).unwrap_or(0)), ..self }
    }
}

/// Since when a thread is in a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Since then; zero where it was there when first seen.
    pub since: MonoNs,
    /// Its leaf cgroup.
    pub cgroup: CgroupId,
}

/// One thread's life as far as it was seen: segments in order, without holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLine {
    /// Its cgroups, in order. It ends in one that is not followed if it left.
    pub stays: Vec<Stay>,
    /// Segments.
    pub segments: Vec<Segment>,
}

/// A thread went to a cgroup whose threads are not followed: what it does from then on is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// The thread.
    pub tid: u32,
    /// The cgroup it left.
    pub cgroup: CgroupId,
    /// When.
    pub at_ns: MonoNs,
}

impl ThreadLine {
    /// Of a thread that was in one cgroup all the time.
    #[must_use]
    pub fn in_one(cgroup: CgroupId, segments: Vec<Segment>) -> Self {
        Self { stays: vec![Stay { since: MonoNs(0), cgroup }], segments }
    }

    /// Its cgroup at an instant; `None` before it came into any that is watched.
    #[must_use]
    pub fn cgroup_at(&self, at: MonoNs) -> Option<CgroupId> {
        let after = self.stays.partition_point(|stay| stay.since <= at);
        self.stays[..after].last().map(|stay| stay.cgroup)
    }

    /// Its cgroups, each with when it was there.
    pub fn stays(&self) -> impl Iterator<Item = (CgroupId, Span)> + '_ {
        self.stays.iter().enumerate().map(|(index, stay)| {
            let until = self.stays.get(index + 1).map_or(MonoNs(u64::MAX), |next| next.since);
            (stay.cgroup, Span::new(stay.since, until))
        })
    }

    /// Whether it was ever in a cgroup that is `wanted`.
    pub fn was_in(&self, wanted: impl Fn(CgroupId) -> bool) -> bool {
        self.stays.iter().any(|stay| wanted(stay.cgroup))
    }

    /// Segments while it was in a cgroup that is `wanted`.
    pub fn inside<'a>(&'a self, wanted: impl Fn(CgroupId) -> bool + 'a) -> impl Iterator<Item = Segment> + 'a {
        self.stays().filter(move |&(cgroup, _)| wanted(cgroup)).flat_map(|(_, span)| self.within(span))
    }

    /// Segments that meet a window, clipped to it.
    pub fn within(&self, window: Span) -> impl Iterator<Item = Segment> + '_ {
        let first = self.segments.partition_point(|segment| segment.span.end <= window.start);
        self.segments[first..]
            .iter()
            .take_while(move |segment| segment.span.start < window.end)
            .map(move |segment| segment.clip(window))
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
