//! One cgroup: its directory, its id, who is in it, and its control files as text.
//!
//! Owns the file access of the whole `cgroup` folder and the errors of it. What the texts mean is decided elsewhere
//! ([`super::bandwidth`], [`super::counters`]).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::hierarchy::Version;

/// A cgroup, named by its directory. Holding one does not keep the group alive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    version: Version,
    path: PathBuf,
}

/// The processes or threads of a group (not of its children).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Their numbers in this process's pid namespace, in the kernel's order.
    pub ids: Vec<u32>,
    /// How many more there are that this pid namespace has no number for (v2 lists them as 0; v1 leaves them out).
    pub hidden: usize,
}

/// A control file could not be read, written or understood.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The group's directory is not there (any more).
    #[error("cgroup {} does not exist; if it did, it was removed meanwhile, and its counters with it", path.display())]
    Gone {
        /// The group.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {}{}", path.display(), remedy(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {value:?} to {}{}", path.display(), remedy(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// What should have been written.
        value: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{} holds {text:?}, not {expected}; is it a file of the kernel's cgroup file system?", path.display())]
    Odd {
        /// The file.
        path: PathBuf,
        /// Its text, or the line of it that is odd.
        text: String,
        /// What was expected.
        expected: &'static str,
    },
}

impl Group {
    /// The group whose directory is `path`; nothing is looked up.
    #[must_use]
    pub fn new(version: Version, path: PathBuf) -> Self {
        Self { version, path }
    }

    /// Interface version of its hierarchy.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its direct child called `name`; nothing is looked up.
    #[must_use]
    pub fn child(&self, name: impl AsRef<Path>) -> Self {
        Self::new(self.version, self.path.join(name))
    }

    /// The kernel's id of the group: the directory's inode, all 64 bits. It equals `css.cgroup->kn->id` since 5.5 (`fs/kernfs/inode.c`,
    /// `kernfs_get_inode`), and is unique within the hierarchy only.
    ///
    /// # Errors
    /// [`GroupError::Gone`], or [`GroupError::Read`] when the directory may not be looked at.
    pub fn id(&self) -> Result<u64, GroupError> {
        match fs::metadata(&self.path) {
            Ok(metadata) => Ok(metadata.ino()),
            Err(source) if is_gone(&source) => Err(GroupError::Gone { path: self.path.clone() }),
            Err(source) => Err(GroupError::Read { path: self.path.clone(), source }),
        }
    }

    /// Processes of the group, by pid (thread group id). On v1 a process is listed if any of its threads is in the group.
    ///
    /// # Errors
    /// As [`Group::read`], and [`GroupError::Odd`].
    pub fn processes(&self) -> Result<Members, GroupError> {
        self.members("cgroup.procs")
    }

