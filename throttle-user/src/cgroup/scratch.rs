//! Groups of our own for one run, made as the kubelet makes them, and removed with the run.
//!
//! Owns one tree `throttle-<pid>-<start time>` and whatever runs in it:
//!
//! ```text
//! nested                         flat
//! throttle-812-190433            throttle-812-190433     high weight, no limit
//! ├── driver                     ├── driver              no limit: client and observer
//! ├── beside                     ├── beside              no limit: other load, if wanted
//! └── pod          limited       └── container           limited: the observed side
//!     └── container  limited
//! ```
//!
//! What a killed run leaves behind is [`super::stale`]'s.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::bandwidth::{Bandwidth, BandwidthError};
use super::group::{Group, GroupError};
use super::hierarchy::{Hierarchy, HierarchyError, Version};
use super::owner::Owner;
use super::place::{self, PlaceError};
use super::remove::{self, Removal};
use super::tree::{self, Node};

/// How many groups are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nesting {
    /// Pod and container, both with the same quota, as the kubelet does for a pod of one limited container.
    Nested,
    /// The container alone.
    Flat,
}

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScratchPlan {
    /// One limited group or two.
    pub nesting: Nesting,
    /// Bandwidth of each limited group at first.
    pub bandwidth: Bandwidth,
    /// Where to make the tree: a group of the hierarchy, absolute or relative to its mount. `None`: near this process.
    pub parent: Option<PathBuf>,
}

/// Which limited group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LevelName {
    /// The group the processes are in.
    Container,
    /// Its parent, with a quota of its own.
    Pod,
}

/// One limited group of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Which.
    pub level: LevelName,
    /// The group.
    pub group: Group,
    /// Its id, see [`Group::id`].
    pub cgroup_id: u64,
}

