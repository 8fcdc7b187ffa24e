//! `throttle observe` as a process, with real groups and the real probe, asked over HTTP and compared with the kernel's own counters.
//! Needs root, BPF and the cpu controller; without them these tests fail.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use throttle_user::cgroup::{
    Bandwidth, Counters, Group, Hierarchy, Nesting, Quietness, Quota, Scratch, ScratchPlan, wait_quiet,
};

const DEADLINE: Duration = Duration::from_secs(60);

/// A process has one scratch tree at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A running daemon; killed when it is dropped.
struct Daemon {
    child: Child,
    address: String,
}

impl Daemon {
    fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_throttle"))
            .args(["observe", "--listen", "127.0.0.1:0"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        let address =
            line.trim().strip_prefix("listening http://").unwrap_or_else(|| panic!("said {line:?}")).to_owned();
        let daemon = Self { child, address };
        until("the daemon to be ready", || daemon.get("/readyz").0 == 200);
        daemon
    }

    /// Status and body.
    fn get(&self, path: &str) -> (u16, String) {
        self.get_as(path, "*/*")
    }

    fn get_as(&self, path: &str, accept: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("connects");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: {accept}\r\n\r\n", self.address).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// The row of a group; `None` = there is none.
    fn row(&self, group: &Group) -> Option<Value> {
        let (status, body) = self.get("/api/v1/cgroups");
        assert_eq!(status, 200, "{body}");
        let rows: Value = serde_json::from_str(&body).expect("JSON");
        let id = group.id().ok();
        let path = path(group);
        let rows = rows["cgroups"].as_array().expect("rows").clone();
        rows.into_iter().find(|row| row["path"] == path.as_str() && id.is_none_or(|id| row["id"] == id))
    }

    /// Waits until as many periods as the kernel counted are told, and returns the totals.
    fn totals(&self, group: &Group, periods: u64) -> Value {
        let mut totals = Value::Null;
        until(&format!("{periods} periods of {}", path(group)), || {
            totals = self.row(group).map_or(Value::Null, |row| row["totals"].clone());
            totals["periods"].as_u64().is_some_and(|seen| seen >= periods)
        });
        totals
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Path below the mount.
fn path(group: &Group) -> String {
    let mount = Hierarchy::find().expect("a cpu controller").mount;
    group.path().strip_prefix(mount).expect("below the mount").to_str().expect("UTF-8").to_owned()
}

fn limited(quota_ms: u64) -> Bandwidth {
    Bandwidth { quota: Quota::Us(quota_ms * 1_000), period_us: 100_000, burst_us: 0 }
}

fn scratch(bandwidth: Bandwidth) -> Scratch {
    let hierarchy = Hierarchy::find().expect("a cpu controller");
    let plan = ScratchPlan { nesting: Nesting::Nested, bandwidth, parent: None };
    Scratch::create(&hierarchy, &plan).expect("scratch groups; run as root")
}

/// Container first, then pod.
fn levels(scratch: &Scratch) -> Vec<Group> {
    scratch.levels().expect("levels").into_iter().map(|level| level.group).collect()
}

/// Two threads' worth of spinning in a group, until its processes end and its timers stand still.
fn burn(group: &Group) {
    let turns = if std::env::var_os("THROTTLE_GUEST").is_some() { 20_000 } else { 200_000 };
    let script = format!("read go; i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done");
    let mut children: Vec<Child> = (0..2)
        .map(|_| Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().expect("starts"))
        .collect();
    for child in &mut children {
        group.add_process(child.id()).expect("moved");
        child.stdin.take().expect("piped").write_all(b"go\n").expect("written");
    }
    for mut child in children {
        assert!(child.wait().expect("ends").success());
    }
}

fn quiet(groups: &[Group]) {
    let groups: Vec<&Group> = groups.iter().collect();
    assert!(matches!(wait_quiet(&groups, DEADLINE, || false).expect("readable"), Quietness::Quiet { .. }));
}

/// What the kernel counted so far, once it stands still: a quota that is written starts the timer (`tg_set_cfs_bandwidth`).
fn counted(levels: &[Group]) -> Vec<u64> {
    quiet(levels);
    let periods = |group: &Group| Counters::read(group).expect("counters").figures.nr_periods().expect("counted");
    levels.iter().map(periods).collect()
}

/// The daemon's own account of losses.
fn lost(metrics: &str) -> f64 {
    let samples = metrics.lines().filter(|line| line.starts_with("throttle_records_lost_total{"));
    samples.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")).sum()
}

#[test]
fn kernel_the_daemon_counts_what_the_kernel_counts() {
    let _turn = one_at_a_time();
    let daemon = Daemon::start(&[]);
    // Made while it runs: it must find them.
    let scratch = scratch(limited(20));
    let levels = levels(&scratch);
    burn(&levels[0]);
    quiet(&levels);
    for group in &levels {
        let counters = Counters::read(group).expect("counters").figures;
        let periods = counters.nr_periods().expect("counted");
        assert!(periods > 5, "{counters:?}");
        let totals = daemon.totals(group, periods);
        let case = format!("{}: {totals} {counters:?}", path(group));
        assert_eq!(totals["periods"], periods, "{case}");
        assert_eq!(totals["throttled_periods"], counters.nr_throttled().expect("counted"), "{case}");
        let ours = totals["throttled_cpu_ns"].as_u64().expect("a number");
        let kernels = counters.throttled().expect("counted").0;
        let edges = totals["throttles"]["count"].as_u64().expect("a number");
        // On emulated CPUs the host comes between the instant the kernel notes and the tracepoint.
        let slack =
            if std::env::var_os("THROTTLE_GUEST").is_some() { kernels / 10 } else { kernels / 1_000 + 50_000 * edges };
        assert!(ours.abs_diff(kernels) <= slack, "{case}");
        let wall = totals["throttled_wall_ns"].as_u64().expect("a number");
        assert!(wall > 0 && totals["drawn_ns"].as_u64() > Some(0), "{case}");
        // Not measured, so not there.
        assert!(totals.get("fully_throttled_ns").is_none() && totals.get("used_ns").is_none(), "{case}");

        let (status, lines) = daemon.get(&format!("/api/v1/periods?follow=false&cgroup=/{}", path(group)));
        assert_eq!(status, 200, "{lines}");
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let sum = |of: &str| lines.iter().map(|line| line[of].as_u64().expect("a number")).sum::<u64>();
        assert_eq!((sum("periods"), sum("throttled_wall_ns")), (periods, wall), "{lines:#?}");
        assert!(lines.iter().all(|line| line["quota_ns"] == 20_000_000 && line.get("used_ns").is_none()), "{lines:#?}");
    }
    let (_, metrics) = daemon.get("/metrics");
    assert!(lost(&metrics) == 0.0, "{metrics}");
    let sample = format!(
        "level=\"other\",cgroup=\"/{}\"}} {}",
        path(&levels[0]),
        daemon.row(&levels[0]).expect("a row")["totals"]["periods"]
    );
    let line = metrics.lines().find(|line| line.starts_with("throttle_periods_total{") && line.ends_with(&sample));
    assert!(line.is_some(), "no sample ends with {sample} in {metrics}");
    let (_, open) = daemon.get_as("/metrics", "application/openmetrics-text;version=1.0.0");
    assert!(open.ends_with("# EOF\n") && open.contains("# UNIT throttle_throttled_cpu_seconds seconds"), "{open}");
}

#[test]
fn kernel_with_threads_followed_what_ran_and_what_stood_still_is_told_too() {
    let _turn = one_at_a_time();
    let scratch = scratch(limited(20));
    let levels = levels(&scratch);
    let before = counted(&levels);
    let daemon = Daemon::start(&["--tasks", &path(&levels[1])]);
    // The grid of periods went on from before: one that began before the daemon did is not complete.
    thread::sleep(Duration::from_millis(200));
    burn(&levels[0]);
    let after = counted(&levels);
    for (group, (before, after)) in levels.iter().zip(before.iter().zip(&after)) {
        let periods = after - before;
        let totals = daemon.totals(group, periods);
        assert_eq!((&totals["periods"], &totals["incomplete_periods"]), (&periods.into(), &0.into()), "{totals}");
        let ns = |of: &str| totals[of].as_u64().unwrap_or_else(|| panic!("no {of}: {totals}"));
        // But for the slices of 5 ms that CPUs hold, and what each keeps when the timer stops.
        assert!(ns("used_ns").abs_diff(ns("drawn_ns")) < ns("used_ns") / 10 + 20_000_000, "{totals}");
        assert!(ns("fully_throttled_ns") > 0 && ns("denied_idle_ns") > 0, "{totals}");
    }
}

#[test]
fn kernel_groups_that_come_change_and_go_are_followed() {
    let _turn = one_at_a_time();
    let daemon = Daemon::start(&["--grace", "1s"]);
    let scratch = scratch(limited(30));
    let levels = levels(&scratch);
    let quota = |group: &Group| daemon.row(group).and_then(|row| row["quota_us"].as_u64());
    until("the groups to be told", || levels.iter().all(|group| quota(group) == Some(30_000)));
    limited(50).write(&levels[1]).expect("a limit");
    until("the new limit to be told", || quota(&levels[1]) == Some(50_000));
    assert_eq!(quota(&levels[0]), Some(30_000));
    let gone = levels.clone();
    assert!(scratch.remove().is_complete());
    // First said to be gone, then forgotten after its time of grace.
    until("the groups to be forgotten", || gone.iter().all(|group| daemon.row(group).is_none()));
    let (status, text) = daemon.get("/healthz");
    assert_eq!((status, text.as_str()), (200, "ok\n"));
}

#[test]
fn kernel_a_daemon_that_is_killed_leaves_nothing_behind_and_the_next_one_starts_from_zero() {
    let _turn = one_at_a_time();
    let programs = || {
        let mut names = BTreeMap::<String, u32>::new();
        for program in aya::programs::loaded_programs().filter_map(Result::ok) {
            *names.entry(program.name_as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        names
    };
    // The kernel lets go of an earlier daemon's some time after its end.
    let mut before = programs();
    until("the kernel to let go of earlier programs", || {
        let seen = std::mem::replace(&mut before, programs());
        thread::sleep(Duration::from_millis(200));
        seen == before && programs() == before
    });
    let scratch = scratch(limited(20));
    let levels = levels(&scratch);
    let first = counted(&levels)[0];
    let mut daemon = Daemon::start(&[]);
    assert_ne!(programs(), before);
    burn(&levels[0]);
    let second = counted(&levels)[0];
    assert_eq!(daemon.totals(&levels[0], second - first)["periods"], second - first);
    kill(Pid::from_raw(daemon.child.id().try_into().expect("a pid")), Signal::SIGKILL).expect("killed");
    daemon.child.wait().expect("ended");
    until("the kernel to let go of the programs", || programs() == before);
    let daemon = Daemon::start(&[]);
    assert!(daemon.row(&levels[0]).is_some_and(|row| row.get("totals").is_none()));
    burn(&levels[0]);
    let third = counted(&levels)[0];
    assert_eq!(daemon.totals(&levels[0], third - second)["periods"], third - second);
}

#[test]
fn kernel_a_signal_ends_the_daemon_with_success() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start(&[]);
    kill(Pid::from_raw(daemon.child.id().try_into().expect("a pid")), Signal::SIGTERM).expect("signalled");
    assert!(daemon.child.wait().expect("ended").success());
}

#[test]
fn kernel_what_is_asked_wrongly_is_refused_with_the_reason() {
    let _turn = one_at_a_time();
    let daemon = Daemon::start(&[]);
    for (path, status, part) in [
        ("/", 404, "/metrics"),
        ("/api/v1/periods?pood=x", 400, "pood"),
        ("/api/v1/cgroups?follow=perhaps", 400, "follow"),
    ] {
        let (seen, text) = daemon.get(path);
        assert!(seen == status && text.contains(part), "{path}: {seen} {text}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_throttle"))
        .args(["observe", "--listen", &daemon.address])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
