//! Writing records: sequence numbers, losses counted per kind and CPU, no wakeup per record.

use core::sync::atomic::{AtomicU64, Ordering};

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
    // hard interrupt), except sched_process_exit and cgroup_attach_task, which change what others change by `add` alone.
    Some(change(unsafe { &mut *state }))
}

/// Writes one record from a tracepoint with interrupts off; `fill` gets the header and returns the record. The time stamp is
/// taken here unless `ts` is given.
#[inline(always)]
pub(crate) fn emit<T: 'static>(of: u8, flags: u8, ts: Option<u64>, fill: impl FnOnce(Header) -> T) {
    let ts = match ts {
        Some(ts) => ts,
        None => now(),
    };
    let seq = with_state(|state| {
        let seq = state.tried;
        state.tried = seq.wrapping_add(1);
        if let Some(count) = state.produced.get_mut(slot(of)) {
            *count = count.wrapping_add(1);
        }
        seq
    });
    write(of, flags, ts, seq, fill);
}

/// As [`emit`], from a tracepoint that an interrupt may cut into: the interrupt's record may take the next number and be
/// written first.
#[inline(always)]
pub(crate) fn emit_interruptible<T: 'static>(of: u8, flags: u8, fill: impl FnOnce(Header) -> T) {
    let ts = now();
    let seq = with_state(|state| {
        if let Some(count) = state.produced.get_mut(slot(of)) {
            add(count);
        }
        add(&mut state.tried)
    });
    write(of, flags, ts, seq, fill);
}

#[inline(always)]
fn write<T: 'static>(of: u8, flags: u8, ts: u64, seq: Option<u64>, fill: impl FnOnce(Header) -> T) {
    let Some(seq) = seq else { return };
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
        None => {
            with_state(|state| state.lost.get_mut(slot(of)).map(add));
        }
    }
}

#[inline(always)]
fn slot(of: u8) -> usize {
    usize::from(of) & (kind::SLOTS - 1)
}

/// Adds one in a single instruction, which nothing on this CPU can cut in two, and returns what was there.
#[inline(always)]
pub(crate) fn add(count: &mut u64) -> u64 {
    // SAFETY: aligned and valid as the reference it comes from, and not used otherwise while this lives.
    unsafe { AtomicU64::from_ptr(count) }.fetch_add(1, Ordering::Relaxed)
}
