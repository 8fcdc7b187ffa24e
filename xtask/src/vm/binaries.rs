//! What is built for guests: `throttle` and the kernel tests, static, for musl.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::guest::Step;
use crate::counts::{is_named, listed};
use crate::exec::{Show, cargo, collect, exec};
use crate::musl::c_compiler;

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Executables for a guest.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    /// The program itself, by its path on this machine.
    pub(crate) throttle: PathBuf,
    /// Test binaries with at least one test of the kernel tier.
    pub(crate) tests: Vec<TestBinary>,
}

/// The tests of one file under `throttle-user/tests`.
#[derive(Clone, Debug)]
pub(crate) struct TestBinary {
    /// Name of the file without its ending.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Tests of the kernel tier in it, and those for guests alone.
    pub(crate) names: Vec<String>,
}

impl Binaries {
    /// Keeps the tests whose names contain one of `parts`; all if there is none.
    pub(crate) fn keep(&mut self, parts: &[String]) {
        if !parts.is_empty() {
            for test in &mut self.tests {
                test.names.retain(|name| parts.iter().any(|part| name.contains(part)));
            }
            self.tests.retain(|test| !test.names.is_empty());
        }
    }
}

impl TestBinary {
    /// For the guest's script: runs exactly these. Those for guests alone are ignored elsewhere.
    pub(crate) fn step(&self) -> Step {
        let Self { name, names, .. } = self;
        Step {
            name: name.clone(),
            command: format!("/tests/{name} --test-threads=1 --include-ignored --exact {}", names.join(" ")),
        }
    }
}

/// Builds `throttle` alone.
///
/// # Errors
/// The target cannot be added, or it does not build.
pub(crate) fn build_program() -> Result<Binaries> {
    add_target()?;
    let mut command = cargo(["build", "--profile", "vm", "--target", TARGET, "--package", "throttle-user"]);
    command.args(["--bin", "throttle", "--message-format", "json-render-diagnostics"]);
    c_compiler(&mut command, TARGET);
    let (messages, ended) = collect(&mut command, Show::Nothing)?;
    ended?;
    Ok(Binaries { throttle: program(&executables(&messages))?, tests: vec![] })
}

/// Builds them all.
///
/// # Errors
/// The target cannot be added, something does not build, or there is no test to run.
pub(crate) fn build() -> Result<Binaries> {
    add_target()?;
    let args = ["test", "--no-run", "--profile", "vm", "--target", TARGET, "--package", "throttle-user"];
    let mut command = cargo(args);
    command.args(["--test", "kernel_*", "--message-format", "json-render-diagnostics"]);
    c_compiler(&mut command, TARGET);
    let (messages, ended) = collect(&mut command, Show::Nothing)?;
    ended?;
    let built = executables(&messages);
    let throttle = program(&built)?;
    let mut tests = Vec::new();
    for test in built.iter().filter(|built| built.kind == "test") {
        // Static, so it runs here as well as in a guest.
        let (output, ended) = collect(Command::new(&test.path).args(["--list", "--format", "terse"]), Show::Nothing)?;
        ended?;
        let named = listed(&output).into_iter().filter(|name| is_named(name, "kernel_") || is_named(name, "guest_"));
        let names: Vec<String> = named.map(str::to_owned).collect();
        if !names.is_empty() {
            tests.push(TestBinary { name: test.name.clone(), path: test.path.clone(), names });
        }
    }
    ensure!(!tests.is_empty(), "no file throttle-user/tests/kernel_*.rs has a test whose name starts with kernel_");
    tests.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(Binaries { throttle, tests })
}

fn program(built: &[Built]) -> Result<PathBuf> {
    let throttle = built.iter().find(|built| built.kind == "bin" && built.name == "throttle");
    let throttle = throttle.with_context(|| format!("cargo names no executable `throttle` for {TARGET}"))?;
    Ok(throttle.path.clone())
}

/// Adds the target's standard library to the toolchain that `rust-toolchain.toml` names.
fn add_target() -> Result<()> {
    let (installed, ended) = collect(Command::new("rustup").args(["target", "list", "--installed"]), Show::Nothing)?;
    ended?;
    if installed.lines().any(|line| line == TARGET) {
        return Ok(());
    }
    eprintln!("vm-test: adding {TARGET}");
    exec(Command::new("rustup").args(["target", "add", TARGET]))
        .map_err(|error| error.context(format!("no {TARGET} to build for; type: rustup target add {TARGET}")))
}

#[derive(Debug, PartialEq, Eq)]
struct Built {
    kind: String,
    name: String,
    path: PathBuf,
}

/// Executables in cargo's JSON messages, one a line
/// (<https://doc.rust-lang.org/cargo/reference/external-tools.html#artifact-messages>).
fn executables(messages: &str) -> Vec<Built> {
    let messages = messages.lines().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    let executable = |message: Value| {
        Some(Built {
            path: PathBuf::from(message["executable"].as_str()?),
            kind: message["target"]["kind"][0].as_str()?.to_owned(),
            name: message["target"]["name"].as_str()?.to_owned(),
        })
    };
    messages.filter(|message| message["reason"] == "compiler-artifact").filter_map(executable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_without_a_test_that_was_asked_for_do_not_go_into_the_guest() {
        let test = |name: &str, names: &[&str]| TestBinary {
            name: name.to_owned(),
            path: name.into(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
        };
        let all = vec![test("a", &["kernel_x", "guest_x"]), test("b", &["kernel_y"])];
        let kept = |parts: &[&str]| {
            let mut binaries = Binaries { throttle: "t".into(), tests: all.clone() };
            binaries.keep(&parts.iter().map(|&part| part.to_owned()).collect::<Vec<_>>());
            binaries.tests.into_iter().map(|test| test.names).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["guest_"]), [["guest_x"]]);
        assert_eq!(kept(&[]), [vec!["kernel_x", "guest_x"], vec!["kernel_y"]]);
        assert!(kept(&["z"]).is_empty());
    }

    #[test]
    fn programs_and_tests_are_told_apart_by_what_cargo_calls_them() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"throttle_user"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"throttle"},"executable":"/t/throttle"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"kernel_cgroup"},"executable":"/t/deps/kernel_cgroup-1"}
{"reason":"build-finished","success":true}"#;
        let built = |kind: &str, name: &str, path: &str| Built {
            kind: kind.to_owned(),
            name: name.to_owned(),
            path: path.into(),
        };
        assert_eq!(
            executables(messages),
            [built("bin", "throttle", "/t/throttle"), built("test", "kernel_cgroup", "/t/deps/kernel_cgroup-1")]
        );
    }
}
