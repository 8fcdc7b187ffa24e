//! `cargo xtask test`: every tier of tests, from formatting to kernels in guests, and one line that says how each went.

use std::fmt;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::ValueEnum;

use crate::counts::{Counts, failed, is_named, listed};
use crate::cpu_cgroup::Priority;
use crate::exec::{Show, cargo, collect, exec};
use crate::{ability, fuzz, interrupt, setup, vm};

/// Test functions with these prefixes belong to the tier of that name, all others to `unit`.
const KERNEL: &str = "kernel_";
const ARCHITECTURE: &str = "architecture_";

/// Properties try the same inputs in every run, so that a change and its cause are seen together; the search for new ones is
/// another run, with another `PROPTEST_RNG_SEED` and more `PROPTEST_CASES`.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20261201");

/// Which tiers to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only this tier; may be given several times. All but fuzz and guests by default.
    #[arg(long = "tier", value_enum)]
    tiers: Vec<Tier>,
    /// Do without the fuzz, kernel and guests tiers, and without the toolchain that they take.
    #[arg(long)]
    without_kernel: bool,
}

/// A group of tests that need the same surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// The sources are formatted.
    Fmt,
    /// No lint speaks up, on any target.
    Clippy,
    /// Unit and integration tests that run anywhere.
    Unit,
    /// Tests whose names start with `architecture_`: modules import what ARCHITECTURE.md lets them, and nothing else.
    Architecture,
    /// A short run of each fuzz target, from its committed corpus.
    Fuzz,
    /// Tests whose names start with `kernel_`: one at a time, as root, on the running kernel.
    Kernel,
    /// The same tests and the study on other kernels, in emulated guests (`cargo xtask vm-test`).
    Guests,
}

/// How a tier went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// A check without tests to count. `false`: it found something.
    Checked(bool),
    /// Tests ran.
    Ran(Counts),
    /// A command failed though no test did: something does not build, or broke off. What ran until then.
    Broken(Counts),
    /// It cannot run here. The reason.
    CannotRun(String),
    /// It was not to run.
    LeftOut,
}

/// Runs the tiers asked for, each whatever became of the ones before, and prints the closing line.
///
/// Exit code: 0 all held; 1 a tier failed or ran no test; 3 a tier cannot run on this machine; 130 interrupted.
///
/// # Errors
/// The toolchain cannot be completed, or cargo cannot be started.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let wanted = |tier: &Tier| options.tiers.is_empty() || options.tiers.contains(tier);
    let tiers: Vec<Tier> = Tier::value_variants().iter().copied().filter(wanted).collect();
    if tiers.iter().any(|tier| tier.needs_toolchain()) && !options.without_kernel {
        setup::run(&setup::Options {})?;
    }
    let mut outcomes = Vec::new();
    for tier in tiers {
        eprintln!("test: {tier}");
        let outcome = match tier {
            Tier::Fmt => check([cargo(["fmt", "--all", "--check"])])?,
            Tier::Clippy => check(clippy())?,
            Tier::Unit => unit()?,
            Tier::Architecture => architecture()?,
            Tier::Fuzz | Tier::Kernel | Tier::Guests if options.without_kernel => Outcome::LeftOut,
            // These take many minutes: only when asked for by name.
            Tier::Fuzz | Tier::Guests if options.tiers.is_empty() => Outcome::LeftOut,
            Tier::Fuzz => fuzz()?,
            Tier::Kernel => kernel()?,
            Tier::Guests => guests()?,
        };
        outcomes.push((tier, outcome));
    }
    println!("{}", closing_line(&outcomes));
    Ok(ExitCode::from(if interrupt::asked() { 130 } else { exit_code(&outcomes) }))
}

/// All of the workspace, and the probe's own sources as far as the host's compiler can check them.
fn clippy() -> [Command; 2] {
    [
        cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        cargo(["clippy", "--package", "throttle-ebpf", "--features", "probe", "--", "-D", "warnings"]),
    ]
}

/// Tests that run anywhere, documentation included. All tiers select the whole workspace: another selection of packages
/// unifies other features, and cargo would build everything once more.
fn unit() -> Result<Outcome> {
    let Some(names) = listed_tests()? else { return Ok(Outcome::Broken(Counts::default())) };
    let elsewhere = names.iter().filter(|name| is_named(name, KERNEL) || is_named(name, ARCHITECTURE));
    let mut command = cargo(["test", "--no-fail-fast", "--workspace", "--", "--exact"]);
    command.args(elsewhere.flat_map(|name| ["--skip", name]));
    Ok(tests(&mut command)?.0)
}

