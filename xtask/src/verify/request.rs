//! The requests of `runs.jsonl` against the raw spans and events.

use serde_json::Value;

use super::finding::Checker;
use super::run::Raw;

/// The six parts of a wall time.
pub(crate) const SHARES: [&str; 6] =
    ["on_cpu_ns", "throttled_own_ns", "throttled_ancestor_ns", "runqueue_ns", "blocked_ns", "unknown_ns"];

/// How far a share may be from the plain reading of events, for each edge within it and as a part of it: the observer moves an edge
/// by what the scheduler noted, and reconstructs tracepoints that did not fire.
const PER_EDGE: u64 = 10_000;
const PART: u64 = 1_000;

/// Checks all requests of a limit.
pub(crate) fn check(runs: &mut Checker, raw: &Raw<'_>, lines: &[Value]) {
    let name = &raw.limit.name;
    let mine = |line: &&Value| line["limit"] == name.as_str();
    let stored: Vec<&Value> = lines.iter().filter(mine).filter(|line| line["type"] == "request").collect();
    let failed = lines.iter().filter(mine).filter(|line| line["type"] == "failed_request").count();
    let answered: Vec<_> = raw.limit.answered().collect();
    runs.same(format!("{name}: answered requests"), stored.len(), answered.len());
    runs.same(format!("{name}: failed requests"), failed, raw.limit.requests.len() - answered.len());
    for (line, (span, server)) in stored.into_iter().zip(answered) {
        one(runs, raw, line, span, server);
    }
}

fn one(runs: &mut Checker, raw: &Raw<'_>, line: &Value, span: &Value, server: &Value) {
    let about = |figure: &str| format!("{} request {}: {figure}", raw.limit.name, span["request"]);
    for field in ["request", "stream", "sent_ns", "received_ns"] {
        runs.exact(about(field), &line[field], span[field].clone());
    }
    // In a closed loop nothing else than the answer before it says when a request is due.
    runs.same(about("due_ns against sent_ns, in the record"), &span["due_ns"], &span["sent_ns"]);
    for field in ["accepted_ns", "started_ns", "finished_ns"] {
        runs.exact(about(field), &line[field], server[field].clone());
    }
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let window = (number(&server["started_ns"]), number(&server["finished_ns"]));
    let wall = window.1.saturating_sub(window.0);
    runs.exact(about("wall_ns"), &line["wall_ns"], wall);
    let workers: &[Value] = server["workers"].as_array().map_or(&[], Vec::as_slice);
    let first = workers.iter().map(|worker| number(&worker["started_ns"])).min().unwrap_or(0);
    let last = workers.iter().map(|worker| number(&worker["finished_ns"])).max().unwrap_or(0);
    runs.same(
        about("started_ns and finished_ns of its workers"),
        format!("{window:?}"),
        format!("{:?}", (first, last)),
    );
    let cpu: u64 = workers.iter().map(|worker| number(&worker["cpu_time_ns"])).sum();
    runs.exact(about("cpu_time_ns"), &line["cpu_time_ns"], cpu);
    let critical = workers.iter().rfind(|worker| number(&worker["finished_ns"]) == last);
    let critical = critical.map_or(0, |worker| number(&worker["tid"]));
    runs.exact(about("critical_tid"), &line["critical_tid"], critical);
    shares(runs, raw, &about(""), line, critical, window);
    let stored: &[Value] = line["workers"].as_array().map_or(&[], Vec::as_slice);
    runs.same(about("workers"), stored.len(), workers.len());
    for (stored, worker) in stored.iter().zip(workers) {
        let about = |figure: &str| about(&format!("worker {} {figure}", worker["tid"]));
        for field in ["tid", "started_ns", "finished_ns", "cpu_time_ns"] {
            runs.exact(about(field), &stored[field], worker[field].clone());
        }
        let window = (number(&worker["started_ns"]), number(&worker["finished_ns"]));
        runs.exact(about("wall_ns"), &stored["wall_ns"], window.1.saturating_sub(window.0));
        shares(runs, raw, &about(""), stored, number(&worker["tid"]), window);
    }
    phases(runs, raw, &about, line, window);
    let unknown: u64 = stored.iter().map(|worker| number(&worker["unknown_ns"])).sum();
    if line["complete"] == true {
        runs.same(about("unknown_ns of a complete request"), unknown + number(&line["unknown_ns"]), 0);
    }
}

/// Shares sum to the wall time to the nanosecond, and each is what the events show.
fn shares(runs: &mut Checker, raw: &Raw<'_>, about: &str, line: &Value, thread: u64, window: (u64, u64)) {
    let number = |field: &str| line[field].as_u64().unwrap_or(0);
    let sum: u64 = SHARES.iter().map(|share| number(share)).sum();
    runs.same(format!("{about}sum of shares against the wall time"), sum, window.1.saturating_sub(window.0));
    let parts = raw.threads.parts(thread, window);
    // What is not known may have been anything.
    let within = |length: u64| PER_EDGE * (parts.edges + 2) + length / PART + number("unknown_ns") + parts.doubtful;
    for (field, computed) in [
        ("on_cpu_ns", parts.on_cpu),
        ("throttled_own_ns", parts.own),
        ("throttled_ancestor_ns", parts.above),
        ("runqueue_ns", parts.waited),
        ("blocked_ns", parts.blocked),
    ] {
        runs.near(format!("{about}{field}"), &line[field], computed, within(computed));
    }
    let (part, whole) = (number("uncharged_ns"), number("runqueue_ns"));
    runs.holds(part <= whole, format!("{about}uncharged_ns"), part, format!("at most {whole}"));
    if !line["throttled_both_ns"].is_null() {
        let (part, whole) = (number("throttled_both_ns"), number("throttled_own_ns"));
        runs.holds(part <= whole, format!("{about}throttled_both_ns"), part, format!("at most {whole}"));
    }
}

/// Where the request lies in the period grid of each level.
fn phases(runs: &mut Checker, raw: &Raw<'_>, about: &impl Fn(&str) -> String, line: &Value, window: (u64, u64)) {
    let grid = |group: u64, at: u64| {
        let points = raw.grids.get(&group)?;
        let after = points.partition_point(|&(due, _)| due <= at);
        points.get(after.saturating_sub(1)).copied()
    };
    let phase = |(point, period): (u64, u64), at: u64| {
        let (at, point, period) = (i128::from(at), i128::from(point), i128::from(period));
        u64::try_from((at - point).rem_euclid(period)).unwrap_or(0)
    };
    let own = raw.limit.levels.first().and_then(|level| grid(level.id, window.0));
    runs.exact(about("phase_ns"), &line["phase_ns"], own.map_or(Value::Null, |own| phase(own, window.0).into()));
    for (index, level) in raw.limit.levels.iter().enumerate() {
        let to_refill = grid(level.id, window.0).map(|grid| grid.1 - phase(grid, window.0));
        runs.exact(about(&format!("to_refill_ns[{index}]")), &line["to_refill_ns"][index], to_refill);
    }
    let crossed = own.filter(|_| window.1 > window.0).map(|own| {
        let from_cell_start = phase(own, window.0) + (window.1 - window.0 - 1);
        from_cell_start / own.1 + 1
    });
    runs.exact(about("periods"), &line["periods"], crossed.map_or(Value::Null, Into::into));
    if let (Some(throttled), Some(crossed)) = (line["throttled_periods"].as_u64(), crossed) {
        runs.holds(throttled <= crossed, about("throttled_periods"), throttled, format!("at most {crossed}"));
    }
}
