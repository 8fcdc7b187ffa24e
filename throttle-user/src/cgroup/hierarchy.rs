//! Where the cpu controller is mounted, and where this process sits in it.
//!
//! Owns the choice between cgroup v1 and v2 and the translation of a `/proc/<pid>/cgroup` path into a directory. Reads
//! nothing below the mount except `cgroup.controllers`; groups themselves belong to [`super::group`].

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::group::Group;

/// Which of the two cgroup interfaces the cpu controller is bound to. A controller is bound to one hierarchy at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Version {
    /// A v1 mount that carries `cpu`, alone or together with `cpuacct`.
    V1,
    /// The unified hierarchy, with `cpu` in `cgroup.controllers`.
    V2,
}

/// The hierarchy the cpu controller is bound to, as this process can see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Interface version.
    pub version: Version,
    /// Directory it is mounted on.
    pub mount: PathBuf,
    /// Which directory of the hierarchy the mount shows, relative to the root of this process's cgroup namespace. `/` on a
    /// host; a container's own path where only that part is mounted; begins with `/..` for what lies outside the namespace.
    pub mount_root: PathBuf,
}

/// Why no hierarchy, or no place in it, could be found.
#[derive(Debug, thiserror::Error)]
pub enum HierarchyError {
    /// A file under `/proc` could not be read.
    #[error("cannot read {}; is /proc mounted?", path.display())]
    Proc {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is no cpu controller to be seen.
    #[error(
        "no cpu controller: {looked_at}. On a host, mount one (`mount -t cgroup2 none /sys/fs/cgroup`, or v1 with `-t cgroup -o cpu`) and \
         check that /proc/cgroups shows cpu enabled; in a container, mount the host's /sys/fs/cgroup or have cpu enabled in the \
         parent's cgroup.subtree_control"
    )]
    NoCpu {
        /// The cgroup mounts that were looked at, with their controllers.
        looked_at: String,
    },
    /// `/proc/<pid>/cgroup` has no line for this hierarchy.
    #[error("{proc_cgroup:?} has no line for the {version:?} cpu hierarchy")]
    NoLine {
        /// The text that was read.
        proc_cgroup: String,
        /// The version looked for.
        version: Version,
    },
    /// The process's group lies outside what the mount shows.
    #[error(
        "group {} is not below {}, which is all that {} shows; mount the whole hierarchy, or name a group with --parent",
        group.display(), mount_root.display(), mount.display()
    )]
    Hidden {
        /// Path of the group as `/proc` gives it.
        group: PathBuf,
        /// What the mount shows.
        mount_root: PathBuf,
        /// The mount.
        mount: PathBuf,
    },
}

impl Hierarchy {
    /// The cpu controller's hierarchy of this process.
    ///
    /// # Errors
    /// [`HierarchyError::Proc`] without `/proc`, [`HierarchyError::NoCpu`] where no mount carries the controller.
    pub fn find() -> Result<Self, HierarchyError> {
        let path = Path::new("/proc/self/mountinfo");
        let mountinfo =
            fs::read_to_string(path).map_err(|source| HierarchyError::Proc { path: path.into(), source })?;
        Self::find_in(&mountinfo, |mount| fs::read_to_string(mount.join("cgroup.controllers")).ok())
    }

    /// The same from the text of a mountinfo file; `controllers` gives the text of a v2 mount's `cgroup.controllers`.
    ///
    /// Of several mounts of the hierarchy, the one that shows most of it is taken, a writable one before a read-only one
    /// (an agent pod has its own part at `/sys/fs/cgroup` and the node's at `/host/sys/fs/cgroup`).
    ///
    /// # Errors
    /// [`HierarchyError::NoCpu`] where no mount carries the controller.
    pub fn find_in(mountinfo: &str, controllers: impl Fn(&Path) -> Option<String>) -> Result<Self, HierarchyError> {
        let mut looked_at = Vec::new();
        let mut candidates = Vec::new();
        for mount in mountinfo.lines().filter_map(CgroupMount::parse) {
            let carried = match mount.version {
                Version::V1 => mount.super_options.replace(',', " "),
                Version::V2 => controllers(&mount.point).unwrap_or_else(|| "cgroup.controllers unreadable".to_owned()),
            };
            if carried.split_whitespace().any(|name| name == "cpu") {
                candidates.push(mount);
            } else {
                looked_at.push(format!(
                    "{:?} at {} carries [{}]",
                    mount.version,
                    mount.point.display(),
                    carried.trim()
                ));
            }
        }
        candidates
            .into_iter()
            .min_by_key(|mount| (mount.depth(), mount.read_only))
            .map(|mount| Self { version: mount.version, mount: mount.point, mount_root: mount.root })
            .ok_or_else(|| HierarchyError::NoCpu {
                looked_at: if looked_at.is_empty() {
                    "no mount of type cgroup or cgroup2 in /proc/self/mountinfo".to_owned()
                } else {
                    looked_at.join("; ")
                },
            })
    }

