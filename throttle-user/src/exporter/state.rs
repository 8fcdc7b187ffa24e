//! What threads put in and requests take out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;

use crate::{
    event::{HookReport, Losses},
    kubernetes::Pods,
    node::{Census, Recent},
    time::{DurationNs, MonoNs, now},
    timeline::live::{Finished, LiveCounts, LivePeriod},
};

/// Periods that a slow reader of the stream may lag behind before it loses some, and is told how many.
const LAG: usize = 4_096;
/// Without a sign of life for this long a thread is taken for stuck.
const STUCK: DurationNs = DurationNs::from_millis(10_000);

/// What the daemon knows of itself.
#[derive(Clone, Debug, Default)]
pub struct OwnFigures {
    /// Since when it observes.
    pub since: Option<MonoNs>,
    /// Programs attached.
    pub programs: Vec<ProgramFigures>,
    /// What became of each tracepoint that it hooks into.
    pub hooks: Vec<HookReport>,
    /// What else is less than it could be, though not wrong.
    pub lacks: Vec<String>,
    /// Records tried and lost; absent before the first account.
    pub losses: Option<Losses>,
    /// What went otherwise than it should in the timeline.
    pub live: LiveCounts,
    /// Events that are waiting for others.
    pub waiting: usize,
    /// Some directories of the tree have no watch.
    pub partial_watch: bool,
    /// Its process; absent where `/proc` does not tell.
    pub process: Option<ProcessFigures>,
}

/// A program of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFigures {
    /// Its name.
    pub program: String,
    /// Time on CPU and number of runs; absent where the kernel is not asked to count them.
    pub cost: Option<(DurationNs, u64)>,
}

/// The daemon's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFigures {
    /// CPU time used.
    pub cpu: DurationNs,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Start, ns since 1970.
    pub started_realtime_ns: u64,
}

/// Where the names of pods come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamesFrom {
    /// From paths alone: UIDs and ids. Why.
    Paths(String),
    /// From the API server; all pods of the node are known.
    Api,
    /// From the API server, but it does not answer now: those of new pods are missing. What it said.
    Silent(String),
}

impl NamesFrom {
    /// As metrics spell it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Paths(_) => "paths",
            Self::Api => "api",
            Self::Silent(_) => "api_silent",
        }
    }

    /// What is worse than it could be; `None` = nothing.
    #[must_use]
    pub fn degraded(&self) -> Option<String> {
        match self {
            Self::Paths(why) => Some(format!("pods have no names: {why}")),
            Self::Api => None,
            Self::Silent(why) => Some(format!("new pods have no names: the API server does not answer: {why}")),
        }
    }
}

/// Everything that is told.
#[derive(Debug)]
pub struct State {
    /// Cgroups and their counters.
    pub census: Census,
    /// The last periods.
    pub recent: Recent,
    /// Pods by their UIDs.
    pub pods: Pods,
    /// Where their names come from.
    pub names: NamesFrom,
    /// The daemon itself.
    pub own: OwnFigures,
    /// The tree was walked.
    pub walked: bool,
    /// When the thread that makes the timeline last took something in.
    pub analysed: Option<MonoNs>,
    /// Until when all records had been read as of then.
    pub read_until: Option<MonoNs>,
}

impl State {
    /// What is wrong with the daemon; `None` = nothing.
    #[must_use]
    pub fn sick(&self, now: MonoNs) -> Option<String> {
        let since = self.own.since?;
        let stuck = |what: &str, last: Option<MonoNs>| {
            let silent = now.since(last.unwrap_or(since));
            (silent > STUCK).then(|| format!("{what} has not moved for {} ms", silent.as_millis_f64().round()))
        };
        stuck("the timeline", self.analysed).or_else(|| stuck("the reader of the ring buffer", self.read_until))
    }

    /// What is less than it could be, though not wrong; `None` = nothing.
    #[must_use]
    pub fn degraded(&self) -> Option<String> {
        let hooks = self.own.hooks.iter().filter(|hook| hook.is_missing()).map(ToString::to_string);
        let all: Vec<String> = hooks.chain(self.own.lacks.iter().cloned()).chain(self.names.degraded()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// What is still missing before what is told can be relied on; `None` = nothing.
    #[must_use]
    pub fn unready(&self, now: MonoNs) -> Option<String> {
        if self.own.since.is_none() {
            return Some("the probe is not attached yet".to_owned());
        }
        if !self.walked {
            return Some("the tree of cgroups was not walked yet".to_owned());
        }
        if self.analysed.is_none() {
            return Some("no record was read yet".to_owned());
        }
        self.sick(now)
    }
}

/// The state, and those who follow it.
#[derive(Debug)]
pub struct Exporter {
    state: Mutex<State>,
    periods: broadcast::Sender<Arc<LivePeriod>>,
}

impl Exporter {
    /// Of a daemon that has seen nothing yet.
    #[must_use]
    pub fn new(census: Census, recent: Recent) -> Self {
        let state = State {
            census,
            recent,
            pods: Pods::default(),
            names: NamesFrom::Paths("nobody was asked yet".to_owned()),
            own: OwnFigures::default(),
            walked: false,
            analysed: None,
            read_until: None,
        };
        Self { state: Mutex::new(state), periods: broadcast::Sender::new(LAG) }
    }

    /// The state, to read or to change; for a moment only.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Periods and throttles are over: counts them, keeps them, tells those who follow. `read_until`: until when records were read.
    pub fn finished(&self, finished: Finished, read_until: MonoNs, counts: LiveCounts, waiting: usize) {
        let mut state = self.state();
        state.read_until = Some(read_until);
        state.census.finished(&finished);
        state.own.live = counts;
        state.own.waiting = waiting;
        state.analysed = Some(now());
        for period in finished.periods {
            let period = Arc::new(period);
            // Nobody may be following.
            let _ = self.periods.send(Arc::clone(&period));
            state.recent.push(period);
        }
    }

    /// Periods as they end, and those that ended before; each exactly once.
    pub(super) fn follow(&self) -> (Vec<Arc<LivePeriod>>, broadcast::Receiver<Arc<LivePeriod>>) {
        let state = self.state();
        (state.recent.iter().cloned().collect(), self.periods.subscribe())
    }
}
