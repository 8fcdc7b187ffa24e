//! The report of `throttle run`, from a timeline made by hand to the text: needs no kernel.

use std::collections::BTreeMap;

use throttle_user::{
    cgroup::{Bandwidth, Counters, CpuLimit, Figures, LevelName, Nesting, Quota, Version},
    event::{CgroupId, Era, Losses},
    report::command::{Shown, text},
    run::{
        Kept,
        command::{CommandRun, CommandStatus, RawCommand, explain},
        derive::RawLimit,
        environment::Environment,
        record::{Ending, LevelReading, LimitBegin, LimitEnd},
    },
    time::{ClockAnchor, DurationNs, MonoNs},
    timeline::{
        CountsFrom, Timeline,
        boundary::Boundary,
        interval::{Span, Spans},
        level::{EndedBy, HierarchyThrottle, Throttle},
        thread::{Segment, State, ThreadLine},
    },
};

const CONTAINER: CgroupId = CgroupId(20);
const POD: CgroupId = CgroupId(10);
const RUN: State = State::Running { cpu: 0 };
const HELD: State = State::Throttled { cpu: 0 };
const ALL: Shown = Shown { threads: 10, periods: 40 };

fn ms(at: u64) -> MonoNs {
    MonoNs(at * 1_000_000)
}

fn span(from: u64, to: u64) -> Span {
    Span::new(ms(from), ms(to))
}

fn line(parts: &[(u64, u64, State)]) -> ThreadLine {
    let segments = parts
        .iter()
        .map(|&(from, to, state)| Segment { span: span(from, to), state, uncharged: DurationNs::ZERO })
        .collect();
    ThreadLine::in_one(CONTAINER, segments)
}

fn throttle(cgroup: CgroupId, from: u64, to: u64) -> Throttle {
    Throttle {
        cgroup,
        cpu: 0,
        marked: ms(from),
        start: Some(ms(from)),
        end: Some(ms(to)),
        ended_by: Some(EndedBy::Period),
        complete: true,
    }
}

fn boundary(due: u64, throttled_cpus: u32) -> Boundary {
    Boundary {
        due: ms(due),
        entry: ms(due),
        exit: ms(due),
        periods: 1,
        quota: Some(DurationNs::from_millis(20)),
        period: DurationNs::from_millis(100),
        burst: DurationNs::ZERO,
        pool_left: DurationNs::ZERO,
        throttled_cpus,
        marked_cpus: throttled_cpus,
        truncated: false,
        active: true,
        inferred: false,
        kernel: None,
    }
}

/// The command starts at 1030 on a grid of hundreds. Thread 7 runs 20, is held by its container, runs 20, is held by the pod
/// then runs, waits for a CPU and sleeps over three periods; thread 8 joins at the end.
fn timeline() -> Timeline {
    let first = line(&[
        (1_000, 1_030, State::Blocked),
        (1_030, 1_050, RUN),
        (1_050, 1_100, HELD),
        (1_100, 1_120, RUN),
        (1_120, 1_200, HELD),
        (1_200, 1_210, RUN),
        (1_210, 1_215, State::Waiting { cpu: 0 }),
        (1_215, 1_610, State::Blocked),
        (1_610, 1_612, State::Unknown),
        (1_612, 1_620, RUN),
    ]);
    let second = line(&[(1_600, 1_610, State::Running { cpu: 1 }), (1_610, 1_620, State::Throttled { cpu: 1 })]);
    let held =
        |cgroup, from, to| HierarchyThrottle { cgroup, cpu: 0, start: ms(from), end: Some(ms(to)), complete: true };
    Timeline {
        span: Some(span(900, 2_000)),
        throttles: vec![throttle(CONTAINER, 1_050, 1_100), throttle(POD, 1_120, 1_200)],
        hierarchy: vec![held(CONTAINER, 1_050, 1_100), held(CONTAINER, 1_120, 1_200), held(POD, 1_120, 1_200)],
        threads: BTreeMap::from([(7, first), (8, second), (9, line(&[(950, 960, RUN)]))]),
        boundaries: BTreeMap::from([
            (CONTAINER, vec![boundary(1_100, 1), boundary(1_200, 0), boundary(1_300, 0), boundary(1_700, 0)]),
            (POD, vec![boundary(1_100, 0), boundary(1_200, 1), boundary(1_300, 0), boundary(1_700, 0)]),
        ]),
        idle: BTreeMap::from([(0, Spans::union([span(1_050, 1_090)])), (1, Spans::union([span(900, 1_600)]))]),
        idle_unknown: Spans::default(),
        ..Timeline::default()
    }
}

