//! Kernel objects as the probe sees them, and every read of kernel memory.
//!
//! Two ways to read: [`Checked`] loads through a BTF-typed pointer (a tracepoint argument or what was loaded from one): the
//! verifier knows the type, checks the offset against it, and the JIT guards the load, so a stale pointer reads as zero.
//! [`Probed`] goes through `bpf_probe_read_kernel`, for addresses the verifier cannot type (`container_of`).

use core::marker::PhantomData;

use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel};
use throttle_ebpf::{
    config::{ABSENT, Config, Layout},
    record::{Levels, NOT_KNOWN},
};

/// Field offsets of the running kernel, set by userspace before load and frozen.
#[unsafe(no_mangle)]
pub(crate) static LAYOUT: Layout = Layout {
    task_tg: ABSENT,
    task_cfs_rq: ABSENT,
    task_se_parent: ABSENT,
    task_sched_delayed: ABSENT,
    task_on_rq: ABSENT,
    task_prio: ABSENT,
    task_pid: ABSENT,
    task_last_arrival: ABSENT,
    task_signal: ABSENT,
    task_thread_node: ABSENT,
    signal_thread_head: ABSENT,
    task_throttled: ABSENT,
    se_cfs_rq: ABSENT,
    se_parent: ABSENT,
    cfs_rq_throttled: ABSENT,
    cfs_rq_throttled_bit: ABSENT,
    cfs_rq_throttle_count: ABSENT,
    cfs_rq_throttled_clock: ABSENT,
    cfs_rq_throttled_clock_self: ABSENT,
    cfs_rq_runtime_remaining: ABSENT,
    cfs_rq_tg: ABSENT,
    cfs_rq_rq: ABSENT,
    cfs_rq_throttled_list: ABSENT,
    cfs_rq_throttled_csd_list: ABSENT,
    rq_cpu: ABSENT,
    rq_clock: ABSENT,
    rq_clock_task: ABSENT,
    rq_cfsb_csd: ABSENT,
    rq_cfsb_csd_list: ABSENT,
    csd_func: ABSENT,
    tg_cgroup: ABSENT,
    tg_parent: ABSENT,
    tg_bandwidth: ABSENT,
    bandwidth_period: ABSENT,
    bandwidth_quota: ABSENT,
    bandwidth_runtime: ABSENT,
    bandwidth_burst: ABSENT,
    bandwidth_hierarchical_quota: ABSENT,
    bandwidth_period_timer: ABSENT,
    bandwidth_slack_timer: ABSENT,
    bandwidth_throttled_list: ABSENT,
    bandwidth_period_active: ABSENT,
    bandwidth_nr_periods: ABSENT,
    bandwidth_nr_throttled: ABSENT,
    bandwidth_throttled_time: ABSENT,
    cgroup_kn: ABSENT,
    kn_id: ABSENT,
    hrtimer_function: ABSENT,
    hrtimer_expires: ABSENT,
};

/// Switches of this observer, set by userspace before load and frozen.
#[unsafe(no_mangle)]
static CONFIG: Config = Config { default_detail: 0, idle: 0, unlimited: 0, log: 0, own_name: [0; 2] };

/// An offset out of [`LAYOUT`], read so that the compiler cannot fold the initial value in.
macro_rules! offset {
    ($field:ident) => {{
        // SAFETY: LAYOUT is an initialised static; the volatile read keeps rustc from using the value it was compiled with.
        unsafe { core::ptr::read_volatile(&raw const $crate::kernel::LAYOUT.$field) }
    }};
}
pub(crate) use offset;

/// Whether the running kernel has a field.
macro_rules! present {
    ($field:ident) => {
        $crate::kernel::offset!($field) != throttle_ebpf::config::ABSENT
    };
}
pub(crate) use present;

/// The frozen [`Config`].
pub(crate) struct Switches;

/// The observer's switches.
#[inline(always)]
pub(crate) fn config() -> Switches {
    Switches
}

impl Switches {
    /// See [`Config::default_detail`].
    #[inline(always)]
    pub(crate) fn default_detail(&self) -> u32 {
        // SAFETY: as in `offset!`.
        unsafe { core::ptr::read_volatile(&raw const CONFIG.default_detail) }
    }

    /// See [`Config::idle`].
    #[inline(always)]
    pub(crate) fn idle(&self) -> bool {
        // SAFETY: as in `offset!`.
        unsafe { core::ptr::read_volatile(&raw const CONFIG.idle) != 0 }
    }

