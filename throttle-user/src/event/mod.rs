//! What the kernel did, as the rest of the program sees it: owned values without layout, in the kernel's own terms.
//!
//! An [`Event`] is also what a run stores: one JSON object a line in `events-<limit>.jsonl.gz`. Field names are part of the
//! stored schema ([`crate::run::SCHEMA`] versions it).

mod hook;
mod kernel;
mod loss;

use serde::{Deserialize, Serialize};

pub use hook::{HookReport, HookState};
pub use kernel::{Era, KernelFacts};
pub use loss::{CpuLosses, Losses};

use crate::time::{DurationNs, MonoNs};

/// kernfs id of a cgroup: the inode of its directory, all 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupId(pub u64);

/// Which levels of a path were out of quota on one CPU: bit 0 the leaf cgroup itself, bit 1 its parent, and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Levels(pub u16);

impl Levels {
    /// No level is out of quota.
    pub const NONE: Self = Self(0);

    /// Whether the level `distance` steps above the leaf is out of quota.
    #[must_use]
    pub fn contains(self, distance: usize) -> bool {
        distance < 16 && self.0 & (1 << distance) != 0
    }

    /// Whether no level is out of quota.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

/// One record of the probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, `CLOCK_MONOTONIC`.
    #[serde(rename = "t")]
    pub at: MonoNs,
    /// CPU that saw it.
    #[serde(rename = "c")]
    pub cpu: u32,
    /// The CPU's sequence number; a jump is a loss.
    #[serde(rename = "s")]
    pub seq: u32,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// Went to sleep or died.
    Blocked,
    /// Runnable, not throttled.
    Preempted,
    /// Runnable, taken off by a CPU limit.
    Throttled,
}

/// A watched thread on one side of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnCpu {
    /// Thread id in the root pid namespace.
    #[serde(rename = "tid")]
    pub thread: u32,
    /// Its leaf cgroup.
    #[serde(rename = "cg")]
    pub cgroup: CgroupId,
    /// Levels out of quota on this CPU.
    #[serde(rename = "lv", default, skip_serializing_if = "Levels::is_empty")]
    pub levels: Levels,
    /// Of those, the ones whose `throttled_time` the kernel is counting on this CPU.
    #[serde(rename = "lc", default, skip_serializing_if = "Levels::is_empty")]
    pub counting: Levels,
    /// Levels whose `cpu.stat.local` the kernel is counting on this CPU.
    #[serde(rename = "ll", default, skip_serializing_if = "Levels::is_empty")]
    pub counting_local: Levels,
    /// Whether the queue's `throttle_count` was not zero.
    #[serde(rename = "h", default, skip_serializing_if = "std::ops::Not::not")]
    pub hierarchy: bool,
    /// Not in the fair class now (real-time, deadline, or boosted to either): no limit holds it.
    #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
    pub exempt: bool,
}

/// What ran the end of a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// The period timer.
    Period,
    /// The slack timer, inside a period.
    Slack,
    /// The remote call (CSD) that the timer's CPU sent.
    Csd,
}

/// A timer run of a limited group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerRun {
    /// The group.
    #[serde(rename = "cg")]
    pub cgroup: CgroupId,
    /// Entry of the callback; [`Event::at`] is its exit.
    #[serde(rename = "in")]
    pub entry: MonoNs,
    /// The boundary this run stands for: the timer's expiry at entry.
    #[serde(rename = "exp")]
    pub expires: MonoNs,
    /// The timer's expiry at exit: the next boundary.
    #[serde(rename = "nxt")]
    pub next_expires: MonoNs,
    /// Quota; `None` = no limit.
    #[serde(rename = "q")]
    pub quota: Option<DurationNs>,
    /// Period.
    #[serde(rename = "p")]
    pub period: DurationNs,
    /// Burst.
    #[serde(rename = "b")]
    pub burst: DurationNs,
    /// Global pool at entry, before the refill.
    #[serde(rename = "r0")]
    pub runtime_before: DurationNs,
    /// Global pool at exit.
    #[serde(rename = "r1")]
    pub runtime_after: DurationNs,
    /// CPUs found throttled at entry; one [`What::Queue`] follows for each.
    #[serde(rename = "n")]
    pub throttled_cpus: u32,
    /// There were more throttled CPUs than the probe lists.
    #[serde(rename = "tr", default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The period timer is armed at exit: it will run at `next_expires`.
    #[serde(rename = "on")]
    pub active: bool,
    /// The kernel's own counters at exit, for comparison only.
    #[serde(rename = "k")]
    pub kernel: KernelCounters,
}

/// The kernel's account as read from `struct cfs_bandwidth` at a timer's exit. Never used as an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCounters {
    /// `nr_periods`
    #[serde(rename = "np")]
    pub nr_periods: u32,
    /// `nr_throttled`
    #[serde(rename = "nt")]
    pub nr_throttled: u32,
    /// `throttled_time`, ns
    #[serde(rename = "tt")]
    pub throttled_time: DurationNs,
}

