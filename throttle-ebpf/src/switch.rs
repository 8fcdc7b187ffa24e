//! `sched_switch`: who left a CPU and why, who got it, and what is out of quota there.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use aya_log_ebpf::info;
use throttle_ebpf::{
    config::{DETAIL_EDGES, DETAIL_TASKS, learned},
    record::{Levels, NOT_KNOWN, Switch, kind, left, switch_flag},
};

use crate::{
    emit::emit,
    kernel::{Checked, Group, Task, config, offset, present, read_map_value, this_cpu},
    maps::{LEARNED, OPEN, detail, open_key, opened},
};

/// `sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, …)`; the rq lock is held, so this CPU's
/// queues are consistent.
#[btf_tracepoint(function = "sched_switch")]
pub(crate) fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    switch(&ctx, Task(ctx.arg(1)), Task(ctx.arg(2)));
    0
}

/// The same where `prev_state` stands before `prev` (fa2c3254d7cf, 5.18-rc and some stable kernels). A program of its own,
/// because the verifier takes only constant offsets from the context.
#[btf_tracepoint(function = "sched_switch")]
pub(crate) fn sched_switch_state_first(ctx: BtfTracePointContext) -> i32 {
    switch(&ctx, Task(ctx.arg(2)), Task(ctx.arg(3)));
    0
}

/// One side of a switch.
struct Side {
    tid: u32,
    cgroup: u64,
    levels: Levels,
    hierarchy: bool,
    exempt: bool,
    detail: u32,
}

impl Side {
    const UNWATCHED: Self = Self {
        tid: 0,
        cgroup: 0,
        levels: Levels { throttled: 0, counting: 0, counting_local: 0 },
        hierarchy: false,
        exempt: false,
        detail: 0,
    };

    /// Looks at a task's group; an unlimited or unwanted group costs two or three loads and ends here.
    #[inline(always)]
    fn of(task: Task, group: Group<Checked>) -> Self {
        if !group.limited() {
            return Self::UNWATCHED;
        }
        let cgroup = group.id();
        let detail = detail(cgroup);
        if detail < DETAIL_EDGES {
            return Self::UNWATCHED;
        }
        let hierarchy = task.queue().throttle_count() != 0;
        let levels = if hierarchy { task.throttled_levels() } else { Levels::default() };
        Self { tid: task.tid(), cgroup, levels, hierarchy, exempt: task.exempt(), detail }
    }

    #[inline(always)]
    fn watched(&self) -> bool {
        self.detail >= DETAIL_EDGES
    }
}

#[inline(always)]
fn switch(ctx: &BtfTracePointContext, prev: Task, next: Task) {
    let (prev_group, next_group) = (prev.group(), next.group());
    let from = Side::of(prev, prev_group);
    let to = Side::of(next, next_group);
    let mut flags = 0;
    if config().idle() {
        if prev.tid() == 0 {
            flags |= switch_flag::PREV_IDLE;
        }
        if next.tid() == 0 {
            flags |= switch_flag::NEXT_IDLE;
        }
    }
    if !from.watched() && !to.watched() && flags == 0 {
        return;
    }
    if to.watched() {
        learn(ctx, next, next_group);
    }
    let prev_left = if !from.watched() {
        left::UNWATCHED
    } else if prev.blocked() {
        left::BLOCKED
    } else if prev.throttled(from.hierarchy) {
        left::THROTTLED
    } else {
        left::PREEMPTED
    };
    let tasks = from.detail >= DETAIL_TASKS || to.detail >= DETAIL_TASKS || flags != 0;
    if !tasks && !edge(&from, &to, prev_left) {
        return;
    }
    if from.hierarchy {
        flags |= switch_flag::PREV_HIERARCHY;
    }
    if to.hierarchy {
        flags |= switch_flag::NEXT_HIERARCHY;
    }
    if from.exempt {
        flags |= switch_flag::PREV_EXEMPT;
    }
    if to.exempt {
        flags |= switch_flag::NEXT_EXEMPT;
    }
    emit(kind::SWITCH, flags, None, |header| Switch {
        header,
        prev_tid: from.tid,
        next_tid: to.tid,
        prev_cgroup: from.cgroup,
        next_cgroup: to.cgroup,
        prev_ran: if from.watched() { prev.ran() } else { NOT_KNOWN },
        uncharged: if from.watched() {
            prev.uncharged()
        } else if to.watched() {
            next.uncharged()
        } else {
            NOT_KNOWN
        },
        prev_levels: from.levels,
        next_levels: to.levels,
        prev_left,
        pad: [0; 3],
    });
}

/// For edges detail: whether this switch opens or closes a throttle. A queue reported throttled is remembered until a task
/// of its group gets this CPU again with no level out of quota.
#[inline(always)]
fn edge(from: &Side, to: &Side, prev_left: u8) -> bool {
    let mut report = false;
    if from.watched() && (from.hierarchy || prev_left == left::THROTTLED) {
        opened(from.cgroup, this_cpu());
        report = true;
    }
    if to.watched() && !to.hierarchy {
        let key = open_key(to.cgroup, this_cpu());
        report |= OPEN.get_ptr(key).is_some() && OPEN.remove(key).is_ok();
    }
    report
}

/// Learns the addresses of the kernel's timer and CSD functions from the first new task, or the first task of a watched group that is
/// seen: every group has its timers set up, limited or not (`kernel/sched/fair.c`, `init_cfs_bandwidth`).
#[inline(always)]
pub(crate) fn learn(ctx: &BtfTracePointContext, task: Task, group: Group<Checked>) {
    if LEARNED.get_ptr(learned::PERIOD_TIMER).map(read_map_value) != Some(0) {
        return;
    }
    let function = offset!(hrtimer_function);
    let period: u64 = group.bandwidth(offset!(bandwidth_period_timer).wrapping_add(function));
    let slack: u64 = group.bandwidth(offset!(bandwidth_slack_timer).wrapping_add(function));
    let _ = LEARNED.set(learned::SLACK_TIMER, slack, 0);
    if present!(rq_cfsb_csd) {
        let _ = LEARNED.set(learned::CSD_UNTHROTTLE, task.queue().csd_function(), 0);
    }
    let _ = LEARNED.set(learned::PERIOD_TIMER, period, 0);
    if config().log() {
        info!(ctx, "learnt the period timer from cgroup {}", group.id());
    }
}
