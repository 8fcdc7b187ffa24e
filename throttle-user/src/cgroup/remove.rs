//! Ending what runs in a tree of groups, and removing the tree.
//!
//! Owns the killing and the report of what was done. Whether a tree may be removed is for the caller to decide
//! ([`super::scratch`] its own, [`super::stale`] those of dead owners).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;
use std::{fmt, fs, io};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::bandwidth::{Bandwidth, Quota};
use super::group::Group;
use crate::time;

/// How long to wait for killed processes to leave. A throttled task may need several periods to be gone (up to 6.17 it runs its exit
/// on the group's quota), so limits are lifted first.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// What removing a tree came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Groups removed, children before parents.
    pub removed: Vec<PathBuf>,
    /// Processes killed, by pid.
    pub killed: BTreeSet<u32>,
    /// What could not be removed.
    pub left: Vec<Left>,
}

/// A group that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its directory.
    pub path: PathBuf,
    /// Why, and what to do.
    pub why: String,
}

impl Removal {
    /// Whether nothing was left behind.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.left.is_empty()
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed {} cgroups, killed {} processes", self.removed.len(), self.killed.len())?;
        for Left { path, why } in &self.left {
            write!(f, "; could not remove {}: {why}", path.display())?;
        }
        Ok(())
    }
}

/// Kills everything in `top` and below and removes the groups, leaves first, trying until `deadline` has passed.
/// A tree that holds this very process is left alone.
pub(super) fn remove_tree(top: &Group, deadline: Duration) -> Removal {
    let started = time::now();
    let mut done = Removal::default();
    let mut pause = Duration::from_millis(1);
    lift_limits(top);
    loop {
        let tree = match leaves_first(top) {
            Ok(tree) => tree,
            Err(error) => {
                done.left = vec![left(top, &error)];
                return done;
            }
        };
        if tree.iter().any(holds_this_process) {
            done.left = vec![left(top, &"this process is in it: leave it first")];
            return done;
        }
        end_processes(top, &tree, &mut done.killed);
        let refused = rmdir_all(&tree, &mut done.removed);
        if refused.is_empty() {
            return done;
        }
        if u128::from(time::now().since(started).0) >= deadline.as_nanos() {
            done.left = refused;
            return done;
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Kills everything in `top` and below, trying until nobody is left or `deadline` has passed, and leaves the groups as they
/// are. Returns the processes killed.
pub(super) fn end_tree(top: &Group, deadline: Duration) -> BTreeSet<u32> {
    let started = time::now();
    let mut killed = BTreeSet::new();
    loop {
        let tree = leaves_first(top).unwrap_or_default();
        let is_empty = tree.iter().all(|group| group.processes().is_ok_and(|members| members.is_empty()));
        if is_empty
            || tree.iter().any(holds_this_process)
            || u128::from(time::now().since(started).0) >= deadline.as_nanos()
        {
            return killed;
        }
        end_processes(top, &tree, &mut killed);
        sleep(Duration::from_millis(2));
    }
}

/// The groups of the tree, every child before its parent; none when `top` is not there.
pub(super) fn leaves_first(top: &Group) -> Result<Vec<Group>, super::group::GroupError> {
    if !top.path().is_dir() {
        return Ok(Vec::new());
    }
    let mut tree = Vec::new();
    for child in top.children()? {
        tree.extend(leaves_first(&child)?);
    }
    tree.push(top.clone());
    Ok(tree)
}

fn lift_limits(top: &Group) {
    for group in leaves_first(top).unwrap_or_default().iter().rev() {
        let limited = Bandwidth::read(group).ok().flatten().filter(|bandwidth| bandwidth.quota != Quota::Unlimited);
        if let Some(bandwidth) = limited {
            // A refusal only makes the wait longer.
            let _ = Bandwidth { quota: Quota::Unlimited, burst_us: 0, ..bandwidth }.write(group);
        }
    }
}

fn holds_this_process(group: &Group) -> bool {
    group.processes().is_ok_and(|members| members.ids.contains(&std::process::id()))
}

/// `cgroup.kill` (v2, 5.14 and later) reaches the whole tree at once and cannot be outrun by forks; otherwise each process is signalled,
/// and the caller comes again until nobody is left.
fn end_processes(top: &Group, tree: &[Group], killed: &mut BTreeSet<u32>) {
    let here: BTreeSet<u32> =
        tree.iter().filter_map(|group| group.processes().ok()).flat_map(|members| members.ids).collect();
    if here.is_empty() && tree.iter().all(|group| group.processes().is_ok_and(|members| members.is_empty())) {
        return;
    }
    if top.write("cgroup.kill", "1").is_ok() {
        killed.extend(here);
        return;
    }
    for pid in here {
        if let Ok(raw) = i32::try_from(pid)
            && raw > 0
            && kill(Pid::from_raw(raw), Signal::SIGKILL).is_ok()
        {
            killed.insert(pid);
        }
    }
}

fn rmdir_all(tree: &[Group], removed: &mut Vec<PathBuf>) -> Vec<Left> {
    let mut refused = Vec::new();
    for group in tree {
        match fs::remove_dir(group.path()) {
            Ok(()) => removed.push(group.path().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let members = group.processes().map(|members| members.ids).unwrap_or_default();
                refused.push(left(group, &format_args!("{error}; it holds processes {members:?}")));
            }
        }
    }
    refused
}

fn left(group: &Group, why: &dyn fmt::Display) -> Left {
    Left { path: group.path().to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::hierarchy::Version;
    use super::*;

    #[test]
    fn a_tree_is_listed_leaves_first() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("pod/container")).expect("made");
        let top = Group::new(Version::V2, dir.path().to_owned());
        let tree = leaves_first(&top).expect("listed");
        let names: Vec<_> =
            tree.iter().map(|group| group.path().strip_prefix(dir.path()).expect("inside").to_owned()).collect();
        assert_eq!(names, [PathBuf::from("pod/container"), PathBuf::from("pod"), PathBuf::new()]);
    }

    #[test]
    fn a_tree_that_is_not_there_is_removed_already() {
        let dir = tempfile::tempdir().expect("a directory");
        let gone = Group::new(Version::V1, dir.path().join("gone"));
        assert_eq!(remove_tree(&gone, DEADLINE), Removal::default());
    }

    #[test]
    fn a_tree_that_holds_this_process_is_left_and_nothing_is_killed() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("cgroup.procs"), format!("{}\n", std::process::id())).expect("written");
        let removal = remove_tree(&Group::new(Version::V1, dir.path().to_owned()), DEADLINE);
        assert!(removal.killed.is_empty() && !removal.is_complete());
        assert!(removal.to_string().contains("leave it first"), "{removal}");
    }

    #[test]
    fn what_cannot_be_removed_is_reported_after_the_deadline() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("a-file"), "").expect("written");
        fs::write(dir.path().join("cgroup.procs"), "").expect("written");
        let removal = remove_tree(&Group::new(Version::V1, dir.path().to_owned()), Duration::ZERO);
        assert_eq!(removal.left.len(), 1);
        assert!(removal.to_string().contains("could not remove"), "{removal}");
    }
}
