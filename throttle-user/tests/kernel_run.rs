//! `throttle run` as a process, with real groups and the real probe. Needs root, BPF and the cpu controller; without them
//! these tests fail.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use throttle_user::{cgroup::Hierarchy, run::command::CommandRun};

const DEADLINE: Duration = Duration::from_secs(60);

/// Two at once on two CPUs would only make each other slow.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn throttle(flags: &[&str], command: &[&str]) -> Command {
    let mut throttle = Command::new(env!("CARGO_BIN_EXE_throttle"));
    throttle.arg("run").args(flags).arg("--").args(command).stdin(Stdio::null());
    throttle
}

/// Runs to the end; the group of the finished process is gone.
fn finished(flags: &[&str], command: &[&str]) -> Output {
    let child = throttle(flags, command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("ends");
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new(), "{}", said(&output));
    output
}

/// As [`finished`], with the report as JSON.
fn explained(flags: &[&str], command: &[&str]) -> (Output, CommandRun, Value) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("run.json");
    let output = finished(&[flags, &["--json", file.to_str().expect("utf-8")]].concat(), command);
    let text = fs::read_to_string(&file).expect("the JSON file");
    let run = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{}", said(&output)));
    (output, run, serde_json::from_str(&text).expect("JSON"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("throttle itself was killed: {}", said(output)))
}

/// Scratch groups that a process made.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let mount = Hierarchy::find().expect("a cpu controller").mount;
    let mut found = Vec::new();
    let mut open = vec![mount];
    while let Some(dir) = open.pop() {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(&format!("throttle-{pid}-")) {
                found.push(path.clone());
            }
            open.push(path);
        }
    }
    found
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().expect("a pid")), signal).expect("signals");
}

/// Some tenths of a second of CPU in one thread, without a child. Emulated CPUs are many times slower.
fn spin() -> String {
    let turns = if guest().is_some() { 30_000 } else { 300_000 };
    format!("i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done")
}

/// How time passes where CPUs are emulated: `icount` or `smp`, as `cargo xtask vm-test` says.
fn guest() -> Option<String> {
    std::env::var("THROTTLE_GUEST").ok()
}

/// Our figures agree with the kernel's counters. On two emulated CPUs the host takes one away for milliseconds between the
/// instant the kernel notes and the tracepoint: there counts must be equal, and times near.
fn assert_agrees(json: &Value, output: &Output) {
    if guest().as_deref() != Some("smp") {
        assert_eq!(json["agreement"]["verdict"], "agrees", "{}", said(output));
        return;
    }
    let checks = json["checks"].as_array().expect("checks");
    for check in checks {
        let number = |field: &str| check[field].as_u64().expect("a number");
        let (observed, kernel, tolerance) = (number("observed"), number("kernel"), number("tolerance"));
        let within = if tolerance == 0 { 0 } else { (kernel / 20).max(5_000_000).max(tolerance) };
        assert!(observed.abs_diff(kernel) <= within, "{check} {}", said(output));
    }
    assert_eq!(json["lost_events"], 0, "{}", said(output));
}

