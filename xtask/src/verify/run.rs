//! One run's folder: everything in it that can be recomputed, recomputed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::events::{self, Event, What};
use super::finding::{Checker, Finding};
use super::record::{self, Limit};
use super::threads::Threads;
use super::{digest, limit, period, report, request, summary};

/// A run as read.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// `run.json`
    pub(crate) head: Value,
    /// `raw/record.jsonl`
    pub(crate) limits: Vec<Limit>,
    /// `runs.jsonl`
    pub(crate) lines: Vec<Value>,
    /// `summary.json`
    pub(crate) summary: Value,
}

/// What checking a run came to.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// Figures compared.
    pub(crate) figures: u64,
    /// What is wrong.
    pub(crate) findings: Vec<Finding>,
}

impl Checked {
    /// Adds what a checker found.
    pub(crate) fn add(&mut self, checker: Checker) {
        self.figures += checker.compared();
        self.findings.extend(checker.findings());
    }
}

/// One limit's raw side, ready to be compared with.
pub(crate) struct Raw<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) events: &'a [Event],
    pub(crate) threads: &'a Threads,
    /// Of each group the boundaries seen: when they were due, and the period then. Ascending.
    pub(crate) grids: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Number of CPUs.
    pub(crate) cpus: u64,
}

impl Run {
    /// Reads a folder.
    ///
    /// # Errors
    /// A file is missing or no JSON.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            head: json(&folder.join("run.json"))?,
            limits: record::read(folder)?,
            lines: json_lines(&folder.join("runs.jsonl"))?,
            summary: json(&folder.join("summary.json"))?,
        })
    }

    /// Recomputes the folder's figures.
    ///
    /// # Errors
    /// A file is missing or cannot be read at all.
    pub(crate) fn check(&self) -> Result<Checked> {
        let mut checked = Checked::default();
        let mut runs = Checker::of(&self.folder.join("runs.jsonl"));
        let mut periods = Checker::of(&self.folder.join(digest::NOT_KEPT));
        let periods_file = self.folder.join(digest::NOT_KEPT);
        let period_lines = if periods_file.exists() { Some(json_lines(&periods_file)?) } else { None };
        for limit in &self.limits {
            let (file, events) = events::read(&self.folder, &limit.name)?;
            let threads = Threads::of(&events, &paths(limit), self.head["environment"]["counts_from"] == "task");
            let cpus = self.head["environment"]["cpus"].as_u64().context("run.json has no number of CPUs")?;
            let raw = Raw { limit, events: &events, threads: &threads, grids: grids(&events), cpus };
            checked.add(limit::check_events(&file, &raw));
            request::check(&mut runs, &raw, &self.lines);
            limit::check(&mut runs, &raw, &self.head, &self.lines);
            if let Some(lines) = &period_lines {
                period::check(&mut periods, &raw, lines);
            }
        }
        let of = |kind: &str| self.lines.iter().filter(|line| line["type"] == kind).count();
        runs.same("limits", of("limit"), self.limits.len());
        checked.add(runs);
        checked.add(periods);
        checked.add(summary::check(self));
        checked.add(report::check(self)?);
        Ok(checked)
    }

    /// The line of a limit in `runs.jsonl`.
    pub(crate) fn limit_line(&self, limit: &str) -> Option<&Value> {
        self.lines.iter().find(|line| line["type"] == "limit" && line["limit"] == limit)
    }

    /// The request lines of a limit, in order.
    pub(crate) fn request_lines(&self, limit: &str) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(move |line| line["type"] == "request" && line["limit"] == limit)
    }

    /// The row of a limit in `summary.json`.
    pub(crate) fn row(&self, limit: &str) -> Option<&Value> {
        self.summary["limits"].as_array()?.iter().find(|row| row["limit"] == limit)
    }
}

fn grids(events: &[Event]) -> BTreeMap<u64, Vec<(u64, u64)>> {
    let mut grids: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for event in events {
        if let What::Period(timer) = &event.what
            && timer.period > 0
        {
            grids.entry(timer.cgroup).or_default().push((timer.due, timer.period));
        }
    }
    grids
}

/// Each level's path, itself first.
fn paths(limit: &Limit) -> Vec<Vec<u64>> {
    let of = |path: &Value| path.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    limit.begin["paths"].as_array().into_iter().flatten().map(of).collect()
}

/// Reads a JSON file.
///
/// # Errors
/// It is missing, or no JSON.
pub(crate) fn json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// Reads a file of JSON lines.
///
/// # Errors
/// It is missing, or a line is no JSON.
pub(crate) fn json_lines(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.lines()
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| format!("{} line {} is no JSON", path.display(), number + 1))
        })
        .collect()
}
