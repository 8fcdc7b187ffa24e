//! The `cgroup` module against real groups of the running kernel, v1 or v2. Needs root and the cpu controller; without them
//! these tests fail.

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use throttle_user::cgroup::{
    Bandwidth, BandwidthError, Counters, CpuLimit, DeltaError, Group, GroupError, Hierarchy, Learned, LevelName,
    Nesting, Quietness, Quota, Removal, Scratch, ScratchError, ScratchPlan, Version, phase, remove_stale, tree,
    wait_quiet,
};

const DEADLINE: Duration = Duration::from_secs(60);
const ROLE: &str = "THROTTLE_TEST_ROLE";

/// A process has one scratch tree at a time, and some tests move the whole process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hierarchy() -> Hierarchy {
    Hierarchy::find().expect("a cpu controller")
}

fn bandwidth(limit: &str) -> Bandwidth {
    limit.parse::<CpuLimit>().and_then(|limit| limit.bandwidth(100_000, 0)).expect("a limit")
}

fn plan(nesting: Nesting, limit: &str) -> ScratchPlan {
    ScratchPlan { nesting, bandwidth: bandwidth(limit), parent: None }
}

fn scratch(nesting: Nesting, limit: &str) -> Scratch {
    Scratch::create(&hierarchy(), &plan(nesting, limit)).expect("scratch groups; run as root")
}

