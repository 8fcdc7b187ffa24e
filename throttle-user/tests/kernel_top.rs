//! `throttle top` as a process, on groups of its own making, against the kernel's counters. Needs root, BPF and the cpu controller;
//! without them these tests fail.

use std::{
    fs,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use throttle_user::cgroup::{Bandwidth, Counters, Group, Hierarchy, LevelName, Nesting, Quota, Scratch, ScratchPlan};

/// A process has one scratch tree at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shell in a group that never stops.
struct Busy(Child);

impl Busy {
    fn inside(group: &Group) -> Self {
        let mut shell = Command::new("sh");
        let child = shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("a shell");
        fs::write(group.path().join("cgroup.procs"), child.id().to_string()).expect("moved");
        Self(child)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("ended");
    }
}

fn top(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throttle")).arg("top").args(flags).stdin(Stdio::null()).output().expect("starts")
}

fn json(flags: &[&str]) -> Value {
    let output = top(&[&["--once", "--json"], flags].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn row(seen: &Value, id: u64) -> &Value {
    let rows = seen["cgroups"].as_array().expect("rows");
    rows.iter().find(|row| row["cgroup_id"] == id).unwrap_or_else(|| panic!("no {id} in {rows:#?}"))
}

#[test]
fn kernel_top_shows_a_throttled_group_as_the_counters_have_it() {
    let _turn = one_at_a_time();
    let hierarchy = Hierarchy::find().expect("a cpu controller");
    let bandwidth = Bandwidth { quota: Quota::Us(20_000), period_us: 100_000, burst_us: 0 };
    let plan = ScratchPlan { nesting: Nesting::Nested, bandwidth, parent: None };
    let scratch = Scratch::create(&hierarchy, &plan).expect("scratch groups; run as root");
    let group = |name: LevelName| {
        let levels = scratch.levels().expect("levels");
        levels.into_iter().find(|level| level.level == name).expect("it is there").group
    };
    let (container, pod) = (group(LevelName::Container), group(LevelName::Pod));
    let busy = Busy::inside(&container);
    let counters = |group: &Group| Counters::read(group).expect("counters");
    let before = (counters(&container), counters(&pod));
    let seen = json(&["--window", "2s"]);
    let grown = (before.0.delta(&counters(&container)), before.1.delta(&counters(&pod)));
    let (container_grew, pod_grew) = (grown.0.expect("a growth"), grown.1.expect("a growth"));
    for (group, grew) in [(&container, container_grew), (&pod, pod_grew)] {
        let row = row(&seen, group.id().expect("an id"));
        let number = |field: &str| row[field].as_u64().unwrap_or_else(|| panic!("{field} of {row:#}"));
        // The readings begin before the window and end after it.
        assert!(number("periods") <= grew.nr_periods().expect("counted"), "{row:#}");
        assert!(number("exhausted") <= grew.nr_throttled().expect("counted"), "{row:#}");
        assert!(number("exhausted") <= number("periods") && number("periods") >= 10, "{row:#}");
        let out = row["out_ms_per_s"].as_f64().expect("a number") * 2.0;
        // The kernel counts from when a task was held, we from when the quota was out. Each period is as the other.
        let throttled = grew.throttled().expect("counted").as_millis_f64();
        #[expect(clippy::cast_precision_loss, reason = "counts of periods")]
        let expected = throttled * number("exhausted") as f64 / grew.nr_throttled().expect("counted").max(1) as f64;
        assert!(out >= expected * 0.8, "{out} of {expected} ms, {grew:?}: {row:#}");
        assert_eq!((number("quota_us"), number("period_us")), (20_000, 100_000));
        assert!(row["complete"].as_bool().expect("a bool"), "{row:#}");
    }
    // One thread under the same quota twice: each period the one or the other runs out, and then nothing runs.
    let of = |group: &Group, field: &str| row(&seen, group.id().expect("an id"))[field].as_f64().unwrap_or(0.0);
    assert!(of(&container, "exhausted") + of(&pod, "exhausted") >= of(&container, "periods") * 0.8, "{seen:#}");
    let any = of(&container, "out_ms_per_s") + of(&container, "above_ms_per_s");
    assert!(any > 500.0 && any < 1_000.0, "out for {any} ms of each second: {seen:#}");
    assert!(of(&container, "drawn_over_quota") > 0.5, "{seen:#}");
    assert_eq!(row(&seen, container.id().expect("an id"))["held_ms_per_s"], Value::Null);
    // With threads followed, what only they tell is there, and fits.
    let followed = json(&["--window", "2s", "--threads"]);
    let of = |field: &str| row(&followed, container.id().expect("an id"))[field].as_f64();
    assert_eq!(of("peak_parallelism"), Some(1.0), "{followed:#}");
    let (used, held) = (of("used_over_quota").expect("measured"), of("held_ms_per_s").expect("measured"));
    assert!(used > 0.5 && used < 1.5 && held > 500.0 && held < 1_000.0, "{followed:#}");
    assert!(of("denied_idle_ms_per_s").is_some(), "{followed:#}");
    drop(busy);
    assert!(scratch.remove().is_complete());
}

#[test]
fn kernel_top_tells_no_limit_from_nothing_happened() {
    let _turn = one_at_a_time();
    let hierarchy = Hierarchy::find().expect("a cpu controller");
    let bandwidth = Bandwidth { quota: Quota::Us(50_000), period_us: 100_000, burst_us: 0 };
    let plan = ScratchPlan { nesting: Nesting::Flat, bandwidth, parent: None };
    let scratch = Scratch::create(&hierarchy, &plan).expect("scratch groups; run as root");
    let id = scratch.container().id().expect("an id");
    let limited = json(&["--window", "300ms"]);
    let quiet = row(&limited, id);
    assert_eq!((&quiet["periods"], &quiet["exhausted"]), (&Value::from(0), &Value::from(0)), "{quiet:#}");
    assert_eq!(quiet["out_ms_per_s"].as_f64(), Some(0.0));
    assert_eq!((&quiet["denied_idle_ms_per_s"], &quiet["exhausted_after_p50_ns"]), (&Value::Null, &Value::Null));
    scratch.set_bandwidth(&Bandwidth::UNLIMITED).expect("lifted");
    let rows = json(&["--window", "300ms"]);
    assert!(rows["cgroups"].as_array().expect("rows").iter().all(|row| row["cgroup_id"] != id));
    let all = json(&["--window", "300ms", "--all"]);
    let unlimited = row(&all, id);
    assert_eq!((&unlimited["quota_us"], &unlimited["periods"]), (&Value::Null, &Value::Null), "{unlimited:#}");
    let text = top(&["--once", "--all", "--window", "300ms"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let path = unlimited["cgroup"].as_str().expect("a path");
    let line = text.lines().find(|line| line.ends_with(path)).expect("a line");
    assert!(line.trim_start().starts_with("no limit"), "{line}");
    assert!(scratch.remove().is_complete());
}

#[test]
fn kernel_top_without_a_terminal_asks_for_once() {
    let output = top(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("give --once"));
}
