//! Waiting until the period timers of groups have stopped, so that two readings of counters bracket a run exactly.
//!
//! Owns the rule when a group is quiet. The timer fires twice more after the last activity (once to mark the group idle, once to
//! stop: `do_sched_cfs_period_timer`), and `nr_periods` grows each time.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use super::bandwidth::Bandwidth;
use super::counters::Counters;
use super::group::{Group, GroupError};
use crate::time::{self, DurationNs, MonoNs};

/// How the wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quietness {
    /// `nr_periods` of all groups has stood still for more than three periods.
    Quiet {
        /// How long the wait was.
        waited: DurationNs,
    },
    /// The deadline passed first.
    StillBusy {
        /// Groups whose `nr_periods` moved within the last three periods.
        groups: Vec<Busy>,
    },
}

/// A group whose timer still runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Its directory.
    pub path: PathBuf,
    /// `nr_periods` when the wait began.
    pub at_start: u64,
    /// `nr_periods` when last read.
    pub at_end: u64,
}

/// Waits until the timers of `groups` have stopped, at most `deadline`, and not once `give_up` says so.
///
/// # Errors
/// [`GroupError`] when a group is gone or unreadable.
pub fn wait_quiet(groups: &[&Group], deadline: Duration, give_up: impl Fn() -> bool) -> Result<Quietness, GroupError> {
    let mut longest_us = 0;
    for group in groups {
        // Also without a quota: the timer of a quota lifted a moment ago fires once more.
        longest_us = longest_us.max(Bandwidth::read(group)?.map_or(0, |bandwidth| bandwidth.period_us));
    }
    let started = time::now();
    let mut watch = Watch::new(started, counts(groups)?, DurationNs::from_micros(3 * longest_us));
    loop {
        let now = time::now();
        watch.observe(now, &counts(groups)?);
        if watch.is_quiet(now) {
            return Ok(Quietness::Quiet { waited: now.since(started) });
        }
        if u128::from(now.since(started).0) >= deadline.as_nanos() || give_up() {
            return Ok(Quietness::StillBusy { groups: watch.busy(now, groups) });
        }
        sleep(Duration::from_micros((longest_us / 4).clamp(1_000, 25_000)));
    }
}

fn counts(groups: &[&Group]) -> Result<Vec<u64>, GroupError> {
    groups.iter().map(|group| Ok(Counters::read(group)?.figures.nr_periods().unwrap_or(0))).collect()
}

/// Remembers when each group's count last moved.
struct Watch {
    still_for: DurationNs,
    first: Vec<u64>,
    last: Vec<u64>,
    moved_ns: Vec<MonoNs>,
}

impl Watch {
    fn new(now: MonoNs, counts: Vec<u64>, still_for: DurationNs) -> Self {
        Self { still_for, moved_ns: vec![now; counts.len()], last: counts.clone(), first: counts }
    }

    fn observe(&mut self, now: MonoNs, counts: &[u64]) {
        for ((last, moved_ns), count) in self.last.iter_mut().zip(&mut self.moved_ns).zip(counts) {
            if *last != *count {
                (*last, *moved_ns) = (*count, now);
            }
        }
    }

    fn is_quiet(&self, now: MonoNs) -> bool {
        self.moved_ns.iter().all(|moved_ns| self.is_still(now, *moved_ns))
    }

    fn is_still(&self, now: MonoNs, moved_ns: MonoNs) -> bool {
        now.since(moved_ns) > self.still_for
    }

    fn busy(&self, now: MonoNs, groups: &[&Group]) -> Vec<Busy> {
        groups
            .iter()
            .enumerate()
            .filter(|(index, _)| !self.is_still(now, self.moved_ns[*index]))
            .map(|(index, group)| Busy {
                path: group.path().to_owned(),
                at_start: self.first[index],
                at_end: self.last[index],
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::hierarchy::Version;
    use super::*;

    fn at(ms: u64) -> MonoNs {
        MonoNs(ms * 1_000_000)
    }

    #[test]
    fn a_group_is_quiet_only_when_it_stood_still_for_longer_than_the_span() {
        let mut watch = Watch::new(at(0), vec![5, 9], DurationNs::from_millis(300));
        watch.observe(at(100), &[5, 10]);
        assert!(!watch.is_quiet(at(400)));
        watch.observe(at(400), &[5, 10]);
        assert!(watch.is_quiet(at(401)));
    }

    #[test]
    fn the_busy_ones_are_named_with_their_figures() {
        let (quiet, busy) = (Group::new(Version::V1, "/q".into()), Group::new(Version::V1, "/b".into()));
        let mut watch = Watch::new(at(0), vec![5, 9], DurationNs::from_millis(300));
        watch.observe(at(500), &[5, 14]);
        let found = watch.busy(at(600), &[&quiet, &busy]);
        assert_eq!(found, [Busy { path: "/b".into(), at_start: 9, at_end: 14 }]);
    }
}