/// Tests of the sources' structure.
fn architecture() -> Result<Outcome> {
    let Some(names) = listed_tests()? else { return Ok(Outcome::Broken(Counts::default())) };
    Ok(named(&names, ARCHITECTURE, &[])?.0)
}

/// Fuzz targets.
fn fuzz() -> Result<Outcome> {
    if let Some(why) = fuzz::obstacle() {
        return Ok(Outcome::CannotRun(why));
    }
    Ok(match fuzz::run() {
        Ok(counts) => Outcome::Ran(counts),
        Err(error) => {
            eprintln!("test: fuzz: {error:#}");
            Outcome::Broken(Counts::default())
        }
    })
}

/// Tests of the running kernel, serially, with priority over whatever else the machine does. A virtual machine that loses its CPUs
/// for a while, or a kernel that skips a tracepoint, can make one fail: those that do are run once more, and the closing line
/// says how many held only then.
fn kernel() -> Result<Outcome> {
    if let Some(why) = ability::obstacle() {
        return Ok(Outcome::CannotRun(why));
    }
    // Listed first: the build needs no priority.
    let Some(names) = listed_tests()? else { return Ok(Outcome::Broken(Counts::default())) };
    // Ctrl-C reaches the tests as well; we outlive them to take the group away.
    interrupt::listen()?;
    let _priority = Priority::take().inspect_err(|why| eprintln!("test: kernel: without priority: {why:#}")).ok();
    let (outcome, mut failures) = named(&names, KERNEL, &["--test-threads=1"])?;
    let Outcome::Ran(first) = outcome else { return Ok(outcome) };
    if failures.is_empty() || interrupt::asked() {
        return Ok(Outcome::Ran(first));
    }
    failures.sort();
    failures.dedup();
    eprintln!("test: kernel: once more: {}", failures.join(", "));
    let (outcome, _) = named(&failures, KERNEL, &["--test-threads=1"])?;
    let Outcome::Ran(second) = outcome else { return Ok(outcome) };
    // Less than what failed at first, if some names were not found again: these count as failed.
    let again = second.passed.min(first.failed);
    Ok(Outcome::Ran(Counts { passed: first.passed + again, again, failed: first.failed - again, ..first }))
}

/// Tests in guests, with priority as well: on two CPUs their time is real.
fn guests() -> Result<Outcome> {
    if let Some(why) = vm::obstacle() {
        return Ok(Outcome::CannotRun(why));
    }
    interrupt::listen()?;
    Ok(match vm::guests(&vm::Options::default()) {
        Ok(counts) => Outcome::Ran(counts),
        Err(error) => {
            eprintln!("test: guests: {error:#}");
            Outcome::Broken(Counts::default())
        }
    })
}

/// Runs those of `names` whose functions' names start with `prefix`; with the names of those that failed.
fn named(names: &[String], prefix: &str, harness_args: &[&str]) -> Result<(Outcome, Vec<String>)> {
    let names: Vec<&String> = names.iter().filter(|name| is_named(name, prefix)).collect();
    if names.is_empty() {
        return Ok((Outcome::Ran(Counts::default()), vec![]));
    }
    let mut command = cargo(["test", "--no-fail-fast", "--workspace", "--lib", "--bins", "--tests", "--", "--exact"]);
    command.args(harness_args).args(names);
    if std::env::var_os(SEED.0).is_none() {
        command.env(SEED.0, SEED.1);
    }
    tests(&mut command)
}

/// Full names of all tests but those in documentation. None: they do not build, and cargo has said why.
fn listed_tests() -> Result<Option<Vec<String>>> {
    let list = ["test", "--workspace", "--lib", "--bins", "--tests", "--", "--list", "--format", "terse"];
    let (output, ended) = collect(&mut cargo(list), Show::Nothing)?;
    Ok(match ended {
        Ok(()) => Some(listed(&output).into_iter().map(str::to_owned).collect()),
        Err(error) => {
            eprintln!("test: {error}");
            None
        }
    })
}