/// A group's queue on one CPU after a timer run or CSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// The group whose quota it is.
    #[serde(rename = "cg")]
    pub cgroup: CgroupId,
    /// CPU of the queue.
    #[serde(rename = "qc")]
    pub cpu: u32,
    /// Entry of the timer run or CSD; [`Event::at`] is its exit.
    #[serde(rename = "in")]
    pub entry: MonoNs,
    /// Still throttled at exit.
    #[serde(rename = "thr")]
    pub throttled: bool,
    /// Levels still out of quota there, own and ancestors.
    #[serde(rename = "cnt")]
    pub throttle_count: u32,
    /// Local pool at exit, ns; negative = debt.
    #[serde(rename = "rem")]
    pub runtime_remaining: i64,
    /// What ran.
    #[serde(rename = "by")]
    pub release: Release,
}

/// Names of the kinds of records, in the order of the wire contract; [`What::kind`] gives the same.
pub const KINDS: [&str; 9] =
    ["switch", "wakeup", "wakeup_new", "migrate", "exit", "period", "slack", "queue", "attach"];

impl What {
    /// Name of its kind, as losses are counted.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Switch { .. } => "switch",
            Self::Wakeup { new: false, .. } => "wakeup",
            Self::Wakeup { new: true, .. } => "wakeup_new",
            Self::Migrate { .. } => "migrate",
            Self::Exit { .. } => "exit",
            Self::Period(_) => "period",
            Self::Slack(_) => "slack",
            Self::Queue(_) => "queue",
            Self::Attach { .. } => "attach",
        }
    }
}

/// Kinds of event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "snake_case")]
pub enum What {
    /// `sched_switch`.
    Switch {
        /// Who left, if watched.
        #[serde(rename = "prev", default, skip_serializing_if = "Option::is_none")]
        prev: Option<OnCpu>,
        /// Why it left, if watched.
        #[serde(rename = "left", default, skip_serializing_if = "Option::is_none")]
        left: Option<Left>,
        /// How long the one who left had had the CPU, by the scheduler's own note of its arrival; if watched and noted.
        #[serde(rename = "ran", default, skip_serializing_if = "Option::is_none")]
        ran: Option<DurationNs>,
        /// What the scheduler has charged to nobody on this CPU since boot: time stolen by a hypervisor, and interrupts where
        /// the kernel accounts for them; if a side is watched.
        #[serde(rename = "unc", default, skip_serializing_if = "Option::is_none")]
        uncharged: Option<DurationNs>,
        /// Who came, if watched.
        #[serde(rename = "next", default, skip_serializing_if = "Option::is_none")]
        next: Option<OnCpu>,
        /// The idle task left.
        #[serde(rename = "i0", default, skip_serializing_if = "std::ops::Not::not")]
        from_idle: bool,
        /// The idle task came.
        #[serde(rename = "i1", default, skip_serializing_if = "std::ops::Not::not")]
        to_idle: bool,
    },
    /// `sched_wakeup`, `sched_wakeup_new`.
    Wakeup {
        /// The woken thread, its leaf cgroup, and the levels out of quota where it was queued.
        #[serde(flatten)]
        task: OnCpu,
        /// CPU it was queued on.
        #[serde(rename = "tc")]
        target_cpu: u32,
        /// The thread was just created.
        #[serde(rename = "new", default, skip_serializing_if = "std::ops::Not::not")]
        new: bool,
    },
    /// `sched_migrate_task`.
    Migrate {
        /// The moved thread.
        #[serde(rename = "tid")]
        thread: u32,
        /// Its leaf cgroup.
        #[serde(rename = "cg")]
        cgroup: CgroupId,
        /// CPU it goes to.
        #[serde(rename = "to")]
        dest_cpu: u32,
    },
    /// `sched_process_exit`.
    Exit {
        /// The exiting thread.
        #[serde(rename = "tid")]
        thread: u32,
        /// Its leaf cgroup.
        #[serde(rename = "cg")]
        cgroup: CgroupId,
    },
    /// `cgroup_attach_task`: a thread was moved, in whatever hierarchy; also threads of groups that are not watched.
    Attach {
        /// The thread.
        #[serde(rename = "tid")]
        thread: u32,
        /// The leaf cgroup it is in now, by the cpu controller; 0 = an autogroup.
        #[serde(rename = "cg")]
        cgroup: CgroupId,
        /// It was asleep.
        #[serde(rename = "bl", default, skip_serializing_if = "std::ops::Not::not")]
        blocked: bool,
    },
    /// A period boundary.
    Period(TimerRun),
    /// A slack timer's run.
    Slack(TimerRun),
    /// A queue after a timer run or CSD.
    Queue(QueueState),
}
