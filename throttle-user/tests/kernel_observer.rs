//! The observer against the running kernel's own counters, case by case, each bracketed by two readings with quiet before and
//! after. Needs root, the cpu controller and a kernel with BTF; without them these tests fail.

mod observed;

use std::{
    fs,
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use observed::{Bench, Look, PLACE, ROLE, finish, limited, mentions, nr_throttled, one_at_a_time, start, until};
use throttle_user::{
    attribution::Attribution,
    cgroup::{Bandwidth, Group, LevelName, Nesting},
    event::CgroupId,
    request::{ServerSpan, WorkerSpan},
    run::agree::Quantity,
    time::DurationNs,
    timeline::{
        level::EndedBy,
        period::records,
        thread::{State, ThreadLine},
    },
    workload::{Burner, join_cgroup},
};

/// One limited group, one workload.
fn flat(case: &str, bandwidth: Bandwidth, role: &str) -> observed::Observed {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    bandwidth.write(&levels[0].1).expect("a limit");
    let seen = bench.observe(&levels, Look::default(), || finish(start(role, &levels[0].1)));
    seen.assert_agrees(case);
    assert!(seen.nr_throttled(LevelName::Container) >= 2, "{case}: {:?}", seen.line.levels);
    seen
}

#[test]
fn kernel_one_spinner_under_a_flat_limit_agrees() {
    let seen = flat("one spinner", limited(20, 100), "burn 1 200");
    assert!(seen.timeline.threads.values().flat_map(ThreadLine::throttled).count() >= 5);
}

#[test]
fn kernel_spinners_on_both_cpus_agree() {
    flat("two spinners", limited(40, 100), "burn 2 200");
}

#[test]
fn kernel_a_period_of_10_ms_agrees() {
    flat("period of 10 ms", limited(2, 10), "burn 1 150");
}

#[test]
fn kernel_a_period_of_1_s_agrees() {
    flat("period of 1 s", limited(100, 1_000), "burn 1 220");
}

#[test]
fn kernel_burst_agrees() {
    flat("burst", Bandwidth { burst_us: 20_000, ..limited(20, 100) }, "bursts 8");
}

#[test]
fn kernel_a_spinner_beside_a_sleeper_that_wakes_often_agrees() {
    flat("spinner and sleeper", limited(30, 100), "doze 1 200");
}

#[test]
fn kernel_a_fork_storm_agrees() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    limited(30, 100).write(&levels[0].1).expect("a limit");
    let seen = bench.observe(&levels, Look::default(), || finish(shell(&levels[0].1, FORKS)));
    seen.assert_agrees("fork storm");
    assert!(seen.timeline.threads.len() > 200, "{}", seen.timeline.threads.len());
    assert!(seen.nr_throttled(LevelName::Container) >= 2);
}

const FORKS: &str = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done";

