//! The limit lines of `runs.jsonl`, and the events' own consistency.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::events::What;
use super::finding::Checker;
use super::record::Level;
use super::run::Raw;
use super::threads::idle_within;

/// Numbers of each CPU follow one another; the kernel's counters at each boundary grow by what the boundary shows.
pub(crate) fn check_events(file: &Path, raw: &Raw<'_>) -> Checker {
    let mut checker = Checker::of(file);
    let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
    let mut counters: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
    let lost = raw.limit.end.as_ref().map_or(0, lost);
    for event in raw.events {
        if let Some(last) = numbers.insert(event.cpu, event.number)
            && lost == 0
        {
            checker.same(format!("number of the event at {} on CPU {}", event.at, event.cpu), event.number, last + 1);
        }
        let What::Period(timer) = &event.what else { continue };
        let about = |figure: &str| format!("boundary at {} of group {}: {figure}", timer.due, timer.cgroup);
        let moved = timer.next.saturating_sub(timer.due);
        checker.same(about("distance to the next, in periods"), moved % timer.period.max(1), 0);
        let periods = moved / timer.period.max(1);
        if let Some(last) = counters.insert(timer.cgroup, timer.kernel) {
            // A boundary that was not traced shows as a larger step.
            let step = timer.kernel[0].saturating_sub(last[0]);
            checker.holds(step >= periods, about("growth of nr_periods"), step, format!("at least {periods}"));
            let step = timer.kernel[1].saturating_sub(last[1]);
            let throttled = if timer.throttled_cpus > 0 { periods } else { 0 };
            checker.holds(step >= throttled, about("growth of nr_throttled"), step, format!("at least {throttled}"));
            checker.holds(
                timer.kernel[2] >= last[2],
                about("throttled_time"),
                timer.kernel[2],
                format!("at least {}", last[2]),
            );
        }
        if let Some(level) = raw.limit.levels.iter().find(|level| level.id == timer.cgroup)
            && (level.from()..=level.until().unwrap_or(u64::MAX)).contains(&event.at)
        {
            checker.same(about("quota"), format!("{:?}", timer.quota), format!("{:?}", raw.limit.quota));
            checker.same(about("period"), timer.period, raw.limit.period);
            checker.same(about("burst"), timer.burst, raw.limit.burst);
        }
    }
    for level in &raw.limit.levels {
        let (Some(after), Some(last)) = (&level.after, counters.get(&level.id)) else { continue };
        for (counter, last) in [("nr_periods", last[0]), ("nr_throttled", last[1])] {
            let read = after["stat"][counter].as_u64().unwrap_or(0);
            checker.holds(
                last <= read,
                format!("{} {counter} at its last boundary", level.name),
                last,
                format!("at most {read}, as read after it"),
            );
        }
    }
    checker
}

/// Records lost, of all kinds and CPUs.
fn lost(end: &Value) -> u64 {
    let losses = &end["losses"];
    let cpus = losses["cpus"].as_array().into_iter().flatten();
    let of = |cpu: &Value| {
        let kinds = cpu["lost"].as_array().into_iter().flatten().filter_map(|kind| kind[1].as_u64());
        kinds.sum::<u64>() + cpu["truncated"].as_u64().unwrap_or(0)
    };
    cpus.map(of).sum::<u64>() + losses["undecoded"].as_u64().unwrap_or(0)
}