    /// See [`Config::unlimited`].
    #[inline(always)]
    pub(crate) fn unlimited(&self) -> bool {
        // SAFETY: as in `offset!`.
        unsafe { core::ptr::read_volatile(&raw const CONFIG.unlimited) != 0 }
    }

    /// See [`Config::log`].
    #[inline(always)]
    pub(crate) fn log(&self) -> bool {
        // SAFETY: as in `offset!`.
        unsafe { core::ptr::read_volatile(&raw const CONFIG.log) != 0 }
    }

    /// See [`Config::own_name`].
    #[inline(always)]
    pub(crate) fn own_name(&self) -> [u64; 2] {
        // SAFETY: as in `offset!`.
        unsafe { core::ptr::read_volatile(&raw const CONFIG.own_name) }
    }
}

/// `CLOCK_MONOTONIC`, ns.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper takes nothing and is allowed in tracing programs.
    unsafe { bpf_ktime_get_ns() }
}

/// The CPU this program runs on.
#[inline(always)]
pub(crate) fn this_cpu() -> u32 {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_get_smp_processor_id() }
}

/// Reads a value out of a map slot.
#[inline(always)]
pub(crate) fn read_map_value<T: Copy>(slot: *const T) -> T {
    // SAFETY: `slot` came from a successful map lookup, so the verifier knows it as a readable map value of this size.
    unsafe { *slot }
}

/// How a pointer may be read.
pub(crate) trait Access: Copy {
    /// Reads a `T` at `pointer + offset`.
    fn load<T: Copy + Default>(pointer: *const u8, offset: u32) -> T;
}

/// BTF-typed pointer.
#[derive(Clone, Copy)]
pub(crate) struct Checked;

/// Address without a type.
#[derive(Clone, Copy)]
pub(crate) struct Probed;

impl Access for Checked {
    #[inline(always)]
    fn load<T: Copy + Default>(pointer: *const u8, offset: u32) -> T {
        // SAFETY: the verifier accepts this load only for a BTF-typed pointer with a scalar or pointer member of this size at
        // this offset, and the kernel handles a fault by loading zero (BPF_PROBE_MEM).
        unsafe { *pointer.add(offset as usize).cast::<T>() }
    }
}

impl Access for Probed {
    #[inline(always)]
    fn load<T: Copy + Default>(pointer: *const u8, offset: u32) -> T {
        // SAFETY: the helper takes any address and reports a fault, which reads as the default here.
        unsafe { bpf_probe_read_kernel(pointer.wrapping_add(offset as usize).cast::<T>()) }.unwrap_or_default()
    }
}

/// A pointer that loads know how to produce: `*const u8` has no `Default`.
#[inline(always)]
fn load_pointer<A: Access>(pointer: *const u8, offset: u32) -> *const u8 {
    A::load::<u64>(pointer, offset) as *const u8
}

/// `struct task_struct *` from a tracepoint argument.
#[derive(Clone, Copy)]
pub(crate) struct Task(pub(crate) *const u8);

impl Task {
    /// `task_struct.pid`
    #[inline(always)]
    pub(crate) fn tid(self) -> u32 {
        Checked::load(self.0, offset!(task_pid))
    }

    /// `task_struct.sched_task_group`
    #[inline(always)]
    pub(crate) fn group(self) -> Group<Checked> {
        Group::new(load_pointer::<Checked>(self.0, offset!(task_tg)))
    }

    /// The leaf queue: the task's own group on its CPU.
    #[inline(always)]
    pub(crate) fn queue(self) -> CfsRq<Checked> {
        CfsRq::new(load_pointer::<Checked>(self.0, offset!(task_cfs_rq)))
    }

    /// Off the run queue, or kept there only as a delayed dequeue (6.12+). Protected by the rq lock, which is held at
    /// `sched_switch`; `prev_state` is not used because it is stale or absent on some kernels.
    #[inline(always)]
    pub(crate) fn blocked(self) -> bool {
        let on_rq: u32 = Checked::load(self.0, offset!(task_on_rq));
        on_rq == 0 || (present!(task_sched_delayed) && Checked::load::<u8>(self.0, offset!(task_sched_delayed)) != 0)
    }

    /// How long the task that is leaving its CPU had it, by the rq clock: from its own arrival as the scheduler notes it
    /// (`kernel/sched/stats.h`, `sched_info_arrive`) to this switch. Shows a switch-in that was not traced.
    #[inline(always)]
    pub(crate) fn ran(self) -> u64 {
        if !present!(task_last_arrival) || !present!(rq_clock) {
            return NOT_KNOWN;
        }
        let rq = load_pointer::<Checked>(self.queue().pointer, offset!(cfs_rq_rq));
        let clock: u64 = Checked::load(rq, offset!(rq_clock));
        clock.wrapping_sub(Checked::load(self.0, offset!(task_last_arrival)))
    }

