//! `cargo xtask sweep` and `spikes`: build the observer with its eBPF object, then become that verb of `throttle`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::exec::{Show, cargo, collect, line};
use crate::setup;

/// Everything is the verb's own.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Passed to `throttle` as they stand, after the verb (`--help` lists what it takes).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// Completes the toolchain, builds, and becomes a verb of `throttle`: `exec(2)` puts it in our place, so that Ctrl-C and the exit code
/// are its own. Returns only if something fails before.
///
/// # Errors
/// The toolchain cannot be completed, the build fails, or the program cannot be started.
pub(crate) fn run(verb: &str, options: &Options) -> Result<()> {
    setup::run(&setup::Options {})?;
    let mut program = Command::new(build()?);
    program.arg(verb).args(&options.args);
    Err(program.exec()).with_context(|| format!("cannot start `{}`", line(&program)))
}

/// Builds `throttle` and returns where cargo put it, whatever the target directory is.
///
/// # Errors
/// The build fails.
pub(crate) fn build() -> Result<PathBuf> {
    let args = ["build", "--release", "--package", "throttle-user", "--message-format", "json-render-diagnostics"];
    let (messages, ended) = collect(&mut cargo(args), Show::Nothing)?;
    ended?;
    executable(&messages).ok_or_else(|| anyhow!("cargo built throttle-user, but names no executable `throttle`"))
}

/// The path of the `throttle` binary in cargo's JSON messages, one a line
/// (<https://doc.rust-lang.org/cargo/reference/external-tools.html#artifact-messages>).
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    messages
        .filter(|message| message["reason"] == "compiler-artifact" && message["target"]["name"] == "throttle")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_the_one_cargo_names() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"throttle_user"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"throttle"},"executable":"/elsewhere/release/throttle"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some(PathBuf::from("/elsewhere/release/throttle")));
    }

    #[test]
    fn no_executable_is_not_a_guess() {
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
