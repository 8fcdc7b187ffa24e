//! `throttle timeline` as a process: what it draws, what it says where something is missing, and what it refuses.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use throttle_user::{
    cgroup::CpuLimit,
    event::Event,
    request::{Outcome, RequestSpan},
    run::{Head, RawLine, RunDir, SweepPlan, record::Ending},
};

use crate::made::{LIMIT, begin, end, golden, plan, requests, run_of, whole};

fn timeline(run: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throttle"));
    command.arg("timeline").arg(run).args(args).envs(variables.iter().copied());
    command.output().expect("throttle starts")
}

/// The text of a timeline that can be drawn: ASCII of at most 80 columns.
fn drawn(run: &Path, args: &[&str]) -> String {
    let output = timeline(run, args, &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    assert!(text.is_ascii() && !text.contains('\u{1b}'), "{text}");
    text
}

fn refused(run: &Path, args: &[&str]) -> String {
    let output = timeline(run, args, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty());
    said
}

/// Takes an event out of the middle of the first request, as if it had been lost.
pub(crate) fn without_event(run: &Path) {
    let dir = RunDir::open::<Head>(run).expect("a run").0;
    let mut events: Vec<Event> =
        golden("jsonl").lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
    let first: Value =
        golden("requests.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).next().expect("one");
    let stamp = |field: &str| first[field].as_u64().expect("a stamp");
    let middle = stamp("started_ns").midpoint(stamp("finished_ns"));
    events.remove(events.iter().position(|event| event.at.0 >= middle).expect("an event"));
    let mut writer = dir.events(LIMIT).expect("opened");
    events.iter().for_each(|event| writer.write(event).expect("written"));
    writer.finish().expect("written");
}

#[test]
fn a_limit_is_drawn_period_by_period() {
    let (_dir, run) = run_of(plan(), &whole());
    insta::assert_snapshot!("limit", drawn(&run, &["--limit", "100m"]));
    insta::assert_snapshot!("pod", drawn(&run, &["--level", "pod", "--period", "10..13"]));
}

#[test]
fn a_request_is_drawn_with_the_periods_it_crossed() {
    let (_dir, run) = run_of(plan(), &whole());
    insta::assert_snapshot!("request", drawn(&run, &["--request", "1"]));
}

#[test]
fn the_slowest_request_is_the_one_with_the_longest_wall_time() {
    let (_dir, run) = run_of(plan(), &whole());
    let report = Command::new(env!("CARGO_BIN_EXE_throttle")).arg("report").arg(&run).output().expect("starts");
    assert_eq!(report.status.code(), Some(0));
    let runs = fs::read_to_string(run.join("runs.jsonl")).expect("derived");
    let lines = runs.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let slowest = lines.filter(|line| line["type"] == "request").max_by_key(|line| line["wall_ns"].as_u64());
    let number = slowest.expect("a request")["request"].to_string();
    assert_eq!(drawn(&run, &["--slowest"]), drawn(&run, &["--request", &number]));
}

#[test]
fn what_a_request_is_said_to_be_equals_its_line_in_the_report() {
    let (_dir, run) = run_of(plan(), &whole());
    let report = Command::new(env!("CARGO_BIN_EXE_throttle")).arg("report").arg(&run).output().expect("starts");
    assert_eq!(report.status.code(), Some(0));
    let runs = fs::read_to_string(run.join("runs.jsonl")).expect("derived");
    for line in runs.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")) {
        if line["type"] != "request" {
            continue;
        }
        let text = drawn(&run, &["--request", &line["request"].to_string()]);
        let ms = |field: &str| format!("{:.1} ms", line[field].as_f64().expect("ns") / 1e6);
        for (field, words) in [
            ("on_cpu_ns", "# on CPU"),
            ("throttled_own_ns", "x throttled: own limit"),
            ("throttled_ancestor_ns", "^ throttled: ancestor only"),
            ("runqueue_ns", "w waiting for a CPU"),
            ("blocked_ns", ". asleep"),
        ] {
            let shown = text.lines().find(|shown| shown.trim_start().starts_with(words));
            match line[field].as_u64() {
                Some(0) => assert_eq!(shown, None, "{field}"),
                _ => assert!(shown.is_some_and(|shown| shown.contains(&ms(field))), "{field} {}: {text}", ms(field)),
            }
        }
        let periods = format!("held in {} of the {} periods", line["throttled_periods"], line["periods"]);
        assert!(text.replace("\n             ", " ").contains(&periods), "{periods}: {text}");
    }
}

#[test]
fn a_run_of_several_limits_is_drawn_in_short() {
    let planned = SweepPlan { limits: vec![LIMIT, CpuLimit::Unlimited], ..plan() };
    let (_dir, run) = run_of(planned, &whole());
    let short = drawn(&run, &[]);
    // One limit ran: it is what is meant.
    assert!(short.starts_with("Limit 100m: 10 ms of CPU each 100 ms, on container and pod"), "{short}");
    let lines = [whole(), vec![begin(CpuLimit::Unlimited)]].concat();
    let planned = SweepPlan { limits: vec![LIMIT, CpuLimit::Unlimited, CpuLimit::Millicpu(400)], ..plan() };
    let (_dir, run) = run_of(planned, &lines);
    insta::assert_snapshot!("run", drawn(&run, &[]));
    for args in [&["--request", "1"][..], &["--period", "1"]] {
        assert!(refused(&run, args).contains("which limit? Name one with --limit; there are: 100m, unlimited"));
    }
    assert!(refused(&run, &["--limit", "400m"]).contains("limit 400m is planned but not run"));
    assert!(refused(&run, &["--limit", "300m"]).contains("limit 300m is not in this run; there are: 100m, unlimited"));
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
    let (_dir, run) = run_of(plan(), &whole());
    let forced = timeline(&run, &["--slowest"], &[("CLICOLOR_FORCE", "1")]);
    let forced = String::from_utf8(forced.stdout).expect("text");
    assert!(forced.contains("\u{1b}[31m"), "{forced}");
    let plain = drawn(&run, &["--slowest"]);
    assert_eq!(anstream::adapter::strip_str(&forced).to_string(), plain);
    let refused = timeline(&run, &["--slowest"], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]);
    assert_eq!(String::from_utf8(refused.stdout).expect("text"), plain);
}

