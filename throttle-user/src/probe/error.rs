//! What can go wrong between the program and its probe.

use std::path::PathBuf;

use aya::{maps::MapError, programs::ProgramError};

use crate::cgroup::{GroupError, HierarchyError};

/// Why the probe could not be started or read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The object was refused.
    #[error("the eBPF object could not be loaded: {0}")]
    Load(#[source] Box<aya::EbpfError>),
    /// The kernel's BTF could not be read by the loader.
    #[error("the kernel's BTF could not be read: {0}")]
    Btf(#[from] aya::BtfError),
    /// A program was refused or could not be attached.
    #[error("tracepoint {tracepoint} could not be {step}: {source}; without it {without}")]
    Program {
        /// Tracepoint.
        tracepoint: &'static str,
        /// "loaded" or "attached".
        step: &'static str,
        /// What is lost without it.
        without: &'static str,
        /// What the kernel said, with the verifier's log.
        source: Box<ProgramError>,
    },
    /// A map could not be used.
    #[error("map {map} of the eBPF object could not be used: {source}")]
    Map {
        /// Map.
        map: &'static str,
        /// What the kernel said.
        source: Box<MapError>,
    },
    /// The object lacks something this program expects.
    #[error("the eBPF object has no {0}: it was built from another version of this program")]
    Foreign(&'static str),
    /// A thread could not be started.
    #[error(
        "cannot start the thread {thread:?}: {source}; raise the limit on processes (ulimit -u, or pids.max of the cgroup)"
    )]
    Thread {
        /// Its name.
        thread: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The reader thread is gone.
    #[error("the thread that reads the ring buffer ended early")]
    Reader,
    /// The process's own place in the cpu hierarchy is not known, so the probe cannot be checked.
    #[error("the probe cannot be checked against this process's own cgroup: {0}")]
    OwnPlace(#[from] HierarchyError),
    /// The directory of the process's own cgroup cannot be looked at.
    #[error("the probe cannot be checked against this process's own cgroup: {0}")]
    OwnGroup(#[from] GroupError),
    /// The probe sees the observer in another cgroup than it is in.
    #[error(
        "the probe sees this process in the cgroup with id {seen}{}, but it is in {}, whose id is {own}: the field offsets are wrong for \
         this kernel ({} does not describe it), or another hierarchy than that one has the cpu controller. Nothing the probe says could \
         be trusted, so nothing is observed",
        if *seen == 0 { format!(" (below {above})") } else { String::new() }, path.display(), super::prerequisites::KERNEL_BTF
    )]
    WrongOffsets {
        /// kernfs id by the probe; 0 in an autogroup.
        seen: u64,
        /// kernfs id of the cgroup above that, by the probe.
        above: u64,
        /// Inode of the cgroup's directory.
        own: u64,
        /// The cgroup's directory.
        path: PathBuf,
    },
    /// The self-check saw nothing.
    #[error(
        "the probe did not see a thread of this process end within {within_ms} ms although it is attached to the tracepoint for it: \
         tracepoints do not fire on this kernel, or something else detached the program"
    )]
    Blind {
        /// Time waited, ms.
        within_ms: u64,
    },
}
