//! `throttle` with fewer rights than root has: what it takes and no more is enough, and what is missing is named. Needs root, BPF
//! and the cpu controller; without them these tests fail.

use std::{
    collections::HashSet,
    env, fs,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use caps::{CapSet, Capability};
use nix::sys::resource::{Resource, setrlimit};
use throttle_user::check::{Fact, Grade, Report, Verdict};

/// Environment variables of the role: capabilities to keep, arguments of `throttle` a line each, and where its output goes.
const KEEP: &str = "THROTTLE_TEST_KEEP";
const ARGUMENTS: &str = "THROTTLE_TEST_ARGUMENTS";
const OUTPUT: &str = "THROTTLE_TEST_OUTPUT";

/// Two at once on two CPUs would only make each other slow.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn variable(name: &str) -> String {
    env::var(name).expect("started by a test")
}

/// Becomes `throttle` with no other capabilities than those named and with next to no memory that it may lock. Root gets back on
/// exec whatever is in the bounding set (capabilities(7)), so that is what is cut down.
#[test]
#[ignore = "started by the other tests as a process of its own"]
fn with_fewer_rights() {
    let keep = variable(KEEP);
    let keep: HashSet<Capability> = keep.split_whitespace().map(|name| name.parse().expect("a capability")).collect();
    setrlimit(Resource::RLIMIT_MEMLOCK, 4_096, 4_096).expect("limits can be lowered");
    for capability in caps::all().difference(&keep) {
        // It fails for those that this kernel or this container does not have.
        let _ = caps::drop(None, CapSet::Bounding, *capability);
    }
    let mut throttle = Command::new(env!("CARGO_BIN_EXE_throttle"));
    throttle.args(variable(ARGUMENTS).lines());
    throttle.stdout(fs::File::create(variable(OUTPUT)).expect("a file"));
    panic!("{}", throttle.exec());
}

/// Runs `throttle` to its end with the capabilities in `keep` alone.
fn throttle(keep: &str, arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("output");
    let ended = Command::new(env::current_exe().expect("the test binary"))
        .args(["--exact", "with_fewer_rights", "--ignored", "--nocapture"])
        .env(KEEP, keep)
        .env(ARGUMENTS, arguments.join("\n"))
        .env(OUTPUT, &output)
        .stdin(Stdio::null())
        .output()
        .expect("the test binary starts");
    Output { stdout: fs::read(&output).expect("its output"), ..ended }
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?} {:?}\n{}{}", output.status.code(), output.status.signal(), text(&output.stdout), text(&output.stderr))
}

/// `throttle check` with the capabilities in `keep` alone: the report and the exit code.
fn checked(keep: &str) -> (Report, Option<i32>) {
    let output = throttle(keep, &["check", "--json"]);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    (report, output.status.code())
}

fn of<'a>(report: &'a Report, name: &str) -> &'a Fact {
    let mut facts = report.sections.iter().flat_map(|section| &section.facts);
    facts.find(|fact| fact.name == name).unwrap_or_else(|| panic!("no {name} in {report:#?}"))
}

#[test]
fn kernel_without_cap_bpf_nothing_is_tried_and_the_right_is_named() {
    let _turn = one_at_a_time();
    let (report, code) = checked("CAP_PERFMON CAP_DAC_OVERRIDE CAP_KILL");
    assert_eq!((report.verdict, code), (Verdict::Cannot, Some(2)), "{report:#?}");
    let missing = of(&report, "CAP_BPF");
    assert_eq!((missing.grade, missing.found.as_str()), (Grade::Fatal, "missing"));
    assert!(missing.costs.as_ref().is_some_and(|costs| costs.contains("run as root")), "{missing:?}");
    assert_eq!(of(&report, "CAP_PERFMON").grade, Grade::Good);
    let hooks = of(&report, "hooks");
    assert!(hooks.costs.as_ref().is_some_and(|costs| costs.contains("CAP_BPF is missing")), "{hooks:?}");
    // What takes no right is found out all the same.
    assert_eq!((of(&report, "BTF").grade, of(&report, "cpu controller").grade), (Grade::Good, Grade::Good));
}

#[test]
fn kernel_cap_bpf_and_cap_perfmon_alone_are_enough_for_root() {
    let _turn = one_at_a_time();
    let (report, _) = checked("CAP_BPF CAP_PERFMON");
    assert_ne!(report.verdict, Verdict::Cannot, "{report:#?}");
    assert_eq!(of(&report, "sched_switch").grade, Grade::Good, "{report:#?}");
    assert_eq!(of(&report, "throttles").grade, Grade::Good, "{report:#?}");
}
