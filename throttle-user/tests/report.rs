//! `throttle report` as a process, on run folders made from a recording of a real kernel: what it shows, what it refuses, and its
//! exit code. Needs no kernel.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use throttle_user::{
    cgroup::{Counters, CpuLimit, Figures, LevelName, Version},
    event::{CgroupId, Era, Event, Losses},
    request::{Outcome, RequestSpan, ServerSpan},
    run::{
        Head, RawLine, RunDir, SCHEMA, SweepPlan,
        environment::Environment,
        record::{Ending, LevelReading, LimitBegin, LimitEnd},
    },
    time::{ClockAnchor, MonoNs},
    timeline::CountsFrom,
};

const LIMIT: CpuLimit = CpuLimit::Millicpu(100);
const CONTAINER: CgroupId = CgroupId(495_687);
const POD: CgroupId = CgroupId(495_673);
/// The counters' readings around the recording's two requests.
const FROM: MonoNs = MonoNs(8_949_200_000_000);
const UNTIL: MonoNs = MonoNs(8_951_280_000_000);
/// What the kernel's counters grew by between them, as the recording's timers show them: `nr_periods`, `nr_throttled`,
/// `throttled_time`. It has no reading of `cpu.stat.local`.
const CONTAINER_GREW: [u64; 3] = [15, 10, 137_381_812];
const POD_GREW: [u64; 3] = [16, 11, 965_517_907];

fn golden(kind: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/golden/nested.{kind}"));
    fs::read_to_string(path).expect("a recording")
}

fn clock(at: MonoNs) -> ClockAnchor {
    ClockAnchor { monotonic_ns: at.0, boottime_ns: at.0, realtime_ns: 0, error_ns: 0 }
}

fn plan() -> SweepPlan {
    SweepPlan { limits: vec![LIMIT], requests: 2, ..SweepPlan::default() }
}

fn head(plan: SweepPlan) -> Head {
    let environment = Environment {
        kernel: "6.18.0".into(),
        machine: "x86_64".into(),
        cpus: 2,
        cpu_model: None,
        hz: Some(1000),
        cgroup_version: Version::V1,
        era: Era::Task,
        counts_from: CountsFrom::Task,
        csd_tracepoints: true,
        slice_us: None,
        clocksource: None,
        load_before: None,
        program: "0".into(),
        git_commit: None,
        clock: clock(FROM),
    };
    Head { schema: SCHEMA, plan, requirements: vec![], environment }
}

fn levels(at: MonoNs, grown: bool) -> Vec<LevelReading> {
    let reading = |level, id: CgroupId, stat: [u64; 3]| {
        let value = |value: u64| if grown { value } else { 0 };
        let names = ["nr_periods", "nr_throttled", "throttled_time"];
        let stat = names.iter().map(|&name| name.to_owned()).zip(stat.map(value)).collect();
        let figures = Figures { version: Version::V1, stat, local: None };
        let counters = Counters { cgroup_id: id.0, read_from_ns: at, read_until_ns: at, figures };
        LevelReading { level, cgroup_id: id, counters }
    };
    vec![reading(LevelName::Container, CONTAINER, CONTAINER_GREW), reading(LevelName::Pod, POD, POD_GREW)]
}

fn begin(limit: CpuLimit) -> RawLine {
    let setting: Value = serde_json::from_str(&golden("setting.json")).expect("a setting");
    RawLine::LimitBegin(LimitBegin {
        limit,
        bandwidth: limit.bandwidth(100_000, 0).expect("a limit"),
        levels: levels(FROM, false),
        paths: serde_json::from_value(setting["paths"].clone()).expect("paths"),
        quiet: true,
        stolen_ns: None,
        clock: clock(FROM),
    })
}

fn requests(limit: CpuLimit) -> Vec<RawLine> {
    let servers = golden("requests.jsonl").lines().map(|line| serde_json::from_str(line).expect("a span")).collect();
    let servers: Vec<ServerSpan> = servers;
    (0..)
        .zip(servers)
        .map(|(request, server)| {
            let sent_ns = MonoNs(server.accepted_ns.0 - 1_000);
            let received_ns = MonoNs(server.finished_ns.0 + 1_000);
            let outcome = Outcome::Ok { server };
            let span = RequestSpan { request, stream: 0, due_ns: sent_ns, sent_ns, received_ns, outcome };
            RawLine::Request { limit, span }
        })
        .collect()
}

fn end(limit: CpuLimit, ending: Ending) -> RawLine {
    RawLine::LimitEnd(LimitEnd {
        limit,
        levels: Some(levels(UNTIL, true)),
        quiet: true,
        stolen_ns: None,
        losses: Losses::default(),
        clock: clock(UNTIL),
        ending,
    })
}