/// A shell that moves itself into a group and runs a script there.
fn shell(group: &Group, script: &str) -> std::process::Child {
    Command::new("sh")
        .args(["-c", &format!(r#"echo $$ > "$0" && {{ {script}; }}"#)])
        .arg(group.path().join("cgroup.procs"))
        .spawn()
        .expect("a shell")
}

/// Pod and container with these limits, two spinners in the container.
fn nested(case: &str, pod: Bandwidth, container: Bandwidth) -> observed::Observed {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Nested);
    let levels = bench.levels();
    pod.write(&levels[1].1).expect("a limit");
    container.write(&levels[0].1).expect("a limit");
    let seen = bench.observe(&levels, Look::default(), || finish(start("burn 2 150", &levels[0].1)));
    seen.assert_agrees(case);
    seen
}

#[test]
fn kernel_a_parent_that_runs_out_agrees() {
    let seen = nested("parent", limited(30, 100), Bandwidth::UNLIMITED);
    assert!(seen.nr_throttled(LevelName::Pod) >= 3);
    assert_eq!(seen.nr_throttled(LevelName::Container), 0);
    assert!(seen.line.checks.iter().any(|check| check.quantity == Quantity::ThrottledTime && check.kernel > 0));
}

#[test]
fn kernel_a_child_that_runs_out_agrees() {
    let seen = nested("child", limited(150, 100), limited(30, 100));
    assert!(seen.nr_throttled(LevelName::Container) >= 3);
    assert_eq!(seen.nr_throttled(LevelName::Pod), 0);
}

#[test]
fn kernel_parent_and_child_that_both_run_out_agree() {
    let seen = nested("both", limited(30, 100), limited(30, 100));
    let out: u64 = [LevelName::Container, LevelName::Pod].into_iter().map(|level| seen.nr_throttled(level)).sum();
    assert!(out >= 5, "{:?}", seen.line.levels);
}

#[test]
fn kernel_levels_with_different_periods_agree() {
    let seen = nested("different periods", limited(30, 100), limited(2, 10));
    assert!(seen.nr_throttled(LevelName::Container) >= 3);
}

#[test]
fn kernel_a_limit_changed_and_removed_while_throttled_keeps_counts_and_bounds_times() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let group = levels[0].1.clone();
    limited(10, 100).write(&group).expect("a limit");
    // Without a limit nothing is seen unless it is asked for.
    let look = Look { unlimited: true, ..Look::default() };
    let seen = bench.observe(&levels, look, || {
        let child = start("burn 1 150", &group);
        let before = nr_throttled(&group);
        until("three throttled periods", || nr_throttled(&group) >= before + 3);
        limited(20, 100).write(&group).expect("a limit");
        let before = nr_throttled(&group);
        until("two throttled periods", || nr_throttled(&group) >= before + 2);
        limited(5, 50).write(&group).expect("a limit");
        let before = nr_throttled(&group);
        until("two throttled periods", || nr_throttled(&group) >= before + 2);
        Bandwidth::UNLIMITED.write(&group).expect("no limit");
        finish(child);
    });
    seen.assert_counts_agree("limit changed");
    let id = CgroupId(group.id().expect("an id"));
    let own: Vec<_> = seen.timeline.throttles.iter().filter(|throttle| throttle.cgroup == id).collect();
    assert!(own.iter().all(|throttle| throttle.end.is_some()), "{own:#?}");
    // The writer of a limit releases without any event: such a throttle is seen over at the next switch of the group, at most the
    // thread's wait for its CPU later.
    let later: Vec<_> = own.iter().filter(|throttle| throttle.ended_by == Some(EndedBy::Later)).collect();
    assert!(later.len() <= 4, "{own:#?}");
    let check = seen.line.checks.iter().find(|check| check.quantity == Quantity::ThrottledTime).expect("compared");
    let late: u64 = later.iter().map(|throttle| throttle.counted().0).sum();
    assert!(check.observed + check.tolerance >= check.kernel, "{check}");
    assert!(check.observed <= check.kernel + late + check.tolerance, "{check}, of it {late} ns ended unseen");
    // After the limit is gone the thread runs: it does not stay throttled in our eyes.
    let spinner = seen.timeline.threads.values().max_by_key(|line| line.throttled().count()).expect("a thread");
    // It waits for its CPU from the end of what it is charged to the switch.
    let last = spinner
        .segments
        .iter()
        .rev()
        .find(|segment| matches!(segment.state, State::Running { .. } | State::Throttled { .. } | State::Unknown));
    let last = last.expect("it lived");
    assert!(matches!(last.state, State::Running { .. }), "{:?}", spinner.segments);
}

#[test]
fn kernel_after_a_limit_is_lifted_nothing_is_claimed_of_a_group_that_is_not_looked_at() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let group = levels[0].1.clone();
    limited(10, 100).write(&group).expect("a limit");
    let seen = bench.observe(&levels, Look::default(), || {
        let child = start("burn 1 150", &group);
        let before = nr_throttled(&group);
        until("three throttled periods", || nr_throttled(&group) >= before + 3);
        Bandwidth::UNLIMITED.write(&group).expect("no limit");
        finish(child);
    });
    seen.assert_counts_agree("limit lifted");
    let spinner = seen.timeline.threads.values().max_by_key(|line| line.throttled().count()).expect("a thread");
    assert_eq!(spinner.segments.last().map(|last| last.state), Some(State::Unknown), "{:?}", spinner.segments);
}

