//! `throttle serve` and `throttle load` as processes: output, files, signals and exit codes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A server process; killed with the test that made it.
struct Serve {
    child: Child,
    url: String,
}

impl Serve {
    fn start(flags: &[&str]) -> Self {
        let mut child = throttle().arg("serve").args(flags).stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a first line");
        let url = line.trim_end().strip_prefix("listening ").expect("the announcement").to_owned();
        Self { child, url }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().expect("a pid")), signal).expect("signals");
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // Fails where the test has waited for the end already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn throttle() -> Command {
    Command::new(env!("CARGO_BIN_EXE_throttle"))
}

fn load(url: &str, flags: &[&str]) -> Output {
    throttle().args(["load", url]).args(flags).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

#[test]
fn load_prints_the_table_and_says_that_the_loop_is_closed() {
    let serve = Serve::start(&["--work", "1ms"]);
    let output = load(&serve.url, &["--requests", "12", "--gap", "1ms"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = text(&output.stdout);
    assert!(table.contains("closed loop: 12 answered, 0 failed"), "{table}");
    assert!(table.contains("latency excludes the wait a fixed schedule would have seen"), "{table}");
    assert!(table.contains("* 12 answers are too few"), "{table}");
    assert!(output.stderr.is_empty(), "no progress bar without a terminal: {}", text(&output.stderr));
}

#[test]
fn load_writes_histogram_files_and_json_lines() {
    let serve = Serve::start(&[]);
    let dir = tempfile::tempdir().expect("a directory");
    let (hgrm, hlog) = (dir.path().join("a.hgrm"), dir.path().join("a.hlog"));
    let files = ["--hgrm", path(&hgrm), "--hlog", path(&hlog)];
    let flags = ["--interval", "3ms", "--requests", "10", "--work", "1ms", "--json"];
    let output = load(&serve.url, &[&flags[..], &files[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!(lines.len(), 11);
    assert!(lines[..10].iter().all(|line| line["type"] == "request" && line["outcome"] == "ok"), "{lines:?}");
    assert_eq!((&lines[10]["type"], &lines[10]["loop"]), (&"summary".into(), &"open".into()));
    let distribution = std::fs::read_to_string(&hgrm).expect("written");
    assert!(distribution.contains("Total count    =           10]"), "{distribution}");
    let log = std::fs::read_to_string(&hlog).expect("written");
    assert!(log.contains("Tag=service,") && log.contains("Tag=wall,"), "{log}");
}

#[test]
fn a_server_killed_midway_ends_load_with_4_and_keeps_the_rows() {
    let mut serve = Serve::start(&["--work", "1ms"]);
    let mut load = throttle()
        .args(["load", &serve.url, "--requests", "1000000", "--gap", "1ms", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut rows = BufReader::new(load.stdout.take().expect("piped")).lines();
    for _ in 0..5 {
        rows.next().expect("a row").expect("reads");
    }
    serve.child.kill().expect("kills");
    let last = rows.map(|row| row.expect("reads")).last().expect("a summary");
    let summary: Value = serde_json::from_str(&last).expect("json");
    assert_eq!(summary["type"], "summary", "{last}");
    assert!(summary["answered"].as_u64() >= Some(5) && summary["failed"] == 3, "{last}");
    let mut told = String::new();
    load.stderr.take().expect("piped").read_to_string(&mut told).expect("reads");
    assert!(told.contains("is gone after") && told.contains("refused"), "{told}");
    assert_eq!(load.wait().expect("ends").code(), Some(4));
}

#[test]
fn an_interrupted_load_prints_what_it_measured_and_ends_with_130() {
    let serve = Serve::start(&["--work", "1ms"]);
    let mut load = throttle()
        .args(["load", &serve.url, "--duration", "1h", "--gap", "1ms", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut rows = BufReader::new(load.stdout.take().expect("piped")).lines();
    rows.next().expect("a row").expect("reads");
    kill(Pid::from_raw(load.id().try_into().expect("a pid")), Signal::SIGINT).expect("signals");
    let last = rows.map(|row| row.expect("reads")).last().expect("a summary");
    assert!(last.contains("\"type\":\"summary\""), "{last}");
    assert_eq!(load.wait().expect("ends").code(), Some(130));
}

#[test]
fn a_reader_that_leaves_ends_load_quietly() {
    let serve = Serve::start(&["--work", "1ms"]);
    let mut load = throttle()
        .args(["load", &serve.url, "--duration", "1h", "--gap", "1ms", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut rows = BufReader::new(load.stdout.take().expect("piped"));
    rows.read_line(&mut String::new()).expect("a row");
    drop(rows);
    assert_eq!(load.wait().expect("ends").code(), Some(0));
    let mut told = String::new();
    load.stderr.take().expect("piped").read_to_string(&mut told).expect("reads");
    assert_eq!(told, "");
}

#[test]
fn the_server_ends_with_0_on_either_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut serve = Serve::start(&[]);
        serve.signal(signal);
        assert_eq!(serve.child.wait().expect("ends").code(), Some(0), "{signal}");
    }
}

#[test]
fn a_second_signal_does_not_wait_for_the_running_request() {
    let mut serve = Serve::start(&[]);
    let address = serve.url.strip_prefix("http://").expect("a url");
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.write_all(b"GET /burn?work_ms=600000 HTTP/1.1\r\nHost: a\r\n\r\n").expect("asks");
    let cpu_ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", serve.child.id())).expect("it runs");
        stat.split_whitespace().nth(13).and_then(|ticks| ticks.parse::<u64>().ok()).expect("utime")
    };
    let idle = cpu_ticks();
    while cpu_ticks() < idle + 5 {
        std::thread::yield_now();
    }
    // Both at once may be taken for one, so the second is repeated until it has had its effect.
    while serve.child.try_wait().expect("waits").is_none() {
        serve.signal(Signal::SIGTERM);
        std::thread::yield_now();
    }
    assert_eq!(serve.child.wait().expect("ended").code(), Some(130));
}

#[test]
fn bad_input_ends_with_2_and_names_what_is_wrong() {
    let serve = Serve::start(&["--workers", "2"]);
    for (flags, told) in [
        (vec!["load", "ftp://a"], "plain http"),
        (vec!["load", "http://127.0.0.1:1", "--requests", "1"], "cannot connect to 127.0.0.1:1"),
        (vec!["load", &serve.url, "--threads", "3"], "from 1 to 2"),
        (vec!["load", &serve.url, "--gap", "5"], "want a unit"),
        (vec!["load", &serve.url, "--rate", "2", "--streams", "2"], "cannot be used with"),
        (vec!["load", &serve.url, "--hgrm", "/nonexistent/a.hgrm"], "/nonexistent/a.hgrm"),
        (vec!["serve", "--work", "0ms"], "from 0.001 to 600000 ms"),
        (vec!["serve", "--threads", "9"], "--workers"),
        (vec!["serve", "--mode", "both"], "split"),
    ] {
        let output = throttle().args(&flags).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {output:?}");
        assert!(text(&output.stderr).contains(told), "{flags:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_directory_that_is_no_cgroup_ends_serve_with_2_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = throttle().args(["serve", "--cgroup", path(dir.path())]).output().expect("runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains(path(dir.path())), "{}", text(&output.stderr));
}
