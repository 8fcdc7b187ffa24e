//! Whole runs of the `throttle` binary on the running kernel: what a run leaves, deriving it again, and a run that was killed.
//! Needs root, the cpu controller and a kernel with BTF; without them these tests fail.

mod whole_run;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use whole_run::{DEADLINE, derived, done, json_lines, ns, of_type, one_at_a_time, throttle};

const DERIVED: [&str; 4] = ["runs.jsonl", "periods.jsonl", "summary.json", "report.md"];

#[test]
fn kernel_a_run_is_derived_again_byte_for_byte_and_its_shares_sum_to_the_wall() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let run = dir.path().join("run");
    let out = run.to_str().expect("a path in ASCII");
    let sweep =
        done(&mut throttle(&["sweep", "--requests", "3", "--limits", "200m,unlimited", "--gap", "50ms", "--out", out]));
    let runs = json_lines(&run.join("runs.jsonl"));
    let limits: Vec<_> = of_type(&runs, "limit").collect();
    assert_eq!(limits.len(), 2, "{runs:#?}");
    // 0: all figures agree with the kernel's. 1: some do not, and the limit's line says which.
    let agree = limits.iter().all(|limit| limit["agreement"]["verdict"] == "agrees");
    assert_eq!(sweep.status.code(), Some(if agree { 0 } else { 1 }), "{limits:#?}");
    for limit in limits.iter().filter(|limit| limit["agreement"]["verdict"] != "agrees") {
        let because = &limit["agreement"]["because"];
        assert!(because.as_array().is_some_and(|list| !list.is_empty()) || because.is_string(), "{limit:#}");
    }
    for limit in &limits {
        assert_eq!(limit["lost_events"], 0, "{limit:#}");
        assert_eq!(limit["ending"]["how"], "complete", "{limit:#}");
    }
    let requests: Vec<_> = of_type(&runs, "request").collect();
    assert_eq!(requests.len(), 6);
    for request in &requests {
        let parts =
            ["on_cpu_ns", "throttled_own_ns", "throttled_ancestor_ns", "runqueue_ns", "blocked_ns", "unknown_ns"];
        assert_eq!(parts.iter().map(|part| ns(request, part)).sum::<u64>(), ns(request, "wall_ns"), "{request}");
        assert_eq!(ns(request, "finished_ns") - ns(request, "started_ns"), ns(request, "wall_ns"));
    }
    let throttled = |request: &&&Value| ns(request, "throttled_own_ns") + ns(request, "throttled_ancestor_ns") > 0;
    let under = |limit: &str| requests.iter().filter(|request| request["limit"] == limit).collect::<Vec<_>>();
    assert!(under("200m").iter().all(throttled), "60 ms of work do not fit 20 ms of quota");
    assert!(under("unlimited").iter().all(|request| !throttled(request)));

    let before = derived(&run, DERIVED);
    let report = done(&mut throttle(&["report", out]));
    assert_eq!(report.status.code(), sweep.status.code(), "what is shown is as right as it was");
    assert_eq!(derived(&run, DERIVED), before);
    assert!(String::from_utf8_lossy(&report.stdout).contains("200m"));
}