fn reading(level: LevelName, id: CgroupId, at: MonoNs, stat: [u64; 3], local: u64) -> LevelReading {
    let names = ["nr_periods", "nr_throttled", "throttled_time"];
    let stat = names.iter().map(|&name| name.to_owned()).zip(stat).collect();
    let local = Some([("throttled_time".to_owned(), local)].into_iter().collect());
    let figures = Figures { version: Version::V1, stat, local };
    LevelReading {
        level,
        cgroup_id: id,
        counters: Counters { cgroup_id: id.0, read_from_ns: at, read_until_ns: at, figures },
    }
}

fn raw(container_throttled: u64) -> RawCommand {
    let clock = ClockAnchor { monotonic_ns: 0, boottime_ns: 0, realtime_ns: 0, error_ns: 0 };
    let limit = CpuLimit::Millicpu(200);
    let before = vec![
        reading(LevelName::Container, CONTAINER, ms(1_020), [0; 3], 0),
        reading(LevelName::Pod, POD, ms(1_020), [0; 3], 0),
    ];
    let after = vec![
        reading(LevelName::Container, CONTAINER, ms(1_990), [4, 1, container_throttled], 130_000_000),
        reading(LevelName::Pod, POD, ms(1_990), [4, 1, 80_000_000], 80_000_000),
    ];
    RawCommand {
        command: vec!["sh".into(), "-c".into(), "it's \u{1b}[31m".into()],
        pid: 7,
        nesting: Nesting::Nested,
        limits_above: vec![],
        environment: Environment {
            kernel: "6.18.0".into(),
            machine: "x86_64".into(),
            cpus: 2,
            cpu_model: None,
            hz: Some(250),
            cgroup_version: Version::V1,
            era: Era::Task,
            counts_from: CountsFrom::Task,
            csd_tracepoints: true,
            slice_us: Some(5_000),
            clocksource: None,
            load_before: None,
            program: "0".into(),
            git_commit: None,
            clock,
        },
        limit: RawLimit {
            begin: LimitBegin {
                limit,
                bandwidth: Bandwidth { quota: Quota::Us(20_000), period_us: 100_000, burst_us: 0 },
                levels: before,
                paths: vec![vec![CONTAINER, POD], vec![POD]],
                quiet: true,
                stolen_ns: None,
                clock,
            },
            spans: vec![],
            end: Some(LimitEnd {
                limit,
                levels: Some(after),
                quiet: true,
                stolen_ns: None,
                losses: Losses::default(),
                clock,
                ending: Ending::Complete,
            }),
            kept: Kept::All,
        },
        started_ns: ms(1_030),
        ended_ns: ms(1_620),
        status: CommandStatus::Exited { code: 3 },
        names: BTreeMap::from([(7, "sh".to_owned())]),
        killed: 1,
    }
}

fn explained(raw: RawCommand) -> CommandRun {
    let setting = raw.limit.begin.setting(&raw.environment);
    explain(raw, &timeline(), &setting)
}

