//! Writing records: sequence numbers, losses counted per kind and CPU, no wakeup per record.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use throttle_ebpf::record::{CpuState, Header, kind};

use crate::{
    kernel::{now, this_cpu},
    maps::{EVENTS, STATE},
};

/// Runs `change` on this CPU's account.
#[inline(always)]
pub(crate) fn with_state<R>(change: impl FnOnce(&mut CpuState) -> R) -> Option<R> {
    let state = STATE.get_ptr_mut(0)?;
    // SAFETY: a per-CPU slot from a successful lookup. Programs at these tracepoints run with interrupts off (rq lock or
    // hard interrupt), except sched_process_exit and cgroup_attach_task, whose update of `tried` an interrupt may split: the
    // worst outcome is a sequence number used twice, which userspace takes for no loss.
    Some(change(unsafe { &mut *state }))
}

/// Writes one record; `fill` gets the header and returns the record. The time stamp is taken here unless `ts` is given.
#[inline(always)]
pub(crate) fn emit<T: 'static>(of: u8, flags: u8, ts: Option<u64>, fill: impl FnOnce(Header) -> T) {
    let ts = match ts {
        Some(ts) => ts,
        None => now(),
    };
    let Some(seq) = with_state(|state| {
        let seq = state.tried;
        state.tried = seq.wrapping_add(1);
        if let Some(count) = state.produced.get_mut(usize::from(of) & (kind::SLOTS - 1)) {
            *count = count.wrapping_add(1);
        }
        seq
    }) else {
        return;
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the header keeps the low half of the sequence and 16 bits of CPU"
    )]
    let header = Header { ts, seq: seq as u32, cpu: this_cpu() as u16, kind: of, flags };
    match EVENTS.reserve::<T>(0) {
        Some(mut entry) => {
            entry.write(fill(header));
            entry.submit(u64::from(BPF_RB_NO_WAKEUP));
        }
        None => lose(of),
    }
}

#[inline(always)]
fn lose(lost: u8) {
    with_state(|state| {
        if let Some(count) = state.lost.get_mut(usize::from(lost) & (kind::SLOTS - 1)) {
            *count = count.wrapping_add(1);
        }
    });
}
