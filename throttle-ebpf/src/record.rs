//! The records of the ring buffer.

#[cfg(feature = "user")]
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Starts every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Header {
    /// `bpf_ktime_get_ns()`: `CLOCK_MONOTONIC`, ns.
    pub ts: u64,
    /// Counts the records this CPU tried to write, lost ones included: a jump is a loss.
    pub seq: u32,
    /// CPU that wrote the record.
    pub cpu: u16,
    /// One of [`kind`].
    pub kind: u8,
    /// Bits of the kind's own.
    pub flags: u8,
}

/// Values of [`Header::kind`].
pub mod kind {
    /// [`super::Switch`]
    pub const SWITCH: u8 = 0;
    /// [`super::Wake`] from `sched_wakeup`
    pub const WAKEUP: u8 = 1;
    /// [`super::Wake`] from `sched_wakeup_new`
    pub const WAKEUP_NEW: u8 = 2;
    /// [`super::Migrate`]
    pub const MIGRATE: u8 = 3;
    /// [`super::Exit`]
    pub const EXIT: u8 = 4;
    /// [`super::Timer`] of a period timer: a period boundary
    pub const PERIOD: u8 = 5;
    /// [`super::Timer`] of a slack timer
    pub const SLACK: u8 = 6;
    /// [`super::Queue`]
    pub const QUEUE: u8 = 7;
    /// [`super::Attach`]
    pub const ATTACH: u8 = 8;
    /// Number of kinds.
    pub const COUNT: usize = 9;
    /// Room for their counts: a power of two, so that a mask keeps an index inside.
    pub const SLOTS: usize = 16;
}

/// One `sched_switch`. A side whose task is not watched has thread id 0 and cgroup 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Switch {
    /// Flags: [`switch_flag`].
    pub header: Header,
    /// Thread that left the CPU.
    pub prev_tid: u32,
    /// Thread that got the CPU.
    pub next_tid: u32,
    /// kernfs id of the leaf cgroup of `prev`.
    pub prev_cgroup: u64,
    /// kernfs id of the leaf cgroup of `next`.
    pub next_cgroup: u64,
    /// How long `prev` had the CPU by the rq clock, ns; [`NOT_KNOWN`] where the kernel does not note arrivals.
    pub prev_ran: u64,
    /// `rq.clock` - `rq.clock_task`: what the scheduler has not charged to anyone on this CPU since boot (time stolen by a
    /// hypervisor, interrupts where the kernel accounts for them), ns; [`NOT_KNOWN`] where neither side is watched.
    pub uncharged: u64,
    /// What is out of quota on the path of `prev`.
    pub prev_levels: Levels,
    /// The same for `next`.
    pub next_levels: Levels,
    /// Why `prev` left: [`left`].
    pub prev_left: u8,
    /// Zero.
    pub pad: [u8; 3],
}

/// A task's path on its CPU: bit 0 its own cgroup, bit 1 the parent, and so on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Levels {
    /// Out of quota themselves (`cfs_rq.throttled`).
    pub throttled: u16,
    /// Of those, the ones whose `throttled_time` the kernel is counting (`cfs_rq.throttled_clock` is set).
    pub counting: u16,
    /// Levels whose `cpu.stat.local` the kernel is counting (`cfs_rq.throttled_clock_self` is set, 6.6+).
    pub counting_local: u16,
}

/// A length that is not known.
pub const NOT_KNOWN: u64 = u64::MAX;

/// Bits of [`Switch`]'s flags.
pub mod switch_flag {
    /// `prev` was the idle task.
    pub const PREV_IDLE: u8 = 1;
    /// `next` is the idle task.
    pub const NEXT_IDLE: u8 = 2;
    /// `cfs_rq.throttle_count` of `prev`'s queue was not zero.
    pub const PREV_HIERARCHY: u8 = 4;
    /// The same for `next`.
    pub const NEXT_HIERARCHY: u8 = 8;
    /// No limit holds `prev`: it is not in the fair class now (real-time, deadline, or boosted to either).
    pub const PREV_EXEMPT: u8 = 16;
    /// The same for `next`.
    pub const NEXT_EXEMPT: u8 = 32;
}

/// Values of [`Switch::prev_left`].
pub mod left {
    /// `prev` is not watched.
    pub const UNWATCHED: u8 = 0;
    /// Went to sleep or died: off the run queue, or kept there only as delayed dequeue.
    pub const BLOCKED: u8 = 1;
    /// Runnable and not throttled.
    pub const PREEMPTED: u8 = 2;
    /// Runnable and taken off by a limit.
    pub const THROTTLED: u8 = 3;
}

/// One `sched_wakeup` or `sched_wakeup_new`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Wake {
    /// Flags: [`wake_flag`].
    pub header: Header,
    /// kernfs id of the task's leaf cgroup.
    pub cgroup: u64,
    /// Woken thread.
    pub tid: u32,
    /// CPU it was queued on.
    pub target_cpu: u32,
    /// What is out of quota on that CPU.
    pub levels: Levels,
    /// Non-zero: `cfs_rq.throttle_count` was not zero.
    pub hierarchy: u8,
    /// Zero.
    pub pad: u8,
}

/// One `sched_migrate_task`, before the move.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Migrate {
    /// Flags: none.
    pub header: Header,
    /// kernfs id of the task's leaf cgroup.
    pub cgroup: u64,
    /// Moved thread.
    pub tid: u32,
    /// CPU it goes to.
    pub dest_cpu: u32,
}

