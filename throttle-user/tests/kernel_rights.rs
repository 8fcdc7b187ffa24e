//! `throttle` with fewer rights than root has: what it takes and no more is enough, and what is missing is named. Needs root, BPF
//! and the cpu controller; without them these tests fail.

use std::{
    collections::HashSet,
    env, fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use caps::{CapSet, Capability};
use nix::{
    sys::{
        resource::{Resource, setrlimit},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use throttle_user::{
    cgroup::{Bandwidth, Hierarchy, Nesting, Scratch, ScratchPlan},
    check::{Fact, Grade, Report, Verdict},
};

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

/// `throttle` with the capabilities in `keep` alone, and its output in a file.
fn command(keep: &str, arguments: &[&str], output: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("the test binary"));
    command.args(["--exact", "with_fewer_rights", "--ignored", "--nocapture"]);
    command.env(KEEP, keep).env(ARGUMENTS, arguments.join("\n")).env(OUTPUT, output).stdin(Stdio::null());
    command
}

/// Runs it to its end.
fn throttle(keep: &str, arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("output");
    let ended = command(keep, arguments, &output).output().expect("the test binary starts");
    Output { stdout: fs::read(&output).expect("its output"), ..ended }
}

/// A running daemon; killed when it is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn until<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = seen() {
            return seen;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        sleep(Duration::from_millis(20));
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

/// Each thread's name, and the lines of `/proc/PID/task/TID/status` that say what it may do.
fn rights(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten();
    let statuses = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let told = ["Name:", "CapInh:", "CapPrm:", "CapEff:", "CapAmb:", "NoNewPrivs:"];
    let of = |status: String| {
        let lines = status.lines().filter(|line| told.iter().any(|told| line.starts_with(told)));
        lines.collect::<Vec<_>>().join(" ")
    };
    statuses.map(of).collect()
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?} {:?}\n{}{}", output.status.code(), output.status.signal(), text(&output.stdout), text(&output.stderr))
}

/// A directory that its owner may write to, which the root of a v1 hierarchy is not.
fn place() -> Scratch {
    let hierarchy = Hierarchy::find().expect("a cpu controller");
    let plan = ScratchPlan { nesting: Nesting::Flat, bandwidth: Bandwidth::UNLIMITED, parent: None };
    Scratch::create(&hierarchy, &plan).expect("scratch groups; run as root")
}

/// `throttle check` with the capabilities in `keep` alone: the report and the exit code.
fn checked(keep: &str, flags: &[&str]) -> (Report, Option<i32>) {
    let output = throttle(keep, &[&["check", "--json"], flags].concat());
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
    let (report, code) = checked("CAP_PERFMON CAP_DAC_OVERRIDE CAP_KILL", &[]);
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
fn kernel_cap_bpf_and_cap_perfmon_alone_are_enough_for_root_where_it_may_write() {
    let _turn = one_at_a_time();
    let place = place();
    let parent = place.top().path().to_str().expect("UTF-8");
    let (report, _) = checked("CAP_BPF CAP_PERFMON", &["--parent", parent]);
    assert_ne!(report.verdict, Verdict::Cannot, "{report:#?}");
    assert_eq!(of(&report, "sched_switch").grade, Grade::Good, "{report:#?}");
    assert_eq!(of(&report, "throttles").grade, Grade::Good, "{report:#?}");
    assert!(of(&report, "CAP_DAC_OVERRIDE").found.starts_with("missing"), "{report:#?}");
}

#[test]
fn kernel_the_daemon_takes_two_capabilities_to_start_and_none_to_go_on() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("output");
    let arguments = ["observe", "--listen", "127.0.0.1:0", "--names", "paths"];
    let mut daemon =
        Daemon(command("CAP_BPF CAP_PERFMON", &arguments, &output).spawn().expect("the test binary starts"));
    let address = until("the daemon to listen", || {
        let said = fs::read_to_string(&output).unwrap_or_default();
        Some(said.strip_suffix('\n')?.strip_prefix("listening http://")?.to_owned())
    });
    until("the daemon to be ready", || get(&address, "/readyz").starts_with("HTTP/1.0 200").then_some(()));
    // That is read from the kernel's maps once a second.
    until("its account of losses", || {
        get(&address, "/metrics").contains("\nthrottle_records_lost_total{").then_some(())
    });
    let rights = rights(daemon.0.id());
    let names = ["ring", "timeline", "tree"];
    let is_there = |name| rights.iter().any(|rights| rights.contains(&format!("Name:\t{name} ")));
    assert!(names.into_iter().all(is_there), "{rights:#?}");
    let none = ["CapInh", "CapPrm", "CapEff", "CapAmb"].map(|set| format!("{set}:\t{:016x}", 0)).join(" ");
    let without = |rights: &&String| !(rights.contains(&none) && rights.ends_with("NoNewPrivs:\t1"));
    assert_eq!(rights.iter().filter(without).collect::<Vec<_>>(), Vec::<&String>::new(), "{rights:#?}");
    kill(Pid::from_raw(daemon.0.id().try_into().expect("a pid")), Signal::SIGTERM).expect("signalled");
    assert!(daemon.0.wait().expect("ends").success());
}