#[test]
fn kernel_a_killed_run_is_recovered_and_its_groups_are_removed_by_the_next() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let (killed, next) = (dir.path().join("killed"), dir.path().join("next"));
    let mut sweep = throttle(&["sweep", "--requests", "50", "--limits", "400m", "--gap", "50ms", "--quiet", "--out"])
        .arg(&killed)
        .stdout(Stdio::null())
        .spawn()
        .expect("throttle starts");
    let record = killed.join("raw/record.jsonl");
    let answered = || {
        let text = fs::read_to_string(&record).unwrap_or_default();
        text.lines().filter(|line| line.contains(r#""type":"request""#)).count()
    };
    let started = Instant::now();
    while answered() < 3 {
        assert!(started.elapsed() < DEADLINE, "three requests are not answered in {DEADLINE:?}");
        assert_eq!(sweep.try_wait().expect("a child"), None, "the sweep ended early");
        sleep(Duration::from_millis(10));
    }
    let top = group_of(sweep.id());
    sweep.kill().expect("killed");
    sweep.wait().expect("reaped");
    assert!(top.is_dir(), "nothing can remove the groups of a process that is killed: {}", top.display());

    let report = done(throttle(&["report"]).arg(&killed));
    assert_eq!(report.status.code(), Some(1), "it is not whole");
    let runs = json_lines(&killed.join("runs.jsonl"));
    assert!(of_type(&runs, "request").count() >= 3, "{runs:#?}");
    let explained = of_type(&runs, "request").filter(|request| ns(request, "unknown_ns") == 0).count();
    assert!(explained >= 2, "the events of answered requests are kept: {runs:#?}");
    let limit = of_type(&runs, "limit").next().expect("the limit it was at");
    assert_eq!(limit["ending"]["how"], "broken", "{limit:#}");
    assert_eq!(limit["agreement"]["verdict"], "not_compared", "{limit:#}");
    let before = derived(&killed, DERIVED);
    assert_eq!(done(throttle(&["report"]).arg(&killed)).status.code(), Some(1));
    assert_eq!(derived(&killed, DERIVED), before);

    let again = done(throttle(&["sweep", "--requests", "1", "--limits", "800m", "--gap", "1ms", "--out"]).arg(&next));
    assert!(matches!(again.status.code(), Some(0 | 1)), "{:?}", again.status);
    assert!(!top.exists(), "{} was left behind", top.display());
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(told.contains(&format!("left behind by process {}", sweep.id())), "{told}");
}

/// A sweep in which one request has been answered, and its topmost group.
fn under_way(out: &Path) -> (Child, PathBuf) {
    let mut sweep =
        throttle(&["sweep", "--requests", "500", "--limits", "400m,800m", "--gap", "50ms", "--quiet", "--out"])
            .arg(out)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("throttle starts");
    let started = Instant::now();
    while !fs::read_to_string(out.join("raw/record.jsonl")).is_ok_and(|text| text.contains(r#""type":"request""#)) {
        assert!(started.elapsed() < DEADLINE, "no request is answered in {DEADLINE:?}");
        assert_eq!(sweep.try_wait().expect("a child"), None, "the sweep ended early");
        sleep(Duration::from_millis(10));
    }
    let top = group_of(sweep.id());
    (sweep, top)
}

/// Processes in the container: the server.
fn server_of(top: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(top.join("pod/container/cgroup.procs")).expect("the container");
    text.lines().map(|pid| Pid::from_raw(pid.parse().expect("a pid"))).collect()
}

/// It ended with `code`, left no group, and kept what was measured of the limit it was at.
fn assert_ended(sweep: Child, top: &Path, out: &Path, code: i32, because: &[&str]) {
    let output = sweep.wait_with_output().expect("ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{told}");
    for because in because {
        assert!(told.contains(because), "{because}: {told}");
    }
    assert!(!top.exists(), "{} was left behind: {told}", top.display());
    assert!(of_type(&json_lines(&out.join("runs.jsonl")), "request").count() > 0);
    let summary: Value =
        serde_json::from_str(&fs::read_to_string(out.join("summary.json")).expect("a summary")).expect("JSON");
    assert_eq!(summary["not_run"], serde_json::json!(["800m"]));
}

#[test]
fn kernel_a_server_killed_in_the_middle_breaks_the_run_off_and_is_named() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let (sweep, top) = under_way(&out);
    server_of(&top).into_iter().for_each(|pid| kill(pid, Signal::SIGKILL).expect("killed"));
    assert_ended(sweep, &top, &out, 4, &["limit 400m broke off", "the server process ended (signal: 9 (SIGKILL))"]);
}

#[test]
fn kernel_a_cgroup_removed_in_the_middle_breaks_the_run_off_and_is_named() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let (sweep, top) = under_way(&out);
    let container = top.join("pod/container");
    server_of(&top).into_iter().for_each(|pid| kill(pid, Signal::SIGKILL).expect("killed"));
    let started = Instant::now();
    while container.exists() {
        assert!(started.elapsed() < DEADLINE, "the container cannot be removed");
        // Refused until the killed process has left it.
        let _ = fs::remove_dir(&container);
    }
    let because = format!("cgroup {} does not exist", container.display());
    assert_ended(sweep, &top, &out, 4, &["limit 400m broke off", &because, "something else removed the run's cgroup"]);
}

#[test]
fn kernel_ctrl_c_ends_a_run_whose_server_hears_nothing() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let (sweep, top) = under_way(&out);
    server_of(&top).into_iter().for_each(|pid| kill(pid, Signal::SIGSTOP).expect("stopped"));
    kill(Pid::from_raw(sweep.id().try_into().expect("a pid")), Signal::SIGINT).expect("interrupted");
    assert_ended(sweep, &top, &out, 130, &["interrupted; what was measured is in"]);
}

#[test]
fn kernel_a_folder_in_the_kernels_own_file_systems_makes_no_cgroup() {
    let mount = throttle_user::cgroup::Hierarchy::find().expect("a cpu controller").mount;
    let asked = mount.join("no-such-run/inner");
    let output = done(throttle(&["sweep", "--requests", "1", "--limits", "unlimited", "--out"]).arg(&asked));
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("is in a cgroup file system") && told.contains("--out"), "{told}");
    assert!(!mount.join("no-such-run").exists());
}

/// The topmost scratch group of a running sweep: it is in its own driver group.
fn group_of(pid: u32) -> PathBuf {
    let hierarchy = throttle_user::cgroup::Hierarchy::find().expect("a cpu controller");
    let started = Instant::now();
    loop {
        let nodes = throttle_user::cgroup::tree::walk(&hierarchy).expect("walked");
        let driver = nodes.into_iter().find(|node| {
            node.path.ends_with("driver") && node.group.processes().is_ok_and(|members| members.ids.contains(&pid))
        });
        if let Some(top) = driver.and_then(|driver| driver.group.path().parent().map(Path::to_owned)) {
            return top;
        }
        assert!(started.elapsed() < DEADLINE, "process {pid} is in no driver group");
        sleep(Duration::from_millis(10));
    }
}
