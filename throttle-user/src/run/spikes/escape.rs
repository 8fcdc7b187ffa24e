//! Why a spike that wanted more than the quota was not held.
//!
//! A quota is for a period, and a spike may lie in two; what a period's own budget is, its records do not show exactly: a CPU
//! keeps up to 1 ms over idle time and up to a slice of 5 ms over a boundary at which the group runs, and is found out late by
//! up to a tick (`kernel/sched/fair.c`; see [`crate::model::chain`]).

use serde::{Deserialize, Serialize};

use crate::{
    time::DurationNs,
    timeline::{boundary::Boundary, boundary::Grid, interval::Span, period::Activity},
};

/// What let a spike through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Escape {
    /// The boundary split it: in no period did the group use more than its quota.
    Split,
    /// The boundary split it, and what a CPU held at that boundary came on top of the quota.
    SplitAndSlice,
    /// No boundary in it: what a CPU had left from before, or was not charged for until its next tick, came on top of the quota.
    Leftover,
    /// A burst was allowed.
    Credit,
    /// No boundary was seen, or records were lost: not known.
    Unknown,
}

impl Escape {
    /// In a word, for a table.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::SplitAndSlice => "split + slice",
            Self::Leftover => "leftover",
            Self::Credit => "burst",
            Self::Unknown => "?",
        }
    }
}

/// Judges a spike's stretch by one level.
pub(super) fn at_level(boundaries: &[Boundary], activity: &Activity, spike: Span) -> Escape {
    let after = boundaries.partition_point(|boundary| boundary.due <= spike.start);
    let near = after.checked_sub(1).and_then(|last| boundaries.get(last)).or_else(|| boundaries.get(after));
    let (Some(grid), Some(near)) = (Grid::at(boundaries, spike.start), near) else { return Escape::Unknown };
    let Some(quota) = near.quota else { return Escape::Unknown };
    let first = spike.start + grid.to_next(spike.start);
    let mut period = Span::new(first_before(first, grid.period), first);
    let (mut over, mut split) = (false, false);
    loop {
        over |= activity.used(period) > quota;
        if period.end >= spike.end {
            break;
        }
        split = true;
        period = Span::new(period.end, period.end + grid.period);
    }
    match (over, split) {
        (false, true) => Escape::Split,
        // Neither more than its quota nor split: it did not get to use what it wanted, for want of a CPU.
        (false, false) => Escape::Unknown,
        (true, _) if near.burst > DurationNs::ZERO => Escape::Credit,
        (true, true) => Escape::SplitAndSlice,
        (true, false) => Escape::Leftover,
    }
}

fn first_before(point: crate::time::MonoNs, period: DurationNs) -> crate::time::MonoNs {
    crate::time::MonoNs(point.0.saturating_sub(period.0))
}
