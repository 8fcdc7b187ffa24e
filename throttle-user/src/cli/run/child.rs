//! The command as a child process that waits in the container's group until it is let go.

use std::{
    ffi::OsString,
    io::{PipeReader, PipeWriter, Read, Write, pipe},
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::ExitStatusExt,
    },
    path::Path,
    process::ExitStatus,
};

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use tokio::process::{Child, Command};

use crate::{cli::enter::INSIDE, run::command::CommandStatus};

/// A child in the group that is not the command yet.
pub(super) struct Waiting {
    child: Child,
    pid: u32,
    go: PipeWriter,
    said: PipeReader,
}

impl Waiting {
    /// Starts this very program as `throttle enter` and returns when it is in the group. It shares our process group, so that
    /// the terminal's signals reach it, and our standard input, output and errors. Dropped, it ends.
    pub(super) fn start(cgroup: &Path, command: &[OsString]) -> Result<Self> {
        let program =
            std::env::current_exe().context("cannot find this program's own file to start the command with")?;
        let (go_end, go) = pipe().context("cannot make a pipe")?;
        let (mut said, say_end) = pipe().context("cannot make a pipe")?;
        inherited(&go_end)?;
        inherited(&say_end)?;
        let child = Command::new(&program)
            .arg("enter")
            .arg("--cgroup")
            .arg(cgroup)
            .args(["--go", &go_end.as_raw_fd().to_string(), "--say", &say_end.as_raw_fd().to_string(), "--"])
            .args(command)
            .spawn()
            .with_context(|| format!("cannot start {} enter", program.display()))?;
        drop((go_end, say_end));
        let pid = child.id().context("the child ended at once")?;
        let mut word = [0];
        match said.read_exact(&mut word) {
            Ok(()) if word[0] == INSIDE => Ok(Self { child, pid, go, said }),
            Ok(()) => bail!("{}", rest(&mut said)),
            Err(_) => bail!("the child ended before it was in cgroup {}", cgroup.display()),
        }
    }

    /// Its process id: the command's to be.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it become the command; the error says why it could not.
    pub(super) fn go(self) -> Result<Child> {
        let Self { child, mut go, mut said, .. } = self;
        go.write_all(b"g").map_err(|_| anyhow!("the child ended before the command was started"))?;
        let why = rest(&mut said);
        if why.is_empty() { Ok(child) } else { Err(anyhow!(why)) }
    }
}

/// How a child ended, as the report has it.
pub(super) fn status(status: ExitStatus) -> CommandStatus {
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandStatus::Exited { code: small(code) },
        (None, signal) => CommandStatus::Killed { signal: small(signal.unwrap_or(0)) },
    }
}

/// Everything up to the pipe's end.
fn rest(said: &mut PipeReader) -> String {
    let mut text = Vec::new();
    // What came before a failure to read is worth telling.
    let _ = said.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Leaves a descriptor open in children. The two ends given here are closed before any other child is started.
fn inherited(descriptor: &impl AsFd) -> Result<()> {
    fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot pass a pipe on")?;
    Ok(())
}