/// A shell that moves itself into `group` and then never stops.
fn spinner(group: &Group) -> Child {
    let child = Command::new("sh")
        .args(["-c", r#"echo $$ > "$0" && while :; do :; done"#])
        .arg(group.path().join("cgroup.procs"))
        .spawn()
        .expect("a shell");
    let inside = || group.processes().expect("read").ids.contains(&child.id());
    until("the spinner to be in its group", inside);
    child
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn counters(group: &Group) -> Counters {
    Counters::read(group).expect("counters")
}

fn nr_throttled(group: &Group) -> u64 {
    counters(group).figures.nr_throttled().expect("a limited group counts")
}

fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

fn assert_removed(removal: &Removal, top: &Path) {
    assert!(removal.is_complete(), "{removal}");
    assert!(!top.exists(), "{}", top.display());
}

#[test]
fn kernel_this_process_is_a_member_of_its_own_group() {
    let _turn = one_at_a_time();
    let hierarchy = hierarchy();
    let own = hierarchy.own_group().expect("own group");
    assert!(own.processes().expect("read").ids.contains(&std::process::id()), "{}", own.path().display());
    let nodes = tree::walk(&hierarchy).expect("walked");
    let id = own.id().expect("an id");
    assert_eq!(nodes.iter().filter(|node| node.id == id).count(), 1);
    assert_eq!(tree::ancestors(&hierarchy, &own).expect("a chain")[0].id, id);
}

#[test]
fn kernel_a_spinner_under_a_nested_limit_is_throttled_and_counted_and_then_all_is_quiet() {
    let _turn = one_at_a_time();
    let tree = scratch(Nesting::Nested, "200m");
    let (container, pod) = (tree.container().clone(), tree.pod().expect("nested").clone());
    let before = [counters(&container), counters(&pod)];
    let mut child = spinner(&container);
    until("five throttled periods", || nr_throttled(&container) + nr_throttled(&pod) >= 5);
    assert_eq!(container.threads().expect("read").ids, [child.id()]);
    let busy = wait_quiet(&[&container, &pod], Duration::ZERO, || false).expect("read");
    assert!(matches!(&busy, Quietness::StillBusy { groups } if groups.len() == 2), "{busy:?}");

    child.kill().expect("killed");
    child.wait().expect("reaped");
    let quiet = wait_quiet(&[&container, &pod], DEADLINE, || false).expect("read");
    assert!(matches!(quiet, Quietness::Quiet { .. }), "{quiet:?}");

    let after = [counters(&container), counters(&pod)];
    let grown = [before[0].delta(&after[0]).expect("a delta"), before[1].delta(&after[1]).expect("a delta")];
    for level in &grown {
        let (periods, throttled) = (level.nr_periods().expect("counted"), level.nr_throttled().expect("counted"));
        assert!(periods >= 3 && throttled <= periods, "{level:?}");
    }
    // Somebody's quota ran out; where the kernel has the local counter, the container waited at least as long as by its own.
    let own = grown[0].throttled().expect("counted");
    assert!(own.0 + grown[1].throttled().expect("counted").0 > 0, "{grown:?}");
    if let Some(local) = grown[0].throttled_local() {
        assert!(local.0 > 0, "{grown:?}");
    }
    assert_eq!(grown[0].usage().is_some(), container.version() == Version::V2);
    eprintln!("container {:?}\npod {:?}", grown[0], grown[1]);

    let top = tree.top().path().to_owned();
    assert_removed(&tree.remove(), &top);
}

#[test]
fn kernel_the_tree_has_the_levels_of_its_plan_high_weight_and_no_limit_on_the_driver() {
    let _turn = one_at_a_time();
    let nested = scratch(Nesting::Nested, "100m");
    let levels = nested.levels().expect("levels");
    assert_eq!(levels.iter().map(|level| level.level).collect::<Vec<_>>(), [LevelName::Container, LevelName::Pod]);
    let chain = tree::ancestors(&hierarchy(), nested.container()).expect("a chain");
    assert_eq!([chain[0].id, chain[1].id], [levels[0].cgroup_id, levels[1].cgroup_id]);
    assert!(chain[0].is_limited() && chain[1].is_limited() && !chain[2].is_limited());
    assert_eq!(Bandwidth::read(nested.driver()).expect("read"), Some(Bandwidth::UNLIMITED));
    let (file, weight) = match nested.top().version() {
        Version::V1 => ("cpu.shares", "262144\n"),
        Version::V2 => ("cpu.weight", "10000\n"),
    };
    assert_eq!(nested.top().read(file).expect("read"), weight);

    let error = Scratch::create(&hierarchy(), &plan(Nesting::Flat, "100m")).expect_err("one tree at a time");
    assert!(matches!(error, ScratchError::Exists { .. }), "{error}");
    drop(nested);

    let flat = scratch(Nesting::Flat, "unlimited");
    assert!(flat.pod().is_none());
    assert_eq!(flat.levels().expect("levels").len(), 1);
    assert_eq!(flat.container().path().parent(), Some(flat.top().path()));
}

#[test]
fn kernel_bandwidth_goes_up_and_down_on_both_levels_without_a_refusal() {
    let _turn = one_at_a_time();
    let tree = scratch(Nesting::Nested, "200m");
    let limited = |quota_us, period_us, burst_us| Bandwidth { quota: Quota::Us(quota_us), period_us, burst_us };
    let goals = [
        bandwidth("1600m"),
        bandwidth("100m"),
        limited(30_000, 120_000, 0),
        limited(20_000, 100_000, 20_000),
        limited(15_000, 50_000, 1_000),
        limited(1_000, 1_000, 1_000),
        limited(500_000, 1_000_000, 0),
        bandwidth("unlimited"),
        limited(20_000, 10_000, 5_000),
        limited(1_000, 1_000_000, 0),
        bandwidth("unlimited"),
        bandwidth("10m"),
    ];
    for goal in goals {
        tree.set_bandwidth(&goal).unwrap_or_else(|error| panic!("{goal}: {error}"));
        for level in tree.levels().expect("levels") {
            assert_eq!(Bandwidth::read(&level.group).expect("read"), Some(goal), "{:?}", level.level);
        }
    }
}

#[test]
fn kernel_a_container_above_its_pod_is_refused_on_v1_with_the_pods_limit_and_taken_on_v2() {
    let _turn = one_at_a_time();
    let tree = scratch(Nesting::Nested, "200m");
    match (bandwidth("400m").write(tree.container()), tree.container().version()) {
        (Err(error @ BandwidthError::Refused { .. }), Version::V1) => {
            let said = error.to_string();
            assert!(said.contains("its parent has 20000 us per 100000 us"), "{said}");
        }
        (Ok(()), Version::V2) => {}
        (other, version) => panic!("{version:?}: {other:?}"),
    }
    // From unequal levels too, both arrive.
    tree.set_bandwidth(&bandwidth("100m")).expect("set");
    assert_eq!(Bandwidth::read(tree.container()).expect("read"), Some(bandwidth("100m")));
}

#[test]
fn kernel_this_process_joins_the_driver_with_all_its_threads_and_goes_back() {
    let _turn = one_at_a_time();
    let hierarchy = hierarchy();
    let home = hierarchy.own_group().expect("own group");
    let mut tree = scratch(Nesting::Flat, "200m");
    tree.join_driver().expect("joined");
    tree.join_driver().expect("joining twice is joining once");
    assert_eq!(&hierarchy.own_group().expect("own group"), tree.driver());
    let threads = std::fs::read_dir("/proc/self/task").expect("listed").count();
    assert!(tree.driver().threads().expect("read").ids.len() >= 2.min(threads));
    tree.leave().expect("left");
    assert_eq!(hierarchy.own_group().expect("own group"), home);

    tree.join_driver().expect("joined again");
    let top = tree.top().path().to_owned();
    assert_removed(&tree.remove(), &top);
    assert_eq!(hierarchy.own_group().expect("own group"), home);
}

#[test]
fn kernel_a_panic_removes_the_tree_and_kills_what_runs_in_it() {
    let _turn = one_at_a_time();
    let mut left = None;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut tree = scratch(Nesting::Nested, "10m");
        tree.join_driver().expect("joined");
        // A group the workload made itself, too.
        let inner = tree.driver().child("inner");
        std::fs::create_dir(inner.path()).expect("made");
        let children = [spinner(tree.container()), spinner(&inner)];
        until("a throttled spinner", || nr_throttled(tree.container()) >= 2);
        left = Some((tree.top().path().to_owned(), children));
        panic!("on purpose");
    }));
    assert!(result.is_err());
    let (top, mut children) = left.expect("made");
    assert!(!top.exists());
    for child in &mut children {
        assert!(!child.wait().expect("reaped").success());
    }
}

