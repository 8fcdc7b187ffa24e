//! `raw/events-<limit>.jsonl.gz` as the verifier reads it, by the field names of the format alone.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::packed;

/// A watched thread on one side of a switch, or woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// Thread.
    pub(crate) thread: u64,
    /// Its cgroup.
    pub(crate) cgroup: u64,
    /// Bits of the levels out of quota on this CPU: bit 0 its own group.
    pub(crate) out: u64,
}

/// A run of a period timer.
#[derive(Clone, Debug)]
pub(crate) struct Timer {
    /// The group.
    pub(crate) cgroup: u64,
    /// Point of the grid it stands for.
    pub(crate) due: u64,
    /// Next point.
    pub(crate) next: u64,
    /// Quota, period and burst in ns; quota `None` = no limit.
    pub(crate) quota: Option<u64>,
    /// See `quota`.
    pub(crate) period: u64,
    /// See `quota`.
    pub(crate) burst: u64,
    /// CPUs found throttled.
    pub(crate) throttled_cpus: u64,
    /// `nr_periods`, `nr_throttled` and `throttled_time` as the kernel had them at its end.
    pub(crate) kernel: [u64; 3],
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A thread left a CPU, another one came.
    Switch {
        /// Who left, why, how long it had run.
        prev: Option<(Side, Left, Option<u64>)>,
        /// What the CPU has charged to nobody.
        uncharged: Option<u64>,
        /// Who came.
        next: Option<Side>,
        /// Idleness ended, idleness began.
        idle: (bool, bool),
    },
    /// A thread became runnable on a CPU.
    Wakeup(Side, u64),
    /// A period timer.
    Period(Timer),
    /// A group's queue on a CPU after a timer or a remote call: group, CPU, still out of quota.
    Queue(u64, u64, bool),
    /// Anything else.
    Other,
}

/// Why a thread left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// To sleep.
    Blocked,
    /// For another one.
    Preempted,
    /// By a limit.
    Throttled,
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// When.
    pub(crate) at: u64,
    /// CPU that saw it.
    pub(crate) cpu: u64,
    /// Its number on that CPU.
    pub(crate) number: u64,
    /// What.
    pub(crate) what: What,
}

/// Reads the events of a limit, ordered by time, and says from which file.
///
/// # Errors
/// It is not there, not gzip, or a line is not an event.
pub(crate) fn read(run: &Path, limit: &str) -> Result<(PathBuf, Vec<Event>)> {
    let (path, text) = packed::open(run, &format!("events-{limit}.jsonl"))?;
    let mut events = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = || format!("{} line {}", path.display(), number + 1);
        let value: Value = serde_json::from_str(&line.with_context(at)?).with_context(at)?;
        events.push(event(&value).with_context(|| format!("{}: not an event", at()))?);
    }
    events.sort_by_key(|event| (event.at, event.cpu, event.number));
    Ok((path, events))
}

fn event(value: &Value) -> Option<Event> {
    let what = match value["e"].as_str()? {
        "switch" => switch(value)?,
        "wakeup" => What::Wakeup(side(value)?, value["tc"].as_u64()?),
        "period" => What::Period(timer(value)?),
        "queue" => What::Queue(value["cg"].as_u64()?, value["qc"].as_u64()?, value["thr"].as_bool()?),
        "slack" | "migrate" | "exit" | "attach" => What::Other,
        _ => return None,
    };
    Some(Event { at: value["t"].as_u64()?, cpu: value["c"].as_u64()?, number: value["s"].as_u64()?, what })
}

fn side(value: &Value) -> Option<Side> {
    let out = value.get("lv").map_or(Some(0), Value::as_u64)?;
    Some(Side { thread: value["tid"].as_u64()?, cgroup: value["cg"].as_u64()?, out })
}

fn switch(value: &Value) -> Option<What> {
    let prev = match value.get("prev") {
        None => None,
        Some(prev) => {
            let left = match value["left"].as_str()? {
                "blocked" => Left::Blocked,
                "preempted" => Left::Preempted,
                "throttled" => Left::Throttled,
                _ => return None,
            };
            Some((side(prev)?, left, value.get("ran").and_then(Value::as_u64)))
        }
    };
    let next = match value.get("next") {
        None => None,
        Some(next) => Some(side(next)?),
    };
    let flag = |name: &str| value.get(name).is_some_and(|flag| flag == true);
    let uncharged = value.get("unc").and_then(Value::as_u64);
    Some(What::Switch { prev, uncharged, next, idle: (flag("i0"), flag("i1")) })
}

fn timer(value: &Value) -> Option<Timer> {
    let kernel = &value["k"];
    Some(Timer {
        cgroup: value["cg"].as_u64()?,
        due: value["exp"].as_u64()?,
        next: value["nxt"].as_u64()?,
        quota: value["q"].as_u64(),
        period: value["p"].as_u64()?,
        burst: value["b"].as_u64()?,
        throttled_cpus: value["n"].as_u64()?,
        kernel: [kernel["np"].as_u64()?, kernel["nt"].as_u64()?, kernel["tt"].as_u64()?],
    })
}