#[test]
fn kernel_a_group_killed_and_removed_while_throttled_ends_cleanly() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let group = levels[0].1.clone();
    limited(5, 100).write(&group).expect("a limit");
    let path = bench.path(&group);
    let seen = bench.observe(&levels, Look::default(), || {
        let mut child = start("burn 1 10000", &group);
        let before = nr_throttled(&group);
        until("three throttled periods", || nr_throttled(&group) >= before + 3);
        child.kill().expect("killed");
        child.wait().expect("reaped");
        until("the group to be removable", || fs::remove_dir(group.path()).is_ok());
    });
    assert_eq!(seen.losses.total(), 0, "{:?}", seen.losses);
    let id = path[0];
    let boundaries = seen.timeline.boundaries_of(id);
    assert!(boundaries.iter().filter(|boundary| boundary.throttled()).count() >= 3, "{boundaries:?}");
    // The kernel's count at each timer run, beside ours: the counters cannot be read any more.
    let counted: Vec<u64> =
        boundaries.iter().filter_map(|boundary| boundary.kernel.map(|kernel| u64::from(kernel.nr_periods))).collect();
    let (first, last) = (counted.first().expect("one"), counted.last().expect("one"));
    let periods: u64 = boundaries.iter().map(|boundary| boundary.periods).sum();
    assert_eq!(last - first + boundaries[0].periods, periods);
    let alive = seen.timeline.threads.values().filter(|line| {
        line.segments.last().is_some_and(|last| last.span.end == seen.timeline.end() && last.state != State::Blocked)
    });
    assert_eq!(alive.count(), 0, "{:#?}", seen.timeline.threads);
}

#[test]
fn kernel_a_task_moved_between_groups_while_throttled_agrees_at_both() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let here = bench.scratch.container().clone();
    let there = bench.scratch.top().child("there");
    fs::create_dir(there.path()).expect("a second group");
    for group in [&here, &there] {
        limited(20, 100).write(group).expect("a limit");
    }
    // The two have no names of their own: they are two levels to compare.
    let levels = vec![(LevelName::Container, here.clone()), (LevelName::Pod, there.clone())];
    let seen = bench.observe(&levels, Look::default(), || {
        let child = start("burn 1 300", &here);
        for target in [&there, &here, &there] {
            let from = if target.path() == there.path() { &here } else { &there };
            let before = nr_throttled(from);
            until("two throttled periods", || nr_throttled(from) >= before + 2);
            target.add_process(child.id()).expect("moved");
        }
        finish(child);
    });
    seen.assert_agrees("moved task");
    assert!(seen.nr_throttled(LevelName::Container) >= 3 && seen.nr_throttled(LevelName::Pod) >= 3);
}

