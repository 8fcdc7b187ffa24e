//! Field offsets out of a BTF blob: a pure function of its bytes.
//!
//! Owns the list of fields the probe needs, and what a kernel without one cannot tell. Does not read files.

mod types;

use throttle_ebpf::config::{ABSENT, Layout};

use self::types::{Lost, Types};
use crate::{
    cgroup::Version,
    event::{Era, KernelFacts},
};

/// Why a BTF blob does not describe a kernel the probe can run on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// The bytes are not BTF of a kernel.
    #[error("kernel BTF cannot be read: {0}; is the file whole, and of the running kernel?")]
    Malformed(String),
    /// Something without which nothing can be observed is missing.
    #[error(
        "this kernel's BTF has no {lacks}, which tells {tells}: the kernel was built without {option}, or is older or newer than this \
         program knows; CPU limits cannot be observed here"
    )]
    Missing {
        /// The struct, field or tracepoint.
        lacks: String,
        /// What the probe reads from it.
        tells: &'static str,
        /// The kernel's option that brings it.
        option: &'static str,
    },
    /// `sched_switch` passes other arguments than any known kernel.
    #[error(
        "this kernel's tracepoint sched_switch does not pass the task that leaves and the one that comes as its arguments 1 and 2 or \
         2 and 3 (counted from 0), but ({arguments}); it is newer than this program knows, and CPU limits cannot be observed here"
    )]
    SwitchArguments {
        /// The struct each argument points to, `-` for anything else.
        arguments: String,
    },
}

/// What a required field is for.
#[derive(Clone, Copy)]
struct Purpose {
    tells: &'static str,
    option: &'static str,
}

const TASK: Purpose = Purpose { tells: "which task it is and whether it can run", option: "BTF of the scheduler" };
const GROUP: Purpose = Purpose { tells: "which cgroup a task belongs to", option: "CONFIG_CGROUP_SCHED" };
const QUEUE: Purpose = Purpose { tells: "which queues of its groups a task is on", option: "CONFIG_FAIR_GROUP_SCHED" };
const CPU: Purpose = Purpose { tells: "which CPU a queue belongs to", option: "CONFIG_SMP" };
const THROTTLED: Purpose = Purpose { tells: "which queues are out of quota", option: "CONFIG_CFS_BANDWIDTH" };
const QUOTA: Purpose = Purpose { tells: "a group's quota and when it is refilled", option: "CONFIG_CFS_BANDWIDTH" };
const COUNTER: Purpose = Purpose { tells: "what the kernel counts itself", option: "CONFIG_CFS_BANDWIDTH" };
const TIMER: Purpose = Purpose { tells: "which timer runs and when it was due", option: "BTF of the timers" };
const SWITCH: Purpose = Purpose { tells: "which task leaves a CPU", option: "CONFIG_TRACEPOINTS" };

/// What the probe must know about a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// Offsets for the probe.
    pub layout: Layout,
    /// What later stages must know.
    pub facts: KernelFacts,
    /// Position of `prev` among `sched_switch`'s arguments, counted without the `void *` of the BTF typedef; `next` follows.
    pub switch_prev_arg: u32,
}

impl KernelLayout {
    /// Whether the scheduler notes when a task got its CPU: what was not traced can then be told from what was.
    #[must_use]
    pub fn notes_arrivals(&self) -> bool {
        all_there(&[self.layout.task_last_arrival, self.layout.rq_clock])
    }

    /// Whether what a CPU charges to no task can be read.
    #[must_use]
    pub fn notes_uncharged(&self) -> bool {
        all_there(&[self.layout.rq_clock, self.layout.rq_clock_task])
    }

    /// Whether the threads of a process can be listed.
    #[must_use]
    pub fn lists_threads(&self) -> bool {
        all_there(&[self.layout.task_signal, self.layout.task_thread_node, self.layout.signal_thread_head])
    }
}

fn all_there(offsets: &[u32]) -> bool {
    !offsets.contains(&ABSENT)
}

