//! Moves of tasks from one cgroup to another: a thread that leaves a watched group shows itself nowhere else.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use throttle_ebpf::record::{Attach, attach_flag, kind};

use crate::{
    emit::{emit, with_state},
    kernel::{Group, Probed, offset, present, probe},
};

/// Most threads of one process that are reported; more are counted as truncated.
const MAX_THREADS: u32 = 512;

/// `cgroup_attach_task(struct cgroup *dst, const char *path, struct task_struct *leader, bool threadgroup)`, after the move,
/// once a thread group, in whatever hierarchy. The writer holds `cgroup_threadgroup_rwsem`, so no thread of the group is
/// created or ends meanwhile (`kernel/cgroup/cgroup.c`, `cgroup_attach_task`).
#[btf_tracepoint(function = "cgroup_attach_task")]
pub(crate) fn cgroup_attach_task(ctx: BtfTracePointContext) -> i32 {
    let leader: *const u8 = ctx.arg(2);
    let whole: u64 = ctx.arg(3);
    if whole & 0xff == 0 || !present!(task_signal) || !present!(task_thread_node) || !present!(signal_thread_head) {
        report(leader);
    } else {
        threads(leader);
    }
    0
}

#[inline(always)]
fn threads(leader: *const u8) {
    let signal = probe::<u64>(leader, offset!(task_signal)) as *const u8;
    let head = signal.wrapping_add(offset!(signal_thread_head) as usize);
    let mut node: u64 = probe(head, 0);
    for _ in 0..MAX_THREADS {
        if node == 0 || node == head as u64 {
            return;
        }
        report(node.wrapping_sub(u64::from(offset!(task_thread_node))) as *const u8);
        node = probe(node as *const u8, 0);
    }
    if node != 0 && node != head as u64 {
        with_state(|state| state.truncated = state.truncated.wrapping_add(1));
    }
}

/// Says where the scheduler has a thread, whatever was moved.
#[inline(always)]
fn report(task: *const u8) {
    let group = Group::<Probed>::new(probe::<u64>(task, offset!(task_tg)) as *const u8);
    let on_queue: u32 = probe(task, offset!(task_on_rq));
    let delayed = present!(task_sched_delayed) && probe::<u8>(task, offset!(task_sched_delayed)) != 0;
    let flags = if on_queue == 0 || delayed { attach_flag::BLOCKED } else { 0 };
    emit(kind::ATTACH, flags, None, |header| Attach {
        header,
        cgroup: group.id(),
        tid: probe(task, offset!(task_pid)),
        pad: 0,
    });
}
