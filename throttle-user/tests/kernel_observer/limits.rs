//! Limits that change, end, or were never there.

use std::fs;

use throttle_user::{
    cgroup::{Bandwidth, Nesting},
    event::{CgroupId, Event, What},
    run::agree::Quantity,
    timeline::{level::EndedBy, thread::State},
};

use crate::observed::{Bench, Look, finish, limited, mentions, nr_throttled, one_at_a_time, start, until};

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
fn kernel_an_unlimited_group_is_silent_unless_it_is_asked_for() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    let id = CgroupId(levels[0].1.id().expect("an id"));
    let about = |unlimited: bool| {
        let look = Look { unlimited, ..Look::default() };
        let seen = bench.observe(&levels, look, || finish(start("doze 1 20", &levels[0].1)));
        assert_eq!(seen.losses.total(), 0);
        // Who is in which group is told of all.
        let told = |event: &&Event| mentions(event, id) && !matches!(event.what, What::Attach { .. });
        seen.events.iter().filter(told).count()
    };
    assert_eq!(about(false), 0);
    assert!(about(true) > 100);
}
