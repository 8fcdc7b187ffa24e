//! `raw/record.jsonl` as the verifier reads it: counters before and after, and every request.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::packed;

/// The kernel's counters of one level, in ns, read before and after.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    /// `container` or `pod`.
    pub(crate) name: String,
    /// kernfs id.
    pub(crate) id: u64,
    /// The two readings as stored.
    pub(crate) before: Value,
    /// Absent when the group was gone.
    pub(crate) after: Option<Value>,
}

/// One limit of a run.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// As written, such as `100m`.
    pub(crate) name: String,
    /// Quota in ns; `None` = no limit.
    pub(crate) quota: Option<u64>,
    /// Period in ns.
    pub(crate) period: u64,
    /// Burst in ns.
    pub(crate) burst: u64,
    /// Leaf first.
    pub(crate) levels: Vec<Level>,
    /// Answered or failed requests, in order.
    pub(crate) requests: Vec<Value>,
    /// The line that begins it.
    pub(crate) begin: Value,
    /// The line that ends it.
    pub(crate) end: Option<Value>,
}

/// Reads the record of a run.
///
/// # Errors
/// A line is no JSON, or of no limit that began.
pub(crate) fn read(run: &Path) -> Result<Vec<Limit>> {
    let (path, text) = packed::open(run, "record.jsonl")?;
    let mut limits: Vec<Limit> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = || format!("{} line {}", path.display(), number + 1);
        let value: Value = serde_json::from_str(&line.with_context(at)?).with_context(at)?;
        let name = value["limit"].as_str().unwrap_or_default().to_owned();
        if value["type"] == "limit_begin" {
            limits.push(begin(name, value).with_context(at)?);
            continue;
        }
        let limit = limits.iter_mut().rfind(|limit| limit.name == name);
        let limit = limit.with_context(|| format!("{}: limit {name:?} has not begun", at()))?;
        if value["type"] == "request" {
            limit.requests.push(value["span"].clone());
        } else {
            for level in &mut limit.levels {
                let after = value["levels"].as_array().into_iter().flatten();
                level.after = after
                    .into_iter()
                    .find(|after| after["cgroup_id"] == level.id)
                    .map(|after| after["counters"].clone());
            }
            limit.end = Some(value);
        }
    }
    ensure!(!limits.is_empty(), "{} holds no limit", path.display());
    Ok(limits)
}

fn begin(name: String, value: Value) -> Result<Limit> {
    let bandwidth = &value["bandwidth"];
    let us = |value: &Value| value.as_u64().map(|us| us * 1_000);
    let levels = value["levels"].as_array().context("no levels")?;
    let levels = levels.iter().map(|level| {
        Ok(Level {
            name: level["level"].as_str().context("a level has no name")?.to_owned(),
            id: level["cgroup_id"].as_u64().context("a level has no id")?,
            before: level["counters"].clone(),
            after: None,
        })
    });
    Ok(Limit {
        quota: us(&bandwidth["quota"]["us"]),
        period: us(&bandwidth["period_us"]).context("no period")?,
        burst: us(&bandwidth["burst_us"]).context("no burst")?,
        levels: levels.collect::<Result<_>>()?,
        requests: Vec::new(),
        end: None,
        name,
        begin: value,
    })
}

impl Level {
    /// Growth of a counter of `cpu.stat`, or of `cpu.stat.local`, in its own unit.
    fn growth(&self, file: &str, counter: &str) -> Option<u64> {
        let read = |reading: &Value| reading[file][counter].as_u64();
        read(self.after.as_ref()?)?.checked_sub(read(&self.before)?)
    }

    /// Growth of `nr_periods` or `nr_throttled`.
    pub(crate) fn count(&self, counter: &str) -> Option<u64> {
        self.growth("stat", counter)
    }

    /// Growth of throttled time, ns: of the level's own, or of any level's (`local`). v1 counts ns, v2 us.
    pub(crate) fn throttled(&self, file: &str) -> Option<u64> {
        self.growth(file, "throttled_time").or_else(|| self.growth(file, "throttled_usec").map(|us| us * 1_000))
    }

    /// When the reading before ended.
    pub(crate) fn from(&self) -> u64 {
        self.before["read_until_ns"].as_u64().unwrap_or(0)
    }

    /// When the reading after began.
    pub(crate) fn until(&self) -> Option<u64> {
        self.after.as_ref()?["read_from_ns"].as_u64()
    }

    /// A reading's counters with the kernel's names.
    pub(crate) fn names(reading: &Value) -> BTreeMap<String, Value> {
        let mut names: BTreeMap<String, Value> = reading["stat"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !reading["local"].is_null() {
            names.insert("cpu.stat.local".to_owned(), reading["local"].clone());
        }
        names
    }
}

impl Limit {
    /// Between the readings: from the end of the first to the start of the last.
    pub(crate) fn bracket(&self) -> (u64, u64) {
        let from = self.levels.iter().map(Level::from).max().unwrap_or(0);
        (from, self.levels.iter().filter_map(Level::until).min().unwrap_or(u64::MAX))
    }

    /// Requests that were answered, with the server's span.
    pub(crate) fn answered(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.requests.iter().filter(|span| span["outcome"] == "ok").map(|span| (span, &span["server"]))
    }
}
