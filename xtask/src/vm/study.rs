//! The study as a guest runs it (`throttle sweep`), and what its run folder must show.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::guest::Step;
use super::qemu::Mode;

/// The study's step, and the folder of its run.
pub(crate) const STUDY: &str = "sweep";
pub(crate) const RUN: &str = "run";

/// How much of the study to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Study {
    requests: usize,
    full: bool,
}

/// A limit with the median and the maximum wall time of a 60 ms request under it, ms.
type Row = (&'static str, f64, f64);

/// What the 60 ms study gives under one quota of 100 ms periods, requests 500 ms apart, where time is instructions: figures of
/// 6.1 measured with another observer. A period starts anywhere, so the few requests that need one refill more or less move
/// the maximum.
const TABLE: [Row; 4] = [("100m", 500.0, 548.0), ("200m", 200.0, 280.0), ("400m", 100.0, 100.0), ("800m", 60.0, 60.0)];
/// How far a median may lie from the table, and a maximum, as a part of it.
const MEDIAN_WITHIN: f64 = 0.03;
const MAXIMUM_WITHIN: f64 = 0.10;

/// How far a time may be from the kernel's on two emulated CPUs, as a part of it and in ns, whichever is more: the host takes a
/// CPU away for milliseconds between the instant at which the guest's scheduler notes something and the tracepoint.
const STARVED_PART: u64 = 20;
const STARVED_NS: u64 = 5_000_000;

/// Parts of a request's wall time: they sum to it.
const SHARES: [&str; 6] =
    ["on_cpu_ns", "throttled_own_ns", "throttled_ancestor_ns", "runqueue_ns", "blocked_ns", "unknown_ns"];

impl Study {
    /// Enough requests at each limit to be throttled in every way, under a pod's and a container's limit.
    pub(crate) fn quick() -> Self {
        Self { requests: 4, full: false }
    }

    /// 40 requests at each limit, under one limit, comparable with [`TABLE`].
    pub(crate) fn full() -> Self {
        Self { requests: 40, full: true }
    }

    /// For the guest's script.
    pub(crate) fn step(self) -> Step {
        let words = self.arguments().join(" ");
        Step { name: STUDY.to_owned(), command: format!("throttle {words} --out {RUN} > {STUDY}.json") }
    }

    fn arguments(self) -> Vec<String> {
        let limits: Vec<&str> = TABLE.iter().map(|(limit, _, _)| *limit).collect();
        let requests = self.requests.to_string();
        let mut words = vec!["sweep", "--quiet", "--json", "--requests", &requests, "--limits"];
        let limits = limits.join(",");
        words.push(&limits);
        if self.full {
            words.extend(["--flat", "--gap", "500ms"]);
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// What is wrong with the run in `folder`; nothing: it is right.
    ///
    /// # Errors
    /// A file of it is missing or cannot be read.
    pub(crate) fn problems(self, folder: &Path, mode: Mode) -> Result<Vec<String>> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("the guest left no {}", path.display()))
        };
        let summary = serde_json::from_str(&read("summary.json")?).context("summary.json of the guest's run")?;
        let mut problems = self.of_summary(&summary);
        problems.extend(self.of_runs(&read("runs.jsonl")?, mode));
        if self.full && mode == Mode::Icount {
            problems.extend(off_the_table(&summary));
        }
        Ok(problems)
    }

    fn of_summary(self, summary: &Value) -> Vec<String> {
        let limits = summary["limits"].as_array().map_or(&[][..], Vec::as_slice);
        let mut problems: Vec<String> = limits.iter().filter_map(|limit| self.of_limit(limit)).collect();
        if limits.len() != TABLE.len() {
            problems.push(format!("{} limits of {} were run", limits.len(), TABLE.len()));
        }
        problems
    }

    fn of_limit(self, limit: &Value) -> Option<String> {
        let right = limit["n"] == self.requests
            && limit["failed"] == 0
            && limit["lost_events"] == 0
            && limit["ending"]["how"] == "complete";
        (!right).then(|| {
            format!(
                "limit {}: {} of {} requests answered, {} failed, {} records lost, ending {}",
                limit["limit"], limit["n"], self.requests, limit["failed"], limit["lost_events"], limit["ending"]
            )
        })
    }

    fn of_runs(self, runs: &str, mode: Mode) -> Vec<String> {
        let lines: Vec<Value> = runs.lines().map(|line| serde_json::from_str(line).unwrap_or_default()).collect();
        let requests: Vec<&Value> = lines.iter().filter(|line| line["type"] == "request").collect();
        let mut problems: Vec<String> = requests.iter().filter_map(|request| unsummed(request)).collect();
        let limits: Vec<&Value> = lines.iter().filter(|line| line["type"] == "limit").collect();
        problems.extend(limits.iter().flat_map(|limit| disagreements(limit, mode)));
        if limits.len() != TABLE.len() {
            problems.push(format!("runs.jsonl has {} limits of {}", limits.len(), TABLE.len()));
        }
        let asked = self.requests * TABLE.len();
        if requests.len() != asked {
            problems.push(format!("runs.jsonl has {} requests of {asked}", requests.len()));
        }
        problems
    }
}