    /// The group of this process.
    ///
    /// # Errors
    /// [`HierarchyError::Proc`], or as [`Hierarchy::group_in`].
    pub fn own_group(&self) -> Result<Group, HierarchyError> {
        let path = Path::new("/proc/self/cgroup");
        let text = fs::read_to_string(path).map_err(|source| HierarchyError::Proc { path: path.into(), source })?;
        self.group_in(&text)
    }

    /// The group named by the text of a `/proc/<pid>/cgroup` file (format: `cgroups(7)`).
    ///
    /// # Errors
    /// [`HierarchyError::NoLine`] without a line for the cpu hierarchy, [`HierarchyError::Hidden`] when the mount does not show it.
    pub fn group_in(&self, proc_cgroup: &str) -> Result<Group, HierarchyError> {
        let group = proc_cgroup
            .lines()
            .find_map(|line| {
                let (id, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                let ours = match self.version {
                    Version::V1 => controllers.split(',').any(|name| name == "cpu"),
                    Version::V2 => id == "0" && controllers.is_empty(),
                };
                ours.then(|| PathBuf::from(path))
            })
            .ok_or_else(|| HierarchyError::NoLine { proc_cgroup: proc_cgroup.to_owned(), version: self.version })?;
        let inside = group.strip_prefix(&self.mount_root).ok();
        match inside.filter(|path| path.components().all(|part| matches!(part, Component::Normal(_)))) {
            Some(inside) => Ok(self.group(inside)),
            None => {
                Err(HierarchyError::Hidden { group, mount_root: self.mount_root.clone(), mount: self.mount.clone() })
            }
        }
    }

    /// The group at `path`, relative to the mount; `""` is the mount itself.
    #[must_use]
    pub fn group(&self, path: impl AsRef<Path>) -> Group {
        let path = path.as_ref();
        let full = if path.as_os_str().is_empty() { self.mount.clone() } else { self.mount.join(path) };
        Group::new(self.version, full)
    }

    /// The topmost group this mount shows.
    #[must_use]
    pub fn root(&self) -> Group {
        self.group("")
    }
}

/// One line of mountinfo that mounts a cgroup hierarchy.
struct CgroupMount {
    version: Version,
    root: PathBuf,
    point: PathBuf,
    read_only: bool,
    super_options: String,
}

impl CgroupMount {
    /// Parses `id parent major:minor root point options optional* - type source super_options` (`proc_pid_mountinfo(5)`).
    /// `None` for other file systems and for lines of another shape.
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point, options) = (left.next()?, left.next()?, left.next()?);
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        let super_options = right.nth(1).unwrap_or("").to_owned();
        Some(Self {
            version,
            root: unescape(root).into(),
            point: unescape(point).into(),
            read_only: options.split(',').any(|option| option == "ro"),
            super_options,
        })
    }

    /// How far below the namespace's root the mount begins; negative above it. The smaller, the more it shows.
    fn depth(&self) -> i64 {
        self.root
            .components()
            .map(|part| match part {
                Component::ParentDir => -1,
                Component::Normal(_) => 1,
                _ => 0,
            })
            .sum()
    }
}

