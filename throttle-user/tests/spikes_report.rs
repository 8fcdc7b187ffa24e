//! A recorded run of spikes, derived again on any machine: steps of 30 and 50 ms at 250m with the boundary at 70 and at 20 ms, two
//! spikes each, flat and nested, recorded on 6.18 at 250 Hz.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/spikes-run")
}

/// A copy of the run in a folder of its own, with its record changed.
fn copy(change: impl Fn(String) -> String) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("raw")).expect("made");
    for name in ["run.json", "raw/events-flat.jsonl.xz", "raw/events-nested.jsonl.xz"] {
        fs::copy(recorded().join(name), dir.path().join(name)).expect("copied");
    }
    let record = fs::read_to_string(recorded().join("raw/record.jsonl")).expect("a record");
    fs::write(dir.path().join("raw/record.jsonl"), change(record)).expect("written");
    dir
}

fn throttle(verb: &str, dir: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throttle")).arg(verb).arg(dir).args(flags).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a derived file");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn steps_say_what_was_held_what_counted_it_and_why_the_rest_escaped() {
    let dir = copy(|record| record);
    let output = throttle("report", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = lines(&dir.path().join("spikes.jsonl"));
    let steps: Vec<&Value> = lines.iter().filter(|line| line["type"] == "step").collect();
    assert_eq!((lines.len(), steps.len()), (24, 8));
    let shape = |step: &Value| {
        let boundary = step["boundary_ns"].as_u64().expect("chosen") / 1_000_000;
        let length = step["length_ns"].as_u64().expect("a length") / 1_000_000;
        (step["nesting"].as_str().expect("a group").to_owned(), length, boundary)
    };
    for step in &steps {
        assert_eq!(step["agreement"]["verdict"], "agrees", "{step:#}");
        let (nesting, length, boundary) = shape(step);
        // One of these got 1 ms more than the model allows, which charges at ticks alone: a switch charges as well.
        let as_predicted = if (nesting.as_str(), length, boundary) == ("flat", 50, 20) { 1 } else { 2 };
        assert_eq!(step["as_predicted"], as_predicted, "{step:#}");
        let held = match (nesting.as_str(), length, boundary) {
            // In one period: cut, and counted by every level, whose quotas are the same.
            (_, _, 70) => {
                assert!(step["counted"].as_array().expect("levels").iter().all(|counted| *counted == 2), "{step:#}");
                2
            }
            // In two, at most a quota and a slice in each.
            ("flat", 30 | 50, 20) | ("nested", 30, 20) => 0,
            // The pod's boundary lies elsewhere.
            ("nested", 50, 20) => 2,
            other => panic!("{other:?} is not in the plan"),
        };
        assert_eq!(step["held"], held, "{step:#}");
        assert_eq!(step["escapes"].as_object().expect("reasons").is_empty(), held == 2, "{step:#}");
        let off = step["learnt_off_ns"].as_i64().expect("learnt");
        assert!(off.abs() < 100_000, "{step:#}");
    }
    let said = text(&output.stdout);
    assert!(said.contains("counters of container and pod agree"), "{said}");
    for name in
        ["report.md", "summary.json", "periods.jsonl", "figures/spike-map-flat.svg", "figures/spike-map-nested.svg"]
    {
        assert!(dir.path().join(name).is_file(), "{name}");
    }
    let again = throttle("report", dir.path(), &[]);
    assert_eq!((again.status.code(), again.stdout), (Some(0), output.stdout));
}

#[test]
fn alarms_are_replayed_over_each_step() {
    let dir = copy(|record| record);
    let output = throttle("alert", dir.path(), &["--over", "30m"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    assert_eq!(said.matches("CPUThrottlingHigh").count(), 8, "{said}");
    assert!(
        said.contains(
            "flat 250m 50 ms x 2/s, boundary at 70 ms\n1.0 s recorded, repeated for 30 min; 3600 of 3600 harmed"
        ),
        "{said}"
    );
    let exact = throttle("alert", dir.path(), &["--over", "30m", "--exact", "--json"]);
    let fires = |step: &str| {
        let lines = text(&exact.stdout).lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut of = lines.filter(|line| line["load"] == step && line["rule"]["name"] == "CPUThrottlingHigh");
        !of.next().expect("that step")["firings"].as_array().expect("a list").is_empty()
    };
    // Cut once in the periods it touches; never.
    assert!(fires("flat 250m 50 ms x 2/s, boundary at 70 ms"));
    assert!(!fires("flat 250m 50 ms x 2/s, boundary at 20 ms"));
}

#[test]
fn a_run_that_was_killed_is_derived_as_far_as_it_came() {
    let dir = copy(|record| {
        let kept: Vec<&str> =
            record.lines().take_while(|line| !line.contains(r#""type":"step_end","step":2"#)).collect();
        kept.join("\n") + "\n{\"type\":\"step_e"
    });
    fs::remove_file(dir.path().join("raw/events-nested.jsonl.xz")).expect("removed");
    let output = throttle("report", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stdout);
    assert!(
        said.contains("the run was killed during this step") && said.contains("5 steps of the plan were not begun"),
        "{said}"
    );
}

#[test]
fn a_record_that_was_changed_is_refused_with_the_line() {
    let twice = |record: String| {
        let mut lines: Vec<&str> = record.lines().collect();
        let spike = lines.iter().position(|line| line.contains(r#""type":"spike""#)).expect("a spike");
        lines.insert(spike, lines[spike]);
        lines.join("\n") + "\n"
    };
    for (what, dir) in [
        ("a spike twice", copy(twice)),
        ("another length", copy(|record| record.replacen(r#""until_ns":9"#, r#""until_ns":8"#, 1))),
        (
            "a step out of order",
            copy(|record| record.replacen(r#""type":"step_begin","step":1"#, r#""type":"step_begin","step":3"#, 1)),
        ),
        ("a group out of order", copy(|record| record.replacen(r#""nesting":"flat""#, r#""nesting":"nested""#, 1))),
    ] {
        let output = throttle("report", dir.path(), &[]);
        assert_eq!(output.status.code(), Some(2), "{what}: {output:?}");
        assert!(text(&output.stderr).contains("record.jsonl line "), "{what}: {output:?}");
    }
}

#[test]
fn a_run_of_another_kind_is_named() {
    let dir = copy(|record| record);
    let head = fs::read_to_string(dir.path().join("run.json")).expect("a head");
    fs::write(dir.path().join("run.json"), head.replace(r#""kind": "spikes""#, r#""kind": "dances""#))
        .expect("written");
    let output = throttle("report", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("a run of dances"), "{output:?}");
}