/// Says so if a request's shares do not sum to its wall time.
fn unsummed(request: &Value) -> Option<String> {
    let wall = request["wall_ns"].as_u64();
    let shares: Option<u64> = SHARES.iter().map(|share| request[share].as_u64()).sum();
    (wall.is_none() || wall != shares).then(|| {
        format!(
            "limit {} request {}: shares sum to {shares:?}, wall time {wall:?} ns",
            request["limit"], request["request"]
        )
    })
}

/// Where a limit's figures and the kernel's counters differ by more than they may.
fn disagreements(limit: &Value, mode: Mode) -> Vec<String> {
    let name = &limit["limit"];
    match (limit["agreement"]["verdict"].as_str(), mode) {
        (Some("agrees"), _) => vec![],
        (Some("differs"), Mode::Smp) => {
            let checks = limit["checks"].as_array().map_or(&[][..], Vec::as_slice);
            checks.iter().filter(|check| !near(check)).map(|check| format!("limit {name}: {check}")).collect()
        }
        _ => vec![format!("limit {name}: counters: {}", limit["agreement"])],
    }
}

/// Whether a comparison holds on starved CPUs: counts must be equal all the same.
fn near(check: &Value) -> bool {
    let number = |field: &str| check[field].as_u64();
    let (Some(observed), Some(kernel), Some(tolerance)) = (number("observed"), number("kernel"), number("tolerance"))
    else {
        return false;
    };
    let within = if tolerance == 0 { 0 } else { (kernel / STARVED_PART).max(STARVED_NS).max(tolerance) };
    observed.abs_diff(kernel) <= within
}