    /// Taken off by CFS bandwidth control. From 6.18 on the kernel says so itself; before, every runnable fair task of a
    /// throttled queue is.
    #[inline(always)]
    pub(crate) fn throttled(self, hierarchy: bool) -> bool {
        if present!(task_throttled) {
            Checked::load::<u8>(self.0, offset!(task_throttled)) != 0
        } else {
            hierarchy && !self.exempt()
        }
    }

    /// Not subject to any quota now: RT and deadline tasks, and PI-boosted ones, have prio < `MAX_RT_PRIO` = 100.
    #[inline(always)]
    pub(crate) fn exempt(self) -> bool {
        Checked::load::<i32>(self.0, offset!(task_prio)) < 100
    }

    /// What of this CPU's time the scheduler has charged to nobody; see [`throttle_ebpf::record::Switch::uncharged`].
    #[inline(always)]
    pub(crate) fn uncharged(self) -> u64 {
        if !present!(rq_clock) || !present!(rq_clock_task) {
            return NOT_KNOWN;
        }
        let rq = load_pointer::<Checked>(self.queue().pointer, offset!(cfs_rq_rq));
        let clock: u64 = Checked::load(rq, offset!(rq_clock));
        clock.wrapping_sub(Checked::load(rq, offset!(rq_clock_task)))
    }

    /// What is out of quota on the task's CPU, from its own group up to [`MAX_LEVELS`].
    ///
    /// Without a branch: above the topmost level the loads go through a null pointer and yield zeros. The verifier of 6.1 would
    /// else follow every combination of levels, for both tasks of a switch, and give up after a million instructions.
    #[inline(always)]
    pub(crate) fn throttled_levels(self) -> Levels {
        let mut levels = Levels::default();
        let mut queue = self.queue();
        let mut parent = load_pointer::<Checked>(self.0, offset!(task_se_parent));
        for level in 0..MAX_LEVELS {
            let throttled = queue.flag();
            levels.throttled |= throttled << level;
            levels.counting |= (throttled & queue.counting()) << level;
            if present!(cfs_rq_throttled_clock_self) {
                levels.counting_local |= queue.counting_local() << level;
            }
            queue = CfsRq::new(load_pointer::<Checked>(parent, offset!(se_cfs_rq)));
            parent = load_pointer::<Checked>(parent, offset!(se_parent));
        }
        levels
    }
}

/// Deepest path examined. Kubernetes with systemd in a nested node reaches 8 below the root.
const MAX_LEVELS: u16 = 12;

/// `struct cfs_rq *`
#[derive(Clone, Copy)]
pub(crate) struct CfsRq<A: Access> {
    pub(crate) pointer: *const u8,
    access: PhantomData<A>,
}

impl<A: Access> CfsRq<A> {
    #[inline(always)]
    pub(crate) fn new(pointer: *const u8) -> Self {
        Self { pointer, access: PhantomData }
    }

    /// This group's own quota ran out on this CPU.
    #[inline(always)]
    pub(crate) fn throttled(self) -> bool {
        self.flag() != 0
    }

    /// The same as 0 or 1.
    #[inline(always)]
    fn flag(self) -> u16 {
        let byte: u8 = A::load(self.pointer, offset!(cfs_rq_throttled));
        u16::from(byte) >> offset!(cfs_rq_throttled_bit) & 1
    }

    /// 1 while the kernel is counting `throttled_time` on this CPU. Before 6.6 the clock stays set after a throttle, so this
    /// says something only while [`Self::throttled`].
    #[inline(always)]
    fn counting(self) -> u16 {
        set(A::load(self.pointer, offset!(cfs_rq_throttled_clock)))
    }

    /// 1 while the kernel is counting `cpu.stat.local` on this CPU; call only where the field is present.
    #[inline(always)]
    fn counting_local(self) -> u16 {
        set(A::load(self.pointer, offset!(cfs_rq_throttled_clock_self)))
    }

    /// Levels, own and ancestors, that are out of quota on this CPU.
    #[inline(always)]
    pub(crate) fn throttle_count(self) -> u32 {
        A::load(self.pointer, offset!(cfs_rq_throttle_count))
    }

