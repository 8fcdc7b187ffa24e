//! Cgroups as CFS bandwidth sees them: where the cpu controller is, what limits groups have, what the kernel counted, and groups of
//! our own to measure in.
//!
//! Both versions of the interface stand behind the same types; what a version or a kernel lacks is `None` or an error that says
//! so, never 0. In reading order:
//!
//! - [`hierarchy`]: the mount of the cpu controller, v1 or v2, and this process's place in it
//! - [`group`]: one cgroup: directory, id, members, control files
//! - [`limit`] and [`bandwidth`]: `200m` as people write it; quota, period and burst as the kernel has it
//! - [`counters`]: `cpu.stat` and `cpu.stat.local`, and the growth between two readings
//! - [`tree`]: walking down from the mount, and up from a group; [`watch`]: the same as it changes
//! - [`scratch`], [`stale`]: groups for one run, and those a killed run left
//! - [`quiet`]: waiting until the period timers have stopped
//! - [`phase`]: where a group's period grid lies

pub mod bandwidth;
pub mod counters;
pub mod group;
pub mod hierarchy;
pub mod limit;
pub mod owner;
pub mod phase;
mod place;
pub mod quiet;
mod remove;
pub mod scratch;
pub mod stale;
mod steps;
pub mod tree;
pub mod watch;

pub use bandwidth::{Bandwidth, BandwidthError, Quota};
pub use counters::{Counters, DeltaError, Figures};
pub use group::{Group, GroupError, Members};
pub use hierarchy::{Hierarchy, HierarchyError, Version};
pub use limit::{CpuLimit, DEFAULT_PERIOD_US, LimitError, MIN_MILLICPU};
pub use owner::Owner;
pub use phase::{Learned, Phase};
pub use place::PlaceError;
pub use quiet::{Busy, Quietness, wait_quiet};
pub use remove::{Left, Removal};
pub use scratch::{Level, LevelName, Nesting, Scratch, ScratchError, ScratchPlan};
pub use stale::{Stale, remove_stale};
pub use watch::{Change, Watch, WatchError};