#[test]
fn kernel_the_groups_of_a_killed_creator_are_removed_at_the_next_start_and_not_before() {
    let _turn = one_at_a_time();
    let hierarchy = hierarchy();
    let mut creator = Command::new(std::env::current_exe().expect("this test binary"))
        .args(["--exact", "role_creator_that_is_killed", "--ignored", "--nocapture"])
        .env(ROLE, "creator")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a creator");
    let lines = BufReader::new(creator.stdout.take().expect("piped")).lines();
    let top = lines
        .map(|line| line.expect("text"))
        .find_map(|line| line.split_once("READY ").map(|(_, path)| PathBuf::from(path)))
        .expect("the creator to say where its tree is");
    let of_creator = |found: Vec<throttle_user::cgroup::Stale>| found.into_iter().find(|stale| stale.path == top);

    assert_eq!(of_creator(remove_stale(&hierarchy).expect("walked")), None, "its owner lives");
    assert!(top.is_dir());

    creator.kill().expect("killed");
    creator.wait().expect("reaped");
    let container = Group::new(hierarchy.version, top.join("pod/container"));
    let spinners = container.processes().expect("the tree outlives its creator").ids;
    assert!(!spinners.is_empty() && spinners.iter().all(|pid| is_running(*pid)), "{spinners:?}");

    let stale = of_creator(remove_stale(&hierarchy).expect("walked")).expect("found");
    assert_removed(&stale.removal, &top);
    assert!(spinners.iter().all(|pid| stale.removal.killed.contains(pid)), "{stale:?}");
    until("the spinners to be gone", || !spinners.iter().any(|pid| is_running(*pid)));
    assert_eq!(of_creator(remove_stale(&hierarchy).expect("walked")), None);
}

#[test]
#[ignore = "the creator's part in kernel_the_groups_of_a_killed_creator_…, which starts it"]
fn role_creator_that_is_killed() {
    std::env::var(ROLE).expect("started by the test that kills it");
    let tree = scratch(Nesting::Nested, "100m");
    let _spinners = [spinner(tree.container()), spinner(tree.driver())];
    println!("READY {}", tree.top().path().display());
    // Until killed, or until the test that holds the other end is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn kernel_a_run_leaves_the_parents_subtree_control_as_it_was() {
    let _turn = one_at_a_time();
    let given = |group: &Group| group.read_if_there("cgroup.subtree_control").expect("read");
    let tree = scratch(Nesting::Nested, "200m");
    let parent = Group::new(tree.top().version(), tree.top().path().parent().expect("a parent").to_owned());
    drop(tree);
    let before = given(&parent);
    let tree = scratch(Nesting::Nested, "200m");
    let cpu_in_use = given(&parent).is_none_or(|given| given.split_whitespace().any(|name| name == "cpu"));
    assert!(cpu_in_use);
    drop(tree);
    assert_eq!(given(&parent), before);
}

