//! `throttle check` as a process on the running kernel. Needs root, BPF and the cpu controller; without them these tests fail.

mod golden;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
};

use throttle_user::{
    cgroup::Hierarchy,
    check::{Fact, Grade, Report, Verdict},
};

/// Name of the fact that compares the self-test's figures.
const AGREEMENT: &str = "by the kernel's counters";

fn command(flags: &[&str]) -> Command {
    let mut check = Command::new(env!("CARGO_BIN_EXE_throttle"));
    check.arg("check").args(flags).stdin(Stdio::null());
    check
}

fn read(json: &[u8]) -> Report {
    serde_json::from_slice(json).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(json)))
}

fn facts(report: &Report) -> impl Iterator<Item = &Fact> {
    report.sections.iter().flat_map(|section| &section.facts)
}

fn of<'a>(report: &'a Report, name: &str) -> &'a Fact {
    facts(report).find(|fact| fact.name == name).unwrap_or_else(|| panic!("no {name} in {report:#?}"))
}

/// The exit code that goes with a verdict.
fn code(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Full => 0,
        Verdict::Degraded => 1,
        Verdict::Cannot => 2,
    }
}

/// Scratch groups that a process made.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![Hierarchy::find().expect("a cpu controller").mount];
    while let Some(dir) = open.pop() {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let dirs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        let prefix = format!("throttle-{pid}-");
        found.extend(
            dirs.iter()
                .filter(|dir| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
                .cloned(),
        );
        open.extend(dirs);
    }
    found
}

/// One whole check, which the tests share: on emulated CPUs it takes a while.
struct Checked {
    pid: u32,
    code: Option<i32>,
    report: Report,
}

fn checked() -> &'static Checked {
    static CHECKED: OnceLock<Checked> = OnceLock::new();
    CHECKED.get_or_init(|| {
        let child = command(&["--json"]).stdout(Stdio::piped()).spawn().expect("throttle starts");
        let pid = child.id();
        let output = child.wait_with_output().expect("ends");
        Checked { pid, code: output.status.code(), report: read(&output.stdout) }
    })
}

#[test]
fn kernel_a_spin_is_observed_and_agrees_with_the_kernels_counters() {
    let Checked { pid, code, report } = checked();
    assert_eq!(*code, Some(self::code(report.verdict)), "{report:#?}");
    assert_ne!(report.verdict, Verdict::Cannot, "{report:#?}");
    assert_eq!(of(report, "throttles").grade, Grade::Good, "{report:#?}");
    // On two emulated CPUs the host takes one away between the instant the kernel notes and the tracepoint.
    if std::env::var("THROTTLE_GUEST").as_deref() != Ok("smp") {
        assert_eq!(of(report, AGREEMENT).grade, Grade::Good, "{report:#?}");
    }
    assert_eq!(of(report, "own cgroup by the probe").grade, Grade::Good, "{report:#?}");
    assert_eq!(groups_of(*pid), Vec::<PathBuf>::new());
}

#[test]
fn kernel_what_was_left_out_is_not_known_and_not_taken_for_good() {
    let output = command(&["--json", "--no-self-test"]).output().expect("throttle starts");
    let report = read(&output.stdout);
    assert_eq!((report.verdict, output.status.code()), (Verdict::Degraded, Some(1)), "{report:#?}");
    assert_eq!(of(&report, "throttles").grade, Grade::Unknown);
}

#[test]
fn kernel_every_line_fits_80_columns_and_every_fact_is_on_one() {
    let output = command(&["--no-self-test"]).output().expect("throttle starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
    // All but what the self-test shows.
    for fact in facts(&checked().report).filter(|fact| fact.name != AGREEMENT) {
        let on_a_line = text.lines().any(|line| line.get(3..).is_some_and(|line| line.starts_with(&fact.name)));
        assert!(on_a_line, "no {:?} in\n{text}", fact.name);
    }
}