#[test]
fn a_lost_record_is_drawn_as_a_gap_and_no_verdict_is_more_certain_than_that() {
    let (_dir, run) = run_of(plan(), &whole());
    without_event(&run);
    let text = drawn(&run, &[]);
    assert!(text.contains("lost 1 record between"), "{text}");
    assert!(text.contains("!: records were lost in it"), "{text}");
    assert!(text.contains("not known  "), "{text}");
    let request = drawn(&run, &["--request", "0"]);
    assert!(request.contains("what records said that were lost while it was served"), "{request}");
    assert!(request.lines().any(|line| line.trim_start().starts_with("? unknown")), "{request}");
}

#[test]
pub(crate) fn without_events_only_the_requests_are_drawn_and_nothing_is_said_to_be_zero() {
    let (_dir, run) = run_of(plan(), &whole());
    fs::remove_file(run.join("raw/events-100m.jsonl.gz")).expect("removed");
    let text = drawn(&run, &[]);
    assert!(text.contains("There are no events of it"), "{text}");
    assert!(text.contains("cause      not measured: there are no events"), "{text}");
    assert!(text.contains("enough     not known: nothing was observed"), "{text}");
    assert!(!text.contains(" 0.0 ") && !text.contains("0 %"), "{text}");
    let request = drawn(&run, &["--request", "0"]);
    assert!(request.contains("100 %") && request.contains("cause      not measured"), "{request}");
}

#[test]
fn events_cut_off_end_the_picture_where_they_end() {
    let (_dir, run) = run_of(plan(), &whole());
    let path = run.join("raw/events-100m.jsonl.gz");
    let bytes = fs::read(&path).expect("events");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("cut");
    let text = drawn(&run, &[]);
    assert!(text.contains("The file of events is cut off at "), "{text}");
    assert!(text.contains("what came after the file of events was cut off"), "{text}");
    assert!(text.contains("?????"), "{text}");
}

#[test]
fn a_limit_without_an_answered_request_still_has_its_periods() {
    let failed = |request| RawLine::Request {
        limit: LIMIT,
        span: RequestSpan {
            request,
            outcome: Outcome::Failed { error: "127.0.0.1:7: connection refused".to_owned() },
            ..match &requests(LIMIT)[0] {
                RawLine::Request { span, .. } => span.clone(),
                _ => unreachable!("requests are requests"),
            }
        },
    };
    let (_dir, run) = run_of(plan(), &[begin(LIMIT), failed(0), end(LIMIT, Ending::Complete)]);
    let text = drawn(&run, &[]);
    assert!(text.contains("No request was answered.\nrequest 0 failed: 127.0.0.1:7: connection refused"), "{text}");
    assert!(text.contains("throttled: no request was answered, but threads were held for"), "{text}");
    assert!(text.contains("[##########]"), "{text}");
    assert!(refused(&run, &["--request", "0"]).contains("request 0 of limit 100m was not answered (127.0.0.1:7"));
    assert!(refused(&run, &["--request", "5"]).contains("limit 100m has no request 5: none was answered"));
    assert!(refused(&run, &["--slowest"]).contains("no request was answered, so none is the slowest"));
    let (_dir, run) = run_of(plan(), &[]);
    assert!(drawn(&run, &[]).contains("nothing: no limit has both answers and events"));
}

#[test]
fn a_request_or_period_that_is_not_there_is_refused_with_those_that_are() {
    let (_dir, run) = run_of(plan(), &whole());
    assert!(refused(&run, &["--request", "7"]).contains("has no request 7; it has 0 to 1"));
    assert!(refused(&run, &["--period", "900..901"]).contains("limit 100m has no period 900..901; it has "));
    assert!(refused(&run, &["--period", "3..1"]).contains("3 comes after 1"));
}

#[test]
fn a_run_of_another_schema_is_refused_by_name() {
    let (_dir, run) = run_of(plan(), &whole());
    let head = fs::read_to_string(run.join("run.json")).expect("the head");
    fs::write(run.join("run.json"), head.replace("\"schema\": 1,", "\"schema\": 0,")).expect("written");
    assert!(
        refused(&run, &[]).contains("has schema 0, this program reads 1; use the version of throttle that wrote it")
    );
    File::create(run.join("run.json")).expect("emptied");
    assert!(refused(&run, &[]).contains("run.json"));
}
