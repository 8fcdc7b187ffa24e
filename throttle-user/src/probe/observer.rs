//! A loaded and attached probe, and the thread that reads it.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
    programs::Program,
};
use aya_log::EbpfLogger;
use throttle_ebpf::{
    config::{DETAIL_EDGES, DETAIL_NONE, DETAIL_TASKS},
    record::CpuState,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    cgroup::Hierarchy,
    event::{CgroupId, Event, HookReport, Losses},
    probe::{
        KernelLayout, ProbeError,
        decode::decode,
        load::{Loaded, Survey},
        loss::losses,
        own::{self, OwnName},
        rights::{self, Kept},
    },
    time::{MonoNs, now},
};

/// What is recorded of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    None,
    /// Period boundaries and throttle edges.
    Edges,
    /// As edges, and every switch, wakeup, migration and exit of its tasks.
    Tasks,
}

impl Detail {
    pub(super) fn wire(self) -> u32 {
        match self {
            Self::None => DETAIL_NONE,
            Self::Edges => DETAIL_EDGES,
            Self::Tasks => DETAIL_TASKS,
        }
    }
}

/// What one observer is to do.
#[derive(Clone, Debug)]
pub struct ObserverPlan {
    /// Cgroups by kernfs id.
    pub groups: Vec<(CgroupId, Detail)>,
    /// Detail of limited cgroups not listed.
    pub unlisted: Detail,
    /// Record switches to and from the idle task.
    pub idle: bool,
    /// Observe listed groups also where no level of theirs has a quota.
    pub unlimited: bool,
    /// Size of the ring buffer, bytes; rounded up to a power of two pages by the loader.
    pub ring_bytes: u32,
    /// Send the probe's own diagnostics to the `log` crate's logger.
    pub log: bool,
}

impl Default for ObserverPlan {
    /// Nothing is recorded.
    fn default() -> Self {
        Self {
            groups: vec![],
            unlisted: Detail::None,
            idle: false,
            unlimited: false,
            ring_bytes: RING_BYTES,
            log: false,
        }
    }
}

/// Default size of the ring buffer: half a second of two CPUs at 200,000 records a second each.
pub const RING_BYTES: u32 = 16 << 20;

/// How often the reader looks: the ring holds far more than this.
const POLL: Duration = Duration::from_millis(4);

/// What the reader hands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A record.
    Event(Event),
    /// All records that were complete at this instant have been handed on. One whose CPU was interrupted while it wrote it, or taken
    /// away by a hypervisor, may follow with an earlier time.
    UpTo(MonoNs),
}

/// A running observer. Dropping it detaches everything.
pub struct Observer {
    /// Programs stay attached for as long as it is there; maps outlive it.
    ebpf: Option<Ebpf>,
    groups: HashMap<MapData, u64, u32>,
    states: PerCpuArray<MapData, [u64; STATE_WORDS]>,
    stop: Arc<AtomicBool>,
    /// Records read and not understood.
    undecoded: Arc<AtomicU64>,
    reader: Option<JoinHandle<()>>,
    hooks: Vec<HookReport>,
    unchecked: Option<String>,
}

const STATE_WORDS: usize = size_of::<CpuState>() / size_of::<u64>();

