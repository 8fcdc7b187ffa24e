//! A scheduling group of our own with the largest share of the CPU, so that a loaded machine does not starve kernel tests.
//!
//! Only xtask's own: the groups that tests limit are the tests' business.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PREFIX: &str = "throttle-xtask-";

/// The mounted hierarchy that schedules CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// cgroup v1, controller `cpu`: mount point.
    V1(PathBuf),
    /// cgroup v2 whose root hands `cpu` down to its children: mount point.
    V2(PathBuf),
}

impl Hierarchy {
    /// Looks at what is mounted.
    pub(crate) fn find() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        Self::among(&mounts, |root| fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default())
    }

    /// `mounts` is the text of `/proc/self/mounts`: device, mount point, type, options.
    fn among(mounts: &str, subtree_control: impl Fn(&Path) -> String) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (root, kind, options) = (PathBuf::from(fields.next()?), fields.next()?, fields.next()?);
            let schedules = match kind {
                "cgroup" => options.split(',').any(|option| option == "cpu"),
                "cgroup2" => subtree_control(&root).split_whitespace().any(|controller| controller == "cpu"),
                _ => false,
            };
            schedules.then(|| if kind == "cgroup" { Self::V1(root) } else { Self::V2(root) })
        })
    }

    fn root(&self) -> &Path {
        match self {
            Self::V1(root) | Self::V2(root) => root,
        }
    }

    /// The file with a group's weight and the most it takes: `cpu.shares` up to MAX_SHARES = 1 << 18
    /// (kernel/sched/sched.h), `cpu.weight` up to CGROUP_WEIGHT_MAX = 10000 (include/linux/cgroup.h).
    fn weight(&self) -> (&'static str, &'static str) {
        match self {
            Self::V1(_) => ("cpu.shares", "262144"),
            Self::V2(_) => ("cpu.weight", "10000"),
        }
    }

    /// The group this process is in: `/proc/self/cgroup` has `id:controllers:path` a line, v2 with no controllers.
    fn own(&self, self_cgroup: &str) -> Option<PathBuf> {
        let path = self_cgroup.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let ours = match self {
                Self::V1(_) => controllers.split(',').any(|controller| controller == "cpu"),
                Self::V2(_) => controllers.is_empty(),
            };
            ours.then_some(path)
        })?;
        Some(self.root().join(path.trim_start_matches('/')))
    }
}

/// While it lives, this process and what it starts run with priority. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Priority {
    group: PathBuf,
    left: PathBuf,
}

impl Priority {
    /// Makes the group and moves this process into it.
    ///
    /// # Errors
    /// No hierarchy schedules CPU time, or it does not let us.
    pub(crate) fn take() -> Result<Self> {
        let hierarchy = Hierarchy::find().context("no cgroup hierarchy has the cpu controller")?;
        remove_stale(hierarchy.root());
        let left = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
        let left = hierarchy.own(&left).context("/proc/self/cgroup does not name our cpu group")?;
        let group = hierarchy.root().join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
        let priority = Self { group, left };
        let (file, most) = hierarchy.weight();
        write(&priority.group.join(file), most)?;
        write(&priority.group.join("cgroup.procs"), &std::process::id().to_string())?;
        Ok(priority)
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        let removed = write(&self.left.join("cgroup.procs"), &std::process::id().to_string()).and_then(|()| {
            fs::remove_dir(&self.group)
                .with_context(|| format!("cannot remove {}: is a test's process left in it?", self.group.display()))
        });
        if let Err(error) = removed {
            eprintln!("test: {error:#}");
        }
    }
}

/// Removes groups of runs that were killed: their process is gone, and an empty group can be removed.
fn remove_stale(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        if !Path::new("/proc").join(pid).exists() && fs::remove_dir(entry.path()).is_ok() {
            eprintln!("test: removed {}, left behind by a run that was killed", entry.path().display());
        }
    }
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n\
        cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0\n\
        cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
    const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";

    #[test]
    fn on_v1_the_mount_with_the_cpu_controller_is_found() {
        let found = Hierarchy::among(V1, |_| "hugetlb\n".to_owned());
        assert_eq!(found, Some(Hierarchy::V1("/sys/fs/cgroup/cpu,cpuacct".into())));
    }

    #[test]
    fn on_v2_the_root_must_hand_cpu_down() {
        let found = Hierarchy::among(V2, |_| "cpuset cpu io\n".to_owned());
        assert_eq!(found, Some(Hierarchy::V2("/sys/fs/cgroup".into())));
        assert_eq!(Hierarchy::among(V2, |_| "cpuset io\n".to_owned()), None);
    }

    #[test]
    fn our_own_group_is_read_per_hierarchy() {
        let text = "9:name=systemd:/\n3:cpuset:/a\n1:cpu,cpuacct:/b/c\n0::/d\n";
        assert_eq!(Hierarchy::V1("/cg".into()).own(text), Some("/cg/b/c".into()));
        assert_eq!(Hierarchy::V2("/cg".into()).own(text), Some("/cg/d".into()));
        assert_eq!(Hierarchy::V1("/cg".into()).own("3:cpuset:/a\n"), None);
    }

    #[test]
    fn kernel_priority_is_taken_and_given_back() {
        let here = || fs::read_to_string("/proc/self/cgroup").expect("proc is mounted");
        let before = here();
        let priority = Priority::take().expect("the kernel tier runs as root with a cpu controller");
        let group = priority.group.clone();
        assert!(here().contains(group.file_name().and_then(|name| name.to_str()).expect("we named it")));
        drop(priority);
        assert_eq!(here(), before);
        assert!(!group.exists());
    }
}
