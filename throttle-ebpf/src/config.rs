//! What userspace tells the probe before it is loaded: field offsets of the running kernel and a few switches.
//!
//! Both structs become read-only globals of the eBPF object. The verifier sees frozen constants, so a branch on an absent
//! field is removed and a wrong offset on a BTF-typed pointer is rejected at load.

#[cfg(feature = "user")]
use zerocopy::{Immutable, IntoBytes};

/// Marks a field that the running kernel does not have.
pub const ABSENT: u32 = u32::MAX;

/// Byte offsets of kernel fields, resolved from the running kernel's BTF. A value of [`ABSENT`] means the kernel lacks it.
///
/// Offsets of members of embedded structs are given from the start of the outermost struct named in the field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(IntoBytes, Immutable))]
pub struct Layout {
    /// `task_struct.sched_task_group`
    pub task_tg: u32,
    /// `task_struct.se.cfs_rq`
    pub task_cfs_rq: u32,
    /// `task_struct.se.parent`
    pub task_se_parent: u32,
    /// `task_struct.se.sched_delayed` (6.12+)
    pub task_sched_delayed: u32,
    /// `task_struct.on_rq`
    pub task_on_rq: u32,
    /// `task_struct.prio`
    pub task_prio: u32,
    /// `task_struct.pid`
    pub task_pid: u32,
    /// `task_struct.sched_info.last_arrival` (CONFIG_SCHED_INFO)
    pub task_last_arrival: u32,
    /// `task_struct.signal`
    pub task_signal: u32,
    /// `task_struct.thread_node`
    pub task_thread_node: u32,
    /// `signal_struct.thread_head`
    pub signal_thread_head: u32,
    /// `task_struct.throttled` (6.18+): its presence is the task era
    pub task_throttled: u32,
    /// `sched_entity.cfs_rq`
    pub se_cfs_rq: u32,
    /// `sched_entity.parent`
    pub se_parent: u32,
    /// Byte that holds `cfs_rq.throttled`
    pub cfs_rq_throttled: u32,
    /// Bit of that byte that is the flag: any from 6.18 on (`bool throttled:1`), the lowest of an int that is 0 or 1 before
    pub cfs_rq_throttled_bit: u32,
    /// `cfs_rq.throttle_count`
    pub cfs_rq_throttle_count: u32,
    /// `cfs_rq.throttled_clock`
    pub cfs_rq_throttled_clock: u32,
    /// `cfs_rq.throttled_clock_self` (6.6+)
    pub cfs_rq_throttled_clock_self: u32,
    /// `cfs_rq.runtime_remaining`
    pub cfs_rq_runtime_remaining: u32,
    /// `cfs_rq.tg`
    pub cfs_rq_tg: u32,
    /// `cfs_rq.rq`
    pub cfs_rq_rq: u32,
    /// `cfs_rq.throttled_list`
    pub cfs_rq_throttled_list: u32,
    /// `cfs_rq.throttled_csd_list` (6.3+): its presence is the async era
    pub cfs_rq_throttled_csd_list: u32,
    /// `rq.cpu`
    pub rq_cpu: u32,
    /// `rq.clock`
    pub rq_clock: u32,
    /// `rq.clock_task`
    pub rq_clock_task: u32,
    /// `rq.cfsb_csd` (6.3+)
    pub rq_cfsb_csd: u32,
    /// `rq.cfsb_csd_list` (6.3+)
    pub rq_cfsb_csd_list: u32,
    /// `__call_single_data.func`
    pub csd_func: u32,
    /// `task_group.css.cgroup`
    pub tg_cgroup: u32,
    /// `task_group.parent`
    pub tg_parent: u32,
    /// `task_group.cfs_bandwidth`
    pub tg_bandwidth: u32,
    /// `cfs_bandwidth.period`
    pub bandwidth_period: u32,
    /// `cfs_bandwidth.quota`
    pub bandwidth_quota: u32,
    /// `cfs_bandwidth.runtime`
    pub bandwidth_runtime: u32,
    /// `cfs_bandwidth.burst` (5.14+)
    pub bandwidth_burst: u32,
    /// `cfs_bandwidth.hierarchical_quota`, where it can be trusted to say "some level of this path is limited": on v1 always,
    /// on v2 from 6.6 on (`kernel/sched/core.c`, `tg_cfs_schedulable_down`); [`ABSENT`] elsewhere
    pub bandwidth_hierarchical_quota: u32,
    /// `cfs_bandwidth.period_timer`
    pub bandwidth_period_timer: u32,
    /// `cfs_bandwidth.slack_timer`
    pub bandwidth_slack_timer: u32,
    /// `cfs_bandwidth.throttled_cfs_rq`
    pub bandwidth_throttled_list: u32,
    /// `cfs_bandwidth.period_active`
    pub bandwidth_period_active: u32,
    /// `cfs_bandwidth.nr_periods`
    pub bandwidth_nr_periods: u32,
    /// `cfs_bandwidth.nr_throttled`
    pub bandwidth_nr_throttled: u32,
    /// `cfs_bandwidth.throttled_time`
    pub bandwidth_throttled_time: u32,
    /// `cgroup.kn`
    pub cgroup_kn: u32,
    /// `kernfs_node.id`
    pub kn_id: u32,
    /// `hrtimer.function`
    pub hrtimer_function: u32,
    /// `hrtimer.node.expires`
    pub hrtimer_expires: u32,
}

/// Switches of one observer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(IntoBytes, Immutable))]
pub struct Config {
    /// Detail of limited cgroups that userspace did not list: [`DETAIL_NONE`] or [`DETAIL_EDGES`].
    pub default_detail: u32,
    /// Non-zero: record switches to and from the idle task on every CPU.
    pub idle: u32,
    /// Non-zero: listed groups are observed although no level of theirs has a quota (one map lookup per switch of the node).
    pub unlimited: u32,
    /// Non-zero: the probe's own diagnostics go to aya-log.
    pub log: u32,
    /// `task_struct.comm` of the observer's thread whose cgroup goes into the probe's `OWN` map, padded with zeros, as two
    /// words in the machine's byte order. Thread numbers would not do: those of a pid namespace are not the kernel's.
    pub own_name: [u64; 2],
}

/// Not observed.
pub const DETAIL_NONE: u32 = 0;
/// Period boundaries and throttle edges.
pub const DETAIL_EDGES: u32 = 1;
/// As edges, and every switch, wakeup, migration and exit of the group's tasks.
pub const DETAIL_TASKS: u32 = 2;

/// Slots of the probe's `LEARNED` map: kernel function addresses read from a limited group's own timers.
pub mod learned {
    /// `cfs_bandwidth.period_timer.function`
    pub const PERIOD_TIMER: u32 = 0;
    /// `cfs_bandwidth.slack_timer.function`
    pub const SLACK_TIMER: u32 = 1;
    /// `rq.cfsb_csd.func`
    pub const CSD_UNTHROTTLE: u32 = 2;
    /// Number of slots.
    pub const SLOTS: u32 = 3;
}

/// Slots of the probe's `OWN` map: where the scheduler has the observer's own thread, as these offsets show it.
pub mod own {
    /// kernfs id of its cgroup; 0 in an autogroup, which belongs to no cgroup.
    pub const GROUP: u32 = 0;
    /// kernfs id of the cgroup above: an autogroup's is the root.
    pub const PARENT: u32 = 1;
    /// 1 once the other slots are filled.
    pub const SEEN: u32 = 2;
    /// Number of slots.
    pub const SLOTS: u32 = 3;
}
