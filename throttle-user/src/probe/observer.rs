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
    Btf, Ebpf, EbpfLoader,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
    programs::{BtfTracePoint, Program, ProgramError, tp_btf::BtfTracePointLink},
};
use aya_log::EbpfLogger;
use throttle_ebpf::{
    config::{Config, DETAIL_EDGES, DETAIL_NONE, DETAIL_TASKS},
    record::CpuState,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    event::{CgroupId, Event, Losses},
    probe::{KernelLayout, decode::decode, loss::losses},
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
    fn wire(self) -> u32 {
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

/// Default size of the ring buffer: half a second of two CPUs at 200,000 records a second each.
pub const RING_BYTES: u32 = 16 << 20;

/// How often the reader looks: the ring holds far more than this.
const POLL: Duration = Duration::from_millis(4);

/// Why the probe could not be started or read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The object was refused.
    #[error("the eBPF object could not be loaded: {0}")]
    Load(#[source] Box<aya::EbpfError>),
    /// The kernel's BTF could not be read by the loader.
    #[error("the kernel's BTF could not be read: {0}")]
    Btf(#[from] aya::BtfError),
    /// A program was refused or could not be attached.
    #[error("tracepoint {tracepoint} could not be {step}: {source}")]
    Program {
        /// Tracepoint.
        tracepoint: &'static str,
        /// "loaded" or "attached".
        step: &'static str,
        /// What the kernel said, with the verifier's log.
        source: Box<ProgramError>,
    },
    /// A map could not be used.
    #[error("map {map} of the eBPF object could not be used: {source}")]
    Map {
        /// Map.
        map: &'static str,
        /// What the kernel said.
        source: Box<aya::maps::MapError>,
    },
    /// The object lacks something this program expects.
    #[error("the eBPF object has no {0}: it was built from another version of this program")]
    Foreign(&'static str),
    /// The reader thread is gone.
    #[error("the thread that reads the ring buffer ended early")]
    Reader,
}

/// A program of the object and the tracepoint it belongs to.
type Attachment = (&'static str, &'static str);

/// Attached in this order, before the switch: all others are there for what a switch starts.
const PROGRAMS: [Attachment; 6] = [
    ("hrtimer_expire_entry", "hrtimer_expire_entry"),
    ("hrtimer_expire_exit", "hrtimer_expire_exit"),
    ("sched_wakeup", "sched_wakeup"),
    ("sched_wakeup_new", "sched_wakeup_new"),
    ("sched_migrate_task", "sched_migrate_task"),
    ("sched_process_exit", "sched_process_exit"),
];
/// Only from 6.5 on.
const CSD_PROGRAMS: [Attachment; 2] =
    [("csd_function_entry", "csd_function_entry"), ("csd_function_exit", "csd_function_exit")];
/// Without it, a thread that leaves a watched group is seen to have left only if the group it goes to is watched as well.
const ATTACH: Attachment = ("cgroup_attach_task", "cgroup_attach_task");
/// By the position of `prev` among the arguments.
const SWITCH: Attachment = ("sched_switch", "sched_switch");
const SWITCH_STATE_FIRST: Attachment = ("sched_switch_state_first", "sched_switch");

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
    ebpf: Ebpf,
    groups: HashMap<MapData, u64, u32>,
    states: PerCpuArray<MapData, [u64; STATE_WORDS]>,
    /// What attaches the programs; dropping one detaches its program.
    links: Vec<BtfTracePointLink>,
    stop: Arc<AtomicBool>,
    /// Records read and not understood.
    undecoded: Arc<AtomicU64>,
    reader: Option<JoinHandle<()>>,
    /// What could not be attached although it was wanted, and why; the observer does without.
    missing: Vec<ProbeError>,
}

const STATE_WORDS: usize = size_of::<CpuState>() / size_of::<u64>();

impl Observer {
    /// Loads, attaches and starts reading; every event is handed to `sink` on the reader's thread, in ring order: ordered
    /// for each CPU, nearly ordered across CPUs.
    ///
    /// # Errors
    /// [`ProbeError`] names the tracepoint or map and what the kernel said.
    pub fn start(
        plan: &ObserverPlan,
        kernel: &KernelLayout,
        mut sink: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, ProbeError> {
        Self::start_seen(plan, kernel, POLL, move |seen| match seen {
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
        poll: Duration,
        sink: impl FnMut(Seen) + Send + 'static,
    ) -> Result<Self, ProbeError> {
        let config = Config {
            default_detail: plan.unlisted.wire(),
            idle: plan.idle.into(),
            unlimited: plan.unlimited.into(),
            log: plan.log.into(),
        };
        let mut ebpf = EbpfLoader::new()
            .override_global("LAYOUT", kernel.layout.as_bytes(), true)
            .override_global("CONFIG", config.as_bytes(), true)
            .override_global("AYA_LOG_LEVEL", &u8::from(plan.log).wrapping_mul(u8::MAX), false)
            .map_max_entries("EVENTS", plan.ring_bytes)
            .load(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/throttle-probe")))
            .map_err(|error| ProbeError::Load(Box::new(error)))?;
        let btf = Btf::from_sys_fs()?;
        let mut groups = map(&mut ebpf, "GROUPS", HashMap::try_from)?;
        let states = map(&mut ebpf, "STATE", PerCpuArray::try_from)?;
        let events = map(&mut ebpf, "EVENTS", RingBuf::try_from)?;
        for &(id, detail) in &plan.groups {
            insert(&mut groups, id, detail)?;
        }
        let logger = plan.log.then(|| EbpfLogger::init(&mut ebpf).ok()).flatten();
        let csd = CSD_PROGRAMS.iter().filter(|_| kernel.facts.csd_tracepoints);
        let switch = if kernel.switch_prev_arg == 2 { SWITCH_STATE_FIRST } else { SWITCH };
        let mut links = Vec::new();
        for &attachment in csd.chain(&PROGRAMS).chain([&switch]) {
            links.push(attach(&mut ebpf, attachment, &btf)?);
        }
        let mut missing = Vec::new();
        match attach(&mut ebpf, ATTACH, &btf) {
            Ok(link) => links.push(link),
            Err(error) => missing.push(error),
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
            .map_err(|_| ProbeError::Reader)?;
        Ok(Self { ebpf, groups, states, links, stop, undecoded, reader: Some(reader), missing })
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

    /// Optional tracepoints that could not be attached, and why.
    #[must_use]
    pub fn missing(&self) -> &[ProbeError] {
        &self.missing
    }

    /// Names of the attached programs.
    #[must_use]
    pub fn programs(&self) -> Vec<String> {
        let mut names: Vec<_> = self.ebpf.programs().map(|(name, _)| name.to_owned()).collect();
        names.sort();
        names
    }

    /// Detaches, reads what is left and stops. Every record written before the call has been handed to the sink when it
    /// returns.
    ///
    /// # Errors
    /// If the reader or the account of losses is gone.
    pub fn stop(mut self) -> Result<Losses, ProbeError> {
        // Before the last records are read: what is tried after that would be neither received nor lost.
        self.links.clear();
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
        self.ebpf.programs().filter_map(of).collect()
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

fn attach(ebpf: &mut Ebpf, (name, tracepoint): Attachment, btf: &Btf) -> Result<BtfTracePointLink, ProbeError> {
    let failed = |step| move |source| ProbeError::Program { tracepoint, step, source: Box::new(source) };
    let program: &mut BtfTracePoint =
        ebpf.program_mut(name).ok_or(ProbeError::Foreign(name))?.try_into().map_err(failed("used"))?;
    program.load(tracepoint, btf).map_err(failed("loaded"))?;
    let link = program.attach().map_err(failed("attached"))?;
    program.take_link(link).map_err(failed("attached"))
}
