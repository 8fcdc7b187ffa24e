//! Running other programs. A command that fails is named in full, and its exit code becomes ours.

use std::fmt;
use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// A program that ran and did not succeed.
#[derive(Debug)]
pub(crate) struct Failed {
    command: String,
    status: ExitStatus,
}

impl Failed {
    /// The exit code to end with: the program's own, or 1 when a signal ended it.
    pub(crate) fn code(&self) -> u8 {
        self.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed: {}", self.command, self.status)
    }
}

impl std::error::Error for Failed {}

/// Where a program's standard output goes while it is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// To our standard output.
    AsItComes,
    /// Nowhere.
    Nothing,
}

/// Runs `command` with our own streams.
///
/// # Errors
/// It cannot be started, or it fails ([`Failed`]).
pub(crate) fn exec(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    succeeded(command, status)
}

/// Runs `command` and returns what it wrote to standard output, along with how it ended.
///
/// # Errors
/// It cannot be started or read. That it failed is in the second value, so that what it printed until then is kept.
pub(crate) fn collect(command: &mut Command, show: Show) -> Result<(String, Result<()>)> {
    let name = line(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{name}`"))?;
    let mut output = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        // Not by lines: the harness names a test when it starts, and ends the line with the verdict.
        let mut chunk = [0; 8192];
        loop {
            let length = match stdout.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).with_context(|| format!("cannot read what `{name}` prints")),
            };
            output.extend_from_slice(&chunk[..length]);
            if show == Show::AsItComes {
                let mut ours = io::stdout().lock();
                ours.write_all(&chunk[..length])
                    .and_then(|()| ours.flush())
                    .context("cannot write to standard output")?;
            }
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{name}`"))?;
    Ok((String::from_utf8_lossy(&output).into_owned(), succeeded(command, status)))
}

/// The cargo that runs us. Without the quiet that `.cargo/config.toml` puts on the build of the probe.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).env_remove("CARGO_TERM_QUIET");
    command
}

/// `command` as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { Err(Failed { command: line(command), status }.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failing_command_is_named_and_its_code_kept() {
        let error = exec(&mut shell("exit 7")).expect_err("it exits with 7");
        assert!(error.to_string().starts_with("`sh -c exit 7` failed"), "{error}");
        assert_eq!(error.downcast_ref::<Failed>().map(Failed::code), Some(7));
    }

    #[test]
    fn a_command_that_does_not_exist_is_named() {
        let error = exec(&mut Command::new("no-such-program-of-throttle")).expect_err("it does not exist");
        assert_eq!(error.to_string(), "cannot start `no-such-program-of-throttle`");
    }

    #[test]
    fn what_a_failing_command_printed_is_kept() {
        let (output, ended) = collect(&mut shell("echo one; echo two; exit 3"), Show::Nothing).expect("sh runs");
        assert_eq!(output, "one\ntwo\n");
        assert!(ended.is_err());
    }
}
