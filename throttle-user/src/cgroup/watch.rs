//! The tree of groups as it changes: groups made and removed, limits written.
//!
//! Every directory below the mount has an inotify watch: `mkdir`, `rmdir` and writes to control files go through the VFS, which tells.
//! A directory is watched before it is listed, so that nothing falls in between. Where watches run out, what has none is walked again
//! from time to time, and [`Watch::is_partial`] says so.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor},
};

use super::{
    bandwidth::Bandwidth,
    group::{Group, GroupError},
    hierarchy::Hierarchy,
    tree::{self, Node},
};

/// What happened to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there; its parent was told before.
    Added(Node),
    /// It is gone; those below it were told before.
    Removed {
        /// Its id.
        id: u64,
    },
    /// Its quota, period or burst was written.
    Limited {
        /// Its id.
        id: u64,
        /// What it has now; `None` = it has no such files.
        bandwidth: Option<Bandwidth>,
    },
}

/// Why the tree cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The mount cannot be walked.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// No inotify at all.
    #[error("inotify cannot be used ({source}); raise fs.inotify.max_user_instances if it is spent")]
    Inotify {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// A group as it was last seen.
#[derive(Clone, Debug)]
struct Seen {
    id: u64,
    bandwidth: Option<Bandwidth>,
    watch: Option<WatchDescriptor>,
}

/// A watched tree.
#[derive(Debug)]
pub struct Watch {
    hierarchy: Hierarchy,
    inotify: Inotify,
    directories: HashMap<WatchDescriptor, PathBuf>,
    groups: HashMap<PathBuf, Seen>,
    /// Some directory has no watch.
    partial: bool,
}

/// Files of either version whose change is a change of the limit.
const LIMIT_FILES: [&str; 5] =
    ["cpu.max", "cpu.max.burst", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"];
/// Writing it gives children their files, or takes them.
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

impl Watch {
    /// Watches the whole tree; the first [`Watch::changes`] are all groups there are.
    ///
    /// # Errors
    /// [`WatchError`] without inotify, or when the mount cannot be read.
    pub fn start(hierarchy: &Hierarchy) -> Result<(Self, Vec<Change>), WatchError> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .map_err(|errno| WatchError::Inotify { source: errno.into() })?;
        let mut watch = Self {
            hierarchy: hierarchy.clone(),
            inotify,
            directories: HashMap::new(),
            groups: HashMap::new(),
            partial: false,
        };
        let root = hierarchy.root();
        root.id()?;
        let mut changes = vec![];
        watch.enter(root, &mut changes)?;
        Ok((watch, changes))
    }

    /// Whether watches ran out: what changes below some directories is seen only by [`Watch::walk`].
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.partial
    }

    /// Groups known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether no group is known, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// What happened since last asked; waits at most `patience` for something.
    ///
    /// # Errors
    /// [`WatchError`] when inotify fails, or when a file holds what the kernel never writes.
    pub fn changes(&mut self, patience: Duration) -> Result<Vec<Change>, WatchError> {
        let mut fds = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(WatchError::Inotify { source: errno.into() }),
        }
        let mut changes = vec![];
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(changes),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(WatchError::Inotify { source: errno.into() }),
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    self.walk(&mut changes)?;
                    continue;
                }
                let Some(directory) = self.directories.get(&event.wd).cloned() else { continue };
                if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    self.directories.remove(&event.wd);
                    continue;
                }
                let Some(name) = event.name else { continue };
                self.happened(&directory, Path::new(&name), event.mask, &mut changes)?;
            }
        }
    }

    /// Compares the whole tree with what is known.
    ///
    /// # Errors
    /// As [`Watch::changes`].
    pub fn walk(&mut self, changes: &mut Vec<Change>) -> Result<(), WatchError> {
        self.partial = false;
        let nodes = tree::walk(&self.hierarchy)?;
        let there: HashMap<PathBuf, u64> = nodes.iter().map(|node| (node.group.path().to_owned(), node.id)).collect();
        let mut gone: Vec<PathBuf> = self
            .groups
            .iter()
            .filter(|(path, seen)| there.get(*path) != Some(&seen.id))
            .map(|(path, _)| path.clone())
            .collect();
        gone.sort_unstable();
        gone.reverse();
        gone.iter().for_each(|path| self.leave(path, changes));
        for node in nodes {
            match self.groups.get(node.group.path()) {
                None => self.enter(node.group, changes)?,
                Some(seen) => {
                    self.partial |= seen.watch.is_none();
                    if seen.bandwidth != node.bandwidth {
                        self.limited(node.group.path(), changes)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn happened(
        &mut self,
        directory: &Path,
        name: &Path,
        mask: AddWatchFlags,
        changes: &mut Vec<Change>,
    ) -> Result<(), WatchError> {
        if mask.contains(AddWatchFlags::IN_ISDIR) {
            let path = directory.join(name);
            if mask.intersects(AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM) {
                self.leave_below(&path, changes);
            } else if mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO) {
                // One of the same name may have been there before.
                let same = |seen: &Seen, id: u64| seen.id == id;
                let group = Group::new(self.hierarchy.version, path.clone());
                let Ok(id) = group.id() else { return Ok(()) };
                if self.groups.get(&path).is_some_and(|seen| !same(seen, id)) {
                    self.leave_below(&path, changes);
                }
                self.enter(group, changes)?;
            }
        } else if LIMIT_FILES.iter().any(|file| name == Path::new(file)) {
            self.limited(directory, changes)?;
        } else if name == Path::new(SUBTREE_CONTROL) {
            let group = Group::new(self.hierarchy.version, directory.to_owned());
            for child in group.children()? {
                self.limited(child.path(), changes)?;
            }
        }
        Ok(())
    }

    /// Takes in a group and all below it, parents first.
    fn enter(&mut self, group: Group, changes: &mut Vec<Change>) -> Result<(), WatchError> {
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            if self.groups.contains_key(group.path()) {
                continue;
            }
            let watch = self.watch(group.path());
            let parent = group.path().parent().and_then(|parent| self.groups.get(parent)).map(|parent| parent.id);
            let Some(node) = tree::node(&self.hierarchy, &group, parent)? else {
                watch.into_iter().for_each(|watch| drop(self.directories.remove(&watch)));
                continue;
            };
            self.groups.insert(group.path().to_owned(), Seen { id: node.id, bandwidth: node.bandwidth, watch });
            changes.push(Change::Added(node));
            let mut children = group.children()?;
            children.sort_by(|a, b| b.path().cmp(a.path()));
            waiting.extend(children);
        }
        Ok(())
    }

    fn watch(&mut self, path: &Path) -> Option<WatchDescriptor> {
        let mask = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ONLYDIR;
        match self.inotify.add_watch(path, mask) {
            Ok(watch) => {
                self.directories.insert(watch, path.to_owned());
                Some(watch)
            }
            Err(errno) => {
                // A directory that is gone needs none.
                self.partial |= errno != Errno::ENOENT;
                None
            }
        }
    }

    /// A group is gone, and with it whatever was below it.
    fn leave_below(&mut self, path: &Path, changes: &mut Vec<Change>) {
        let mut below: Vec<PathBuf> = self.groups.keys().filter(|group| group.starts_with(path)).cloned().collect();
        below.sort_unstable();
        below.reverse();
        below.iter().for_each(|path| self.leave(path, changes));
    }

    fn leave(&mut self, path: &Path, changes: &mut Vec<Change>) {
        let Some(seen) = self.groups.remove(path) else { return };
        if let Some(watch) = seen.watch {
            self.directories.remove(&watch);
        }
        changes.push(Change::Removed { id: seen.id });
    }

    fn limited(&mut self, path: &Path, changes: &mut Vec<Change>) -> Result<(), WatchError> {
        let Some(seen) = self.groups.get_mut(path) else { return Ok(()) };
        let group = Group::new(self.hierarchy.version, path.to_owned());
        let Some(node) = tree::node(&self.hierarchy, &group, None)? else { return Ok(()) };
        if node.id == seen.id && node.bandwidth != seen.bandwidth {
            seen.bandwidth = node.bandwidth;
            changes.push(Change::Limited { id: node.id, bandwidth: node.bandwidth });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        time::{Duration, Instant},
    };

    use super::super::{bandwidth::Quota, hierarchy::Version};
    use super::*;

    /// A directory tree stands in for a mount: inotify and `cpu.max` work in it as they do in one.
    fn tree() -> (tempfile::TempDir, Hierarchy) {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path().to_owned();
        (dir, Hierarchy { version: Version::V2, mount, mount_root: "/".into() })
    }

    fn make(root: &Path, group: &str, max: &str) {
        fs::create_dir(root.join(group)).expect("made");
        fs::write(root.join(group).join("cpu.max"), max).expect("written");
    }

    /// Changes until `enough` of them came.
    fn changes(watch: &mut Watch, enough: usize) -> Vec<Change> {
        let started = Instant::now();
        let mut all = vec![];
        while all.len() < enough {
            assert!(started.elapsed() < Duration::from_secs(60), "waited in vain: {all:#?}");
            all.extend(watch.changes(Duration::from_millis(50)).expect("changes"));
        }
        all
    }

    fn path(change: &Change) -> Option<String> {
        match change {
            Change::Added(node) => Some(node.path.display().to_string()),
            _ => None,
        }
    }

    #[test]
    fn groups_there_and_groups_made_are_told_parents_first() {
        let (dir, hierarchy) = tree();
        make(dir.path(), "a", "max 100000\n");
        make(dir.path(), "a/b", "20000 100000\n");
        let (mut watch, first) = Watch::start(&hierarchy).expect("a watch");
        assert_eq!(first.iter().filter_map(path).collect::<Vec<_>>(), ["", "a", "a/b"]);
        make(dir.path(), "a/c", "max 100000\n");
        make(dir.path(), "a/c/d", "30000 100000\n");
        let later = changes(&mut watch, 2);
        let added: Vec<_> = later.iter().filter_map(path).collect();
        assert_eq!(added, ["a/c", "a/c/d"]);
        assert_eq!((watch.len(), watch.is_partial()), (5, false));
        let parent = later.iter().find_map(|change| match change {
            Change::Added(node) if node.path == Path::new("a/c/d") => node.parent,
            _ => None,
        });
        assert_eq!(parent, Some(Group::new(Version::V2, dir.path().join("a/c")).id().expect("an id")));
    }

    #[test]
    fn a_limit_that_is_written_is_told_and_one_written_again_is_not() {
        let (dir, hierarchy) = tree();
        make(dir.path(), "a", "20000 100000\n");
        let (mut watch, _) = Watch::start(&hierarchy).expect("a watch");
        let id = Group::new(Version::V2, dir.path().join("a")).id().expect("an id");
        fs::write(dir.path().join("a/cpu.max"), "20000 100000\n").expect("written");
        fs::write(dir.path().join("a/cpu.weight"), "5\n").expect("written");
        fs::write(dir.path().join("a/cpu.max"), "50000 100000\n").expect("written");
        // A file is emptied before it is written, which a control file is not.
        let quotas: Vec<_> = changes(&mut watch, 1)
            .into_iter()
            .map(|change| match change {
                Change::Limited { id: of, bandwidth } if of == id => bandwidth.map(|bandwidth| bandwidth.quota),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(quotas, [Some(Quota::Us(50_000))]);
    }

    #[test]
    fn groups_removed_are_told_children_first_and_one_of_the_same_name_is_another() {
        let (dir, hierarchy) = tree();
        make(dir.path(), "a", "max 100000\n");
        make(dir.path(), "a/b", "max 100000\n");
        let (mut watch, first) = Watch::start(&hierarchy).expect("a watch");
        let ids: Vec<u64> = first
            .iter()
            .filter_map(|change| match change {
                Change::Added(node) => Some(node.id),
                _ => None,
            })
            .collect();
        fs::remove_dir_all(dir.path().join("a")).expect("removed");
        let removed = changes(&mut watch, 2);
        assert_eq!(removed, [Change::Removed { id: ids[2] }, Change::Removed { id: ids[1] }]);
        make(dir.path(), "a", "10000 100000\n");
        let again = changes(&mut watch, 1);
        assert_eq!(again.iter().filter_map(path).collect::<Vec<_>>(), ["a"]);
        assert_eq!(watch.len(), 2);
    }

    #[test]
    fn a_walk_finds_what_no_watch_told() {
        let (dir, hierarchy) = tree();
        make(dir.path(), "a", "max 100000\n");
        make(dir.path(), "gone", "max 100000\n");
        let (mut watch, _) = Watch::start(&hierarchy).expect("a watch");
        // As if the queue of events had run over.
        watch.directories.clear();
        make(dir.path(), "new", "40000 100000\n");
        fs::write(dir.path().join("a/cpu.max"), "10000 100000\n").expect("written");
        fs::remove_dir_all(dir.path().join("gone")).expect("removed");
        assert_eq!(watch.changes(Duration::ZERO).expect("changes"), []);
        let mut found = vec![];
        watch.walk(&mut found).expect("walked");
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(matches!(found[0], Change::Removed { .. }), "{found:#?}");
        assert!(found.iter().any(|change| path(change).as_deref() == Some("new")), "{found:#?}");
        let limited = |change: &Change| matches!(change, Change::Limited { bandwidth: Some(limit), .. } if limit.quota == Quota::Us(10_000));
        assert!(found.iter().any(limited), "{found:#?}");
    }
}