fn off_the_table(summary: &Value) -> Vec<String> {
    let ms = |limit: &str, field: &str| {
        let row = summary["limits"].as_array()?.iter().find(|row| row["limit"] == limit)?;
        row[field].as_f64().map(|ns| ns / 1e6)
    };
    let mut problems = Vec::new();
    for (limit, p50, max) in TABLE {
        for (field, expected, within) in [("p50_ns", p50, MEDIAN_WITHIN), ("max_ns", max, MAXIMUM_WITHIN)] {
            let found = ms(limit, field);
            if found.is_none_or(|found| (found - expected).abs() > expected * within) {
                problems.push(format!("limit {limit}: {field} is {found:?} ms, expected {expected} within {within}"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(limit: &str, p50: u64, max: u64) -> Value {
        json!({"limit": limit, "n": 4, "failed": 0, "lost_events": 0, "p50_ns": p50, "max_ns": max,
               "ending": {"how": "complete"}})
    }

    fn summary() -> Value {
        json!({"limits": [row("100m", 499_500_000, 547_000_000), row("200m", 200_000_000, 280_000_000),
                          row("400m", 99_600_000, 99_700_000), row("800m", 60_400_000, 60_800_000)]})
    }

    #[test]
    fn a_run_that_agrees_everywhere_has_no_problem() {
        assert_eq!(Study::quick().of_summary(&summary()), Vec::<String>::new());
        assert_eq!(off_the_table(&summary()), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_trouble_is_named_with_its_limit() {
        for (field, value) in [
            ("n", json!(3)),
            ("failed", json!(1)),
            ("lost_events", json!(1)),
            ("ending", json!({"how": "broken", "cause": "gone"})),
        ] {
            let mut summary = summary();
            summary["limits"][2][field] = value;
            let problems = Study::quick().of_summary(&summary);
            assert!(problems.len() == 1 && problems[0].starts_with("limit \"400m\""), "{field}: {problems:?}");
        }
    }

    #[test]
    fn a_summary_without_its_limits_is_not_right() {
        assert_eq!(Study::quick().of_summary(&json!({"limits": []})), ["0 limits of 4 were run"]);
        assert_eq!(off_the_table(&json!({})).len(), 8);
    }

    #[test]
    fn shares_must_sum_to_the_wall_time_to_the_nanosecond() {
        let request = json!({"type": "request", "limit": "100m", "request": 0, "wall_ns": 21, "on_cpu_ns": 1,
            "throttled_own_ns": 2, "throttled_ancestor_ns": 3, "runqueue_ns": 4, "blocked_ns": 5, "unknown_ns": 6});
        assert_eq!(unsummed(&request), None);
        let mut off = request.clone();
        off["wall_ns"] = json!(22);
        assert!(unsummed(&off).is_some());
        let mut absent = request;
        absent["blocked_ns"] = Value::Null;
        assert!(unsummed(&absent).is_some());
        let nothing = Study::quick().of_runs("{}\n", Mode::Icount);
        assert_eq!(nothing, ["runs.jsonl has 0 limits of 4", "runs.jsonl has 0 requests of 16"]);
    }

    fn differing(quantity: &str, observed: u64, kernel: u64, tolerance: u64) -> Value {
        json!({"limit": "100m", "agreement": {"verdict": "differs", "because": ["x"]},
               "checks": [{"quantity": quantity, "observed": observed, "kernel": kernel, "tolerance": tolerance}]})
    }

    #[test]
    fn where_time_is_instructions_any_difference_counts() {
        let time = differing("throttled_time", 1_002_000_000, 1_000_000_000, 1_000_000);
        assert_eq!(disagreements(&time, Mode::Icount).len(), 1);
        let agrees = json!({"limit": "100m", "agreement": {"verdict": "agrees"}, "checks": []});
        assert_eq!(disagreements(&agrees, Mode::Icount), Vec::<String>::new());
    }

    #[test]
    fn on_starved_cpus_times_may_be_off_a_little_and_counts_not_at_all() {
        let off = |check: &Value| disagreements(check, Mode::Smp).len();
        assert_eq!(off(&differing("throttled_time", 1_049_000_000, 1_000_000_000, 1_000_000)), 0);
        assert_eq!(off(&differing("throttled_time", 1_051_000_000, 1_000_000_000, 1_000_000)), 1);
        assert_eq!(off(&differing("on_cpu", 64_000_000, 60_000_000, 160_000)), 0);
        assert_eq!(off(&differing("periods", 33, 34, 0)), 1);
        let uncompared = json!({"limit": "100m", "agreement": {"verdict": "not_compared", "because": "x"}});
        assert_eq!(off(&uncompared), 1);
    }

    #[test]
    fn a_median_off_the_table_is_named() {
        let mut summary = summary();
        summary["limits"][1]["p50_ns"] = json!(221_000_000);
        let problems = off_the_table(&summary);
        assert!(problems.len() == 1 && problems[0].starts_with("limit 200m: p50_ns"), "{problems:?}");
    }
}