/// Scratch groups could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// There is no place for them.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// This process cannot be identified.
    #[error("cannot read /proc/self/stat to name the group; is /proc mounted?")]
    Owner(#[source] procfs::ProcError),
    /// A directory could not be made.
    #[error("cannot make cgroup {}; run as root with the cgroup mount writable, or name a group this user owns with --parent", path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// This process has a tree already.
    #[error("cgroup {} exists already: this process has scratch groups, and may have one tree at a time", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// A file of a group could not be read or written.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A limit could not be set.
    #[error(transparent)]
    Bandwidth(#[from] BandwidthError),
    /// The own group could not be found.
    #[error(transparent)]
    Hierarchy(#[from] HierarchyError),
}

/// A tree of groups of this process. Dropping it ends what runs in it and removes it, and says on stderr what could not be removed;
/// after a panic too where panics unwind. Where they abort, or after SIGKILL, the next start's [`super::remove_stale`] does it.
#[derive(Debug)]
pub struct Scratch {
    hierarchy: Hierarchy,
    top: Group,
    driver: Group,
    pod: Option<Group>,
    container: Group,
    /// Where this process was before [`Scratch::join_driver`].
    came_from: Option<Group>,
    /// A v2 group this tree had cpu enabled in, to be disabled again.
    enabled_in: Option<Group>,
    /// Locks the top directory for as long as this process lives: [`super::remove_stale`] of another pid namespace, where this
    /// process has no pid, sees by it that the tree is in use.
    _lock: Option<File>,
    is_removed: bool,
}

impl Scratch {
    /// Makes the tree. If a step fails, what was made is removed again.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn create(hierarchy: &Hierarchy, plan: &ScratchPlan) -> Result<Self, ScratchError> {
        plan.bandwidth.checked().map_err(BandwidthError::from)?;
        let place = place::choose(hierarchy, plan.parent.as_deref())?;
        let owner = Owner::me().map_err(ScratchError::Owner)?;
        let top = place.parent.child(owner.to_string());
        let pod = (plan.nesting == Nesting::Nested).then(|| top.child("pod"));
        make(&top)?;
        // From here on a failure drops `made`, which removes what is there.
        let mut made = Self {
            hierarchy: hierarchy.clone(),
            driver: top.child("driver"),
            container: pod.as_ref().unwrap_or(&top).child("container"),
            pod,
            top,
            came_from: None,
            enabled_in: None,
            _lock: None,
            is_removed: false,
        };
        made._lock = Some(lock(&made.top)?);
        if place.enable_cpu {
            place.parent.write("cgroup.subtree_control", "+cpu")?;
            made.enabled_in = Some(place.parent);
        }
        // The greatest weights there are (MAX_SHARES in kernel/sched/sched.h, CGROUP_WEIGHT_MAX in include/linux/cgroup.h): a run must
        // wait for its quota, not for other work on the machine.
        match hierarchy.version {
            Version::V1 => made.top.write("cpu.shares", "262144")?,
            Version::V2 => made.top.write("cpu.weight", "10000")?,
        }
        made.fill()?;
        made.set_bandwidth(&plan.bandwidth)?;
        Ok(made)
    }

    /// The limited group the observed processes belong in.
    #[must_use]
    pub fn container(&self) -> &Group {
        &self.container
    }

    /// The limited group around it; `None` when flat.
    #[must_use]
    pub fn pod(&self) -> Option<&Group> {
        self.pod.as_ref()
    }

    /// The unlimited group beside it, for the client and the observer.
    #[must_use]
    pub fn driver(&self) -> &Group {
        &self.driver
    }

    /// The whole tree's topmost group.
    #[must_use]
    pub fn top(&self) -> &Group {
        &self.top
    }

    /// The limited groups, the container first.
    ///
    /// # Errors
    /// [`GroupError::Gone`] when one was removed.
    pub fn levels(&self) -> Result<Vec<Level>, GroupError> {
        let level = |level, group: &Group| Ok(Level { level, group: group.clone(), cgroup_id: group.id()? });
        let mut levels = vec![level(LevelName::Container, &self.container)?];
        if let Some(pod) = &self.pod {
            levels.push(level(LevelName::Pod, pod)?);
        }
        Ok(levels)
    }

    /// Makes a group without limit beside the limited ones, with `times` the weight they have (the kernel's default).
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn beside(&self, times: u32) -> Result<Group, ScratchError> {
        let group = self.top.child("beside");
        make(&group)?;
        match self.hierarchy.version {
            Version::V1 => group.write("cpu.shares", &(1_024 * times).to_string())?,
            Version::V2 => group.write("cpu.weight", &(100 * times).to_string())?,
        }
        Ok(group)
    }

    /// Groups above the tree that have a quota themselves, nearest first: they may throttle what runs in it, also the driver.
    ///
    /// # Errors
    /// [`GroupError`] when one of them is unreadable.
    pub fn limits_above(&self) -> Result<Vec<Node>, GroupError> {
        Ok(tree::ancestors(&self.hierarchy, &self.top)?.into_iter().skip(1).filter(Node::is_limited).collect())
    }

    /// Gives pod and container this bandwidth, in the order the kubelet resizes: a pod is raised before its container and lowered after it,
    /// so that a container never has more than its pod (which v1 refuses).
    ///
    /// # Errors
    /// [`BandwidthError`]; the two levels may then differ.
    pub fn set_bandwidth(&self, bandwidth: &Bandwidth) -> Result<(), BandwidthError> {
        let Some(pod) = &self.pod else { return bandwidth.write(&self.container) };
        let now = Bandwidth::read(pod)?.unwrap_or(Bandwidth::UNLIMITED);
        let order = if bandwidth.cmp_ratio(&now).is_ge() { [pod, &self.container] } else { [&self.container, pod] };
        order.into_iter().try_for_each(|group| bandwidth.write(group))
    }

    /// Moves this process, with all its threads, into the driver group.
    ///
    /// # Errors
    /// [`ScratchError`]; the process then is where it was.
    pub fn join_driver(&mut self) -> Result<(), ScratchError> {
        if self.came_from.is_none() {
            let own = match self.hierarchy.own_group() {
                Ok(own) => own,
                // Cannot go back to a place out of sight: the parent of the tree is the nearest there is.
                Err(HierarchyError::Hidden { .. }) => self.parent(),
                Err(error) => return Err(error.into()),
            };
            self.driver.add_process(std::process::id())?;
            self.came_from = Some(own);
        }
        Ok(())
    }

    /// Moves this process back to where [`Scratch::join_driver`] found it; if that group is gone, to the parent of the tree.
    ///
    /// # Errors
    /// [`GroupError`] when neither takes it.
    pub fn leave(&mut self) -> Result<(), GroupError> {
        let Some(home) = self.came_from.take() else { return Ok(()) };
        let me = std::process::id();
        home.add_process(me).or_else(|_| self.parent().add_process(me))
    }

    /// Ends what runs in the container, with its limits as they are, and waits up to 10 s for it to be gone. Returns the
    /// processes killed.
    pub fn end_container(&self) -> BTreeSet<u32> {
        remove::end_tree(&self.container, remove::DEADLINE)
    }

    /// Leaves the tree, ends what runs in it, and removes it. Waits up to 10 s for what it killed to be gone.
    pub fn remove(mut self) -> Removal {
        self.take_down()
    }

    fn take_down(&mut self) -> Removal {
        self.is_removed = true;
        // If leaving fails, the removal finds this process inside and says so.
        let _ = self.leave();
        let removal = remove::remove_tree(&self.top, remove::DEADLINE);
        if let Some(parent) = self.enabled_in.take().filter(|_| removal.is_complete()) {
            // Refused (EBUSY) while another group there has come to rely on it, and then right to leave as it is.
            let _ = parent.write("cgroup.subtree_control", "-cpu");
        }
        removal
    }

    fn fill(&self) -> Result<(), ScratchError> {
        let gives_cpu = |group: &Group| match self.hierarchy.version {
            Version::V1 => Ok(()),
            Version::V2 => group.write("cgroup.subtree_control", "+cpu"),
        };
        gives_cpu(&self.top)?;
        make(&self.driver)?;
        if let Some(pod) = &self.pod {
            make(pod)?;
            gives_cpu(pod)?;
        }
        make(&self.container)
    }

    fn parent(&self) -> Group {
        let parent = self.top.path().parent().unwrap_or(&self.hierarchy.mount);
        Group::new(self.hierarchy.version, parent.to_owned())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.is_removed {
            let removal = self.take_down();
            if !removal.is_complete() {
                eprintln!("throttle: {removal}");
            }
        }
    }
}

fn make(group: &Group) -> Result<(), ScratchError> {
    fs::create_dir(group.path()).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => ScratchError::Exists { path: group.path().to_owned() },
        _ => ScratchError::Make { path: group.path().to_owned(), source },
    })
}

/// Takes the lock that goes with the process, however it ends. Closed on exec, so children do not hold it.
fn lock(top: &Group) -> Result<File, ScratchError> {
    let locked = File::open(top.path()).and_then(|directory| directory.lock().map(|()| directory));
    locked.map_err(|source| ScratchError::Make { path: top.path().to_owned(), source })
}
