//! Developer commands: `cargo xtask setup`, `sweep`, `spikes`, `study`, `verify`, `test`, `image`, `trim-btf`, `vm-test`, `vm-sweep`.
//! Parses, then calls one of them; a file a command.
#![forbid(unsafe_code)]

mod ability;
mod counts;
mod cpu_cgroup;
mod exec;
mod fuzz;
mod image;
mod interrupt;
mod musl;
mod setup;
mod study;
mod sweep;
mod test;
mod toolchain;
mod trim_btf;
mod verify;
mod vm;

use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{Parser, Subcommand};

/// Developer commands of throttle.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Complete what building the eBPF object takes: nightly with rust-src, bpf-linker.
    Setup(setup::Options),
    /// Build with real eBPF and sweep CPU limits (`throttle sweep`).
    Sweep(sweep::Options),
    /// Build a static binary and an OCI archive of it, for clusters.
    Image(image::Options),
    /// Build with real eBPF and spike in steps (`throttle spikes`).
    Spikes(sweep::Options),
    /// Run the study: the arms of results/PREREG.md, a folder each.
    Study(study::Options),
    /// Run the tests: formatting, lints, units, architecture, running kernel, other kernels in guests.
    Test(test::Options),
    /// Cut a kernel's BTF down to what a test needs.
    TrimBtf(trim_btf::Options),
    /// Recompute every figure of committed runs from their raw files, and judge the predictions again.
    Verify(verify::Options),
    /// Run the kernel tests and the study on other kernels, in emulated guests.
    VmTest(vm::Options),
    /// Sweep CPU limits in one emulated guest and keep the run's folder (`throttle sweep`).
    VmSweep(vm::SweepOptions),
}

fn main() -> ExitCode {
    run(&Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(exit_code(&error))
    })
}

fn run(task: &Task) -> Result<ExitCode> {
    match task {
        Task::Setup(options) => setup::run(options).map(|()| ExitCode::SUCCESS),
        Task::Sweep(options) => sweep::run("sweep", options).map(|()| ExitCode::SUCCESS),
        Task::Image(options) => image::run(options).map(|()| ExitCode::SUCCESS),
        Task::Spikes(options) => sweep::run("spikes", options).map(|()| ExitCode::SUCCESS),
        Task::Study(options) => study::run(options),
        Task::Test(options) => test::run(options),
        Task::TrimBtf(options) => trim_btf::run(options).map(|()| ExitCode::SUCCESS),
        Task::Verify(options) => verify::run(options),
        Task::VmTest(options) => vm::run(options),
        Task::VmSweep(options) => vm::run_sweep(options),
    }
}

/// 3 where this machine cannot do it, a failed program's own code, else 1.
fn exit_code(error: &Error) -> u8 {
    if error.is::<setup::Incomplete>() { 3 } else { error.downcast_ref::<exec::Failed>().map_or(1, exec::Failed::code) }
}