    /// `cfs_rq.runtime_remaining`, ns
    #[inline(always)]
    pub(crate) fn runtime_remaining(self) -> i64 {
        A::load(self.pointer, offset!(cfs_rq_runtime_remaining))
    }

    /// `cfs_rq.tg`
    #[inline(always)]
    pub(crate) fn group(self) -> Group<A> {
        Group::new(load_pointer::<A>(self.pointer, offset!(cfs_rq_tg)))
    }

    /// `cfs_rq.rq->cpu`
    #[inline(always)]
    pub(crate) fn cpu(self) -> u32 {
        A::load(load_pointer::<A>(self.pointer, offset!(cfs_rq_rq)), offset!(rq_cpu))
    }

    /// `cfs_rq.rq->cfsb_csd.func`; call only where [`Layout::rq_cfsb_csd`] is present.
    #[inline(always)]
    pub(crate) fn csd_function(self) -> u64 {
        let rq = load_pointer::<A>(self.pointer, offset!(cfs_rq_rq));
        A::load(rq, offset!(rq_cfsb_csd).wrapping_add(offset!(csd_func)))
    }
}

/// 1 for a clock that is not 0, without a branch: ns since boot stay far below 2^63, so the negative has the top bit.
#[inline(always)]
fn set(clock: u64) -> u16 {
    u16::from((0u64.wrapping_sub(clock) >> 63) as u8)
}

/// `struct task_group *`
#[derive(Clone, Copy)]
pub(crate) struct Group<A: Access> {
    pub(crate) pointer: *const u8,
    access: PhantomData<A>,
}

/// `RUNTIME_INF`: no limit.
const RUNTIME_INF: u64 = u64::MAX;

impl<A: Access> Group<A> {
    #[inline(always)]
    pub(crate) fn new(pointer: *const u8) -> Self {
        Self { pointer, access: PhantomData }
    }

    /// A member of the embedded `cfs_bandwidth`.
    #[inline(always)]
    pub(crate) fn bandwidth<T: Copy + Default>(self, member: u32) -> T {
        A::load(self.pointer, offset!(tg_bandwidth).wrapping_add(member))
    }

    /// Whether some level from this group up to the root has a quota, or unlimited groups are wanted too.
    #[inline(always)]
    pub(crate) fn limited(self) -> bool {
        if config().unlimited() {
            return true;
        }
        if present!(bandwidth_hierarchical_quota) {
            return self.bandwidth::<u64>(offset!(bandwidth_hierarchical_quota)) != RUNTIME_INF;
        }
        let mut group = self;
        for _ in 0..MAX_LEVELS {
            if group.bandwidth::<u64>(offset!(bandwidth_quota)) != RUNTIME_INF {
                return true;
            }
            group = group.parent();
            if group.pointer.is_null() {
                return false;
            }
        }
        false
    }

    /// `task_group.parent`; null above the root.
    #[inline(always)]
    pub(crate) fn parent(self) -> Self {
        Self::new(load_pointer::<A>(self.pointer, offset!(tg_parent)))
    }

    /// kernfs id: equals the inode of the cgroup's directory. 0 for an autogroup, which has no cgroup.
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        let cgroup = load_pointer::<A>(self.pointer, offset!(tg_cgroup));
        let node = load_pointer::<A>(cgroup, offset!(cgroup_kn));
        A::load(node, offset!(kn_id))
    }
}

impl Group<Probed> {
    /// The group whose period timer (or slack timer, by `member`) this is.
    #[inline(always)]
    pub(crate) fn of_timer(timer: *const u8, member: u32) -> Self {
        Self::new(timer.wrapping_sub(offset!(tg_bandwidth).wrapping_add(member) as usize))
    }
}

/// A field of an object behind a pointer of unknown type.
#[inline(always)]
pub(crate) fn probe<T: Copy + Default>(pointer: *const u8, offset: u32) -> T {
    Probed::load(pointer, offset)
}

/// A field of a tracepoint argument.
#[inline(always)]
pub(crate) fn field<T: Copy + Default>(argument: *const u8, offset: u32) -> T {
    Checked::load(argument, offset)
}

/// A per-CPU scratch slot from a map lookup.
#[inline(always)]
pub(crate) fn scratch<T>(slot: Option<*mut T>) -> Option<&'static mut T> {
    // SAFETY: a map value lives as long as the program. The slot is this CPU's own and used only in hard interrupt, where
    // runs do not nest, so there is one reference at a time.
    slot.map(|slot| unsafe { &mut *slot })
}
