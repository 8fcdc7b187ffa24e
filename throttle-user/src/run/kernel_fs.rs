//! File systems that are the kernel's own: a folder made there is no folder but an act, such as a new cgroup.

use std::path::Path;

use nix::sys::statfs::{
    BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, FsType, PROC_SUPER_MAGIC, SECURITYFS_MAGIC,
    SYSFS_MAGIC, TRACEFS_MAGIC, statfs,
};

/// By the magic numbers of `include/uapi/linux/magic.h`.
const KINDS: [(FsType, &str); 8] = [
    (CGROUP_SUPER_MAGIC, "a cgroup file system"),
    (CGROUP2_SUPER_MAGIC, "a cgroup file system"),
    (PROC_SUPER_MAGIC, "procfs"),
    (SYSFS_MAGIC, "sysfs"),
    (DEBUGFS_MAGIC, "debugfs"),
    (TRACEFS_MAGIC, "tracefs"),
    (BPF_FS_MAGIC, "the BPF file system"),
    (SECURITYFS_MAGIC, "securityfs"),
];

/// Which of them a path lies in, or would lie in once it is made; `None` = in none.
pub(super) fn holding(path: &Path) -> Option<&'static str> {
    let path = std::path::absolute(path).ok()?;
    let found = path.ancestors().find_map(|there| statfs(there).ok())?.filesystem_type();
    KINDS.iter().find(|(magic, _)| *magic == found).map(|&(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_made_in_the_kernels_file_systems_is_told_from_a_plain_folder() {
        assert_eq!(holding(Path::new("/proc/self/no/such/folder")), Some("procfs"));
        assert_eq!(holding(Path::new("/sys/kernel/no-such-folder")), Some("sysfs"));
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(holding(&dir.path().join("a/b")), None);
        assert_eq!(holding(Path::new("relative/path")), None);
    }
}
