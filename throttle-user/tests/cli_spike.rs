//! `throttle spike` as a process: output, schedule, signals and exit codes. What needs a limited group is in `kernel_spike.rs`.

use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn throttle() -> Command {
    Command::new(env!("CARGO_BIN_EXE_throttle"))
}

fn spike(flags: &[&str]) -> Output {
    throttle().arg("spike").args(flags).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ns(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} in {value}"))
}

#[test]
fn spikes_are_told_in_order_with_their_schedule_and_a_summary() {
    let output = spike(&["--length", "4ms", "--per-second", "5", "--duration", "1100ms", "--threads", "2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = lines(&output);
    let [spikes @ .., summary] = &lines[..] else { panic!("lines") };
    assert_eq!(spikes.len(), 6);
    let origin = ns(summary, "origin_ns");
    assert_eq!(ns(summary, "origin_realtime_ns") % 1_000_000_000, 0, "slots of the wall clock");
    let mut consumed = 0;
    for (spike, slot) in spikes.iter().zip([0, 2, 4, 6, 8, 10]) {
        assert_eq!(
            (spike["type"].as_str(), ns(spike, "due_ns")),
            (Some("spike"), origin + slot * 100_000_000),
            "{spike}"
        );
        assert_eq!(ns(spike, "until_ns") - ns(spike, "due_ns"), 4_000_000);
        assert_eq!(ns(spike, "expected_ns"), 8_000_000);
        let workers = spike["workers"].as_array().expect("workers");
        assert_eq!(workers.len(), 2);
        assert!(workers.iter().all(|worker| ns(worker, "started_ns") >= ns(spike, "due_ns")), "{spike}");
        assert_eq!(workers.iter().map(|worker| ns(worker, "cpu_time_ns")).sum::<u64>(), ns(spike, "consumed_ns"));
        consumed += ns(spike, "consumed_ns");
    }
    assert_eq!((ns(summary, "spikes"), ns(summary, "planned")), (6, 6));
    assert_eq!((ns(summary, "consumed_ns"), ns(summary, "expected_ns")), (consumed, 48_000_000));
}

#[test]
fn the_summary_says_where_the_boundary_lies_or_why_that_is_not_known() {
    let output = spike(&["--length", "2ms", "--duration", "10ms"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("1 spikes of 2 ms, 1 a second"), "{said}");
    assert!(said.contains("\nboundary      "), "{said}");
}

#[test]
fn bad_usage_ends_with_two_and_names_the_flag_or_the_value() {
    for (flags, word) in [
        (&["--length", "101ms"][..], "101 ms"),
        (&["--length", "0.5ms"], "0.5 ms"),
        (&["--per-second", "11"], "11 spikes"),
        (&["--duration", "0"], "--duration"),
        (&["--threads", "0"], "--threads"),
        (&["--cgroup", "/proc"], "/proc"),
    ] {
        let output = spike(flags);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(word), "{output:?}");
    }
}

#[test]
fn an_interrupted_run_tells_what_was_done() {
    let mut child = throttle()
        .args(["spike", "--length", "1ms", "--per-second", "10", "--duration", "10m", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    // Its spike thread is there as soon as it listens for signals.
    let tasks = format!("/proc/{}/task", child.id());
    while std::fs::read_dir(&tasks).map_or(0, Iterator::count) < 2 {
        assert!(child.try_wait().expect("asked").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    kill(Pid::from_raw(child.id().try_into().expect("a pid")), Signal::SIGTERM).expect("signals");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let lines = lines(&output);
    let summary = lines.last().expect("a summary");
    assert_eq!(ns(summary, "spikes"), lines.len() as u64 - 1);
    assert!(ns(summary, "spikes") < ns(summary, "planned"));
}
