//! The cgroups of the node.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use super::totals::Totals;
use crate::{
    cgroup::{Bandwidth, Change, Quota, tree::Node},
    event::CgroupId,
    time::{DurationNs, MonoNs},
    timeline::live::Finished,
};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Cgroups that are counted; one more is refused, and that is counted.
    pub counted: usize,
    /// How long a cgroup that is gone keeps its name and its counters.
    pub grace: DurationNs,
}

/// What is not counted, because there was no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Periods of cgroups that are not counted.
    pub periods: u64,
}

/// A cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Path below the mount, empty for the mount itself; absent = the mount does not show it: an ancestor of the node's own
    /// container, or of another node on this machine.
    pub path: Option<String>,
    /// Its parent, if the mount shows one.
    pub parent: Option<CgroupId>,
    /// Its own limit; absent = it has no such files, or is out of sight.
    pub bandwidth: Option<Bandwidth>,
    /// What was counted; absent as long as no period of it ended.
    pub totals: Option<Box<Totals>>,
    /// Since when it is gone.
    pub gone: Option<MonoNs>,
    /// Its last period's end.
    pub last: Option<MonoNs>,
}

impl Member {
    /// Whether it has a quota of its own.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.bandwidth.is_some_and(|bandwidth| bandwidth.quota != Quota::Unlimited)
    }
}

/// All cgroups known.
#[derive(Clone, Debug)]
pub struct Census {
    bounds: Bounds,
    members: BTreeMap<CgroupId, Member>,
    counted: usize,
    refused: Refused,
}

impl Census {
    /// Of nothing yet.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, members: BTreeMap::new(), counted: 0, refused: Refused::default() }
    }

    /// The tree changed.
    pub fn change(&mut self, change: &Change, now: MonoNs) {
        match change {
            Change::Added(node) => self.added(node),
            Change::Removed { id } => {
                if let Some(member) = self.members.get_mut(&CgroupId(*id)) {
                    member.gone = Some(now);
                }
            }
            Change::Limited { id, bandwidth } => {
                if let Some(member) = self.members.get_mut(&CgroupId(*id)) {
                    member.bandwidth = *bandwidth;
                }
            }
        }
    }

    fn added(&mut self, node: &Node) {
        let totals = self.members.remove(&CgroupId(node.id)).and_then(|before| before.totals);
        let member = Member {
            path: Some(text(&node.path)),
            parent: node.parent.map(CgroupId),
            bandwidth: node.bandwidth,
            totals,
            gone: None,
            last: None,
        };
        self.members.insert(CgroupId(node.id), member);
    }

    /// Periods and throttles are over.
    pub fn finished(&mut self, finished: &Finished) {
        for period in &finished.periods {
            match self.totals(period.record.cgroup) {
                Some(totals) => totals.period(period),
                None => self.refused.periods += period.boundary.periods,
            }
            if let Some(member) = self.members.get_mut(&period.record.cgroup) {
                member.last = Some(period.record.end_ns);
            }
        }
        for throttle in &finished.throttles {
            if let Some(totals) = self.totals(throttle.cgroup) {
                totals.throttle(throttle);
            }
        }
    }

    /// Counters of a cgroup; `None` = there is no room for more.
    fn totals(&mut self, cgroup: CgroupId) -> Option<&mut Totals> {
        let room = self.counted < self.bounds.counted;
        let member = self.members.get(&cgroup);
        if member.is_none_or(|member| member.totals.is_none()) {
            if !room {
                return None;
            }
            self.counted += 1;
        }
        let member = self.members.entry(cgroup).or_insert(Member {
            path: None,
            parent: None,
            bandwidth: None,
            totals: None,
            gone: None,
            last: None,
        });
        Some(member.totals.get_or_insert_default())
    }

    /// Forgets those that are gone for longer than their time of grace, and those out of sight of which nothing was heard as long.
    pub fn forget(&mut self, now: MonoNs) {
        let grace = self.bounds.grace;
        self.members.retain(|_, member| {
            let since = match (member.gone, &member.path) {
                (Some(gone), _) => Some(gone),
                (None, None) => member.last.or(Some(MonoNs(0))),
                (None, Some(_)) => None,
            };
            since.is_none_or(|since| since + grace > now)
        });
        self.counted = self.members.values().filter(|member| member.totals.is_some()).count();
    }

    /// Ids of a cgroup and those above it, itself first; empty for one that is not known.
    #[must_use]
    pub fn path(&self, cgroup: CgroupId) -> Vec<CgroupId> {
        let mut path = vec![];
        let mut next = self.members.contains_key(&cgroup).then_some(cgroup);
        while let Some(id) = next {
            path.push(id);
            // As deep as a tree may be (kernel/cgroup/cgroup.c has no bound, a path of 4096 bytes has).
            next = self.members.get(&id).and_then(|member| member.parent).filter(|_| path.len() < 2_048);
        }
        path
    }

    /// A cgroup.
    #[must_use]
    pub fn get(&self, cgroup: CgroupId) -> Option<&Member> {
        self.members.get(&cgroup)
    }

    /// All cgroups, by id.
    pub fn members(&self) -> impl Iterator<Item = (CgroupId, &Member)> {
        self.members.iter().map(|(&id, member)| (id, member))
    }

    /// What found no room.
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.refused
    }
}

