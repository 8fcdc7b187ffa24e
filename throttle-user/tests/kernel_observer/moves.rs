//! Tasks moved from one cgroup to another.

use std::fs;

use throttle_user::{
    attribution::{Attribution, Incomplete},
    cgroup::{Group, LevelName, Nesting},
    event::{CgroupId, What},
    request::{ServerSpan, WorkerSpan},
    time::{DurationNs, MonoNs},
    timeline::{
        interval::Span,
        period::{Activity, records},
        thread::{State, ThreadLine},
    },
};

use crate::observed::{Bench, Look, Observed, finish, limited, nr_throttled, one_at_a_time, start, until};

/// When the kernel told of a thread's move to a cgroup.
fn moved_at(seen: &Observed, thread: u32, to: CgroupId) -> Option<MonoNs> {
    seen.events.iter().find_map(|event| match event.what {
        What::Attach { thread: tid, cgroup, .. } if (tid, cgroup) == (thread, to) => Some(event.at),
        _ => None,
    })
}

fn id(group: &Group) -> CgroupId {
    CgroupId(group.id().expect("an id"))
}

/// A second group beside the container, and its limit.
fn second(bench: &Bench, quota_ms: u64, period_ms: u64) -> Group {
    let there = bench.scratch.top().child("there");
    fs::create_dir(there.path()).expect("a second group");
    limited(quota_ms, period_ms).write(&there).expect("a limit");
    there
}

/// A process has run and runs no more: all its threads sleep, wait or are held.
fn stands_still(pid: u32) -> bool {
    let ran = || -> u64 {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
        texts.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
    };
    let before = ran();
    std::thread::sleep(std::time::Duration::from_millis(20));
    before > 5_000_000 && ran() == before
}

#[test]
fn kernel_a_task_moved_to_a_group_that_is_not_watched_is_unknown_from_then_on_and_the_request_says_why() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let here = levels[0].1.clone();
    limited(20, 100).write(&here).expect("a limit");
    let there = second(&bench, 150, 100);
    let mut pid = 0;
    let seen = bench.observe(&levels, Look::default(), || {
        let child = start("burn 2 200", &here);
        pid = child.id();
        let before = nr_throttled(&here);
        until("three throttled periods", || nr_throttled(&here) >= before + 3);
        there.add_process(pid).expect("moved");
        finish(child);
    });
    seen.assert_agrees("moved away");
    let at = moved_at(&seen, pid, id(&there)).expect("the move was recorded");
    let departures = seen.timeline.departures(&seen.setting);
    // Its main thread, the one the test harness runs the role on, and the two that burn.
    assert_eq!(departures.len(), 4, "{departures:?}");
    assert!(departures.iter().any(|gone| (gone.tid, gone.cgroup, gone.at_ns) == (pid, id(&here), at)));
    for gone in &departures {
        let last = seen.line(gone.tid).segments.last().map(|last| last.span.end);
        assert!(last.is_some_and(|last| last <= gone.at_ns), "{gone:?} {:?}", seen.line(gone.tid).segments);
    }
    // The two that burn went on for hundreds of milliseconds, of which nothing is claimed: neither a wait nor that it was whole.
    let burner = departures.iter().max_by_key(|gone| seen.line(gone.tid).running().count()).expect("somebody burned");
    let (before, after) = (MonoNs(burner.at_ns.0 - 50_000_000), burner.at_ns + DurationNs::from_millis(50));
    let worker = WorkerSpan { tid: burner.tid, started_ns: before, finished_ns: after, cpu_time_ns: DurationNs::ZERO };
    let request = ServerSpan {
        accepted_ns: before,
        started_ns: before,
        finished_ns: after,
        work_ns: DurationNs::ZERO,
        workers: vec![worker],
    };
    let leaf = id(&here);
    let share = Attribution::new(&seen.timeline, &seen.setting, &leaf).explain(&request).expect("it has a worker");
    assert_eq!(share.shares.unknown_ns, DurationNs::from_millis(50), "{share:#?}");
    assert_eq!(share.shares.total(), share.wall_ns);
    assert_eq!(share.incomplete, [Incomplete::Left(*burner)]);
    assert!(!share.complete);
    // The group it left is known whole: nobody is in it any more.
    let activity = Activity::of(&seen.timeline, &seen.setting, leaf);
    let last = departures.iter().map(|gone| gone.at_ns).max().expect("some");
    assert_eq!(activity.used(Span::new(last, seen.timeline.end())), DurationNs::ZERO);
    assert!(records(&seen.timeline, &seen.setting, leaf).iter().all(|period| period.complete || period.start_ns < at));
}

