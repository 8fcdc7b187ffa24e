//! Whose a group named `throttle-<pid>-<start time>` is, and whether that process still lives.
//!
//! Owns the name. A pid alone would not do: it is reused; with the start time it names one process of this boot.

use std::fmt;
use std::str::FromStr;

use procfs::ProcError;
use procfs::process::Process;

/// The process that made a scratch group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Process id in the maker's pid namespace.
    pub pid: u32,
    /// Start of the process in clock ticks since boot (field 22 of `/proc/<pid>/stat`).
    pub start_ticks: u64,
}

/// Not the name of a scratch group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name of the form throttle-<pid>-<start time>")]
pub struct NotOurs;

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// When `/proc/self/stat` cannot be read.
    pub fn me() -> Result<Self, ProcError> {
        let stat = Process::myself()?.stat()?;
        Ok(Self { pid: std::process::id(), start_ticks: stat.starttime })
    }

    /// Whether the process still runs, as far as this pid namespace can tell. A zombie does not. When `/proc` cannot tell, it does.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Ok(pid) = i32::try_from(self.pid) else { return false };
        match Process::new(pid).and_then(|process| process.stat()) {
            Ok(stat) => stat.starttime == self.start_ticks && !matches!(stat.state, 'Z' | 'X'),
            Err(ProcError::NotFound(_)) => false,
            Err(_) => true,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "throttle-{}-{}", self.pid, self.start_ticks)
    }
}

impl FromStr for Owner {
    type Err = NotOurs;

    fn from_str(name: &str) -> Result<Self, NotOurs> {
        let parsed = name
            .strip_prefix("throttle-")
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, start)| Some(Self { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? }));
        // Only the very spelling that Display writes: no signs, no leading zeros.
        parsed.filter(|owner| owner.pid > 0 && owner.to_string() == name).ok_or(NotOurs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_process_is_alive_and_another_start_time_is_not() {
        let me = Owner::me().expect("own stat");
        assert!(me.is_alive());
        assert!(!Owner { start_ticks: me.start_ticks + 1, ..me }.is_alive());
        assert!(!Owner { pid: u32::MAX, start_ticks: 1 }.is_alive());
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().expect("spawned");
        let pid = i32::try_from(child.id()).expect("a pid");
        let start_ticks = Process::new(pid).and_then(|process| process.stat()).expect("not reaped yet").starttime;
        let owner = Owner { pid: child.id(), start_ticks };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while owner.is_alive() {
            assert!(std::time::Instant::now() < deadline, "`true` did not end");
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
    }

    #[test]
    fn other_names_are_not_ours() {
        for name in [
            "throttle",
            "throttle-1",
            "throttle-x-1",
            "throttle-1-",
            "throttle-01-5",
            "throttle-+1-5",
            "throttle-0-5",
            "throttle-1-5-9",
            "kubepods",
        ] {
            assert_eq!(name.parse::<Owner>(), Err(NotOurs), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_read_back(pid in 1_u32.., start_ticks: u64) {
            let owner = Owner { pid, start_ticks };
            prop_assert_eq!(owner.to_string().parse(), Ok(owner));
        }
    }
}
