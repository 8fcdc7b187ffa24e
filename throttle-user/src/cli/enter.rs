//! `throttle enter`: what `throttle run` starts in the container's group before it becomes the command.
//!
//! Owns the last steps before `exec`: join, say so, wait for the word, become the command. It talks over two pipes that
//! `throttle run` leaves open for it: it says `+` once it is in the group; on the other one a byte lets it go, and an end
//! without one ends it. What it says after `+` is why the command could not be started.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::RawFd, unix::process::CommandExt},
    path::PathBuf,
    process::Command,
};

use anyhow::Context;
use clap::Args;

use super::exit::{Exit, OrExit, Verdict};
use crate::workload::join_cgroup;

/// Joined: the first byte it says.
pub(super) const INSIDE: u8 = b'+';
/// Its name until it has become the command. exec closes the pipes before it gives the new name (`begin_new_exec`, fs/exec.c),
/// so their end does not say that the name is the command's.
pub(super) const NAME: &str = "throttle-enter";

/// Join a cgroup, wait for a word, become a command. A part of `throttle run`.
#[derive(Debug, Args)]
pub(super) struct EnterArgs {
    /// Cgroup directory.
    #[arg(long)]
    cgroup: PathBuf,
    /// Descriptor of the pipe to read the word from.
    #[arg(long)]
    go: RawFd,
    /// Descriptor of the pipe to speak on.
    #[arg(long)]
    say: RawFd,
    /// Program and arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the verb. Returns only when the command was not started.
pub(super) fn run(args: &EnterArgs) -> Verdict {
    let mut go = own(args.go, OpenOptions::new().read(true)).or_exit(Exit::BadInput)?;
    let mut say = own(args.say, OpenOptions::new().write(true)).or_exit(Exit::BadInput)?;
    // Without it only a name may be missing from the report.
    let _ = std::fs::write("/proc/self/comm", NAME);
    let joined = join_cgroup(&args.cgroup);
    let word = match &joined {
        Ok(()) => say.write_all(&[INSIDE]),
        Err(error) => write!(say, "-{error}"),
    };
    word.context("`throttle run` is gone").or_exit(Exit::BrokeOff)?;
    joined.or_exit(Exit::CannotRun)?;
    if go.read_exact(&mut [0]).is_err() {
        return Ok(Exit::BrokeOff);
    }
    let Some((program, arguments)) = args.command.split_first() else { return Ok(Exit::BadInput) };
    // Both pipes close on exec: an end without a word tells that the command runs.
    let error = Command::new(program).args(arguments).exec();
    // If nobody reads it any more, there is nobody to tell.
    let _ = write!(say, "cannot start {}: {error}{}", program.display(), remedy(&error));
    Ok(Exit::BadInput)
}

/// A file of our own for a descriptor that was left open for us; it closes on exec, and the other one at once.
fn own(descriptor: RawFd, options: &OpenOptions) -> anyhow::Result<File> {
    let path = format!("/proc/self/fd/{descriptor}");
    let file = options.open(&path).with_context(|| format!("cannot open {path}, a pipe of `throttle run`"))?;
    nix::unistd::close(descriptor).with_context(|| format!("cannot close descriptor {descriptor}"))?;
    Ok(file)
}

fn remedy(error: &io::Error) -> &'static str {
    use nix::errno::Errno;
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => "; is it spelt right and in PATH? What only a shell knows needs `sh -c '…'`",
        Some(Errno::EACCES) => "; is it a file that may be executed?",
        Some(Errno::ENOEXEC) => "; a script needs a first line such as #!/bin/sh",
        Some(Errno::E2BIG) => "; arguments and environment are too long together",
        _ => "",
    }
}