#[test]
fn kernel_a_walk_and_counters_bear_with_groups_that_come_and_go() {
    let _turn = one_at_a_time();
    let tree = scratch(Nesting::Flat, "200m");
    let stop = AtomicBool::new(false);
    let hierarchy = hierarchy();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for name in ["a", "b", "c"] {
                    std::fs::create_dir(tree.driver().child(name).path()).expect("made");
                }
                for name in ["a", "b", "c"] {
                    std::fs::remove_dir(tree.driver().child(name).path()).expect("removed");
                }
            }
        });
        let walked = catch_unwind(AssertUnwindSafe(|| {
            let mut seen = 0;
            for _ in 0..300 {
                let nodes = tree::walk(&hierarchy).expect("walked");
                seen += nodes.iter().filter(|node| node.group.path().parent() == Some(tree.driver().path())).count();
                match Counters::read(&tree.driver().child("b")) {
                    Ok(_) | Err(GroupError::Gone { .. }) => {}
                    Err(GroupError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                    Err(other) => panic!("{other}"),
                }
            }
            seen
        }));
        stop.store(true, Ordering::Relaxed);
        assert!(walked.expect("no error in 300 walks") > 0, "the walk met some of them");
    });
}

#[test]
fn kernel_a_group_made_anew_is_not_taken_for_the_old_one() {
    let _turn = one_at_a_time();
    let tree = scratch(Nesting::Flat, "200m");
    let group = tree.driver().child("again");
    std::fs::create_dir(group.path()).expect("made");
    let before = counters(&group);
    std::fs::remove_dir(group.path()).expect("removed");
    assert!(matches!(Counters::read(&group), Err(GroupError::Gone { .. })));
    std::fs::create_dir(group.path()).expect("made again");
    assert!(matches!(before.delta(&counters(&group)), Err(DeltaError::Recreated { .. })));
}

#[test]
fn kernel_a_tree_is_made_below_the_parent_asked_for_and_sees_the_limit_there() {
    let _turn = one_at_a_time();
    let outer = scratch(Nesting::Nested, "400m");
    let pod = outer.pod().expect("nested").clone();
    let asked = ScratchPlan { parent: Some(pod.path().to_owned()), ..plan(Nesting::Flat, "200m") };
    let inner = Scratch::create(&hierarchy(), &asked).expect("a tree below the pod");
    assert!(inner.top().path().starts_with(pod.path()));
    let above: Vec<_> = inner.limits_above().expect("read").into_iter().map(|node| node.group).collect();
    assert!(above.contains(&pod), "{above:?}");
    drop(inner);
    let nowhere = ScratchPlan { parent: Some("/etc".into()), ..plan(Nesting::Flat, "200m") };
    assert!(matches!(Scratch::create(&hierarchy(), &nowhere), Err(ScratchError::Place(_))));
}

#[test]
fn kernel_the_grid_of_a_period_is_learnt_from_the_counters() {
    let _turn = one_at_a_time();
    let tree = scratch(Nesting::Flat, "200m");
    assert_eq!(phase::learn(tree.driver()).expect("read"), Learned::NoLimit);
    let mut child = spinner(tree.container());
    let learnt = [0; 3].map(|_| phase::learn(tree.container()).expect("read"));
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let [Learned::Phase(first), ..] = learnt else { panic!("{learnt:?}") };
    assert_eq!(first.period.0, 100_000_000);
    for again in learnt {
        let Learned::Phase(again) = again else { panic!("{again:?}") };
        // The grid is fixed: each time the same points, but for latency and what lies between two readings.
        let off = (again.boundary.0 + 50_000_000 - first.boundary.0) % 100_000_000;
        let slack = first.within.0 + again.within.0 + 2_000_000;
        assert!(off.abs_diff(50_000_000) <= slack, "{first:?} {again:?}");
    }
    let quiet = wait_quiet(&[tree.container()], DEADLINE, || false).expect("read");
    assert!(matches!(quiet, Quietness::Quiet { .. }), "{quiet:?}");
    // The period may be as long as a second, and is waited for; a group in which nobody works has none.
    assert_eq!(phase::learn(tree.container()).expect("read"), Learned::NoPeriods);
}