    /// Threads of the group, by tid: v1 `tasks`, v2 `cgroup.threads`.
    ///
    /// # Errors
    /// As [`Group::read`], and [`GroupError::Odd`].
    pub fn threads(&self) -> Result<Members, GroupError> {
        self.members(match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        })
    }

    /// Moves the process `pid`, with all its threads, into the group.
    ///
    /// # Errors
    /// As [`Group::write`].
    pub fn add_process(&self, pid: u32) -> Result<(), GroupError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Child groups, in no order. A group that vanishes meanwhile has none.
    ///
    /// # Errors
    /// [`GroupError::Read`] when the directory may not be listed.
    pub fn children(&self) -> Result<Vec<Self>, GroupError> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(source) if is_gone(&source) => return Ok(Vec::new()),
            Err(source) => return Err(GroupError::Read { path: self.path.clone(), source }),
        };
        Ok(entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| Self::new(self.version, entry.path()))
            .collect())
    }

    /// Text of the control file `name`.
    ///
    /// # Errors
    /// [`GroupError::Gone`] when the group is not there, [`GroupError::Read`] otherwise.
    pub fn read(&self, name: &str) -> Result<String, GroupError> {
        let path = self.path.join(name);
        fs::read_to_string(&path).map_err(|source| match self.gone(&source) {
            Some(gone) => gone,
            None => GroupError::Read { path, source },
        })
    }

    /// Text of the control file `name`, or `None` where the group is there but this kernel gives it no such file.
    ///
    /// # Errors
    /// As [`Group::read`].
    pub fn read_if_there(&self, name: &str) -> Result<Option<String>, GroupError> {
        match self.read(name) {
            Ok(text) => Ok(Some(text)),
            Err(GroupError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes `value` to the control file `name`, in one `write(2)`. Never creates a file.
    ///
    /// # Errors
    /// [`GroupError::Gone`] when the group is not there, [`GroupError::Write`] when the kernel refuses.
    pub fn write(&self, name: &str, value: &str) -> Result<(), GroupError> {
        let path = self.path.join(name);
        let written = OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(|source| match self.gone(&source) {
            Some(gone) => gone,
            None => GroupError::Write { path, value: value.to_owned(), source },
        })
    }

    /// Whether an error at one of the group's files means that the whole group is gone: `ENODEV` always does, `ENOENT` may also mean
    /// that this group has no such file.
    fn gone(&self, error: &io::Error) -> Option<GroupError> {
        let gone = is_gone(error) && (error.kind() != io::ErrorKind::NotFound || !self.path.is_dir());
        gone.then(|| GroupError::Gone { path: self.path.clone() })
    }

    fn members(&self, file: &str) -> Result<Members, GroupError> {
        let text = self.read(file)?;
        Members::parse(&text).ok_or_else(|| GroupError::Odd {
            path: self.path.join(file),
            text,
            expected: "one process or thread number a line",
        })
    }
}

impl Members {
    /// Nobody, seen or hidden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.hidden == 0
    }

    fn parse(text: &str) -> Option<Self> {
        let mut members = Self::default();
        for line in text.lines() {
            match line.parse().ok()? {
                0 => members.hidden += 1,
                id => members.ids.push(id),
            }
        }
        Some(members)
    }
}

/// `ENOENT` for a path, `ENODEV` for a file whose group was removed after it was opened (`kernfs_get_active` failing).
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ENODEV as i32)
}

/// What to do about a refusal, as the tail of a message.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => "; run as root, or give this user the group (delegation)",
        Some(Errno::EROFS) => {
            "; the cgroup mount is read-only: mount it writable (in a pod: a writable hostPath of /sys/fs/cgroup)"
        }
        Some(Errno::EBUSY) => {
            "; a v2 group with processes of its own cannot enable controllers for children: move them to a leaf"
        }
        Some(Errno::ESRCH) => "; that process has ended",
        Some(Errno::ENOENT) => {
            "; this kernel or this group has no such file (v2: cpu must be in the parent's cgroup.subtree_control)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_members_of_other_pid_namespaces_not_pids() {
        let members = Members::parse("0\n12\n0\n7\n").expect("parses");
        assert_eq!(members, Members { ids: vec![12, 7], hidden: 2 });
        assert!(!Members { ids: vec![], hidden: 1 }.is_empty());
        assert!(Members::parse("").expect("parses").is_empty());
        assert_eq!(Members::parse("-1\n"), None);
    }

    #[test]
    fn an_absent_file_and_an_absent_group_are_told_apart() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = Group::new(Version::V2, dir.path().to_owned());
        assert_eq!(group.read_if_there("cpu.max.burst").expect("no error"), None);
        assert!(matches!(group.read("cpu.max"), Err(GroupError::Read { .. })));
        assert!(matches!(group.child("x").read_if_there("cpu.max"), Err(GroupError::Gone { .. })));
        assert!(matches!(group.child("x").id(), Err(GroupError::Gone { .. })));
        assert!(matches!(group.child("x").write("cpu.max", "1"), Err(GroupError::Gone { .. })));
    }

    #[test]
    fn a_write_never_creates_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = Group::new(Version::V1, dir.path().to_owned());
        let said = group.write("cpu.cfs_burst_us", "5").expect_err("no such file").to_string();
        assert!(said.contains("cpu.cfs_burst_us") && said.contains("no such file"), "{said}");
        assert!(group.children().expect("listed").is_empty());
        assert!(!dir.path().join("cpu.cfs_burst_us").exists());
    }
}
