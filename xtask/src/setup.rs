//! `cargo xtask setup`: completes what building the eBPF object takes, and says what it did.

use std::fmt;
use std::process::Command;

use anyhow::Result;

use crate::exec::{exec, line};
use crate::toolchain::{LINKER, Lack, Machine, PINNED_NIGHTLY};

/// No options: the versions are the project's own business.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

/// Something could not be installed. Carries the one command to type.
#[derive(Debug)]
pub(crate) struct Incomplete {
    lack: Lack,
    remedy: String,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; type: {}", self.lack, self.remedy)
    }
}

impl std::error::Error for Incomplete {}

/// Looks, installs what is missing, and looks again: at most one try for each thing.
///
/// # Errors
/// [`Incomplete`] when an installation fails, or succeeds without effect.
pub(crate) fn run(_: &Options) -> Result<()> {
    let mut tried = Vec::new();
    let mut machine = Machine::look();
    while let Some(lack) = machine.lacks().into_iter().next() {
        let Some(mut remedy) = remedy(&lack, &machine).filter(|_| !tried.contains(&lack)) else {
            return Err(incomplete(lack, &machine).into());
        };
        eprintln!("setup: {lack}: {}", line(&remedy));
        if exec(&mut remedy).is_err() {
            return Err(incomplete(lack, &machine).into());
        }
        tried.push(lack);
        machine = Machine::look();
    }
    let nightly = machine.nightly().map_or("", |nightly| nightly.name);
    let did = if tried.is_empty() { "nothing to do" } else { "installed" };
    eprintln!("setup: {did}: the probe builds with {nightly}, rust-src and bpf-linker {LINKER}");
    Ok(())
}

/// The command that mends `lack`, if rustup is there to run it.
fn remedy(lack: &Lack, machine: &Machine) -> Option<Command> {
    let args: Vec<&str> = match lack {
        Lack::Rustup => return None,
        Lack::Nightly { .. } => {
            vec!["toolchain", "install", PINNED_NIGHTLY, "--profile", "minimal", "--component", "rust-src"]
        }
        Lack::Source(name) => vec!["component", "add", "rust-src", "--toolchain", name],
        Lack::Linker { .. } => {
            // Built by the nightly whose libLLVM it is to use. `--locked`: the versions its authors tested.
            let nightly = machine.nightly()?.name;
            vec!["run", nightly, "cargo", "install", "bpf-linker", "--version", LINKER, "--locked"]
        }
    };
    let mut command = Command::new("rustup");
    command.args(args);
    Some(command)
}

fn incomplete(lack: Lack, machine: &Machine) -> Incomplete {
    let remedy = remedy(&lack, machine).map_or_else(
        || "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh".to_owned(),
        |command| line(&command),
    );
    Incomplete { lack, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Machine = Machine { rustup: false, nightlies: vec![], linker: None };

    #[test]
    fn without_rustup_the_command_to_type_installs_rustup() {
        let told = incomplete(Lack::Rustup, &BARE).to_string();
        assert!(told.starts_with("rustup is not installed; type: curl "), "{told}");
    }

    #[test]
    fn a_missing_toolchain_comes_with_its_source_in_one_command() {
        let command = remedy(&Lack::Nightly { found: Some(23) }, &BARE).expect("rustup can do it");
        assert_eq!(
            line(&command),
            format!("rustup toolchain install {PINNED_NIGHTLY} --profile minimal --component rust-src")
        );
    }

    #[test]
    fn the_linker_is_built_by_the_toolchain_that_will_use_it() {
        let nightly =
            crate::toolchain::Nightly { name: "nightly", llvm: 22, source: "/Cargo.lock".into(), has_source: true };
        let machine = Machine { rustup: true, nightlies: vec![nightly], linker: None };
        let command = remedy(&Lack::Linker { found: None }, &machine).expect("rustup can do it");
        assert_eq!(line(&command), "rustup run nightly cargo install bpf-linker --version 0.10.3 --locked");
    }
}
