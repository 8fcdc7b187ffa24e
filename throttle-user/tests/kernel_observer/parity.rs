//! Ways to use up a limit: every figure agrees with the kernel's.

use std::process::Command;

use throttle_user::{
    cgroup::{Bandwidth, Group, LevelName, Nesting},
    event::{CgroupId, Event, What},
    run::agree::Quantity,
    time::DurationNs,
    timeline::thread::ThreadLine,
};

use crate::observed::{Bench, Look, Observed, finish, limited, mentions, one_at_a_time, start};

/// One limited group, one workload.
fn flat(case: &str, bandwidth: Bandwidth, role: &str) -> Observed {
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
fn nested(case: &str, pod: Bandwidth, container: Bandwidth) -> Observed {
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
fn kernel_a_spinner_that_moves_between_cpus_agrees() {
    let seen = flat("moves between CPUs", limited(30, 100), "roam 40");
    let moves = seen.events.iter().filter(|event| matches!(event.what, What::Migrate { .. })).count();
    assert!(moves >= 10, "{moves}");
}

#[test]
fn kernel_wakeups_into_a_group_that_is_out_of_quota_agree() {
    let seen = flat("wakeups while throttled", limited(30, 100), "enqueue 300");
    let late = |event: &&Event| matches!(&event.what, What::Wakeup { task, .. } if task.hierarchy);
    assert!(seen.events.iter().filter(late).count() >= 3, "nobody woke up while the group was throttled");
}

#[test]
fn kernel_bursts_shorter_than_what_a_cpu_keeps_agree_period_by_period() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Nested);
    let levels = bench.levels();
    for (_, group) in &levels {
        limited(40, 100).write(group).expect("a limit");
    }
    let seconds = std::env::var("THROTTLE_TEST_SECONDS").unwrap_or_else(|_| "12".to_owned());
    let seen = bench.observe(&levels, Look::default(), || finish(start(&format!("mixed {seconds}"), &levels[0].1)));
    seen.assert_agrees("short bursts");
    println!("{:#?}, untraced {}", seen.line.levels, seen.timeline.untraced);
}

#[test]
fn kernel_a_spinner_in_a_session_of_its_own_outside_of_any_group_is_no_business_of_ours() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    limited(30, 100).write(&levels[0].1).expect("a limit");
    let look = Look { edges: true, unlimited: true, ..Look::default() };
    let seen = bench.observe(&levels, look, || {
        // Where the kernel has autogroups, a session is one: a task group without a cgroup.
        let spinner = Command::new("setsid").args(["sh", "-c", "while :; do :; done"]).spawn();
        let mut spinner = spinner.expect("setsid starts a shell");
        finish(start("burn 1 200", &levels[0].1));
        spinner.kill().expect("it spins");
        spinner.wait().expect("it ends");
    });
    seen.assert_agrees("autogroup");
    assert!(
        !seen.events.iter().any(|event| !matches!(event.what, What::Attach { .. }) && mentions(event, CgroupId(0)))
    );
}

#[test]
fn kernel_a_real_time_thread_in_a_limited_group_is_never_held() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let group = levels[0].1.clone();
    limited(20, 100).write(&group).expect("a limit");
    // With CONFIG_RT_GROUP_SCHED a group has no real-time share until it is given one.
    let share = group.path().join("cpu.rt_runtime_us");
    if share.exists() && std::fs::write(&share, "200000").is_err() {
        eprintln!("SKIPPED: {} cannot be set: a group above has no real-time share to give", share.display());
        return;
    }
    let mut real_time = 0;
    let seen = bench.observe(&levels, Look::default(), || {
        let fair = start("burn 1 150", &group);
        let other = start("real-time 60", &group);
        real_time = other.id();
        finish(other);
        finish(fair);
    });
    seen.assert_agrees("real-time thread");
    let exempt = |event: &&Event| match &event.what {
        What::Switch { prev, next, .. } => [prev, next].into_iter().flatten().any(|side| side.exempt),
        _ => false,
    };
    assert!(seen.events.iter().filter(exempt).count() >= 2, "no real-time thread was seen");
    let ran = |tid: u32| seen.line(tid).running().map(|(_, span)| span.length()).sum::<DurationNs>();
    let threads: Vec<u32> = seen
        .events
        .iter()
        .filter_map(|event| match &event.what {
            What::Switch { next: Some(next), .. } if next.exempt => Some(next.thread),
            _ => None,
        })
        .collect();
    let spinner = threads.iter().copied().max_by_key(|&tid| ran(tid)).expect("one ran");
    assert!(ran(spinner) >= DurationNs::from_millis(50), "{real_time} {spinner}");
    let since = seen.events.iter().find_map(|event| match &event.what {
        What::Switch { next: Some(next), .. } if next.exempt && next.thread == spinner => Some(event.at),
        _ => None,
    });
    let exempt_from = since.expect("it got a CPU");
    assert!(
        seen.line(spinner).throttled().all(|(_, span)| span.start < exempt_from),
        "{:?}",
        seen.line(spinner).segments
    );
}
