//! The self-check: which cgroup a thread of the observer is in, read through the same offsets as everybody else's. Userspace knows
//! the answer, so wrong offsets show before anything is said with them.

use aya_ebpf::{helpers::bpf_get_current_comm, macros::btf_tracepoint, programs::BtfTracePointContext};
use throttle_ebpf::config::own;

use crate::{
    kernel::{Task, config},
    maps::OWN,
};

/// `sched_process_exit(struct task_struct *, …)`, in the context of the thread that ends. Attached until it has seen one thread.
#[btf_tracepoint(function = "sched_process_exit")]
pub(crate) fn own_group(ctx: BtfTracePointContext) -> i32 {
    if is_own() {
        let group = Task(ctx.arg(0)).group();
        let _ = OWN.set(own::GROUP, group.id(), 0);
        let _ = OWN.set(own::PARENT, group.parent().id(), 0);
        let _ = OWN.set(own::SEEN, 1, 0);
    }
    0
}

/// Whether the current thread has the name that userspace gave to one of its own.
#[inline(always)]
fn is_own() -> bool {
    let Ok([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]) = bpf_get_current_comm() else { return false };
    let [low, high] = config().own_name();
    low == u64::from_ne_bytes([a, b, c, d, e, f, g, h]) && high == u64::from_ne_bytes([i, j, k, l, m, n, o, p])
}