/// Undoes the kernel's `\ooo` escapes of space, tab, newline and backslash (`mangle_path` in `fs/seq_file.c`).
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii);
        if let Some(code) = code {
            out.push(char::from(code));
            rest = &rest[at + 4..];
        } else {
            out.push('\\');
            rest = &rest[at + 1..];
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HYBRID_HOST: &str = include_str!("../../tests/data/cgroup/v1-hybrid-host.mountinfo");
    const V1_AGENT: &str = include_str!("../../tests/data/cgroup/v1-agent-pod.mountinfo");
    const V1_AGENT_CGROUP: &str = include_str!("../../tests/data/cgroup/v1-agent-pod.cgroup");
    const V2_AGENT: &str = include_str!("../../tests/data/cgroup/v2-agent-pod.mountinfo");
    const V2_AGENT_CGROUP: &str = include_str!("../../tests/data/cgroup/v2-agent-pod.cgroup");
    const V2_POD: &str = include_str!("../../tests/data/cgroup/v2-pod.mountinfo");

    fn without_cpu(_: &Path) -> Option<String> {
        Some("hugetlb\n".to_owned())
    }

    fn with_cpu(_: &Path) -> Option<String> {
        Some("cpuset cpu io memory hugetlb pids rdma misc\n".to_owned())
    }

    fn find(mountinfo: &str, controllers: fn(&Path) -> Option<String>) -> Hierarchy {
        Hierarchy::find_in(mountinfo, controllers).expect("a cpu controller")
    }

    #[test]
    fn a_hybrid_host_whose_unified_mount_has_no_cpu_uses_v1() {
        let found = find(HYBRID_HOST, without_cpu);
        assert_eq!((found.version, found.mount.as_path()), (Version::V1, Path::new("/sys/fs/cgroup/cpu")));
    }

    #[test]
    fn cpuacct_and_cpuset_are_not_taken_for_cpu() {
        let error = Hierarchy::find_in(
            "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
             34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
            with_cpu,
        )
        .expect_err("none carries cpu");
        let said = error.to_string();
        assert!(said.contains("/sys/fs/cgroup/cpuacct carries [rw cpuacct]"), "{said}");
        assert!(said.contains("mount -t cgroup2"), "{said}");
    }

    #[test]
    fn a_comounted_cpu_and_cpuacct_is_found() {
        let found = find("33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct", without_cpu);
        assert_eq!(found.mount, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        let own = found.group_in("4:cpu,cpuacct:/user.slice\n0::/else\n").expect("own group");
        assert_eq!(own.path(), Path::new("/sys/fs/cgroup/cpu,cpuacct/user.slice"));
    }

    #[test]
    fn an_agent_pod_on_v1_uses_the_node_wide_mount_and_finds_itself_in_it() {
        let found = find(V1_AGENT, without_cpu);
        assert_eq!(found.mount, Path::new("/host/sys/fs/cgroup/cpu"));
        let own = found.group_in(V1_AGENT_CGROUP).expect("own group");
        assert!(own.path().starts_with("/host/sys/fs/cgroup/cpu/kubepods/besteffort"), "{}", own.path().display());
    }

    #[test]
    fn a_mount_that_shows_only_the_own_group_makes_it_the_root() {
        let part: String =
            V1_AGENT.lines().filter(|line| !line.contains("/host/")).map(|line| format!("{line}\n")).collect();
        let found = find(&part, without_cpu);
        assert_eq!(found.group_in(V1_AGENT_CGROUP).expect("own group").path(), Path::new("/sys/fs/cgroup/cpu"));
    }

    #[test]
    fn an_agent_pod_on_v2_prefers_the_writable_of_two_whole_mounts() {
        let found = find(V2_AGENT, with_cpu);
        assert_eq!((found.version, found.mount.as_path()), (Version::V2, Path::new("/sys/fs/cgroup")));
        let own = found.group_in(V2_AGENT_CGROUP).expect("own group");
        assert!(own.path().starts_with("/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice"));
    }

    #[test]
    fn a_pod_in_its_own_namespace_is_its_own_root() {
        let found = find(V2_POD, with_cpu);
        assert_eq!(found.group_in("0::/\n").expect("own group").path(), Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn a_group_outside_the_mount_is_an_error_that_names_it() {
        let found = find(V2_POD, with_cpu);
        let said = found.group_in("0::/../other.scope\n").expect_err("outside").to_string();
        assert!(said.contains("/../other.scope") && said.contains("--parent"), "{said}");
        assert!(matches!(found.group_in("1:cpu:/x\n"), Err(HierarchyError::NoLine { .. })));
    }

    #[test]
    fn no_cgroup_mount_at_all_says_so() {
        let said =
            Hierarchy::find_in("22 27 0:21 / /proc rw - proc proc rw\n", with_cpu).expect_err("none").to_string();
        assert!(said.contains("no mount of type cgroup or cgroup2"), "{said}");
    }

    #[test]
    fn a_mount_point_with_a_space_is_decoded() {
        let found = find(r"9 8 0:9 / /mnt/two\040words\134x rw - cgroup2 cgroup2 rw", with_cpu);
        assert_eq!(found.mount, Path::new(r"/mnt/two words\x"));
    }

    proptest! {
        #[test]
        fn any_text_gives_a_hierarchy_or_an_error(text in ".{0,400}", cgroup in ".{0,200}") {
            if let Ok(found) = Hierarchy::find_in(&text, with_cpu) {
                let _ = found.group_in(&cgroup);
            }
        }

        #[test]
        fn any_mount_line_gives_a_hierarchy_or_an_error(root in "[/.a\\\\0-9é]{0,12}", point in "[/a\\\\0-9é]{0,12}", path in "[/.a]{0,9}") {
            let found = find(&format!("1 2 0:3 {root} {point} rw shared:1 - cgroup2 none rw"), with_cpu);
            if let Ok(group) = found.group_in(&format!("0::{path}\n")) {
                prop_assert!(group.path().starts_with(&found.mount));
            }
        }
    }
}
