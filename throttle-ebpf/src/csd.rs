//! The remote end of a throttle (6.3+): the timer's CPU sends one call per CPU, which releases all queues listed there.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use throttle_ebpf::{config::learned, record::cause};

use crate::{
    kernel::{now, offset, probe, read_map_value, scratch},
    maps::{CSD, LEARNED},
};

/// `csd_function_entry(smp_call_func_t, struct __call_single_data *)` (6.5+)
#[btf_tracepoint(function = "csd_function_entry")]
pub(crate) fn csd_function_entry(ctx: BtfTracePointContext) -> i32 {
    entry(ctx.arg(1));
    0
}

/// `csd_function_exit(smp_call_func_t, struct __call_single_data *)` (6.5+)
#[btf_tracepoint(function = "csd_function_exit")]
pub(crate) fn csd_function_exit(ctx: BtfTracePointContext) -> i32 {
    exit(ctx.arg(1));
    0
}

/// Argument 0, the function, is not readable from a BTF tracepoint; the csd's own copy of it never changes.
#[inline(always)]
fn ours(csd: *const u8) -> bool {
    let function: u64 = probe(csd, offset!(csd_func));
    function != 0 && LEARNED.get_ptr(learned::CSD_UNTHROTTLE).map(read_map_value) == Some(function)
}

#[inline(always)]
fn entry(csd: *const u8) {
    if !ours(csd) {
        return;
    }
    let Some(listed) = scratch(CSD.get_ptr_mut(0)) else { return };
    listed.owner = csd as u64;
    let rq = csd.wrapping_sub(offset!(rq_cfsb_csd) as usize);
    listed.walk(rq.wrapping_add(offset!(rq_cfsb_csd_list) as usize), offset!(cfs_rq_throttled_csd_list));
    listed.entry_ts = now();
}

#[inline(always)]
fn exit(csd: *const u8) {
    if !ours(csd) {
        return;
    }
    let Some(listed) = scratch(CSD.get_ptr_mut(0)) else { return };
    if listed.owner != csd as u64 {
        return;
    }
    listed.owner = 0;
    listed.report(cause::CSD, now(), 0);
}