#[test]
fn kernel_loss_is_counted_exactly_and_marks_what_it_touches() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    limited(150, 100).write(&levels[0].1).expect("a limit");
    let look = Look { ring_bytes: 4_096, ..Look::default() };
    let seen = bench.observe(&levels, look, || finish(start("storm 30000", &levels[0].1)));
    assert!(seen.losses.total() > 0, "the ring held everything: {:?}", seen.losses);
    let mut trailing = 0;
    for cpu in &seen.losses.cpus {
        let received: Vec<_> = seen.events.iter().filter(|event| event.cpu == cpu.cpu).collect();
        let lost: u64 = cpu.lost.iter().map(|(_, count)| count).sum();
        assert_eq!(cpu.tried - received.len() as u64, lost, "{cpu:?}");
        let next = received.last().map_or(0, |last| u64::from(last.seq) + 1);
        trailing += cpu.tried - next;
    }
    let in_gaps: u64 = seen.timeline.gaps.iter().map(|gap| u64::from(gap.lost)).sum();
    assert_eq!(in_gaps + trailing, seen.losses.total());
    for gap in &seen.timeline.gaps {
        let of_cpu: Vec<_> = seen.events.iter().filter(|event| event.cpu == gap.cpu).collect();
        assert!(of_cpu.iter().any(|event| event.at == gap.span.end), "{gap:?} ends at no record");
    }
    // A request served through a gap is incomplete, and so is each period a gap lies in.
    let gap = seen.timeline.gaps.iter().max_by_key(|gap| gap.lost).expect("a gap");
    let leaf = CgroupId(levels[0].1.id().expect("an id"));
    let attribution = Attribution::new(&seen.timeline, &seen.setting, &leaf);
    let (&tid, _) = seen.timeline.threads.iter().max_by_key(|(_, line)| line.segments.len()).expect("a thread");
    let worker =
        WorkerSpan { tid, started_ns: gap.span.start, finished_ns: gap.span.end, cpu_time_ns: DurationNs::ZERO };
    let request = ServerSpan {
        accepted_ns: gap.span.start,
        started_ns: gap.span.start,
        finished_ns: gap.span.end,
        work_ns: DurationNs::ZERO,
        workers: vec![worker],
    };
    let share = attribution.explain(&request).expect("it has a worker");
    assert!(!share.complete);
    assert_eq!(share.shares.total(), share.wall_ns);
    let touched = records(&seen.timeline, &seen.setting, leaf);
    let touched: Vec<_> =
        touched.iter().filter(|period| period.start_ns < gap.span.end && gap.span.start < period.end_ns).collect();
    assert!(touched.iter().all(|period| !period.complete), "{touched:?}");
}

#[test]
fn kernel_an_unlimited_group_is_silent_unless_it_is_asked_for() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let id = CgroupId(levels[0].1.id().expect("an id"));
    let about = |unlimited: bool| {
        let look = Look { unlimited, ..Look::default() };
        let seen = bench.observe(&levels, look, || finish(start("doze 1 20", &levels[0].1)));
        assert_eq!(seen.losses.total(), 0);
        seen.events.iter().filter(|event| mentions(event, id)).count()
    };
    assert_eq!(about(false), 0);
    assert!(about(true) > 100);
}

/// What the tests above start this binary for, in its own process: a role, and the group to play it in.
#[test]
#[ignore = "started by the other tests as a process of its own"]
fn workload() {
    let role = std::env::var(ROLE).expect("started by a test");
    let place = std::env::var(PLACE).expect("started by a test");
    join_cgroup(Path::new(&place)).expect("the group takes this process");
    let words: Vec<&str> = role.split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let burner = Burner::calibrate();
    match words[0] {
        "burn" => together(number(1), || {
            burner.burn(DurationNs::from_millis(number(2)));
        }),
        // One or more burn while another wakes every half millisecond.
        "doze" => {
            let sleeper = thread::spawn(move || {
                for _ in 0..600 {
                    burner.burn(DurationNs::from_micros(50));
                    thread::sleep(Duration::from_micros(500));
                }
            });
            together(number(1), || {
                burner.burn(DurationNs::from_millis(number(2)));
            });
            sleeper.join().expect("the sleeper ends");
        }
        // Idle for a period, then more than a quota at once.
        "bursts" => {
            for _ in 0..number(1) {
                burner.burn(DurationNs::from_millis(45));
                thread::sleep(Duration::from_millis(110));
            }
        }
        // Two threads wake each other as fast as they can.
        "storm" => {
            let (ping, pinged) = mpsc::sync_channel::<()>(0);
            let (pong, ponged) = mpsc::sync_channel::<()>(0);
            let other = thread::spawn(move || while pinged.recv().is_ok() && pong.send(()).is_ok() {});
            let started = Instant::now();
            for _ in 0..number(1) {
                ping.send(()).expect("the other listens");
                ponged.recv().expect("the other answers");
                if started.elapsed() > Duration::from_secs(5) {
                    break;
                }
            }
            drop(ping);
            other.join().expect("the other ends");
        }
        other => panic!("no such role: {other}"),
    }
}

fn together(threads: u64, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}