/// One `sched_process_exit`. The thread still runs for a little; its last switch-out follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Exit {
    /// Flags: none.
    pub header: Header,
    /// kernfs id of the task's leaf cgroup.
    pub cgroup: u64,
    /// Exiting thread.
    pub tid: u32,
    /// Zero.
    pub pad: u32,
}

/// One run of a group's period or slack timer. [`Header::ts`] is its exit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Timer {
    /// Flags: [`timer_flag`].
    pub header: Header,
    /// kernfs id of the group.
    pub cgroup: u64,
    /// `bpf_ktime_get_ns()` at entry.
    pub entry_ts: u64,
    /// `hrtimer.node.expires` at entry: the boundary this run stands for, `CLOCK_MONOTONIC` ns.
    pub expires: u64,
    /// The same at exit: the timer was forwarded to the next boundary. Periods that passed = difference / period.
    pub next_expires: u64,
    /// `cfs_bandwidth.quota` at entry, ns; all ones = no limit.
    pub quota: u64,
    /// `cfs_bandwidth.period` at entry, ns.
    pub period: u64,
    /// `cfs_bandwidth.burst` at entry, ns; 0 where the kernel has no burst.
    pub burst: u64,
    /// `cfs_bandwidth.runtime` (global pool) at entry, ns.
    pub runtime_before: u64,
    /// The same at exit.
    pub runtime_after: u64,
    /// The kernel's own counter at exit, carried beside for comparison, never used as an observation.
    pub throttled_time: u64,
    /// As `throttled_time`.
    pub nr_periods: u32,
    /// As `throttled_time`.
    pub nr_throttled: u32,
    /// CPUs found on the group's throttled list at entry; a [`Queue`] record follows for each.
    pub throttled_cpus: u32,
    /// Zero.
    pub pad: u32,
}

/// Bits of [`Timer`]'s flags.
pub mod timer_flag {
    /// More CPUs were throttled than the probe could list: the rest is not measured.
    pub const TRUNCATED: u8 = 1;
    /// `cfs_bandwidth.period_active` at exit: the period timer will run again at `next_expires`.
    pub const ACTIVE: u8 = 2;
}

/// A group's queue on one CPU as a timer run or a remote unthrottle (CSD) left it. [`Header::ts`] is the exit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Queue {
    /// Flags: none.
    pub header: Header,
    /// kernfs id of the group.
    pub cgroup: u64,
    /// `bpf_ktime_get_ns()` at entry of the timer run or the CSD.
    pub entry_ts: u64,
    /// `cfs_rq.runtime_remaining` at exit, ns.
    pub runtime_remaining: i64,
    /// CPU of the queue.
    pub queue_cpu: u32,
    /// `cfs_rq.throttle_count` at exit: levels (own and ancestors) still out of quota.
    pub throttle_count: u32,
    /// Non-zero: the queue's own `throttled` flag is still set at exit (grant not enough, or CSD pending).
    pub throttled: u8,
    /// What ran: [`cause`].
    pub cause: u8,
    /// Zero.
    pub pad: [u8; 6],
}

/// Bits of [`Wake`]'s flags.
pub mod wake_flag {
    /// No limit holds the task: see [`super::switch_flag::PREV_EXEMPT`].
    pub const EXEMPT: u8 = 1;
}

/// Values of [`Queue::cause`].
pub mod cause {
    /// The period timer.
    pub const PERIOD: u8 = 0;
    /// The slack timer.
    pub const SLACK: u8 = 1;
    /// `__cfsb_csd_unthrottle` on the queue's own CPU.
    pub const CSD: u8 = 2;
}

/// One thread of a `cgroup_attach_task`, after the move: any thread on the node, and also one that was moved in another
/// controller's hierarchy and stays where it is in this one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct Attach {
    /// Flags: [`attach_flag`].
    pub header: Header,
    /// kernfs id of the leaf cgroup the scheduler now has the thread in; 0 for an autogroup.
    pub cgroup: u64,
    /// The thread.
    pub tid: u32,
    /// Zero.
    pub pad: u32,
}

/// Bits of [`Attach`]'s flags.
pub mod attach_flag {
    /// The thread is asleep.
    pub const BLOCKED: u8 = 1;
}

/// One CPU's own account, a value of the probe's per-CPU `STATE` map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, Immutable, KnownLayout))]
pub struct CpuState {
    /// Records tried so far; the next record's [`Header::seq`] is its low half.
    pub tried: u64,
    /// The same by [`kind`].
    pub produced: [u64; kind::SLOTS],
    /// Records that found the ring buffer full, by [`kind`].
    pub lost: [u64; kind::SLOTS],
    /// Timer or CSD runs with more throttled queues than could be listed.
    pub truncated: u64,
}

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<Switch>() == 72);
    assert!(size_of::<Wake>() == 40);
    assert!(size_of::<Migrate>() == 32);
    assert!(size_of::<Exit>() == 32);
    assert!(size_of::<Timer>() == 112);
    assert!(size_of::<Queue>() == 56);
    assert!(size_of::<Attach>() == 32);
    assert!(kind::COUNT <= kind::SLOTS && kind::SLOTS.is_power_of_two());
    assert!(size_of::<CpuState>() == 272);
};