/// Resolves every field the probe needs.
///
/// `version` is the cgroup version of the cpu controller: it decides whether `hierarchical_quota` can be trusted
/// (`kernel/sched/core.c`, `tg_cfs_schedulable_down`: on v2 only since c98c18270be1 in 6.6, the release that also brought
/// `throttled_clock_self`).
///
/// # Errors
/// [`BtfError::Malformed`] for bytes that are not BTF, [`BtfError::Missing`] for a kernel without a required field. A field that only
/// some kernels have is [`ABSENT`] in the layout where it is missing, not an error.
pub fn resolve(blob: &[u8], version: Version) -> Result<KernelLayout, BtfError> {
    let parsed = types::parse(blob).map_err(BtfError::Malformed)?;
    let types = Types::new(&parsed);
    let find = |path| optional(types.find(path));
    let want = |path| Ok::<_, BtfError>(find(path)?.map_or(ABSENT, |place| place.byte));
    let place = |path, purpose| required(types.find(path), purpose);
    let need = |path, purpose| Ok::<_, BtfError>(place(path, purpose)?.byte);
    let throttled = place("cfs_rq.throttled", THROTTLED)?;
    let local_counter = find("cfs_rq.throttled_clock_self")?.is_some();
    let layout = Layout {
        task_tg: need("task_struct.sched_task_group", GROUP)?,
        task_cfs_rq: need("task_struct.se.cfs_rq", QUEUE)?,
        task_se_parent: need("task_struct.se.parent", QUEUE)?,
        task_sched_delayed: want("task_struct.se.sched_delayed")?,
        task_on_rq: need("task_struct.on_rq", TASK)?,
        task_prio: need("task_struct.prio", TASK)?,
        task_pid: need("task_struct.pid", TASK)?,
        task_last_arrival: want("task_struct.sched_info.last_arrival")?,
        task_signal: want("task_struct.signal")?,
        task_thread_node: want("task_struct.thread_node")?,
        signal_thread_head: want("signal_struct.thread_head")?,
        task_throttled: want("task_struct.throttled")?,
        se_cfs_rq: need("sched_entity.cfs_rq", QUEUE)?,
        se_parent: need("sched_entity.parent", QUEUE)?,
        cfs_rq_throttled: throttled.byte,
        cfs_rq_throttled_bit: throttled.bit,
        cfs_rq_throttle_count: need("cfs_rq.throttle_count", THROTTLED)?,
        cfs_rq_throttled_clock: need("cfs_rq.throttled_clock", THROTTLED)?,
        cfs_rq_throttled_clock_self: want("cfs_rq.throttled_clock_self")?,
        cfs_rq_runtime_remaining: need("cfs_rq.runtime_remaining", THROTTLED)?,
        cfs_rq_tg: need("cfs_rq.tg", QUEUE)?,
        cfs_rq_rq: need("cfs_rq.rq", QUEUE)?,
        cfs_rq_throttled_list: need("cfs_rq.throttled_list", THROTTLED)?,
        cfs_rq_throttled_csd_list: want("cfs_rq.throttled_csd_list")?,
        rq_cpu: need("rq.cpu", CPU)?,
        rq_clock: want("rq.clock")?,
        rq_clock_task: want("rq.clock_task")?,
        rq_cfsb_csd: want("rq.cfsb_csd")?,
        rq_cfsb_csd_list: want("rq.cfsb_csd_list")?,
        csd_func: want("__call_single_data.func")?,
        tg_cgroup: need("task_group.css.cgroup", GROUP)?,
        tg_parent: need("task_group.parent", GROUP)?,
        tg_bandwidth: need("task_group.cfs_bandwidth", QUOTA)?,
        bandwidth_period: need("cfs_bandwidth.period", QUOTA)?,
        bandwidth_quota: need("cfs_bandwidth.quota", QUOTA)?,
        bandwidth_runtime: need("cfs_bandwidth.runtime", QUOTA)?,
        bandwidth_burst: want("cfs_bandwidth.burst")?,
        bandwidth_hierarchical_quota: if version == Version::V1 || local_counter {
            want("cfs_bandwidth.hierarchical_quota")?
        } else {
            ABSENT
        },
        bandwidth_period_timer: need("cfs_bandwidth.period_timer", QUOTA)?,
        bandwidth_slack_timer: need("cfs_bandwidth.slack_timer", QUOTA)?,
        bandwidth_throttled_list: need("cfs_bandwidth.throttled_cfs_rq", QUOTA)?,
        bandwidth_period_active: need("cfs_bandwidth.period_active", QUOTA)?,
        bandwidth_nr_periods: need("cfs_bandwidth.nr_periods", COUNTER)?,
        bandwidth_nr_throttled: need("cfs_bandwidth.nr_throttled", COUNTER)?,
        bandwidth_throttled_time: need("cfs_bandwidth.throttled_time", COUNTER)?,
        cgroup_kn: need("cgroup.kn", GROUP)?,
        kn_id: need("kernfs_node.id", GROUP)?,
        hrtimer_function: need("hrtimer.function", TIMER)?,
        hrtimer_expires: need("hrtimer.node.expires", TIMER)?,
    };
    let era = if layout.task_throttled != ABSENT {
        Era::Task
    } else if layout.cfs_rq_throttled_csd_list != ABSENT {
        Era::Async
    } else {
        Era::Direct
    };
    let csd_tracepoints = optional(types.tracepoint("csd_function_exit"))?.is_some()
        && [layout.rq_cfsb_csd, layout.rq_cfsb_csd_list, layout.csd_func].iter().all(|&offset| offset != ABSENT);
    let switch_prev_arg = switch_prev_argument(&required(types.tracepoint("sched_switch"), SWITCH)?)?;
    Ok(KernelLayout { layout, facts: KernelFacts { era, csd_tracepoints, local_counter }, switch_prev_arg })
}

fn optional<T>(found: Result<T, Lost>) -> Result<Option<T>, BtfError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Lost::Absent(_)) => Ok(None),
        Err(Lost::Malformed(why)) => Err(BtfError::Malformed(why)),
    }
}

fn required<T>(found: Result<T, Lost>, purpose: Purpose) -> Result<T, BtfError> {
    let Purpose { tells, option } = purpose;
    found.map_err(|lost| match lost {
        Lost::Absent(lacks) => BtfError::Missing { lacks, tells, option },
        Lost::Malformed(why) => BtfError::Malformed(why),
    })
}

/// Position of `prev`: the first of two adjacent `struct task_struct *`. Positions 1 and 2 exist in the wild
/// (fa2c3254d7cf put `prev_state` before it for a while).
fn switch_prev_argument(arguments: &[Option<&str>]) -> Result<u32, BtfError> {
    [1, 2]
        .into_iter()
        .find(|&first| arguments.get(first..first + 2) == Some(&[Some("task_struct"); 2]))
        .and_then(|first| u32::try_from(first).ok())
        .ok_or_else(|| BtfError::SwitchArguments {
            arguments: arguments.iter().map(|argument| argument.unwrap_or("-")).collect::<Vec<_>>().join(", "),
        })
}
