//! Run folders made from a recording of a real kernel (`tests/data/golden/nested`): two requests under 100m on a pod and its
//! container.

use std::{fs, path::PathBuf};

use serde_json::Value;
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

pub(crate) const LIMIT: CpuLimit = CpuLimit::Millicpu(100);
const CONTAINER: CgroupId = CgroupId(495_687);
const POD: CgroupId = CgroupId(495_673);
/// The counters' readings around the recording's two requests.
const FROM: MonoNs = MonoNs(8_949_200_000_000);
const UNTIL: MonoNs = MonoNs(8_951_280_000_000);
/// What the kernel's counters grew by between them, as the recording's timers show them: `nr_periods`, `nr_throttled`,
/// `throttled_time`. It has no reading of `cpu.stat.local`.
const CONTAINER_GREW: [u64; 3] = [15, 10, 137_381_812];
const POD_GREW: [u64; 3] = [16, 11, 965_517_907];

pub(crate) fn golden(kind: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/golden/nested.{kind}"));
    fs::read_to_string(path).expect("a recording")
}

fn clock(at: MonoNs) -> ClockAnchor {
    ClockAnchor { monotonic_ns: at.0, boottime_ns: at.0, realtime_ns: 0, error_ns: 0 }
}

pub(crate) fn plan() -> SweepPlan {
    SweepPlan { limits: vec![LIMIT], requests: 2, ..SweepPlan::default() }
}

pub(crate) fn head(plan: SweepPlan) -> Head {
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

pub(crate) fn begin(limit: CpuLimit) -> RawLine {
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

pub(crate) fn requests(limit: CpuLimit) -> Vec<RawLine> {
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

pub(crate) fn end(limit: CpuLimit, ending: Ending) -> RawLine {
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

pub(crate) fn whole() -> Vec<RawLine> {
    [vec![begin(LIMIT)], requests(LIMIT), vec![end(LIMIT, Ending::Complete)]].concat()
}

/// A run folder of these lines, with the recording's events for the first limit.
pub(crate) fn run_of(plan: SweepPlan, lines: &[RawLine]) -> (TempDir, PathBuf) {
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
