//! The command line: one verb a file, and what they share.
//!
//! Owns parsing and the way a verb ends. Verbs wire the library's modules together; what they decide is theirs, what
//! they compute is the library's.

mod ability;
mod alert;
mod args;
mod check;
mod enter;
mod exit;
mod folder;
mod interrupt;
mod limited;
mod load;
mod observe;
mod progress;
mod recording;
mod report;
mod run;
mod serve;
mod spike;
mod spikes;
mod sweep;
mod timeline;
mod top;
mod tui;

use std::{path::Path, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::workload::{ConfineError, join_cgroup};
pub use exit::{Exit, Failure, OrExit, Verdict};

/// Observe CFS bandwidth throttling with eBPF and say where every request's wall time went.
///
/// Exit codes: 0 done; 1 done, but something is not right (requests failed, counters disagree, events lost); 2 bad
/// usage or bad input, or of `check`: nothing can be observed; 3 this machine cannot do it; 4 broke off midway, what was measured is kept; 130 interrupted,
/// likewise kept.
#[derive(Debug, Parser)]
#[command(name = "throttle", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Sweep(sweep::SweepArgs),
    Run(run::RunArgs),
    Observe(observe::ObserveArgs),
    Check(check::CheckArgs),
    Report(report::ReportArgs),
    Alert(alert::AlertArgs),
    Timeline(timeline::TimelineArgs),
    Top(top::TopArgs),
    Serve(serve::ServeArgs),
    Load(load::LoadArgs),
    Spike(spike::SpikeArgs),
    Spikes(spikes::SpikesArgs),
    #[command(hide = true)]
    Enter(enter::EnterArgs),
    #[command(hide = true, name = check::spin::SPIN)]
    Spin,
}

/// Runs the program: parses the arguments, calls the verb, tells how it ended.
#[must_use]
pub fn main() -> ExitCode {
    exit::outlive_large_files();
    let verdict = match Cli::parse().verb {
        Verb::Sweep(args) => sweep::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Observe(args) => observe::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Alert(args) => alert::run(&args),
        Verb::Timeline(args) => timeline::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Load(args) => load::run(&args),
        Verb::Spike(args) => spike::run(&args),
        Verb::Spikes(args) => spikes::run(&args),
        Verb::Enter(args) => enter::run(&args),
        Verb::Spin => check::spin::run(),
    };
    exit::conclude(verdict)
}

/// Joins the cgroup that the user named, if any, before any thread is started.
fn join(cgroup: Option<&Path>) -> Result<(), Failure> {
    let Some(dir) = cgroup else { return Ok(()) };
    join_cgroup(dir).map_err(|error| {
        let exit = match error {
            ConfineError::NotACgroup { .. } => Exit::BadInput,
            ConfineError::Refused { .. } => Exit::CannotRun,
        };
        Failure::Told { exit, error: error.into() }
    })
}

/// Sends the probe's own diagnostics (aya-log) to stderr.
fn probe_log() {
    env_logger::Builder::new()
        .filter_module("throttle_probe", log::LevelFilter::Trace)
        .target(env_logger::Target::Stderr)
        .init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
