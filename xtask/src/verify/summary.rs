//! `summary.json` from `runs.jsonl`, by arithmetic of its own.

use serde_json::Value;

use super::finding::Checker;
use super::quantile::{Interval, interval, mean, nearest_rank};
use super::request::SHARES;
use super::run::Run;
use super::shape;

/// Recomputes every row.
pub(crate) fn check(run: &Run) -> Checker {
    let mut checker = Checker::of(&run.folder.join("summary.json"));
    let rows = run.summary["limits"].as_array().map_or(0, Vec::len);
    checker.same("limits", rows, run.limits.len());
    for limit in &run.limits {
        match (run.row(&limit.name), run.limit_line(&limit.name)) {
            (Some(row), Some(line)) => check_row(&mut checker, run, &limit.name, row, line),
            _ => checker.same(format!("row of limit {}", limit.name), "absent", "present"),
        }
    }
    checker
}

/// Work asked of the critical path, ns.
pub(crate) fn critical_work(plan: &Value) -> Option<u64> {
    let work = plan["work_ns"].as_u64()?;
    if plan["mode"] == "split" { work.checked_div(plan["threads"].as_u64()?) } else { Some(work) }
}

/// A limit in CPUs; `None` = no limit.
pub(crate) fn cpus(limit: &str) -> Option<f64> {
    limit.strip_suffix('m')?.parse::<f64>().ok().map(|millicores| millicores / 1e3)
}

fn check_row(checker: &mut Checker, run: &Run, limit: &str, row: &Value, line: &Value) {
    let about = |figure: &str| format!("{limit}: {figure}");
    let requests: Vec<&Value> = run.request_lines(limit).collect();
    let column = |fields: &[&str]| -> Vec<u64> {
        let of = |request: &&Value| fields.iter().map(|field| request[*field].as_u64().unwrap_or(0)).sum();
        requests.iter().map(of).collect()
    };
    let n = requests.len() as u64;
    let mut walls = column(&["wall_ns"]);
    walls.sort_unstable();
    let failed = run.lines.iter().filter(|line| line["type"] == "failed_request" && line["limit"] == limit).count();
    checker.exact(about("n"), &row["n"], n);
    checker.exact(about("failed"), &row["failed"], failed);
    checker.exact(about("p50_ns"), &row["p50_ns"], nearest_rank(&walls, 50));
    let p99 = nearest_rank(&walls, 99).filter(|_| n >= 100);
    checker.exact(about("p99_ns"), &row["p99_ns"], p99);
    checker.exact(about("max_ns"), &row["max_ns"], walls.last().copied());
    checker.exact(about("mean_ns"), &row["mean_ns"], mean(&walls));
    check_interval(checker, &about("p50_interval"), &row["p50_interval"], n, 50, interval(&walls, 50));
    check_interval(
        checker,
        &about("p99_interval"),
        &row["p99_interval"],
        n,
        99,
        p99.and_then(|_| interval(&walls, 99)),
    );
    checker.exact(about("cpu_time_ns"), &row["cpu_time_ns"], mean(&column(&["cpu_time_ns"])));
    let [_, own, above, runqueue, ..] = SHARES;
    checker.exact(about("throttled_wall_ns"), &row["throttled_wall_ns"], mean(&column(&[own, above])));
    checker.exact(about("throttled_own_ns"), &row["throttled_own_ns"], mean(&column(&[own])));
    checker.exact(about("throttled_ancestor_ns"), &row["throttled_ancestor_ns"], mean(&column(&[above])));
    checker.exact(about("runqueue_ns"), &row["runqueue_ns"], mean(&column(&[runqueue])));
    let number = |value: &Value| value.as_u64();
    let tail = p99.or(walls.last().copied()).zip(critical_work(&run.head["plan"]));
    checker.ratio(about("tail_over_work"), &row["tail_over_work"], tail.map(|(tail, work)| ratio(tail, work)));
    let elapsed = number(&line["elapsed_ns"]).filter(|&elapsed| elapsed > 0);
    let pod_cpus = number(&line["pod_cpu_ns"]).zip(elapsed).map(|(used, elapsed)| ratio(used, elapsed));
    checker.ratio(about("pod_cpus"), &row["pod_cpus"], pod_cpus);
    let over_limit = pod_cpus.zip(cpus(limit)).map(|(used, limit)| used / limit);
    checker.ratio(about("pod_cpus_over_limit"), &row["pod_cpus_over_limit"], over_limit);
    let container = &line["levels"][0];
    let kernel = number(&container["kernel"]["throttled_ns"]).and_then(|total| total.checked_div(n));
    checker.exact(about("kernel_container_only_ns"), &row["kernel_container_only_ns"], kernel);
    let mut unknown: Vec<u64> = requests
        .iter()
        .filter_map(|request| (number(&request["unknown_ns"])? * 1_000_000).checked_div(number(&request["wall_ns"])?))
        .collect();
    unknown.sort_unstable();
    let unknown = nearest_rank(&unknown, 99).map(|parts| ratio(parts, 1_000_000));
    checker.ratio(about("unknown_share_p99"), &row["unknown_share_p99"], unknown);
    let limited = !line["quota_us"].is_null();
    for (field, of) in [("throttled_periods", "nr_throttled"), ("counted_periods", "nr_periods")] {
        let observed = number(&container["observed"][of]).filter(|_| limited);
        checker.exact(about(field), &row[field], observed);
    }
    let capacity = number(&line["throttled_wall_ns"]).zip(run.head["environment"]["cpus"].as_u64());
    let capacity = capacity.map(|(held, cpus)| held * cpus).filter(|&capacity| capacity > 0);
    let idle = number(&line["node_idle_ns"]).zip(capacity).map(|(idle, capacity)| ratio(idle, capacity));
    checker.ratio(about("node_idle_share"), &row["node_idle_share"], idle);
    for field in ["lost_events", "untraced_events", "agreement", "ending"] {
        checker.exact(about(field), &row[field], line[field].clone());
    }
    model(checker, run, &about, row, limit, n);
}