fn whole() -> Vec<RawLine> {
    [vec![begin(LIMIT)], requests(LIMIT), vec![end(LIMIT, Ending::Complete)]].concat()
}

/// A run folder of these lines, with the recording's events for the first limit.
fn run_of(plan: SweepPlan, lines: &[RawLine]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run");
    let run = RunDir::create(&path, &head(plan)).expect("made");
    let mut record = run.record().expect("opened");
    lines.iter().for_each(|line| record.write(line).expect("written"));
    let mut events = run.events(LIMIT).expect("opened");
    for line in golden("jsonl").lines() {
        events.write(&serde_json::from_str::<Event>(line).expect("an event")).expect("written");
    }
    events.finish().expect("written");
    (dir, path)
}

fn report(run: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throttle")).arg("report").arg(run).output().expect("throttle starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn derived(run: &Path) -> Vec<String> {
    let names = ["runs.jsonl", "periods.jsonl", "summary.json", "report.md"];
    names.iter().map(|name| fs::read_to_string(run.join(name)).expect("a derived file")).collect()
}

/// The run's record with one line changed as JSON.
fn edited(run: &Path, line: usize, change: impl FnOnce(&mut Value)) {
    let path = run.join("raw/record.jsonl");
    let text = fs::read_to_string(&path).expect("the record");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut value = serde_json::from_str(&lines[line - 1]).expect("JSON");
    change(&mut value);
    lines[line - 1] = value.to_string();
    fs::write(path, lines.join("\n") + "\n").expect("written");
}

fn assert_refused(run: &Path, because: &[&str]) {
    let output = report(run);
    assert_eq!(output.status.code(), Some(2), "{because:?}: {}{}", shown(&output), said(&output));
    for because in because {
        assert!(said(&output).contains(because), "{because}: {}", said(&output));
    }
    assert_eq!(shown(&output), "");
}

#[test]
fn a_run_that_is_right_ends_with_0_and_is_derived_again_byte_for_byte() {
    let (_dir, run) = run_of(plan(), &whole());
    let output = report(&run);
    assert_eq!(output.status.code(), Some(0), "{}{}", shown(&output), said(&output));
    assert!(shown(&output).contains("agrees") && !shown(&output).contains("Not run"), "{}", shown(&output));
    let first = derived(&run);
    assert_eq!(report(&run).status.code(), Some(0));
    assert_eq!(derived(&run), first);
}

#[test]
fn each_request_line_has_the_bracket_that_its_verdict_rests_on() {
    let (_dir, run) = run_of(plan(), &whole());
    report(&run);
    let lines: Vec<Value> = derived(&run)[0].lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ns = |line: &Value, field: &str| line[field].as_u64().unwrap_or_else(|| panic!("{field} of {line}"));
    let inside = lines.iter().filter(|line| line["type"] == "request").filter(|line| {
        let net = ns(line, "cpu_time_ns") + ns(line, "throttled_own_ns") + ns(line, "throttled_ancestor_ns");
        let net = net.min(ns(line, "wall_ns"));
        (ns(&line["model"], "low_ns")..=ns(&line["model"], "high_ns")).contains(&net)
    });
    let limit = lines.iter().find(|line| line["type"] == "limit").expect("a limit");
    assert_eq!(inside.count() as u64, ns(&limit["model"], "inside"));
    assert_eq!(limit["model"]["how"], "predicts");
}

#[test]
fn a_line_twice_or_of_no_limit_is_refused_with_its_number() {
    let lines = whole();
    let other = CpuLimit::Millicpu(300);
    let twice = |line: usize| [&lines[..=line], &lines[line..]].concat();
    for (lines, because) in [
        (twice(0), "line 2: limit 100m begins a second time"),
        (twice(1), "line 3: request 0 of limit 100m is there a second time"),
        (twice(3), "line 5: an end of limit 100m, which has ended already"),
        (
            [&lines[..1], &requests(other)[..1], &lines[1..]].concat(),
            "line 2: request 0 of limit 300m, which never began",
        ),
        ([&lines[..], &[end(other, Ending::Complete)]].concat(), "line 5: an end of limit 300m, which never began"),
        ([&lines[..], &lines[1..2]].concat(), "line 5: request 0 of limit 100m, which has ended already"),
        ([&lines[..], &[begin(other)]].concat(), "line 5: limit 300m begins after the last one of the plan"),
        ([&[begin(other)], &lines[..]].concat(), "line 1: limit 300m begins where the plan has 100m"),
    ] {
        let (_dir, run) = run_of(plan(), &lines);
        assert_refused(&run, &[because, "raw/record.jsonl", "restore it, or take the line out"]);
    }
}

#[test]
fn a_line_changed_by_hand_is_refused_with_its_number_and_what_is_wrong() {
    type Change = fn(&mut Value);
    let edits: [(usize, Change, &str); 10] = [
        (1, |line| line["levels"] = json!([]), "line 1: its levels are []"),
        (1, |line| line["bandwidth"]["period_us"] = json!(50_000), "line 1: limit 100m begins with"),
        (1, |line| line["levels"][0]["cgroup_id"] = json!(7), "line 1: the Container is cgroup 7"),
        (
            2,
            |line| line["span"]["server"]["finished_ns"] = json!(1),
            "line 2: request 0: finished at 1 is before started",
        ),
        (
            2,
            |line| line["span"]["server"]["workers"] = json!([]),
            "line 2: request 0: 60000000 ns of work on 0 threads",
        ),
        (
            2,
            |line| line["span"]["received_ns"] = json!(u64::MAX),
            "line 2: request 0 was answered more than a year after",
        ),
        (
            2,
            |line| line["span"]["server"]["workers"][0]["cpu_time_ns"] = json!(u64::MAX),
            "line 2: request 0: thread 29274 used",
        ),
        (
            3,
            |line| line["span"]["request"] = json!(2),
            "line 3: request 2 of stream 0 is not in the plan of 2 requests",
        ),
        (3, |line| line["span"]["sent_ns"] = json!(5), "line 3: request 1: sent at 5 is before counters read"),
        (
            4,
            |line| line["levels"][0]["counters"]["read_from_ns"] = json!(5),
            "line 4: limit 100m ends before its last request",
        ),
    ];
    for (line, change, because) in edits {
        let (_dir, run) = run_of(plan(), &whole());
        edited(&run, line, change);
        assert_refused(&run, &[because, "raw/record.jsonl"]);
    }
}

#[test]
fn what_is_no_line_of_a_record_is_named_by_line_and_column_once() {
    let (_dir, run) = run_of(plan(), &whole());
    edited(&run, 2, |line| line["limit"] = json!("10"));
    let text = fs::read(run.join("raw/record.jsonl")).expect("the record");
    assert_eq!(report(&run).status.code(), Some(2));
    for (broken, line) in [(&b"{\"type\":\xff}\n"[..], "line 1,"), (b"nonsense\n", "line 1,")] {
        fs::write(run.join("raw/record.jsonl"), [broken, &text].concat()).expect("written");
        assert_refused(&run, &["raw/record.jsonl", line, "column"]);
        assert_eq!(said(&report(&run)).matches("line ").count(), 1, "{}", said(&report(&run)));
    }
}

#[test]
fn a_head_without_a_schema_or_with_another_is_no_run_of_ours() {
    let (_dir, run) = run_of(plan(), &whole());
    let head = fs::read_to_string(run.join("run.json")).expect("the head");
    for (from, to, because) in [
        ("\"schema\": 1,", "", "has no number `schema`"),
        ("\"schema\": 1,", "\"schema\": 9,", "has schema 9, this program reads 1"),
        ("\"requests\": 2,", "\"requests\": 0,", "--requests is 0"),
        ("\"requests\": 2,", "\"requests\": \"2\",", "run.json line "),
    ] {
        assert!(head.contains(from));
        fs::write(run.join("run.json"), head.replace(from, to)).expect("written");
        assert_refused(&run, &["run.json", because]);
    }
}

#[test]
fn events_of_a_limit_that_was_not_run_are_refused_by_name() {
    let (_dir, run) = run_of(plan(), &whole());
    File::create(run.join("raw/events-300m.jsonl.gz")).expect("made");
    assert_refused(&run, &["raw/events-300m.jsonl.gz belongs to no limit"]);
}

#[test]
fn an_event_twice_is_refused_with_its_line() {
    let (_dir, run) = run_of(plan(), &whole());
    let dir = RunDir::open::<Head>(&run).expect("a run").0;
    let mut events = dir.events(LIMIT).expect("opened");
    for (line, text) in golden("jsonl").lines().enumerate() {
        let event: Event = serde_json::from_str(text).expect("an event");
        (0..1 + usize::from(line == 6)).for_each(|_| events.write(&event).expect("written"));
    }
    events.finish().expect("written");
    assert_refused(&run, &["raw/events-100m.jsonl.gz line 8: event", "comes after its event"]);
}

#[test]
fn without_events_what_they_tell_is_not_measured_and_not_zero() {
    let events = |run: &Path| run.join("raw/events-100m.jsonl.gz");
    let missing: fn(&Path) = |path| fs::remove_file(path).expect("removed");
    let empty: fn(&Path) = |path| drop(File::create(path).expect("emptied"));
    for take_away in [missing, empty] {
        let (_dir, run) = run_of(plan(), &whole());
        take_away(&events(&run));
        let output = report(&run);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let text = shown(&output);
        assert!(text.contains("? not measured") && !text.contains(" 0.0"), "{text}");
        assert!(text.contains("100m: not compared with the kernel's counters: there are no events of it"), "{text}");
        let runs = &derived(&run)[0];
        let limit: Value = serde_json::from_str(runs.lines().last().expect("a limit")).expect("JSON");
        assert_eq!((&limit["throttled_wall_ns"], &limit["levels"][0]["observed"]), (&Value::Null, &Value::Null));
        let request: Value = serde_json::from_str(runs.lines().next().expect("a request")).expect("JSON");
        assert_eq!(request["unknown_ns"], request["wall_ns"]);
    }
}

#[test]
fn events_cut_off_are_used_as_far_as_they_go_and_said_so() {
    let (_dir, run) = run_of(plan(), &whole());
    let path = run.join("raw/events-100m.jsonl.gz");
    let bytes = fs::read(&path).expect("events");
    fs::write(&path, &bytes[..bytes.len() * 3 / 4]).expect("cut");
    let output = report(&run);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(shown(&output).contains("the file of its events is cut off"), "{}", shown(&output));
    fs::write(&path, [&bytes[..bytes.len() / 2], b"xxxx", &bytes[bytes.len() / 2..]].concat()).expect("damaged");
    assert_refused(&run, &["raw/events-100m.jsonl.gz", "line "]);
}

#[test]
fn a_run_cut_short_says_what_is_missing_and_ends_with_1() {
    let planned = SweepPlan { limits: vec![LIMIT, CpuLimit::Unlimited], requests: 3, ..plan() };
    let lines = [vec![begin(LIMIT)], requests(LIMIT), vec![end(LIMIT, Ending::Interrupted)]].concat();
    for (lines, words) in [
        (&lines[..], "100m: interrupted after 2 of 3 requests"),
        (&lines[..3], "100m: broke off after 2 of 3 requests: the run was killed during this limit"),
    ] {
        let (_dir, run) = run_of(planned.clone(), lines);
        let output = report(&run);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let text = shown(&output);
        assert!(text.contains("2/3") && text.contains(words) && text.contains("Not run: unlimited."), "{text}");
    }
}

#[test]
fn a_run_killed_before_its_first_limit_shows_no_empty_table() {
    let (_dir, run) = run_of(plan(), &[]);
    let output = report(&run);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(shown(&output).starts_with("Nothing was measured: the run ended before its first limit began."));
    assert_eq!(shown(&output).lines().count(), 1, "{}", shown(&output));
}

#[test]
fn a_folder_that_cannot_be_written_still_shows_the_table_and_leaves_no_halves() {
    let (_dir, run) = run_of(plan(), &whole());
    // A folder where a file is to be: refused to root too.
    fs::create_dir_all(run.join("summary.json/x")).expect("made");
    let output = report(&run);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(shown(&output).contains("agrees"), "{}", shown(&output));
    assert!(said(&output).contains("cannot write") && said(&output).contains("summary.json"), "{}", said(&output));
    assert!(!said(&output).contains("--out"), "{}", said(&output));
    assert!(!run.join(".summary.json.new").exists());
}

#[test]
fn a_run_that_recorded_nothing_takes_only_its_own_files_away() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("raw")).expect("made");
    fs::write(dir.path().join("raw/mine.txt"), "kept").expect("written");
    let run = RunDir::create(dir.path(), &head(plan())).expect("made");
    run.record().expect("opened");
    run.events(LIMIT).expect("opened");
    run.discard(&head(plan()));
    let left: Vec<PathBuf> =
        fs::read_dir(dir.path().join("raw")).expect("there").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(left, [dir.path().join("raw/mine.txt")]);
    assert!(!dir.path().join("run.json").exists());
}

#[test]
fn the_last_line_cut_off_by_a_kill_is_left_out() {
    let (_dir, run) = run_of(plan(), &whole()[..2]);
    let mut record = File::options().append(true).open(run.join("raw/record.jsonl")).expect("opened");
    record.write_all(br#"{"type":"request","limit":"100m","sp"#).expect("written");
    let output = report(&run);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(shown(&output).contains("1/2"), "{}", shown(&output));
}
