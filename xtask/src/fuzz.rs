//! The tier `fuzz`: a short run of every fuzz target from its committed corpus, with libFuzzer.
//!
//! Owns building and running them. What they do with their input is in `throttle-user/tests/fuzz_entries`. Instrumented as cargo-fuzz
//! does it, without needing it; no sanitizer, since `throttle-user` has no unsafe code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::counts::Counts;
use crate::exec::{Show, collect, exec};
use crate::toolchain::Machine;

const CRATE: &str = "throttle-user/fuzz";
/// Everything it leaves: programs, inputs worth keeping, inputs that found a fault.
const FOLDER: &str = "target/fuzz";
/// Longest search of one target, s. Four of them and the build stay below 2.5 minutes on 2 CPUs.
const SECONDS: u32 = 10;
/// An input that takes longer, in s, is a hang; one that takes more memory, in MB, too much.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=1024"];
/// What cargo-fuzz passes: coverage of edges, and of what comparisons compare.
const HOOKS: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

/// Why targets cannot be built here, in words.
pub(crate) fn obstacle() -> Option<String> {
    let compiles = Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success());
    (!compiles).then(|| "no C++ compiler for libFuzzer (Debian: apt-get install g++)".to_owned())
}

/// Builds all targets and runs each. A target counts as passed if it tried inputs and none found a fault.
///
/// # Errors
/// The targets do not build, or files cannot be read or written.
pub(crate) fn run() -> Result<Counts> {
    let programs = build()?;
    let mut counts = Counts::default();
    for target in targets()? {
        let log = Path::new(FOLDER).join(format!("{target}.log"));
        let file = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let ended = exec(search(&programs, &target)?.stderr(file));
        let text = fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
        match (tried(&text), ended) {
            (Some(inputs @ 1..), Ok(())) => {
                eprintln!("fuzz: {target}: {inputs} inputs");
                counts.passed += 1;
            }
            (inputs, ended) => {
                let why = ended.err().map_or_else(|| format!("it tried {inputs:?} inputs"), |error| error.to_string());
                let faults = Path::new(FOLDER).join("faults").join(&target);
                eprintln!("{text}fuzz: {target}: {why}; an input that shows a fault is in {}", faults.display());
                counts.failed += 1;
            }
        }
    }
    Ok(counts)
}

/// Number of inputs tried, from libFuzzer's closing statistics.
fn tried(log: &str) -> Option<u64> {
    let line = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

/// Names of the targets, each of which has a folder in the corpus.
fn targets() -> Result<Vec<String>> {
    let corpus = Path::new(CRATE).join("corpus");
    let names = fs::read_dir(&corpus).with_context(|| format!("cannot read {}", corpus.display()))?;
    let mut names: Vec<String> =
        names.map(|name| Ok(name?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// Builds the targets and returns the folder they are in.
fn build() -> Result<PathBuf> {
    let machine = Machine::look();
    let nightly = machine.nightly().context("no nightly toolchain; type: cargo xtask setup")?;
    let (about, ended) = collect(Command::new("rustup").args(["run", nightly.name, "rustc", "-vV"]), Show::Nothing)?;
    ended?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not name its host")?;
    // The same versions as in the program. cargo adds libFuzzer's own.
    fs::create_dir_all(FOLDER).with_context(|| format!("cannot create {FOLDER}"))?;
    let lock = fs::canonicalize(FOLDER).with_context(|| format!("cannot find {FOLDER}"))?.join("Cargo.lock");
    fs::copy("Cargo.lock", &lock).with_context(|| format!("cannot write {}", lock.display()))?;
    let mut command = Command::new("rustup");
    command.args(["run", nightly.name, "cargo", "build", "--bins", "--manifest-path"]);
    command.arg(Path::new(CRATE).join("Cargo.toml"));
    command.args(["--target-dir", FOLDER, "--config"]).arg(format!("resolver.lockfile-path = '{}'", lock.display()));
    // With a target named, hooks go into the program and not into build scripts and macros.
    command.args(["--target", host]).env("RUSTFLAGS", HOOKS.join(" "));
    // They decode what a probe would send; none is loaded.
    command.env("AYA_BUILD_SKIP", "1");
    exec(&mut command)?;
    Ok(Path::new(FOLDER).join(host).join("debug"))
}

/// The search of one target. New inputs go to a folder of their own, from which the next search on this machine begins too.
fn search(programs: &Path, target: &str) -> Result<Command> {
    let [found, faults] = ["found", "faults"].map(|kind| Path::new(FOLDER).join(kind).join(target));
    for folder in [&found, &faults] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut command = Command::new(programs.join(target));
    command.arg(format!("-max_total_time={SECONDS}")).args(LIMITS).args(["-print_final_stats=1", "-verbosity=0"]);
    command.arg(format!("-artifact_prefix={}/", faults.display()));
    command.arg(found).arg(Path::new(CRATE).join("corpus").join(target));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inputs_tried_are_read_from_the_statistics() {
        let log = "INFO: seed corpus\nstat::number_of_executed_units: 1048576\nstat::average_exec_per_sec:     9\n";
        assert_eq!(tried(log), Some(1_048_576));
        assert_eq!(tried("==1== ERROR: libFuzzer: timeout\n"), None);
    }
}
