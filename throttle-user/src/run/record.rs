//! Stored types: the head of a run, and the raw lines that are written as things happen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    environment::{Environment, Requirement},
    plan::SweepPlan,
};
use crate::{
    cgroup::{Bandwidth, Counters, CpuLimit, LevelName},
    event::{CgroupId, Losses},
    request::RequestSpan,
    time::{ClockAnchor, DurationNs},
    timeline::Setting,
};

/// `run.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`super::SCHEMA`]
    pub schema: u32,
    /// What was to be done.
    pub plan: SweepPlan,
    /// Where.
    pub environment: Environment,
    /// What the machine met and missed.
    pub requirements: Vec<Requirement>,
}

/// One limited (or, in the unlimited arm, observed) level and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelReading {
    /// Container or pod.
    pub level: LevelName,
    /// kernfs id.
    pub cgroup_id: CgroupId,
    /// The kernel's counters with its own names.
    pub counters: Counters,
}

/// A limit is set, the server is up, the observer is attached, everything is quiet: counters are read and requests begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitBegin {
    /// The limit.
    pub limit: CpuLimit,
    /// As the kernel shows it.
    pub bandwidth: Bandwidth,
    /// Leaf first.
    pub levels: Vec<LevelReading>,
    /// Path of each level: itself, its parent, and so on up to the mount.
    pub paths: Vec<Vec<CgroupId>>,
    /// Whether the period timers had stopped before the counters were read.
    pub quiet: bool,
    /// CPU time the hypervisor took since boot; absent = not readable.
    pub stolen_ns: Option<DurationNs>,
    /// The clocks.
    pub clock: ClockAnchor,
}

impl LimitBegin {
    /// What the timeline must know besides the events.
    #[must_use]
    pub fn setting(&self, environment: &Environment) -> Setting {
        Setting {
            paths: self.paths.iter().filter_map(|path| Some((*path.first()?, path.clone()))).collect(),
            followed: self.levels.iter().map(|level| level.cgroup_id).collect(),
            counts_from: environment.counts_from,
            cpus: environment.cpus,
            watched_until: None,
            tried: BTreeMap::new(),
        }
    }
}

/// How a limit's requests ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Ending {
    /// All requests were sent.
    Complete,
    /// The user interrupted.
    Interrupted,
    /// Something broke.
    Broken {
        /// What, on which object, and what to do.
        cause: String,
    },
}

impl Ending {
    /// A machine that slept between two anchors measured nothing.
    #[must_use]
    pub fn unless_slept(self, begin: &ClockAnchor, end: &ClockAnchor) -> Self {
        let slept = begin.suspended_until(end);
        if slept == DurationNs::ZERO {
            return self;
        }
        Self::Broken {
            cause: format!(
                "the machine was suspended for {:.1} s while this limit ran: its figures mean nothing; keep it awake \
                 (systemd-inhibit) and run again",
                slept.as_millis_f64() / 1e3
            ),
        }
    }
}

/// The requests are over, everything is quiet again, counters are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitEnd {
    /// The limit.
    pub limit: CpuLimit,
    /// Leaf first; absent when the groups were gone.
    pub levels: Option<Vec<LevelReading>>,
    /// Whether the period timers had stopped before the counters were read.
    pub quiet: bool,
    /// CPU time the hypervisor took since boot; absent = not readable.
    pub stolen_ns: Option<DurationNs>,
    /// What the probe lost.
    pub losses: Losses,
    /// The clocks.
    pub clock: ClockAnchor,
    /// How it ended.
    pub ending: Ending,
}

/// A line of `raw/record.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum RawLine {
    /// A limit begins.
    LimitBegin(LimitBegin),
    /// A request was answered, or failed.
    Request {
        /// The limit it ran under.
        limit: CpuLimit,
        /// As client and server saw it.
        span: RequestSpan,
    },
    /// A limit ends.
    LimitEnd(LimitEnd),
}
