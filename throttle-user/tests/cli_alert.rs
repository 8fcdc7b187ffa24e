//! `throttle alert` as a process, over simulated loads. Over recorded ones: `kernel_spikes.rs`.

use std::process::{Command, Output};

use serde_json::Value;

fn alert(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throttle")).arg("alert").args(flags).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

/// The replays of a load by the alarm's name.
fn replays(flags: &[&str]) -> Vec<Value> {
    let output = alert(&[flags, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn fires(replays: &[Value], name: &str) -> bool {
    let replay = replays.iter().find(|replay| replay["rule"]["name"] == name).expect("an alarm of that name");
    !replay["firings"].as_array().expect("a list").is_empty()
}

#[test]
fn four_loads_are_judged_wrongly_by_periods_and_rightly_by_time_lost() {
    for (load, periods, lost) in [
        (&["--limit", "400m", "--work", "60ms", "--every", "10s", "--boundary", "70ms"][..], true, false),
        (&["--limit", "250m", "--busy", "2s", "--every", "1m", "--trickle", "1ms"], false, true),
        (&["--limit", "250m", "--busy", "50ms", "--every", "5m", "--boundary", "80ms", "--exact"], true, false),
        (&["--limit", "250m", "--busy", "12m", "--every", "1h", "--trickle", "1ms"], false, true),
    ] {
        let replays = replays(load);
        assert_eq!(fires(&replays, "CPUThrottlingHigh"), periods, "{load:?}: {replays:#?}");
        assert_eq!(fires(&replays, "time lost"), lost, "{load:?}: {replays:#?}");
    }
}

#[test]
fn a_table_names_load_alarms_and_what_was_lost_in_silence() {
    let output = alert(&["--limit", "250m", "--busy", "2s", "--every", "1m", "--trickle", "1ms", "--over", "30m"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("250m, busy for 2000 ms each 60 s, and 1 ms of work each 100 ms"), "{said}");
    assert!(said.contains("CPUThrottlingHigh: > 25 % of periods in 5 min for 15 min"), "{said}");
    assert!(said.contains("never"), "{said}");
}

#[test]
fn a_grid_of_alarms_is_replayed_beside() {
    let replays = replays(&[
        "--limit",
        "250m",
        "--busy",
        "2s",
        "--every",
        "1m",
        "--trickle",
        "1ms",
        "--exact",
        "--windows",
        "1m,5m",
        "--thresholds",
        "2,50",
        "--holds",
        "0,2m",
    ]);
    let grid: Vec<_> = replays.iter().filter(|replay| replay["rule"]["name"] == "periods").collect();
    assert_eq!(grid.len(), 8, "{replays:#?}");
    for replay in grid {
        let fires = !replay["firings"].as_array().expect("a list").is_empty();
        assert_eq!(fires, replay["rule"]["threshold"] == 0.02, "3.3 % of the periods: {replay:#?}");
    }
}

#[test]
fn samples_are_written_as_openmetrics() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("samples.txt");
    let path = file.to_str().expect("utf-8");
    let load = ["--limit", "400m", "--work", "60ms", "--every", "10s", "--over", "10m", "--scrape", "15s"];
    let output = alert(&[&load[..], &["--openmetrics", path]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let written = std::fs::read_to_string(&file).expect("written");
    assert!(written.ends_with("# EOF\n"));
    let mut last: std::collections::BTreeMap<&str, (f64, f64)> = std::collections::BTreeMap::new();
    for line in written.lines().filter(|line| !line.starts_with('#')) {
        let (series, rest) = line.rsplit_once("} ").expect("labels");
        let (value, at) = rest.split_once(' ').expect("a value and a time");
        let (value, at): (f64, f64) = (value.parse().expect("a number"), at.parse().expect("a time"));
        if let Some((before, earlier)) = last.insert(series, (value, at)) {
            assert!(value >= before && at > earlier, "{line}");
        }
    }
    assert_eq!(last.len(), 4, "{last:?}");
}

#[test]
fn bad_usage_ends_with_two_and_names_what_is_wrong() {
    for (flags, word) in [
        (&[][..], "dir"),
        (&["/nowhere/at/all"], "/nowhere/at/all"),
        (&["--limit", "unlimited", "--work", "1ms", "--every", "1s"], "unlimited"),
        (&["--limit", "250m", "--every", "1s"], "--work"),
        (&["--limit", "250m", "--work", "1ms", "--every", "1s", "--windows", "5m", "--thresholds", "100"], "100"),
    ] {
        let output = alert(flags);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).to_lowercase().contains(word), "{output:?}");
    }
}