impl Observer {
    /// Loads, checks that the probe sees this process in its own cgroup, attaches and starts reading; every event is handed to
    /// `sink` on the reader's thread, in ring order: ordered for each CPU, nearly ordered across CPUs. Optional hooks that cannot
    /// be attached are left out, see [`Observer::lacks`].
    ///
    /// # Errors
    /// [`ProbeError`] names the tracepoint or map and what the kernel said; [`ProbeError::WrongOffsets`] if the check fails.
    pub fn start(
        plan: &ObserverPlan,
        kernel: &KernelLayout,
        hierarchy: &Hierarchy,
        mut sink: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, ProbeError> {
        Self::start_seen(plan, kernel, hierarchy, POLL, move |seen| match seen {
            Seen::Event(event) => sink(event),
            Seen::UpTo(_) => {}
        })
    }

    /// The same for one who must know how far events have come: see [`Seen`]. The reader looks every `poll`; until then the ring
    /// must hold what is written.
    ///
    /// # Errors
    /// As [`Observer::start`].
    pub fn start_seen(
        plan: &ObserverPlan,
        kernel: &KernelLayout,
        hierarchy: &Hierarchy,
        poll: Duration,
        sink: impl FnMut(Seen) + Send + 'static,
    ) -> Result<Self, ProbeError> {
        let name = OwnName::new();
        let mut loaded = Loaded::load(plan, kernel, name)?;
        let unchecked = own::check(&mut loaded, hierarchy, name)?.err();
        let mut groups = map(&mut loaded.ebpf, "GROUPS", HashMap::try_from)?;
        let states = map(&mut loaded.ebpf, "STATE", PerCpuArray::try_from)?;
        let events = map(&mut loaded.ebpf, "EVENTS", RingBuf::try_from)?;
        for &(id, detail) in &plan.groups {
            insert(&mut groups, id, detail)?;
        }
        let logger = plan.log.then(|| EbpfLogger::init(&mut loaded.ebpf).ok()).flatten();
        let Survey { hooks, broken } = loaded.attach(kernel);
        if let Some(error) = broken {
            return Err(error);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let undecoded = Arc::new(AtomicU64::new(0));
        let reader = std::thread::Builder::new()
            .name("ring".into())
            .spawn({
                let stop = Arc::clone(&stop);
                let undecoded = Arc::clone(&undecoded);
                move || read(events, logger, &stop, poll, &undecoded, sink)
            })
            .map_err(|source| ProbeError::Thread { thread: "ring".into(), source })?;
        let ebpf = Some(loaded.ebpf);
        Ok(Self { ebpf, groups, states, stop, undecoded, reader: Some(reader), hooks, unchecked })
    }

    /// Changes what is recorded of a cgroup.
    ///
    /// # Errors
    /// If the map is full or gone.
    pub fn watch(&mut self, id: CgroupId, detail: Detail) -> Result<(), ProbeError> {
        insert(&mut self.groups, id, detail)
    }

    /// Records of a cgroup what is recorded of cgroups that are not listed.
    ///
    /// # Errors
    /// If it was not listed, or the map is gone.
    pub fn unwatch(&mut self, id: CgroupId) -> Result<(), ProbeError> {
        self.groups.remove(&id.0).map_err(|source| ProbeError::Map { map: "GROUPS", source: Box::new(source) })
    }

    /// What this observer does without, each with what is lost: optional hooks, and the comparison with its own cgroup where that is
    /// out of sight.
    pub fn lacks(&self) -> impl Iterator<Item = String> + '_ {
        let hooks = self.hooks.iter().filter(|hook| hook.is_missing()).map(ToString::to_string);
        hooks.chain(self.unchecked.clone())
    }

    /// What became of each hook.
    #[must_use]
    pub fn hooks(&self) -> &[HookReport] {
        &self.hooks
    }

    /// Whether maps that are open can be read by a thread without any capability. Before 5.19 the kernel asks for `CAP_BPF` each time
    /// if `kernel.unprivileged_bpf_disabled` is set (`kernel/bpf/syscall.c`, `__sys_bpf`). Tried on a thread of its own.
    #[must_use]
    pub fn reads_without_rights(&self) -> bool {
        let states = &self.states;
        let read = || rights::give_up(Kept::Nothing).is_ok() && states.get(&0, 0).is_ok();
        std::thread::scope(|scope| scope.spawn(read).join()).unwrap_or(false)
    }

    /// Why the probe could not be compared with this process's own cgroup, if it could not.
    #[must_use]
    pub fn unchecked(&self) -> Option<&str> {
        self.unchecked.as_deref()
    }

    /// Detaches, reads what is left and stops. Every record written before the call has been handed to the sink when it
    /// returns.
    ///
    /// # Errors
    /// If the reader or the account of losses is gone.
    pub fn stop(mut self) -> Result<Losses, ProbeError> {
        // Before the last records are read: what is tried after that would be neither received nor lost.
        self.ebpf = None;
        self.stop.store(true, Ordering::Release);
        self.reader.take().ok_or(ProbeError::Reader)?.join().map_err(|_| ProbeError::Reader)?;
        self.losses()
    }

    /// What the probe tried and lost so far.
    ///
    /// # Errors
    /// If the account is gone.
    pub fn losses(&self) -> Result<Losses, ProbeError> {
        let states =
            self.states.get(&0, 0).map_err(|source| ProbeError::Map { map: "STATE", source: Box::new(source) })?;
        let states = states.iter().map(|words| CpuState::read_from_bytes(words.as_bytes()).unwrap_or_default());
        Ok(losses(states, self.undecoded.load(Ordering::Acquire)))
    }

    /// Whether the thread that reads the records still runs.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| !reader.is_finished())
    }

    /// The attached programs, each with what it cost so far as the kernel counts it: 0 unless somebody has that count switched on, see
    /// [`count_cost`].
    #[must_use]
    pub fn costs(&self) -> Vec<ProgramCost> {
        let of = |(name, program): (&str, &Program)| {
            let info = program.info().ok()?;
            Some(ProgramCost { program: name.to_owned(), run_time: info.run_time(), runs: info.run_count() })
        };
        self.ebpf.iter().flat_map(Ebpf::programs).filter_map(of).collect()
    }
}

/// What a program of the probe cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// Its name.
    pub program: String,
    /// Time on CPU.
    pub run_time: Duration,
    /// Times it ran.
    pub runs: u64,
}

/// Lets the kernel count run time and runs of all eBPF programs, as long as the result lives (`BPF_ENABLE_STATS`): two more readings
/// of the clock each time one runs.
///
/// # Errors
/// What the kernel said.
pub fn count_cost() -> Result<OwnedFd, std::io::Error> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| error.io_error)
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            // The reader's panic, if any, has been printed; there is nobody left to tell.
            let _ = reader.join();
        }
    }
}

fn read(
    mut events: RingBuf<MapData>,
    mut logger: Option<EbpfLogger<&'static dyn log::Log>>,
    stop: &AtomicBool,
    poll: Duration,
    undecoded: &AtomicU64,
    mut sink: impl FnMut(Seen),
) {
    loop {
        // Read before the drain: what was written before the request to stop is drained below.
        let last = stop.load(Ordering::Acquire);
        let began = now();
        while let Some(record) = events.next() {
            match decode(&record) {
                Ok(event) => sink(Seen::Event(event)),
                Err(_) => {
                    undecoded.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        sink(Seen::UpTo(began));
        if let Some(logger) = &mut logger {
            logger.flush();
        }
        if last {
            return;
        }
        std::thread::sleep(poll);
    }
}

fn map<M>(
    ebpf: &mut Ebpf,
    name: &'static str,
    open: impl FnOnce(aya::maps::Map) -> Result<M, aya::maps::MapError>,
) -> Result<M, ProbeError> {
    let map = ebpf.take_map(name).ok_or(ProbeError::Foreign(name))?;
    open(map).map_err(|source| ProbeError::Map { map: name, source: Box::new(source) })
}

fn insert(groups: &mut HashMap<MapData, u64, u32>, id: CgroupId, detail: Detail) -> Result<(), ProbeError> {
    groups.insert(id.0, detail.wire(), 0).map_err(|source| ProbeError::Map { map: "GROUPS", source: Box::new(source) })
}
