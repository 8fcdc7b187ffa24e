//! Short recordings of a real kernel through timeline and attribution, against committed text. `THROTTLE_BLESS=1` writes the
//! text anew: read the difference before it is committed.
//!
//! A recording `NAME` is `NAME.jsonl` (events as a run stores them), `NAME.setting.json` (paths of the levels, how the kernel
//! counts, CPUs), `NAME.requests.jsonl` (the servers' spans) and `NAME.txt` (what they come to). Times in the text are ns from
//! the first event.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use serde::{Deserialize, de::DeserializeOwned};
use throttle_user::{
    attribution::{Attribution, Shares},
    event::{CgroupId, Event},
    request::ServerSpan,
    time::MonoNs,
    timeline::{CountsFrom, Setting, Timeline, interval::Span, period::records, thread::State},
};

#[derive(Deserialize)]
struct Recorded {
    paths: Vec<Vec<CgroupId>>,
    counts_from: CountsFrom,
    cpus: u32,
}

fn file(name: &str, kind: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/golden/{name}.{kind}"))
}

fn read(name: &str, kind: &str) -> String {
    let path = file(name, kind);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn lines<T: DeserializeOwned>(name: &str, kind: &str) -> Vec<T> {
    read(name, kind).lines().map(|line| serde_json::from_str(line).expect("a line of a recording")).collect()
}

fn check(name: &str) {
    let found = render(name);
    if std::env::var_os("THROTTLE_BLESS").is_some() {
        fs::write(file(name, "txt"), &found).expect("written");
    }
    let expected = read(name, "txt");
    if let Some((number, (expected, found))) =
        expected.lines().zip(found.lines()).enumerate().find(|(_, (expected, found))| expected != found)
    {
        panic!("{name}.txt line {}:\nexpected {expected}\nfound    {found}", number + 1);
    }
    assert_eq!(expected, found, "{name}.txt has another length");
}

#[test]
fn a_request_under_nested_limits_comes_to_the_committed_text() {
    check("nested");
}

#[test]
fn a_request_on_four_threads_comes_to_the_committed_text() {
    check("fan-out-of-4");
}

#[test]
fn a_recording_cut_off_within_a_request_comes_to_the_committed_text() {
    check("cut-off");
}

/// Everything that is concluded, a line each.
fn render(name: &str) -> String {
    let recorded: Recorded = serde_json::from_str(&read(name, "setting.json")).expect("a setting");
    let setting = Setting {
        paths: recorded.paths.iter().map(|path| (path[0], path.clone())).collect(),
        followed: recorded.paths.iter().map(|path| path[0]).collect(),
        counts_from: recorded.counts_from,
        cpus: recorded.cpus,
        watched_until: None,
        tried: BTreeMap::new(),
    };
    let timeline = Timeline::build(lines::<Event>(name, "jsonl"), &setting);
    let begin = timeline.span.expect("a recording has events").start;
    let mut text = String::new();
    describe(&timeline, &setting, begin, &mut text).expect("a string takes text");
    let leaf = recorded.paths[0][0];
    let attribution = Attribution::new(&timeline, &setting, &leaf);
    for request in lines::<ServerSpan>(name, "requests.jsonl") {
        explain(&attribution, &request, begin, &mut text).expect("a string takes text");
    }
    text
}

fn describe(timeline: &Timeline, setting: &Setting, begin: MonoNs, text: &mut String) -> std::fmt::Result {
    let at = |instant: MonoNs| i128::from(instant.0) - i128::from(begin.0);
    let span = |span: Span| format!("{}..{}", at(span.start), at(span.end));
    writeln!(
        text,
        "seen {}, {} gaps, {} untraced",
        span(timeline.span.unwrap_or(Span::new(begin, begin))),
        timeline.gaps.len(),
        timeline.untraced
    )?;
    for throttle in &timeline.throttles {
        let counted = throttle.start.map_or_else(|| "nobody".to_owned(), |start| at(start).to_string());
        let end = throttle.end.map_or_else(|| "open".to_owned(), |end| at(end).to_string());
        writeln!(
            text,
            "throttle {} cpu {} marked {} counted from {counted} to {end} by {:?}, complete {}",
            throttle.cgroup.0,
            throttle.cpu,
            at(throttle.marked),
            throttle.ended_by,
            throttle.complete
        )?;
    }
    for held in &timeline.hierarchy {
        let end = held.end.map_or_else(|| "open".to_owned(), |end| at(end).to_string());
        writeln!(text, "held {} cpu {} from {} to {end}", held.cgroup.0, held.cpu, at(held.start))?;
    }
    for (cgroup, boundaries) in &timeline.boundaries {
        for boundary in boundaries {
            writeln!(
                text,
                "boundary {} due {} exit {} periods {} throttled cpus {} active {} inferred {}",
                cgroup.0,
                at(boundary.due),
                at(boundary.exit),
                boundary.periods,
                boundary.throttled_cpus,
                boundary.active,
                boundary.inferred
            )?;
        }
    }
    for &level in setting.paths.keys() {
        for period in records(timeline, setting, level) {
            writeln!(
                text,
                "period {} {} used {} exhausted after {:?} throttled wall {} held {} fully {} peak {} denied idle {:?} complete {}",
                level.0,
                span(Span::new(period.start_ns, period.end_ns)),
                followed(period.used_ns).0,
                period.exhausted_after_ns.map(|after| after.0),
                period.throttled_wall_ns.0,
                followed(period.held_wall_ns).0,
                followed(period.fully_held_ns).0,
                followed(period.peak_parallelism),
                period.denied_idle_ns.map(|idle| idle.0),
                period.complete
            )?;
        }
    }
    for (thread, line) in &timeline.threads {
        for segment in &line.segments {
            let state = match segment.state {
                State::Running { cpu } => format!("running on {cpu}"),
                State::Waiting { cpu } => format!("waiting for {cpu}"),
                State::Throttled { cpu } => format!("throttled on {cpu}"),
                State::Blocked => "blocked".to_owned(),
                State::Unknown => "unknown".to_owned(),
            };
            writeln!(text, "thread {thread} {} {state}", span(segment.span))?;
        }
    }
    for (cpu, idle) in &timeline.idle {
        writeln!(text, "idle {cpu} {} in {} stretches", idle.total().0, idle.iter().count())?;
    }
    Ok(())
}

fn explain(attribution: &Attribution<'_>, request: &ServerSpan, begin: MonoNs, text: &mut String) -> std::fmt::Result {
    let share = attribution.explain(request).expect("a request has a worker");
    assert_eq!(share.shares.total(), share.wall_ns, "the shares sum to the wall time");
    writeln!(
        text,
        "request at {} wall {}: {}; both {} periods {:?} throttled {} phase {:?} refills {:?} critical {} complete {}",
        request.started_ns.since(begin).0,
        share.wall_ns.0,
        parts(&share.shares),
        share.throttled_both_ns.0,
        share.periods,
        share.throttled_periods,
        share.phase_ns.map(|phase| phase.0),
        share.to_refill_ns.iter().map(|to| to.map(|to| to.0)).collect::<Vec<_>>(),
        share.critical_tid,
        share.complete
    )?;
    for worker in &share.workers {
        assert_eq!(worker.shares.total(), worker.wall_ns, "the shares of a worker sum to its wall time");
        writeln!(text, "  worker {} wall {}: {}", worker.worker.tid, worker.wall_ns.0, parts(&worker.shares))?;
    }
    Ok(())
}

fn parts(shares: &Shares) -> String {
    let Shares {
        on_cpu_ns,
        throttled_own_ns,
        throttled_ancestor_ns,
        runqueue_ns,
        blocked_ns,
        unknown_ns,
        uncharged_ns,
    } = *shares;
    format!(
        "on cpu {} own {} ancestor {} run queue {} (of it uncharged {}) blocked {} unknown {}",
        on_cpu_ns.0,
        throttled_own_ns.0,
        throttled_ancestor_ns.0,
        runqueue_ns.0,
        uncharged_ns.0,
        blocked_ns.0,
        unknown_ns.0
    )
}

/// Every thread of a recorded group was followed.
fn followed<T>(figure: Option<T>) -> T {
    figure.expect("measured")
}
