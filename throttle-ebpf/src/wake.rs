//! Wakeups, migrations and exits of the tasks of selected groups, and wakeups that are edges.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use throttle_ebpf::{
    config::{DETAIL_EDGES, DETAIL_TASKS},
    record::{Exit, Levels, Migrate, Wake, kind, wake_flag},
};

use crate::{
    emit::emit,
    kernel::{Task, present},
    maps::{detail, opened, wants_tasks},
    switch::learn,
};

/// `sched_wakeup(struct task_struct *)`; the target CPU's rq lock is held and the task is queued.
#[btf_tracepoint(function = "sched_wakeup")]
pub(crate) fn sched_wakeup(ctx: BtfTracePointContext) -> i32 {
    wake(Task(ctx.arg(0)), kind::WAKEUP);
    0
}

/// `sched_wakeup_new(struct task_struct *)`. The observer starts a thread of its own once this is attached: timers are known from
/// then on, before any limited group has run a task, for a quota that is written starts one (`tg_set_cfs_bandwidth`).
#[btf_tracepoint(function = "sched_wakeup_new")]
pub(crate) fn sched_wakeup_new(ctx: BtfTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    learn(&ctx, task, task.group());
    wake(task, kind::WAKEUP_NEW);
    0
}

/// `sched_migrate_task(struct task_struct *, int dest_cpu)`, before the move.
#[btf_tracepoint(function = "sched_migrate_task")]
pub(crate) fn sched_migrate_task(ctx: BtfTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    let dest_cpu: i32 = ctx.arg(1);
    if let Some(cgroup) = selected(task) {
        emit(kind::MIGRATE, 0, None, |header| Migrate {
            header,
            cgroup,
            tid: task.tid(),
            dest_cpu: dest_cpu.cast_unsigned(),
        });
    }
    0
}

/// `sched_process_exit(struct task_struct *, …)`
#[btf_tracepoint(function = "sched_process_exit")]
pub(crate) fn sched_process_exit(ctx: BtfTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    if let Some(cgroup) = selected(task) {
        emit(kind::EXIT, 0, None, |header| Exit { header, cgroup, tid: task.tid(), pad: 0 });
    }
    0
}

#[inline(always)]
fn wake(task: Task, kind: u8) {
    let group = task.group();
    if !group.limited() {
        return;
    }
    let cgroup = group.id();
    let detail = detail(cgroup);
    if detail < DETAIL_EDGES {
        return;
    }
    let queue = task.queue();
    let hierarchy = queue.throttle_count() != 0;
    let target_cpu = queue.cpu();
    if detail < DETAIL_TASKS {
        // Up to 6.17 the wakeup may be what finds the quota out (kernel/sched/fair.c, `check_enqueue_throttle`), or be the queue's
        // first victim: no switch shows it. From 6.18 on the task gets the CPU first.
        if present!(task_throttled) || !hierarchy {
            return;
        }
        opened(cgroup, target_cpu);
    }
    let flags = if task.exempt() { wake_flag::EXEMPT } else { 0 };
    emit(kind, flags, None, |header| Wake {
        header,
        cgroup,
        tid: task.tid(),
        target_cpu,
        levels: if hierarchy { task.throttled_levels() } else { Levels::default() },
        hierarchy: u8::from(hierarchy),
        pad: 0,
    });
}

/// The task's cgroup if its tasks are wanted.
#[inline(always)]
fn selected(task: Task) -> Option<u64> {
    let group = task.group();
    if !group.limited() {
        return None;
    }
    let cgroup = group.id();
    wants_tasks(cgroup).then_some(cgroup)
}
