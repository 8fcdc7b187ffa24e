//! The burn server as a child process in the container's group.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::client::Target;

/// Calibration and start take well under a second of CPU; a limit is not set yet.
const START: Duration = Duration::from_secs(60);
/// Its limit is lifted by then: only a server that is stopped, or burns on for nobody, takes longer.
const STOP: Duration = Duration::from_secs(3);

/// A running server.
pub(super) struct BurnServer {
    child: Child,
    /// Where it listens.
    pub(super) target: Target,
}

impl BurnServer {
    /// Starts this very program as `throttle serve` in a cgroup and waits for its address. The child has a process group of
    /// its own, so that a Ctrl-C at the terminal reaches only us, and dies with its handle.
    pub(super) async fn start(cgroup: &Path, workers: u32) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file to start the server")?;
        let mut child = Command::new(&program)
            .arg("serve")
            .arg("--cgroup")
            .arg(cgroup)
            .args(["--workers", &workers.to_string()])
            // Closed with this process, however it ends: the server then ends too.
            .arg("--while-stdin-open")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {} serve", program.display()))?;
        let stdout = child.stdout.take().context("the server has no stdout")?;
        let mut stderr = child.stderr.take().context("the server has no stderr")?;
        // Read to its end, so that the server never waits to say something.
        let said = tokio::spawn(async move {
            let mut said = String::new();
            let _ = stderr.read_to_string(&mut said).await;
            said
        });
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(START, lines.next_line()).await.context("the server did not start within 60 s")??;
        let Some(url) = line.as_deref().and_then(|line| line.strip_prefix("listening ")) else {
            let status = child.wait().await?;
            bail!("the server ended before it listened ({status}): {}", said.await.unwrap_or_default().trim());
        };
        let target = Target::parse(url)?;
        Ok(Self { child, target })
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to end and waits; kills it if it does not (also one that SIGSTOP has stopped, which cannot hear the asking).
    pub(super) async fn stop(mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may be gone already: then there is nothing to stop.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if timeout(STOP, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}
