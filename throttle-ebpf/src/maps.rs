//! The maps shared with userspace, and the few questions asked of them.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, PerCpuArray, RingBuf},
};
use throttle_ebpf::{
    config::{DETAIL_EDGES, DETAIL_TASKS, learned, own},
    record::CpuState,
};

use crate::{kernel, queues::Listed};

/// All records. Userspace sets the size.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// kernfs id of a cgroup -> detail. Userspace fills it.
#[map]
pub(crate) static GROUPS: HashMap<u64, u32> = HashMap::with_max_entries(32_768, 0);

/// Each CPU's sequence number and losses.
#[map]
pub(crate) static STATE: PerCpuArray<CpuState> = PerCpuArray::with_max_entries(1, 0);

/// Function addresses learnt from a limited group's own timers: no kallsyms needed.
#[map]
pub(crate) static LEARNED: Array<u64> = Array::with_max_entries(learned::SLOTS, 0);

/// The observer's own cgroup as the offsets show it.
#[map]
pub(crate) static OWN: Array<u64> = Array::with_max_entries(own::SLOTS, 0);

/// Queues a running timer callback found throttled at entry; hard interrupts do not nest, so one per CPU is enough.
#[map]
pub(crate) static TIMER: PerCpuArray<Listed> = PerCpuArray::with_max_entries(1, 0);

/// The same for a running CSD.
#[map]
pub(crate) static CSD: PerCpuArray<Listed> = PerCpuArray::with_max_entries(1, 0);

/// (leaf cgroup << 16 ^ CPU) of queues of edges-detail groups that were reported throttled and not yet seen running again.
#[map]
pub(crate) static OPEN: HashMap<u64, u8> = HashMap::with_max_entries(32_768, 0);

/// A key of [`OPEN`].
#[inline(always)]
pub(crate) fn open_key(cgroup: u64, cpu: u32) -> u64 {
    (cgroup << 16) ^ u64::from(cpu)
}

/// A queue is reported throttled: the next task of its group on that CPU with no level out of quota is reported too.
#[inline(always)]
pub(crate) fn opened(cgroup: u64, cpu: u32) {
    // A full map loses the report of an end that no timer shows, no more.
    let _ = OPEN.insert(open_key(cgroup, cpu), 1, 0);
}

/// Detail wanted for a limited cgroup.
#[inline(always)]
pub(crate) fn detail(cgroup: u64) -> u32 {
    match GROUPS.get_ptr(cgroup) {
        Some(detail) => kernel::read_map_value(detail),
        None => kernel::config().default_detail(),
    }
}

/// Whether period boundaries and edges of a cgroup are wanted.
#[inline(always)]
pub(crate) fn wants_edges(cgroup: u64) -> bool {
    detail(cgroup) >= DETAIL_EDGES
}

/// Whether the tasks of a cgroup are wanted.
#[inline(always)]
pub(crate) fn wants_tasks(cgroup: u64) -> bool {
    detail(cgroup) >= DETAIL_TASKS
}