fn check(commands: impl IntoIterator<Item = Command>) -> Result<Outcome> {
    let mut clean = true;
    for mut command in commands {
        if let Err(error) = exec(&mut command) {
            eprintln!("test: {error}");
            clean = false;
        }
    }
    Ok(Outcome::Checked(clean))
}

fn tests(command: &mut Command) -> Result<(Outcome, Vec<String>)> {
    let (output, ended) = collect(command, Show::AsItComes)?;
    let counts = Counts::read(&output);
    let outcome = match ended {
        Err(error) if counts.failed == 0 => {
            eprintln!("test: {error}");
            Outcome::Broken(counts)
        }
        _ => Outcome::Ran(counts),
    };
    Ok((outcome, failed(&output).into_iter().map(str::to_owned).collect()))
}

fn closing_line(outcomes: &[(Tier, Outcome)]) -> String {
    let parts: Vec<String> = outcomes.iter().map(|(tier, outcome)| format!("{tier} {outcome}")).collect();
    format!("tiers: {}", parts.join(" | "))
}

fn exit_code(outcomes: &[(Tier, Outcome)]) -> u8 {
    let failed = |outcome: &Outcome| match outcome {
        Outcome::Checked(clean) => !clean,
        Outcome::Ran(counts) => counts.failed > 0 || counts.ran() == 0,
        Outcome::Broken(_) => true,
        Outcome::CannotRun(_) | Outcome::LeftOut => false,
    };
    if outcomes.iter().any(|(_, outcome)| failed(outcome)) {
        1
    } else if outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::CannotRun(_))) {
        3
    } else {
        0
    }
}

impl Tier {
    /// Whether it takes more than stable Rust: nightly, and for some the eBPF object.
    fn needs_toolchain(self) -> bool {
        match self {
            Self::Fmt | Self::Clippy | Self::Unit | Self::Architecture => false,
            Self::Fuzz | Self::Kernel | Self::Guests => true,
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Unit => "unit",
            Self::Architecture => "architecture",
            Self::Fuzz => "fuzz",
            Self::Kernel => "kernel",
            Self::Guests => "guests",
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checked(true) => write!(f, "clean"),
            Self::Checked(false) => write!(f, "FAILED"),
            Self::Ran(counts) if counts.ran() == 0 => write!(f, "FAILED: no test ran"),
            Self::Ran(counts) if counts.failed > 0 => write!(f, "FAILED: {counts}"),
            Self::Ran(counts) => write!(f, "{counts}"),
            Self::Broken(counts) => write!(f, "FAILED: did not build or broke off ({counts})"),
            Self::CannotRun(why) => write!(f, "DID NOT RUN: {why}"),
            Self::LeftOut => write!(f, "did not run: left out (see --help)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Outcome = Outcome::Ran(Counts { passed: 3, again: 0, failed: 0, skipped: 1 });

    #[test]
    fn the_closing_line_names_every_tier_and_its_counts() {
        let outcomes = [
            (Tier::Fmt, Outcome::Checked(true)),
            (Tier::Unit, GOOD),
            (Tier::Kernel, Outcome::CannotRun("not root (uid 1000)".to_owned())),
        ];
        assert_eq!(
            closing_line(&outcomes),
            "tiers: fmt clean | unit 3 passed, 0 failed, 1 skipped | kernel DID NOT RUN: not root (uid 1000)"
        );
    }

    #[test]
    fn a_tier_that_cannot_run_is_not_success_but_one_left_out_on_request_is() {
        assert_eq!(exit_code(&[(Tier::Unit, GOOD), (Tier::Kernel, Outcome::CannotRun(String::new()))]), 3);
        assert_eq!(exit_code(&[(Tier::Unit, GOOD), (Tier::Kernel, Outcome::LeftOut)]), 0);
    }

    #[test]
    fn a_tier_without_a_single_test_has_failed() {
        let none = [(Tier::Architecture, Outcome::Ran(Counts { passed: 0, again: 0, failed: 0, skipped: 4 }))];
        assert_eq!(exit_code(&none), 1);
        assert_eq!(closing_line(&none), "tiers: architecture FAILED: no test ran");
    }

    #[test]
    fn a_failure_outweighs_a_tier_that_cannot_run() {
        let broken = (Tier::Unit, Outcome::Broken(Counts::default()));
        assert_eq!(exit_code(&[broken, (Tier::Kernel, Outcome::CannotRun(String::new()))]), 1);
    }
}