#[test]
fn kernel_a_spinner_is_throttled_period_by_period_and_the_kernel_agrees() {
    let _turn = one_at_a_time();
    let (output, run, json) = explained(&["--limit", "200m"], &["sh", "-c", &spin()]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_agrees(&json, &output);
    assert_eq!(run.lost_events, 0);
    assert_eq!(run.killed, 0);

    // It wanted a whole CPU and had a fifth: throttled most of the time, and in it nothing ran.
    let row = &run.threads[0];
    assert_eq!((run.threads.len(), row.comm.as_deref()), (1, Some("sh")), "{}", said(&output));
    assert!(run.throttled_wall_ns.0 * 2 > run.wall_ns.0, "{}", said(&output));
    assert!(run.fully_throttled_ns == run.throttled_wall_ns, "one thread: {}", said(&output));
    assert_eq!(row.shares.throttled(), run.throttled_wall_ns);
    assert_eq!(row.shares.total(), row.life_ns, "the shares sum to the thread's life");
    assert!(row.first_ns.0 * 100 < run.wall_ns.0, "seen from its first instruction: {}", said(&output));
    assert!(row.life_ns.0 * 100 > run.wall_ns.0 * 99, "and to its end: {}", said(&output));

    // Every period but the last ran out; the periods' use is the thread's.
    let out = run.periods.iter().filter(|period| !period.out.is_empty()).count();
    assert!(out + 2 >= run.periods.len() && out >= 3, "{}", said(&output));
    let used: u64 = run.periods.iter().map(|period| period.period.used_ns.expect("followed").0).sum();
    assert!(used.abs_diff(row.shares.on_cpu_ns.0) * 20 < used, "{used} {}", said(&output));
    assert!(run.need.expect("it ran").apart.limit_millicores > 200);
    for line in said(&output).lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn kernel_threads_at_once_are_all_seen_and_share_the_quota() {
    let _turn = one_at_a_time();
    let loops = format!("for j in 1 2 3; do ({}) & done; wait", spin());
    let (output, run, json) = explained(&["--limit", "400m", "--flat", "--threads-shown", "2"], &["sh", "-c", &loops]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_agrees(&json, &output);
    assert_eq!(run.levels.len(), 1);
    // The three loops, and sometimes the shell that starts them.
    let held = run.threads.iter().filter(|row| row.shares.throttled().0 > 0).count();
    assert!((3..=4).contains(&held) && run.threads.len() == 4, "{}", said(&output));
    assert!(said(&output).contains("and 2 more"), "{}", said(&output));
    assert!(run.need.expect("it ran").range().1.limit_millicores > 400);
}

#[test]
fn kernel_without_a_limit_nothing_is_throttled_and_all_is_seen() {
    let _turn = one_at_a_time();
    let (output, run, json) = explained(&["--limit", "unlimited"], &["sh", "-c", &spin()]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_agrees(&json, &output);
    assert_eq!((run.throttled_wall_ns.0, run.quota_us, run.periods.len()), (0, None, 0));
    let shares = run.threads[0].shares;
    assert!(
        shares.on_cpu_ns.0 > 0 && (shares.on_cpu_ns + shares.runqueue_ns).0 * 100 > run.wall_ns.0 * 95,
        "{shares:?}"
    );
}

#[test]
fn kernel_the_commands_own_code_is_the_exit_code() {
    let _turn = one_at_a_time();
    let output = finished(&["--limit", "200m"], &["sh", "-c", "exit 7"]);
    assert_eq!(code(&output), 7);
    assert!(said(&output).contains("exited with 7"), "{}", said(&output));
}

#[test]
fn kernel_a_command_killed_by_a_signal_ends_with_128_and_its_number() {
    let _turn = one_at_a_time();
    let output = finished(&["--limit", "200m"], &["sh", "-c", "kill -9 $$"]);
    assert_eq!(code(&output), 128 + 9);
    assert!(said(&output).contains("killed by SIGKILL"), "{}", said(&output));
}

#[test]
fn kernel_a_command_that_cannot_be_started_is_named_and_nothing_is_left() {
    let _turn = one_at_a_time();
    let plain = tempfile::NamedTempFile::new().expect("a file");
    let plain = plain.path().to_str().expect("utf-8");
    for (command, why) in [("no-such-command", "No such file"), (plain, "ermission denied")] {
        let output = finished(&["--limit", "200m"], &[command]);
        assert_eq!(code(&output), 2);
        assert!(said(&output).contains(&format!("cannot start {command}: ")), "{}", said(&output));
        assert!(said(&output).contains(why) && !said(&output).contains("Periods"), "{}", said(&output));
    }
}

#[test]
fn kernel_what_outlives_the_main_process_is_killed_and_counted() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let script = "(while :; do :; done) & echo $!; sleep 1000 & echo $!; exit 3";
    let file = dir.path().join("run.json");
    let flags = ["--limit", "100m", "--json", file.to_str().expect("utf-8")];
    // The children hold stdout: the reader's end comes only when they are gone.
    let output = finished(&flags, &["sh", "-c", script]);
    assert_eq!(code(&output), 3);
    assert!(said(&output).contains("2 processes of it still ran"), "{}", said(&output));
    let pids = String::from_utf8(output.stdout.clone()).expect("text");
    for pid in pids.lines() {
        until("the child to be gone", || !PathBuf::from(format!("/proc/{pid}")).exists());
    }
    let json: Value = serde_json::from_str(&fs::read_to_string(&file).expect("JSON")).expect("JSON");
    assert_eq!((json["killed"].as_u64(), json["status"]["code"].as_u64()), (Some(2), Some(3)));
    assert_agrees(&json, &output);
}

#[test]
fn kernel_the_command_has_our_input_output_environment_and_folder() {
    let _turn = one_at_a_time();
    const COUNT: &str = "ls /proc/self/fd | wc -l";
    let script = format!("cat; echo $HERE; pwd; {COUNT}");
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = throttle(&["--limit", "unlimited", "--json", "-", "--quiet"], &["sh", "-c", &script])
        .env("HERE", "there")
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    child.stdin.take().expect("piped").write_all(b"typed\n").expect("written");
    let output = child.wait_with_output().expect("ends");
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    let mut lines = text.splitn(5, '\n');
    assert_eq!(lines.next(), Some("typed"), "{}", said(&output));
    assert_eq!(lines.next(), Some("there"));
    assert_eq!(lines.next(), dir.path().canonicalize().expect("there").to_str());
    // Descriptors of whoever started this test are passed on, ours are not.
    let alone = Command::new("sh").args(["-c", COUNT]).stdin(Stdio::null()).output().expect("a shell");
    assert_eq!(lines.next().map(str::trim), str::from_utf8(&alone.stdout).ok().map(str::trim));
    let run: CommandRun = serde_json::from_str(lines.next().expect("JSON")).expect("JSON");
    assert_eq!(run.command[0], "sh");
    assert_eq!(said(&output), "");
}

#[test]
fn kernel_a_signal_is_the_commands_and_the_report_is_made() {
    let _turn = one_at_a_time();
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = throttle(&["--limit", "500m"], &["sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut ready).expect("ready");
    let pid = child.id();
    signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(code(&output), 5, "{}", said(&output));
    assert!(
        said(&output).contains("exited with 5") && said(&output).contains("Kernel's counters"),
        "{}",
        said(&output)
    );
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new());
}

#[test]
fn kernel_a_signal_before_the_command_starts_ends_with_130_and_a_word() {
    let _turn = one_at_a_time();
    let child = throttle(&["--limit", "200m"], &["sleep", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let pid = child.id();
    // From here on the timers must rest for four periods before the command starts.
    until("its cgroups", || !groups_of(pid).is_empty());
    signal(&child, Signal::SIGINT);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(code(&output), 130, "{}", said(&output));
    assert!(said(&output).contains("interrupted by SIGINT before the command was started"), "{}", said(&output));
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new());
}

#[test]
fn kernel_events_beyond_the_most_are_counted_and_the_report_says_until_when_it_goes() {
    let _turn = one_at_a_time();
    let script = "for i in 1 2 3 4 5 6 7 8; do sleep 0.02; done";
    let (output, run, json) = explained(&["--limit", "400m", "--max-events", "40"], &["sh", "-c", script]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(run.observed_ns < run.wall_ns, "{}", said(&output));
    assert_eq!(json["agreement"]["verdict"], "not_compared");
    assert!(said(&output).contains("observed for the first"), "{}", said(&output));
    assert!(said(&output).contains("events came after the last one that could be kept"), "{}", said(&output));
}

#[test]
fn kernel_threads_have_the_names_of_the_programs_they_became() {
    let _turn = one_at_a_time();
    let (output, run, _) = explained(&["--limit", "800m"], &["sh", "-c", "sleep 0.3 & sleep 0.3; wait"]);
    let mut names: Vec<_> = run.threads.iter().map(|row| row.comm.as_deref()).collect();
    names.sort_unstable();
    assert_eq!(names, [Some("sh"), Some("sleep"), Some("sleep")], "{}", said(&output));
    // Over before anybody could ask, but its name is there until it is waited for.
    let (output, run, _) = explained(&["--limit", "800m"], &["true"]);
    assert_eq!(run.threads[0].comm.as_deref(), Some("true"), "{}", said(&output));
}

#[test]
fn kernel_a_run_inside_a_run_is_refused_with_the_reason() {
    let _turn = one_at_a_time();
    let inner = [env!("CARGO_BIN_EXE_throttle"), "run", "--limit", "200m", "--", "echo", "ran"];
    let output = finished(&["--limit", "800m"], &inner);
    assert_eq!((code(&output), output.stdout.as_slice()), (2, &b""[..]), "{}", said(&output));
    assert!(said(&output).contains("observes: groups made here would be out of its sight"), "{}", said(&output));
}

#[test]
fn kernel_bad_usage_ends_with_2_before_the_command_runs() {
    let _turn = one_at_a_time();
    for flags in [
        &["--limit", "5m"][..],
        &["--limit", "0"],
        &["--limit", "100m", "--period", "2s"],
        &["--limit", "100m", "--burst", "50ms"],
        &["--limit", "100m", "--json", "/no/such/folder/x.json"],
    ] {
        let output = finished(flags, &["echo", "ran"]);
        assert_eq!(code(&output), 2, "{flags:?} {}", said(&output));
        assert_eq!(output.stdout, b"", "{flags:?}");
    }
}
