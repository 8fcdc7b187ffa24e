//! Period and slack timers of limited groups: the exact boundary, and the end of throttles on the timer's CPU.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use throttle_ebpf::{
    config::learned,
    record::{Timer, cause, kind, timer_flag},
};

use crate::{
    emit::emit,
    kernel::{Group, Probed, field, now, offset, present, read_map_value},
    maps::{LEARNED, TIMER, wants_edges},
    queues::Listed,
};

/// `hrtimer_expire_entry(struct hrtimer *, ktime_t *)`
#[btf_tracepoint(function = "hrtimer_expire_entry")]
pub(crate) fn hrtimer_expire_entry(ctx: BtfTracePointContext) -> i32 {
    entry(ctx.arg(0));
    0
}

/// `hrtimer_expire_exit(struct hrtimer *)`
#[btf_tracepoint(function = "hrtimer_expire_exit")]
pub(crate) fn hrtimer_expire_exit(ctx: BtfTracePointContext) -> i32 {
    exit(ctx.arg(0));
    0
}

/// Which of a group's two timers this is, and the member it is: by the function learnt from a limited group's own timer.
#[inline(always)]
fn which(timer: *const u8) -> Option<(u8, u32)> {
    let function: u64 = field(timer, offset!(hrtimer_function));
    if LEARNED.get_ptr(learned::PERIOD_TIMER).map(read_map_value) == Some(function) {
        return Some((kind::PERIOD, offset!(bandwidth_period_timer)));
    }
    if LEARNED.get_ptr(learned::SLACK_TIMER).map(read_map_value) == Some(function) {
        return Some((kind::SLACK, offset!(bandwidth_slack_timer)));
    }
    None
}

#[inline(always)]
fn entry(timer: *const u8) {
    let Some((_, member)) = which(timer) else { return };
    let group = Group::<Probed>::of_timer(timer, member);
    let cgroup = group.id();
    if !wants_edges(cgroup) {
        return;
    }
    let Some(listed) = slot() else { return };
    listed.owner = timer as u64;
    listed.cgroup = cgroup;
    listed.expires = field(timer, offset!(hrtimer_expires));
    listed.quota = group.bandwidth(offset!(bandwidth_quota));
    listed.period = group.bandwidth(offset!(bandwidth_period));
    listed.burst = if present!(bandwidth_burst) { group.bandwidth(offset!(bandwidth_burst)) } else { 0 };
    listed.runtime = group.bandwidth(offset!(bandwidth_runtime));
    let head =
        group.pointer.wrapping_add(offset!(tg_bandwidth).wrapping_add(offset!(bandwidth_throttled_list)) as usize);
    listed.walk(head, offset!(cfs_rq_throttled_list));
    listed.entry_ts = now();
}

#[inline(always)]
fn exit(timer: *const u8) {
    let Some((kind, member)) = which(timer) else { return };
    let Some(listed) = slot() else { return };
    if listed.owner != timer as u64 {
        return;
    }
    listed.owner = 0;
    let ts = now();
    let group = Group::<Probed>::of_timer(timer, member);
    let mut flags = if listed.truncated == 0 { 0 } else { timer_flag::TRUNCATED };
    if group.bandwidth::<u8>(offset!(bandwidth_period_active)) != 0 {
        flags |= timer_flag::ACTIVE;
    }
    emit(kind, flags, Some(ts), |header| Timer {
        header,
        cgroup: listed.cgroup,
        entry_ts: listed.entry_ts,
        expires: listed.expires,
        next_expires: field(timer, offset!(hrtimer_expires)),
        quota: listed.quota,
        period: listed.period,
        burst: listed.burst,
        runtime_before: listed.runtime,
        runtime_after: group.bandwidth(offset!(bandwidth_runtime)),
        throttled_time: group.bandwidth(offset!(bandwidth_throttled_time)),
        nr_periods: group.bandwidth(offset!(bandwidth_nr_periods)),
        nr_throttled: group.bandwidth(offset!(bandwidth_nr_throttled)),
        throttled_cpus: listed.count,
        pad: 0,
    });
    let cause = if kind == kind::PERIOD { cause::PERIOD } else { cause::SLACK };
    listed.report(cause, ts, listed.cgroup);
}

/// This CPU's scratch.
#[inline(always)]
fn slot() -> Option<&'static mut Listed> {
    crate::kernel::scratch(TIMER.get_ptr_mut(0))
}