/// Checks the line of a limit.
pub(crate) fn check(runs: &mut Checker, raw: &Raw<'_>, head: &Value, lines: &[Value]) {
    let limit = raw.limit;
    let name = &limit.name;
    let found = lines.iter().find(|line| line["type"] == "limit" && line["limit"] == name.as_str());
    let Some(line) = found else {
        runs.same(format!("{name}: line of the limit"), "absent", "present");
        return;
    };
    let about = |figure: &str| format!("{name}: {figure}");
    runs.exact(about("quota_us"), &line["quota_us"], limit.quota.map(|quota| quota / 1_000));
    runs.exact(about("period_us"), &line["period_us"], limit.period / 1_000);
    runs.exact(about("burst_us"), &line["burst_us"], limit.burst / 1_000);
    let untraced = line["untraced_events"].as_u64().unwrap_or(0);
    for (index, level) in limit.levels.iter().enumerate() {
        self::level(runs, raw, level, &line["levels"][index], untraced);
    }
    let requests: Vec<&Value> =
        lines.iter().filter(|line| line["type"] == "request" && line["limit"] == name.as_str()).collect();
    let server = |field: &str| limit.answered().filter_map(|(_, server)| server[field].as_u64()).collect::<Vec<u64>>();
    let gap = head["plan"]["gap_ns"].as_u64().unwrap_or(0);
    let (from, until) = (
        server("started_ns").into_iter().min().unwrap_or(0),
        server("finished_ns").into_iter().max().map_or(0, |at| at + gap),
    );
    runs.exact(about("elapsed_ns"), &line["elapsed_ns"], until.saturating_sub(from));
    let container = limit.levels.first().map_or(0, |level| level.id);
    let used = raw.threads.used(container, (from, until));
    runs.near(about("pod_cpu_ns"), &line["pod_cpu_ns"], used, used / 500 + 1_000_000);
    let held = raw.threads.held(container, limit.bracket());
    let held_wall: u64 = held.iter().map(|(from, until)| until - from).sum();
    // What the kernel did not trace is doubtful in figures of requests and periods, and not much more than the observer counted,
    // which counts nothing of a thread whose state it had not known.
    let untraced = line["untraced_events"].as_u64().unwrap_or(0);
    let missing = raw.threads.missing();
    let most = untraced + untraced / 8 + 1;
    runs.holds(missing <= most, about("untraced_events"), untraced, format!("about {missing}"));
    runs.near(about("throttled_wall_ns"), &line["throttled_wall_ns"], held_wall, held_wall / 200 + 1_000_000);
    if let Some(stored) = line["fully_throttled_ns"].as_u64() {
        let most = line["throttled_wall_ns"].as_u64().unwrap_or(0);
        runs.holds(stored <= most, about("fully_throttled_ns"), stored, format!("at most {most}"));
    }
    if !line["node_idle_ns"].is_null() {
        let idle = idle_within(raw.events, &held);
        runs.near(about("node_idle_ns"), &line["node_idle_ns"], idle, idle / 100 + 2_000_000);
        let most = held_wall * raw.cpus;
        let denied = line["denied_idle_ns"].as_u64().unwrap_or(0);
        runs.holds(denied <= most + most / 100 + 2_000_000, about("denied_idle_ns"), denied, format!("at most {most}"));
    }
    let end = limit.end.as_ref();
    runs.exact(about("lost_events"), &line["lost_events"], end.map_or(0, lost));
    let stolen = |side: Option<&Value>| side.and_then(|side| side["stolen_ns"].as_u64());
    let grown = stolen(end).zip(stolen(Some(&limit.begin))).map(|(after, before)| after.saturating_sub(before));
    runs.exact(about("stolen_ns"), &line["stolen_ns"], grown);
    checks(runs, &about, line, &requests);
    let killed = json!({"how": "broken", "cause": "the run was killed during this limit"});
    runs.exact(about("ending"), &line["ending"], end.map_or(killed, |end| end["ending"].clone()));
}

