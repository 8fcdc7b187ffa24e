//! The detail `edges`: boundaries and throttle edges of every limited group, without a word about threads.

use throttle_user::{
    cgroup::{Bandwidth, LevelName, Nesting},
    event::{CgroupId, Event, Left, What},
};

use crate::observed::{Bench, Look, Observed, finish, limited, mentions, one_at_a_time, start};

/// Pod and container under limits, seen by their edges alone.
fn edges(case: &str, pod: Bandwidth, container: Bandwidth, role: &str) -> Observed {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Nested);
    let levels = bench.levels();
    pod.write(&levels[1].1).expect("a limit");
    container.write(&levels[0].1).expect("a limit");
    let look = Look { edges: true, ..Look::default() };
    let seen = bench.observe(&levels, look, || finish(start(role, &levels[0].1)));
    seen.assert_agrees(case);
    let ids: Vec<CgroupId> = levels.iter().map(|(_, group)| CgroupId(group.id().expect("an id"))).collect();
    let beside: Vec<&Event> =
        seen.events.iter().filter(|event| ids.iter().any(|&id| mentions(event, id)) && !is_edge(event)).collect();
    assert!(beside.is_empty(), "{case}: {beside:#?}");
    assert!(seen.timeline.threads.is_empty(), "{case}: {:#?}", seen.timeline.threads);
    // Only timer runs can be missing, and what is missing is not more than a kernel was ever seen to skip.
    let boundaries = ids.iter().flat_map(|&id| seen.timeline.boundaries_of(id));
    let (inferred, traced): (Vec<_>, Vec<_>) = boundaries.partition(|boundary| boundary.inferred);
    assert!(inferred.len() <= 1 + traced.len() / 100, "{case}: {inferred:#?}");
    seen
}

/// Of the timers, of a throttled queue, or the first switch to somebody after one.
fn is_edge(event: &Event) -> bool {
    match &event.what {
        What::Period(_) | What::Slack(_) | What::Queue(_) | What::Attach { .. } => true,
        What::Wakeup { task, .. } => task.hierarchy,
        What::Switch { prev, left, next, .. } => {
            prev.is_some_and(|prev| prev.hierarchy) || *left == Some(Left::Throttled) || next.is_some()
        }
        What::Migrate { .. } | What::Exit { .. } => false,
    }
}

#[test]
fn kernel_edges_alone_agree_with_the_counters_of_pod_and_container() {
    let seen = edges("edges", limited(30, 100), limited(30, 100), "burn 2 300");
    let out: u64 = [LevelName::Container, LevelName::Pod].into_iter().map(|level| seen.nr_throttled(level)).sum();
    assert!(out >= 5, "{:?}", seen.line.levels);
}

#[test]
fn kernel_edges_alone_agree_where_threads_sleep_and_wake_often() {
    let seen = edges("edges of sleepers", limited(150, 100), limited(30, 100), "doze 1 300");
    assert!(seen.nr_throttled(LevelName::Container) >= 5);
    // Far fewer records than the thread's own switches and wakeups, which are more than a thousand.
    assert!(seen.events.len() < 1_000, "{}", seen.events.len());
}
