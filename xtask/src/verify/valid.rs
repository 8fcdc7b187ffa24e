//! Runs that do not count, by the rules of PREREG.md. None looks at a figure that is judged.

use serde_json::Value;

use super::run::Run;

/// Least idle share of all CPUs before a run.
pub(crate) const IDLE_BEFORE: f64 = 0.9;
/// Largest share of all CPU time used by anything but the run.
pub(crate) const FOREIGN: f64 = 0.05;
/// Largest share of all CPU time taken by a hypervisor.
pub(crate) const STOLEN: f64 = 0.02;

/// Why a run does not count, by what it holds itself; nothing = it does.
pub(crate) fn refusals(run: &Run, in_guest: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    let requirements = run.head["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    for missed in requirements.iter().filter(|requirement| requirement["met"] != true && !in_guest) {
        let name = missed["name"].as_str().unwrap_or_default();
        if name.starts_with("at least two CPUs") || name.starts_with("load average") {
            reasons
                .push(format!("requirement missed: {name} (found: {})", missed["found"].as_str().unwrap_or_default()));
        }
    }
    let plan = &run.head["plan"];
    let planned = plan["limits"].as_array().map_or(0, Vec::len);
    let rows = run.summary["limits"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.len() != planned {
        reasons.push(format!("{} limits of {planned} were run", rows.len()));
    }
    for row in rows {
        let limit = row["limit"].as_str().unwrap_or_default();
        if row["n"] != plan["requests"] || row["failed"] != 0 {
            reasons.push(format!(
                "{limit}: {} of {} requests answered, {} failed",
                row["n"], plan["requests"], row["failed"]
            ));
        }
        if row["lost_events"] != 0 {
            reasons.push(format!("{limit}: {} records lost", row["lost_events"]));
        }
        if row["ending"]["how"] != "complete" {
            reasons.push(format!("{limit}: ended as {}", row["ending"]));
        }
        if row["agreement"]["verdict"] != "agrees" {
            reasons.push(format!("{limit}: the kernel's counters: {}", row["agreement"]));
        }
    }
    reasons
}

/// Why the machine was too busy, by what `study.json` notes of the attempt.
pub(crate) fn starved(attempt: &Value, in_guest: bool) -> Vec<String> {
    if in_guest {
        return Vec::new();
    }
    let mut reasons = Vec::new();
    let mut limit = |field: &str, bad: fn(f64) -> bool, what: &str| match attempt[field].as_f64() {
        None => reasons.push(format!("{what}: not measured")),
        Some(share) if bad(share) => reasons.push(format!("{what}: {share:.3} of all CPU time")),
        Some(_) => {}
    };
    limit("idle_before", |share| share < IDLE_BEFORE, "idle before the run");
    limit("foreign", |share| share > FOREIGN, "used by anything but the run");
    limit("stolen", |share| share > STOLEN, "taken by a hypervisor");
    reasons
}
