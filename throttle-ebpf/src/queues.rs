//! Throttled queues around a timer run or a CSD: listed at entry, reported at exit.

use throttle_ebpf::record::{Queue, kind};

use crate::{
    emit::{emit, with_state},
    kernel::{CfsRq, Probed, probe},
    maps::wants_edges,
};

/// Most queues listed in one run: a group throttled on more CPUs than this at one boundary is reported as truncated.
pub(crate) const MAX_LISTED: usize = 128;

/// What was found at entry.
#[repr(C)]
pub(crate) struct Listed {
    /// What this run belongs to: the hrtimer or the csd; 0 = no run.
    pub(crate) owner: u64,
    /// kernfs id of the timer's group.
    pub(crate) cgroup: u64,
    /// Entry, `CLOCK_MONOTONIC` ns.
    pub(crate) entry_ts: u64,
    /// `hrtimer.node.expires` at entry.
    pub(crate) expires: u64,
    /// `cfs_bandwidth` at entry: quota, period, burst, runtime.
    pub(crate) quota: u64,
    pub(crate) period: u64,
    pub(crate) burst: u64,
    pub(crate) runtime: u64,
    /// Number of entries of `queues`.
    pub(crate) count: u32,
    /// 1: there were more.
    pub(crate) truncated: u32,
    /// Addresses of `cfs_rq`s.
    pub(crate) queues: [u64; MAX_LISTED],
}

impl Listed {
    /// Walks a `list_head` of `cfs_rq`s linked through the member at `link`. The walk needs no lock: queues leave the list
    /// through `list_del_rcu` (throttled list), or the list is this CPU's own with interrupts off (CSD list).
    #[inline(always)]
    pub(crate) fn walk(&mut self, head: *const u8, link: u32) {
        self.count = 0;
        self.truncated = 1;
        let mut node: u64 = probe(head, 0);
        for slot in &mut self.queues {
            if node == 0 || node == head as u64 {
                self.truncated = 0;
                return;
            }
            *slot = node.wrapping_sub(u64::from(link));
            self.count = self.count.wrapping_add(1);
            node = probe(node as *const u8, 0);
        }
        if node == 0 || node == head as u64 {
            self.truncated = 0;
        } else {
            with_state(|state| state.truncated = state.truncated.wrapping_add(1));
        }
    }

    /// One record for each queue found at entry, with its state now. `cgroup` = 0: each queue says its own.
    #[inline(always)]
    pub(crate) fn report(&self, cause: u8, ts: u64, cgroup: u64) {
        for (index, &address) in self.queues.iter().enumerate() {
            if index >= self.count as usize {
                return;
            }
            let queue = CfsRq::<Probed>::new(address as *const u8);
            let id = if cgroup == 0 { queue.group().id() } else { cgroup };
            if cgroup == 0 && !wants_edges(id) {
                continue;
            }
            emit(kind::QUEUE, 0, Some(ts), |header| Queue {
                header,
                cgroup: id,
                entry_ts: self.entry_ts,
                runtime_remaining: queue.runtime_remaining(),
                queue_cpu: queue.cpu(),
                throttle_count: queue.throttle_count(),
                throttled: u8::from(queue.throttled()),
                cause,
                pad: [0; 6],
            });
        }
    }
}