fn check_interval(
    checker: &mut Checker,
    about: &str,
    stored: &Value,
    n: u64,
    percent: u64,
    computed: Option<Interval>,
) {
    let Some(computed) = computed else {
        checker.exact(about, stored, Value::Null);
        return;
    };
    checker.exact(format!("{about} n"), &stored["n"], n);
    checker.exact(format!("{about} quantile"), &stored["quantile"], percent * 10_000);
    checker.exact(format!("{about} lower"), &stored["lower"], computed.lower);
    checker.exact(format!("{about} upper"), &stored["upper"], computed.upper);
    let close = stored["coverage"].as_f64().is_some_and(|coverage| (coverage - computed.coverage).abs() < 1e-9);
    checker.holds(close, format!("{about} coverage"), &stored["coverage"], computed.coverage);
}

/// The model's median against another simulation of the same requests: they spread the unknown amounts differently, so they are
/// alike, not equal.
fn model(checker: &mut Checker, run: &Run, about: &impl Fn(&str) -> String, row: &Value, limit: &str, n: u64) {
    let model = &row["model"];
    if model.is_null() {
        return;
    }
    let inside = model["inside"].as_u64().unwrap_or(u64::MAX);
    checker.holds(inside <= n, about("model inside"), inside, format!("at most {n}"));
    let Some(predicted) = shape::predicted(run, limit) else { return };
    let below =
        |wall: u64| ratio(predicted.partition_point(|other| *other <= wall) as u64, predicted.len().max(1) as u64);
    let near = |field: &str| {
        let wall = model[field].as_u64().unwrap_or(0);
        (below(wall.saturating_sub(shape::ALIKE)), below(wall + shape::ALIKE))
    };
    // Near a multiple of the quota half of the walls may lie a whole wait apart: ranks are alike, not times.
    let (low, high) = near("p50_ns");
    let around = format!("of the calculated walls {low:.2} to {high:.2} are shorter");
    checker.holds(
        low <= 0.65 && high >= 0.35,
        about("model p50_ns"),
        &model["p50_ns"],
        format!("about half, but {around}"),
    );
    let (low, high) = near("max_ns");
    let around = format!("of the calculated walls {low:.2} to {high:.2} are shorter");
    checker.holds(high >= 0.98, about("model max_ns"), &model["max_ns"], format!("nearly all, but {around}"));
}

/// Of integers far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "both are far below 2^53")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