fn level(runs: &mut Checker, raw: &Raw<'_>, level: &Level, line: &Value, untraced: u64) {
    let about = |figure: &str| format!("{} {}: {figure}", raw.limit.name, level.name);
    runs.exact(about("level"), &line["level"], level.name.as_str());
    runs.exact(about("cgroup_id"), &line["cgroup_id"], level.id);
    for (side, reading) in [("before", Some(&level.before)), ("after", level.after.as_ref())] {
        for (counter, value) in reading.map(Level::names).unwrap_or_default() {
            runs.exact(about(&format!("{side} {counter}")), &line[side][&counter], value);
        }
    }
    let kernel = [
        ("nr_periods", level.count("nr_periods")),
        ("nr_throttled", level.count("nr_throttled")),
        ("throttled_ns", level.throttled("stat")),
        ("throttled_any_level_ns", level.throttled("local")),
    ];
    for (field, grown) in kernel {
        runs.exact(about(&format!("kernel {field}")), &line["kernel"][field], grown);
    }
    let bracket = raw.limit.bracket();
    let (mut periods, mut throttled) = (0, 0);
    for event in raw.events.iter().filter(|event| event.at >= bracket.0 && event.at < bracket.1) {
        if let What::Period(timer) = &event.what
            && timer.cgroup == level.id
            && timer.quota.is_some()
            && timer.period > 0
        {
            let ended = timer.next.saturating_sub(timer.due) / timer.period;
            periods += ended;
            throttled += if timer.throttled_cpus > 0 { ended } else { 0 };
        }
    }
    let observed = &line["observed"];
    // Boundaries that were not traced are added by the observer, and counted as untraced.
    for (field, seen) in [("nr_periods", periods), ("nr_throttled", throttled)] {
        let stored = observed[field].as_u64().unwrap_or(0);
        let holds = stored >= seen && stored <= seen + untraced;
        runs.holds(holds, about(&format!("observed {field}")), stored, format!("{seen} to {}", seen + untraced));
    }
}

/// The comparisons with the kernel are of these figures, by these tolerances, and the verdict follows from them.
fn checks(runs: &mut Checker, about: &impl Fn(&str) -> String, line: &Value, requests: &[&Value]) {
    let levels: &[Value] = line["levels"].as_array().map_or(&[], Vec::as_slice);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let edges_of = |level: &Value| number(&level["observed"]["edges"]);
    let most_edges = levels.iter().map(edges_of).max().unwrap_or(0);
    let mut expected = Vec::new();
    for level in levels.iter().filter(|level| !level["kernel"].is_null()) {
        for (quantity, field, edges) in [
            ("periods", "nr_periods", None),
            ("throttled_periods", "nr_throttled", None),
            ("throttled_time", "throttled_ns", Some(edges_of(level))),
            ("throttled_by_any_level", "throttled_any_level_ns", Some(most_edges)),
        ] {
            let Some(kernel) = level["kernel"][field].as_u64() else { continue };
            let tolerance = edges.map_or(0, |edges| (kernel / 1_000).max(50_000 * edges));
            expected.push(json!({"quantity": quantity, "level": level["level"], "observed": level["observed"][field],
                                 "kernel": kernel, "tolerance": tolerance}));
        }
    }
    let workers = requests.iter().flat_map(|request| request["workers"].as_array().into_iter().flatten());
    let on_cpu = workers.map(|worker| {
        let (observed, kernel) = (number(&worker["on_cpu_ns"]), number(&worker["cpu_time_ns"]));
        (observed, kernel, kernel / 1_000 + 100_000)
    });
    let worst = on_cpu
        .max_by_key(|(observed, kernel, tolerance)| i128::from(observed.abs_diff(*kernel)) - i128::from(*tolerance));
    if let Some((observed, kernel, tolerance)) = worst {
        expected.push(json!({"quantity": "on_cpu", "observed": observed, "kernel": kernel, "tolerance": tolerance}));
    }
    let agrees =
        |check: &Value| number(&check["observed"]).abs_diff(number(&check["kernel"])) <= number(&check["tolerance"]);
    let all = expected.iter().all(agrees) && line["lost_events"] == 0;
    runs.exact(about("checks"), &line["checks"], expected);
    let verdict = line["agreement"]["verdict"].as_str().unwrap_or("absent");
    // That they could not be compared, or that something changed the limit meanwhile, is for other reasons than these figures.
    let right = if all {
        verdict != "differs" || line["agreement"]["because"].to_string().contains("something else")
    } else {
        verdict != "agrees"
    };
    runs.holds(right, about("agreement"), verdict, if all { "agrees" } else { "differs" });
}