#[test]
fn kernel_a_task_moved_into_a_watched_group_is_followed_and_charged_from_then_on() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let here = levels[0].1.clone();
    limited(20, 100).write(&here).expect("a limit");
    let there = second(&bench, 150, 100);
    let mut pid = 0;
    let seen = bench.observe(&levels, Look::default(), || {
        let child = start("burn 1 300", &there);
        pid = child.id();
        until("it to join", || {
            fs::read_to_string(there.path().join("cgroup.procs")).is_ok_and(|it| it.contains(&pid.to_string()))
        });
        let before = nr_throttled(&here);
        here.add_process(pid).expect("moved");
        until("three throttled periods", || nr_throttled(&here) >= before + 3);
        finish(child);
    });
    seen.assert_agrees("moved in");
    assert!(seen.nr_throttled(LevelName::Container) >= 3);
    let at = moved_at(&seen, pid, id(&here)).expect("the move was recorded");
    assert_eq!(seen.line(pid).stays.first().map(|stay| (stay.since, stay.cgroup)), Some((at, id(&here))));
    let activity = Activity::of(&seen.timeline, &seen.setting, id(&here));
    let later =
        seen.timeline.threads.values().filter(|line| line.segments.first().is_some_and(|it| it.span.start >= at));
    let burner = later.max_by_key(|line| line.throttled().count()).expect("it started a thread");
    assert!(burner.throttled().count() >= 3, "{burner:?}");
    assert_eq!(activity.used(Span::new(seen.timeline.span.expect("seen").start, at)), earlier(&seen, at));
}

/// Time on CPU before an instant of those that were in the group by then: the probe's own first task.
fn earlier(seen: &Observed, at: MonoNs) -> DurationNs {
    let there = seen.timeline.threads.values().filter(|line| line.stays.iter().all(|stay| stay.since < at));
    there.flat_map(ThreadLine::running).map(|(_, span)| span.clip(Span::new(MonoNs(0), at)).length()).sum()
}

#[test]
fn kernel_a_held_task_that_is_moved_is_held_no_longer_than_until_its_move() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let here = bench.scratch.container().clone();
    limited(5, 1_000).write(&here).expect("a limit");
    let there = second(&bench, 150, 100);
    let levels = vec![(LevelName::Container, here.clone()), (LevelName::Pod, there.clone())];
    let mut pid = 0;
    let seen = bench.observe(&levels, Look::default(), || {
        let child = start("burn 1 100", &here);
        pid = child.id();
        let before = nr_throttled(&here);
        until("it to be held", || nr_throttled(&here) > before && stands_still(pid));
        there.add_process(pid).expect("moved");
        finish(child);
    });
    seen.assert_counts_agree("moved while held");
    // The harness's main thread may sleep; whoever was held when it was moved is asked.
    let moved = seen.timeline.threads.iter().filter_map(|(&tid, line)| {
        let at = moved_at(&seen, tid, id(&there))?;
        line.segments.iter().find(|segment| matches!(segment.state, State::Throttled { .. }) && segment.span.end == at)
    });
    let held: Vec<_> = moved.collect();
    assert!(!held.is_empty(), "nobody was held: {:#?}", seen.timeline.threads);
    for (tid, line) in &seen.timeline.threads {
        let Some(at) = moved_at(&seen, *tid, id(&there)) else { continue };
        let later = line.within(Span::new(at, seen.timeline.end()));
        let next = later.take(2).find(|segment| matches!(segment.state, State::Running { .. }));
        let was_held = held.iter().any(|segment| line.segments.contains(segment));
        assert!(!was_held || next.is_some(), "thread {tid}: {:?}", line.segments);
    }
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
