//! Moving the server into the cgroup whose limit it is to feel.
//!
//! Owns one write to `cgroup.procs`. It takes all threads of the process along (cgroups(7)), but belongs before the
//! first one is started, so that none has ever run outside the limit.

use std::io;
use std::path::{Path, PathBuf};

/// Why the process could not join a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The directory has no `cgroup.procs`.
    #[error(
        "{} is not a cgroup: it has no cgroup.procs. Give a directory below the cpu controller's mount, made with mkdir",
        dir.display()
    )]
    NotACgroup {
        /// The directory given.
        dir: PathBuf,
    },
    /// The kernel or the file system refused the write.
    #[error("cannot join cgroup {}: {cause}. {}", dir.display(), remedy(cause))]
    Refused {
        /// The directory given.
        dir: PathBuf,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
}

/// Moves the calling process into the cgroup `dir` by writing its pid to `dir/cgroup.procs`.
///
/// # Errors
/// [`ConfineError`], naming the directory and what to do.
pub fn join_cgroup(dir: &Path) -> Result<(), ConfineError> {
    let procs = dir.join("cgroup.procs");
    if !procs.is_file() {
        return Err(ConfineError::NotACgroup { dir: dir.to_owned() });
    }
    std::fs::write(&procs, std::process::id().to_string())
        .map_err(|cause| ConfineError::Refused { dir: dir.to_owned(), cause })
}

/// What to do about a refusal (cgroups(7); `Documentation/admin-guide/cgroup-v2.rst`, "Delegation" and "Threads").
fn remedy(cause: &io::Error) -> &'static str {
    use nix::errno::Errno;
    match cause.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => {
            "Run as root, or have the cgroup delegated (own its cgroup.procs and that of the common ancestor)"
        }
        Some(Errno::EBUSY) => {
            "A cgroup with controllers enabled for its children takes no processes (cgroup v2): join a leaf below it"
        }
        Some(Errno::EOPNOTSUPP) => "The cgroup's type is threaded or invalid: join a domain cgroup",
        Some(Errno::ENODEV | Errno::ENOENT) => "The cgroup was removed meanwhile: make it again",
        _ => "See cgroups(7) for what this answer means",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_directory_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let error = join_cgroup(dir.path()).expect_err("no cgroup.procs there").to_string();
        assert!(error.contains(dir.path().to_str().expect("utf-8")), "{error}");
        assert!(error.contains("mkdir"), "{error}");
    }

    #[test]
    fn a_refusal_names_the_directory_the_cause_and_a_remedy() {
        let cause = io::Error::from_raw_os_error(nix::errno::Errno::EACCES as i32);
        let error = ConfineError::Refused { dir: PathBuf::from("/sys/fs/cgroup/cpu/a"), cause }.to_string();
        assert!(error.contains("/sys/fs/cgroup/cpu/a: Permission denied"), "{error}");
        assert!(error.contains("Run as root"), "{error}");
    }
}