#[test]
fn the_report_of_a_timeline_made_by_hand() {
    let run = explained(raw(50_000_000));
    let text = text(&run, ALL);
    assert_eq!(text, EXPECTED, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

const EXPECTED: &str = r"throttle run: sh -c 'it'\''s ?[31m'
limit 200m on pod and container: 20 ms of CPU each 100 ms
Linux 6.18.0, 2 CPUs
exited with 3 after 0.590 s
1 process of it still ran when its main process ended; it was killed

CPU used               68.0 ms   0.115 CPUs on average, 58 % of the limit
throttled             140.0 ms   24 % of the wall time: a limit held some thread
  fully               132.0 ms   94 % of that: no thread ran meanwhile
  by container         50.0 ms   its quota was out; summed over CPUs
  by pod               80.0 ms   its quota was out; summed over CPUs
idle CPU denied       130.0 ms   idle while threads were held; CPUs 61 % idle
run-queue wait          5.0 ms   runnable and not held; summed over threads
unknown                 2.0 ms   not seen; summed over threads

Threads' time in ms, most throttled first
                         on  throttled  throttled     run
    tid command         CPU        own   ancestor   queue   blocked  unknown
      7 sh             58.0       50.0       80.0     5.0     395.0      2.0
      8 (exited)       10.0        0.0       10.0     0.0       0.0      0.0
(exited): exited before it was named

Periods of the container, ms: 4 counted, 2 with a quota out
                         CPU   quota out   threads held  idle CPU  level
       at used of quota used    at    for   some    all    denied  out
    -30.0 [##########]  20.0  50.0   50.0   50.0   50.0      50.0  container
     70.0 [##########]  20.0  20.0   80.0   80.0   80.0      80.0  pod
    170.0 [#####.....]  10.0     -    0.0    0.0    0.0       0.0
      ... 300.0 ms without use, not counted
    570.0 [#########.]  18.0     -    0.0   10.0    2.0       0.0 (not whole)
  at: from the command's start to the period's. quota out at: from there until a
  quota was out on some CPU (0.0: since before); for: how long it was

Limit needed not to be throttled: 500m
  throttled time taken out, it would use up to 50.0 ms of CPU in any 100 ms
Kernel's counters: agree (periods and throttled time at each level)
";

#[test]
fn shares_sum_to_each_threads_life_and_a_thread_of_before_is_left_out() {
    let run = explained(raw(50_000_000));
    assert_eq!(run.threads.iter().map(|row| row.tid).collect::<Vec<_>>(), [7, 8]);
    for row in &run.threads {
        assert_eq!(row.shares.total(), row.life_ns, "{row:?}");
    }
    assert_eq!(run.shares.total(), DurationNs::from_millis(590 + 20));
}

#[test]
fn a_difference_from_the_kernel_is_told_in_words() {
    let said = text(&explained(raw(60_000_000)), ALL);
    let told = "Kernel's counters: differ\n  container own throttled time:\n    observed 50.000 ms, kernel 60.000 ms, \
                10.000 ms apart (within 0.060)\n";
    assert!(said.contains(told), "{said}");
}

#[test]
fn what_is_not_shown_is_counted() {
    let said = text(&explained(raw(50_000_000)), Shown { threads: 1, periods: 2 });
    assert!(said.contains("and 1 more: on CPU 10.0 ms, throttled 10.0 ms together"), "{said}");
    assert!(said.contains("... 2 more: used 30.0 ms, held 80.0 ms together"), "{said}");
    let none = text(&explained(raw(50_000_000)), Shown { threads: 0, periods: 0 });
    assert!(none.contains("and 2 more:") && none.contains("... 4 more:"), "{none}");
}

#[test]
fn names_of_another_pid_namespace_are_not_taken() {
    let run = explained(RawCommand { pid: 70, ..raw(50_000_000) });
    assert!(run.threads.iter().all(|row| row.comm.is_none()));
    let said = text(&run, ALL);
    assert!(said.contains("      8 ? ") && said.contains("not those of this pid namespace"), "{said}");
}

#[test]
fn of_a_command_shorter_than_a_period_the_limit_has_no_percentage() {
    let run = explained(RawCommand { ended_ns: ms(1_080), ..raw(50_000_000) });
    assert_eq!(run.cpus_used_over_limit, None);
    assert!(
        text(&run, ALL).contains("0.400 CPUs on average, - % of the limit (under a period)"),
        "{}",
        text(&run, ALL)
    );
}

#[test]
fn where_more_events_came_than_may_be_kept_the_report_is_about_the_time_before() {
    let mut raw = raw(50_000_000);
    raw.limit.kept = Kept::Until { until: ms(1_325), more: Some(17) };
    let run = explained(raw);
    assert_eq!((run.wall_ns, run.observed_ns), (DurationNs::from_millis(590), DurationNs::from_millis(295)));
    assert_eq!(run.threads.iter().map(|row| row.tid).collect::<Vec<_>>(), [7]);
    let said = text(&run, ALL);
    assert!(said.contains("exited with 3 after 0.590 s\nobserved for the first 0.295 s:"), "{said}");
    assert!(said.contains("not compared:\n  17 events came after the last one that could be kept"), "{said}");
    assert!(said.contains("44 % of the wall time"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

#[test]
fn a_killed_command_is_named_by_its_signal_and_keeps_the_shells_code() {
    let status = CommandStatus::Killed { signal: 15 };
    assert_eq!(status.exit_code(), 143);
    let said = text(&explained(RawCommand { status, ..raw(50_000_000) }), ALL);
    assert!(said.contains("killed by SIGTERM (signal 15) after 0.590 s"), "{said}");
}

#[test]
fn the_json_reads_back_the_same() {
    let run = explained(raw(50_000_000));
    let text = serde_json::to_string(&run).expect("JSON");
    assert_eq!(serde_json::from_str::<CommandRun>(&text).expect("reads"), run);
}
