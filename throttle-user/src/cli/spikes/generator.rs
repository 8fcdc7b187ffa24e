//! The spike generator as a child process in the container's group.

use std::{path::Path, process::Stdio};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Deserialize;
use tokio::process::Command;

use crate::{
    cli::interrupt::Interrupt,
    request::SpikeSpan,
    run::spikes::{Learnt, Step},
    time::DurationNs,
};

/// What a generator told.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) spikes: Vec<SpikeSpan>,
    pub(super) learnt: Option<Learnt>,
    /// It was asked to end before its time.
    pub(super) interrupted: bool,
}

/// What it is to do.
pub(super) struct Job<'a> {
    pub(super) cgroup: &'a Path,
    pub(super) step: Step,
    pub(super) duration: DurationNs,
    pub(super) period: DurationNs,
    pub(super) threads: u32,
}

/// A line of its output, as far as it matters here.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Spike(SpikeSpan),
    Summary { boundary: Boundary },
}

#[derive(Deserialize)]
#[serde(tag = "known", rename_all = "snake_case")]
enum Boundary {
    Learnt(Learnt),
    #[serde(other)]
    Otherwise,
}

/// Runs this very program as `throttle spike` in a cgroup until its spikes are over, or the user wants an end. The child has a
/// process group of its own, so that a Ctrl-C at the terminal reaches only us, and dies with its handle.
pub(super) async fn run(job: &Job<'_>, interrupt: &Interrupt) -> Result<Told> {
    let program = std::env::current_exe().context("cannot find this program's own file to start the generator")?;
    let ns = |length: DurationNs| format!("{}ns", length.0);
    let mut command = Command::new(&program);
    command
        .arg("spike")
        .arg("--cgroup")
        .arg(job.cgroup)
        .args(["--length", &ns(job.step.length_ns), "--per-second", &job.step.per_second.to_string()])
        .args(["--duration", &ns(job.duration), "--threads", &job.threads.to_string(), "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(boundary) = job.step.boundary_ns {
        let phase = DurationNs((job.period.0 - boundary.0 % job.period.0) % job.period.0);
        command.args(["--phase", &ns(phase)]);
    }
    let child = command.spawn().with_context(|| format!("cannot start {} spike", program.display()))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let output = child.wait_with_output();
    tokio::pin!(output);
    let (output, interrupted) = tokio::select! {
        output = &mut output => (output, false),
        () = interrupt.asked() => {
            if let Some(pid) = pid {
                // It may be over already: then there is nothing to stop.
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
            (output.await, true)
        }
    };
    let output = output.context("cannot read what the generator told")?;
    if !output.status.success() && !interrupted {
        bail!("the generator ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut told = Told { interrupted, ..Told::default() };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        match serde_json::from_str(line).with_context(|| format!("the generator told {line:?}"))? {
            Line::Spike(span) => told.spikes.push(span),
            Line::Summary { boundary: Boundary::Learnt(learnt) } => told.learnt = Some(learnt),
            Line::Summary { boundary: Boundary::Otherwise } => {}
        }
    }
    Ok(told)
}