/// Names of cgroups are made by programs; what is not UTF-8 is shown with a mark.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Group, Version},
        timeline::level::{EndedBy, Throttle},
    };

    const BOUNDS: Bounds = Bounds { counted: 2, grace: DurationNs::from_millis(1_000) };

    fn added(id: u64, parent: Option<u64>, path: &str) -> Change {
        let group = Group::new(Version::V2, Path::new("/mount").join(path));
        Change::Added(Node { group, path: path.into(), id, parent, bandwidth: None })
    }

    fn throttled(cgroup: u64) -> Finished {
        let throttle = Throttle {
            cgroup: CgroupId(cgroup),
            cpu: 0,
            marked: MonoNs(1),
            start: Some(MonoNs(1)),
            end: Some(MonoNs(5)),
            ended_by: Some(EndedBy::Period),
            complete: true,
        };
        Finished { periods: vec![], throttles: vec![throttle] }
    }

    fn ids(census: &Census) -> Vec<u64> {
        census.members().map(|(id, _)| id.0).collect()
    }

    #[test]
    fn a_cgroup_that_is_gone_keeps_its_counters_for_its_grace_and_no_longer() {
        let mut census = Census::new(BOUNDS);
        census.change(&added(1, None, ""), MonoNs(0));
        census.change(&added(2, Some(1), "a"), MonoNs(0));
        census.finished(&throttled(2));
        census.change(&Change::Removed { id: 2 }, MonoNs(5_000_000));
        census.forget(MonoNs(1_004_999_999));
        assert_eq!(
            census.get(CgroupId(2)).and_then(|member| member.totals.as_ref()).map(|it| it.throttles.count()),
            Some(1)
        );
        census.forget(MonoNs(1_005_000_000));
        assert_eq!(ids(&census), [1]);
    }

    #[test]
    fn a_path_goes_up_to_the_mount() {
        let mut census = Census::new(BOUNDS);
        for change in [added(1, None, ""), added(2, Some(1), "a"), added(3, Some(2), "a/b")] {
            census.change(&change, MonoNs(0));
        }
        assert_eq!(census.path(CgroupId(3)), [3, 2, 1].map(CgroupId));
        assert_eq!(census.path(CgroupId(9)), []);
    }

    #[test]
    fn one_that_the_mount_does_not_show_is_counted_without_a_path_and_forgotten_when_it_is_still() {
        let mut census = Census::new(BOUNDS);
        census.finished(&throttled(77));
        assert_eq!(census.get(CgroupId(77)).map(|member| member.path.clone()), Some(None));
        census.forget(MonoNs(2_000_000_000));
        assert_eq!(ids(&census), [] as [u64; 0]);
    }

    #[test]
    fn there_is_room_for_so_many_and_room_is_made_again() {
        let mut census = Census::new(BOUNDS);
        for id in 1..=3 {
            census.change(&added(id, None, &format!("{id}")), MonoNs(0));
            census.finished(&throttled(id));
        }
        assert!(census.get(CgroupId(3)).is_some_and(|member| member.totals.is_none()));
        census.change(&Change::Removed { id: 1 }, MonoNs(0));
        census.forget(MonoNs(2_000_000_000));
        census.finished(&throttled(3));
        assert!(census.get(CgroupId(3)).is_some_and(|member| member.totals.is_some()));
    }
}
