//! `throttle spikes` on the running kernel: what a run of spikes leaves, deriving it again, and alarms over it. Needs root, the
//! cpu controller and a kernel with BTF; without them these tests fail.

mod whole_run;

use std::{
    fs,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use whole_run::{DEADLINE, derived, done, json_lines, ns, of_type, one_at_a_time, throttle};

const DERIVED: [&str; 4] = ["spikes.jsonl", "periods.jsonl", "summary.json", "report.md"];

#[test]
fn kernel_spikes_are_cut_where_the_boundary_does_not_split_them_and_all_is_derived_again() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let run = dir.path().join("run");
    let out = run.to_str().expect("a path in ASCII");
    // Quota 25 ms. With the boundary at 90 ms a spike of 45 ms lies in one period, with it at 22 ms in two.
    let plan = ["--lengths", "15ms,45ms", "--per-second", "2", "--boundaries", "90ms,22ms", "--step", "2s"];
    let spikes = done(throttle(&["spikes", "--quiet", "--out", out]).args(plan));
    let lines = json_lines(&run.join("spikes.jsonl"));
    let steps: Vec<_> = of_type(&lines, "step").collect();
    assert_eq!(steps.len(), 8, "two lengths and two boundaries, flat and nested: {lines:#?}");
    for step in &steps {
        assert_eq!((&step["ending"]["how"], ns(step, "lost_events")), (&"complete".into(), 0), "{step:#}");
        assert_eq!((ns(step, "spikes"), ns(step, "planned")), (4, 4), "{step:#}");
        // What the generator learnt from cpu.stat is where the timer runs.
        let off = step["learnt_off_ns"].as_i64().expect("learnt");
        assert!(off.abs() < 5_000_000, "{step:#}");
        let missing = ns(step, "expected_ns") - ns(step, "consumed_ns");
        let explained: u64 = ["throttled_own_ns", "throttled_ancestor_ns", "runqueue_ns", "blocked_ns"]
            .iter()
            .map(|part| ns(step, part))
            .sum();
        let unexplained = missing.abs_diff(explained);
        assert!(unexplained * 100 <= ns(step, "expected_ns"), "more than 1 % unexplained: {step:#}");
    }
    for spike in of_type(&lines, "spike") {
        let parts =
            ["on_cpu_ns", "throttled_own_ns", "throttled_ancestor_ns", "runqueue_ns", "blocked_ns", "unknown_ns"];
        assert_eq!(parts.iter().map(|part| ns(spike, part)).sum::<u64>(), ns(spike, "expected_ns"), "{spike}");
        let held = ns(spike, "throttled_own_ns") + ns(spike, "throttled_ancestor_ns") > 0;
        let waited = ns(spike, "runqueue_ns") > 2_000_000;
        let wants_more = ns(spike, "length_ns") > 25_000_000;
        // The boundary is where it was put, but for the start's own delay and what learning is off by.
        let boundary = spike["boundary_after_ns"][0].as_u64().expect("known");
        assert!(boundary.abs_diff(90_000_000) < 5_000_000 || boundary.abs_diff(22_000_000) < 5_000_000, "{spike}");
        if !wants_more {
            assert!(!held && spike.get("escape").is_none(), "{spike}");
        } else if boundary > 60_000_000 {
            assert!(held || waited, "{spike}");
            assert!(
                !held || spike["counted"].as_array().expect("levels").iter().any(|counted| counted == true),
                "{spike}"
            );
        } else if spike["nesting"] == "flat" {
            assert!(!held, "{spike}");
            assert!(spike["escape"].as_str().is_some_and(|why| why.starts_with("split")), "{spike}");
        }
    }
    let agree = steps.iter().all(|step| step["agreement"]["verdict"] == "agrees");
    assert_eq!(spikes.status.code(), Some(if agree { 0 } else { 1 }), "{steps:#?}");
    assert!(run.join("figures/spike-map-flat.svg").is_file());

    let before = derived(&run, DERIVED);
    let report = done(&mut throttle(&["report", out]));
    assert_eq!(report.status.code(), spikes.status.code());
    assert_eq!(derived(&run, DERIVED), before);

    let alert = done(&mut throttle(&["alert", out, "--over", "30m", "--json"]));
    assert_eq!(alert.status.code(), Some(0), "{alert:?}");
    let replays: Vec<Value> =
        String::from_utf8_lossy(&alert.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(replays.len(), 3 * steps.len(), "three alarms a step");
    for replay in &replays {
        let harmed = ns(replay, "harmed");
        assert!(ns(replay, "harmed_while_firing") <= harmed, "{replay}");
        if replay["load"].as_str().is_some_and(|load| load.contains("15 ms")) {
            assert_eq!((harmed, &replay["firings"]), (0, &Value::Array(vec![])), "{replay}");
        }
    }
}

#[test]
fn kernel_spikes_interrupted_keep_what_was_measured_and_leave_no_group() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let child =
        throttle(&["spikes", "--quiet", "--lengths", "5ms", "--per-second", "10", "--step", "1s", "--groups", "flat"])
            .args(["--boundaries", "0,10ms,20ms,30ms,40ms,50ms,60ms,70ms,80ms,90ms", "--out"])
            .arg(&out)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("throttle starts");
    let started = Instant::now();
    while !fs::read_to_string(out.join("raw/record.jsonl")).is_ok_and(|text| text.contains(r#""type":"step_end""#)) {
        assert!(started.elapsed() < DEADLINE, "no step ends in {DEADLINE:?}");
        sleep(Duration::from_millis(10));
    }
    let owner = format!("throttle-{}-", child.id());
    kill(Pid::from_raw(child.id().try_into().expect("a pid")), Signal::SIGINT).expect("interrupted");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let hierarchy = throttle_user::cgroup::Hierarchy::find().expect("a cpu controller");
    let left = throttle_user::cgroup::tree::walk(&hierarchy).expect("walked");
    assert!(!left.iter().any(|node| node.path.to_string_lossy().contains(&owner)), "groups are left");
    let lines = json_lines(&out.join("spikes.jsonl"));
    assert!(of_type(&lines, "step").count() >= 1);
    assert!(of_type(&lines, "spike").count() >= 10);
    assert_eq!(done(throttle(&["report"]).arg(&out)).status.code(), Some(1), "it is not whole");
}
