//! The fields that are looked for, in the order of the probe's layout.

use throttle_user::probe::KernelLayout;
use zerocopy::IntoBytes;

/// The fields of `Layout` in its order, and whether a kernel must have them.
pub(crate) const FIELDS: [(&str, bool); 49] = [
    ("task_struct.sched_task_group", true),
    ("task_struct.se.cfs_rq", true),
    ("task_struct.se.parent", true),
    ("task_struct.se.sched_delayed", false),
    ("task_struct.on_rq", true),
    ("task_struct.prio", true),
    ("task_struct.pid", true),
    ("task_struct.sched_info.last_arrival", false),
    ("task_struct.signal", false),
    ("task_struct.thread_node", false),
    ("signal_struct.thread_head", false),
    ("task_struct.throttled", false),
    ("sched_entity.cfs_rq", true),
    ("sched_entity.parent", true),
    ("cfs_rq.throttled", true),
    ("cfs_rq.throttled:bit", true),
    ("cfs_rq.throttle_count", true),
    ("cfs_rq.throttled_clock", true),
    ("cfs_rq.throttled_clock_self", false),
    ("cfs_rq.runtime_remaining", true),
    ("cfs_rq.tg", true),
    ("cfs_rq.rq", true),
    ("cfs_rq.throttled_list", true),
    ("cfs_rq.throttled_csd_list", false),
    ("rq.cpu", true),
    ("rq.clock", false),
    ("rq.clock_task", false),
    ("rq.cfsb_csd", false),
    ("rq.cfsb_csd_list", false),
    ("__call_single_data.func", false),
    ("task_group.css.cgroup", true),
    ("task_group.parent", true),
    ("task_group.cfs_bandwidth", true),
    ("cfs_bandwidth.period", true),
    ("cfs_bandwidth.quota", true),
    ("cfs_bandwidth.runtime", true),
    ("cfs_bandwidth.burst", false),
    ("cfs_bandwidth.hierarchical_quota", false),
    ("cfs_bandwidth.period_timer", true),
    ("cfs_bandwidth.slack_timer", true),
    ("cfs_bandwidth.throttled_cfs_rq", true),
    ("cfs_bandwidth.period_active", true),
    ("cfs_bandwidth.nr_periods", true),
    ("cfs_bandwidth.nr_throttled", true),
    ("cfs_bandwidth.throttled_time", true),
    ("cgroup.kn", true),
    ("kernfs_node.id", true),
    ("hrtimer.function", true),
    ("hrtimer.node.expires", true),
];

/// Structs that lie inside others, by the member that they are.
pub(crate) const INSIDE: [(&str, &str); 4] =
    [("se", "sched_entity"), ("sched_info", "sched_info"), ("css", "cgroup_subsys_state"), ("node", "timerqueue_node")];

pub(crate) fn inside(member: &str) -> Option<&'static str> {
    INSIDE.iter().find(|(name, _)| *name == member).map(|(_, of)| *of)
}

pub(crate) fn found(layout: &KernelLayout) -> Vec<u32> {
    let words = layout.layout.as_bytes().chunks_exact(4);
    words.map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
}
