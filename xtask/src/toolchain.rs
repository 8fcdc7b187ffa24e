//! What it takes to build the eBPF object, and how much of it this machine has.
//!
//! Read by `cargo xtask setup`, which completes it, and by `throttle-user/build.rs`, which uses it (through `#[path]`, so
//! that the names and versions stand here only). Looks; installs nothing.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The exact bpf-linker. 0.10 is the last line that can work through the nightly rustc's own libLLVM (features
/// `rust-llvm-20` to `rust-llvm-22` of its Cargo.toml, 22 by default); from 0.11 on it wants an LLVM 23 of the system.
pub(crate) const LINKER: &str = "0.10.3";
/// The LLVM that rustc and [`LINKER`] must share: bitcode is not readable across major versions.
pub(crate) const LLVM: u32 = 22;
/// Installed where `nightly` is missing or carries another LLVM.
pub(crate) const PINNED_NIGHTLY: &str = "nightly-2026-05-20";

/// An installed nightly toolchain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nightly {
    /// The name rustup knows it by.
    pub(crate) name: &'static str,
    /// Major version of its LLVM.
    pub(crate) llvm: u32,
    /// `Cargo.lock` of the standard library's source: what `-Z build-std` reads, and what the component rust-src brings.
    pub(crate) source: PathBuf,
    /// Whether that file is there.
    pub(crate) has_source: bool,
}

/// A bpf-linker found where cargo and rustc will find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    /// The executable.
    pub(crate) path: PathBuf,
    /// What it calls itself, `0.10.3`.
    pub(crate) version: String,
}

/// What this machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Whether rustup answers.
    pub(crate) rustup: bool,
    /// The nightly toolchains that may build the probe, in order of preference.
    pub(crate) nightlies: Vec<Nightly>,
    /// The first bpf-linker on the path.
    pub(crate) linker: Option<Linker>,
}

/// One thing missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// No rustup: toolchains cannot be told apart or installed.
    Rustup,
    /// No nightly toolchain with the right LLVM; `found` is the LLVM of the one that is there.
    Nightly {
        /// LLVM of the toolchain `nightly`, if installed.
        found: Option<u32>,
    },
    /// The toolchain of this name lacks the component rust-src.
    Source(&'static str),
    /// No bpf-linker of the exact version; `found` is the version that is there.
    Linker {
        /// Version of the bpf-linker on the path, if any.
        found: Option<String>,
    },
}

impl Machine {
    /// Looks at this machine: a handful of short commands, some 50 ms together.
    pub(crate) fn look() -> Self {
        let rustup = answer(Command::new("rustup").arg("--version")).is_some();
        let nightlies =
            if rustup { ["nightly", PINNED_NIGHTLY].into_iter().filter_map(nightly).collect() } else { vec![] };
        Self { rustup, nightlies, linker: linker() }
    }

    /// The toolchain to build the probe with: one with the right LLVM, with its source if there is a choice.
    pub(crate) fn nightly(&self) -> Option<&Nightly> {
        let fitting = || self.nightlies.iter().filter(|nightly| nightly.llvm == LLVM);
        fitting().find(|nightly| nightly.has_source).or_else(|| fitting().next())
    }

    /// What is missing, in the order in which it has to be installed. Empty: the probe can be built.
    pub(crate) fn lacks(&self) -> Vec<Lack> {
        let mut lacks = Vec::new();
        if !self.rustup {
            lacks.push(Lack::Rustup);
        }
        match self.nightly() {
            None => lacks.push(Lack::Nightly { found: self.nightlies.first().map(|nightly| nightly.llvm) }),
            Some(nightly) if !nightly.has_source => lacks.push(Lack::Source(nightly.name)),
            Some(_) => {}
        }
        match &self.linker {
            Some(linker) if linker.version == LINKER => {}
            other => lacks.push(Lack::Linker { found: other.as_ref().map(|linker| linker.version.clone()) }),
        }
        lacks
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rustup => write!(f, "rustup is not installed"),
            Self::Nightly { found: None } => write!(f, "no nightly toolchain is installed"),
            Self::Nightly { found: Some(llvm) } => {
                write!(f, "the installed nightly has LLVM {llvm}, but bpf-linker {LINKER} works with LLVM {LLVM}")
            }
            Self::Source(name) => write!(f, "the toolchain {name} lacks the component rust-src"),
            Self::Linker { found: None } => write!(f, "bpf-linker is not installed"),
            Self::Linker { found: Some(version) } => write!(f, "bpf-linker is {version}, but {LINKER} is needed"),
        }
    }
}

/// Where `cargo install` puts programs, and where rustup's `cargo` and `rustc` look first.
pub(crate) fn cargo_bin() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| env::home_dir().map(|home| home.join(".cargo"))).map(|home| home.join("bin"))
}

/// Asks rustup for the toolchain, without letting it install one just because it was asked.
fn nightly(name: &'static str) -> Option<Nightly> {
    let which = ["which", "--toolchain", name, "rustc"];
    let rustc = PathBuf::from(answer(Command::new("rustup").args(which).env("RUSTUP_AUTO_INSTALL", "0"))?.trim());
    let llvm = llvm_major(&answer(Command::new(&rustc).arg("-vV"))?)?;
    let source = rustc.parent()?.parent()?.join("lib/rustlib/src/rust/library/Cargo.lock");
    Some(Nightly { name, llvm, has_source: source.is_file(), source })
}

fn linker() -> Option<Linker> {
    let path = env::var_os("PATH").unwrap_or_default();
    let path = cargo_bin()
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|dir| dir.join("bpf-linker"))
        .find(|p| p.is_file())?;
    let version = linker_version(&answer(Command::new(Path::new(&path)).arg("--version"))?)?.to_owned();
    Some(Linker { path, version })
}

/// Standard output of a command that succeeds.
fn answer(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// `22` from the line `LLVM version: 22.1.4` of `rustc -vV`.
fn llvm_major(verbose_version: &str) -> Option<u32> {
    let version = verbose_version.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

/// `0.10.3` from `bpf-linker 0.10.3`.
fn linker_version(line: &str) -> Option<&str> {
    line.trim().strip_prefix("bpf-linker ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolchain(name: &'static str, llvm: u32, has_source: bool) -> Nightly {
        Nightly { name, llvm, source: PathBuf::from("/toolchain/Cargo.lock"), has_source }
    }

    fn machine(nightlies: &[Nightly], linker: Option<&str>) -> Machine {
        let linker = linker.map(|version| Linker { path: "/bin/bpf-linker".into(), version: version.to_owned() });
        Machine { rustup: true, nightlies: nightlies.to_vec(), linker }
    }

    #[test]
    fn a_complete_machine_lacks_nothing() {
        assert_eq!(machine(&[toolchain("nightly", LLVM, true)], Some(LINKER)).lacks(), []);
    }

    #[test]
    fn a_bare_machine_lacks_toolchain_then_linker() {
        let bare = Machine { rustup: false, nightlies: vec![], linker: None };
        assert_eq!(bare.lacks(), [Lack::Rustup, Lack::Nightly { found: None }, Lack::Linker { found: None }]);
    }

    #[test]
    fn a_nightly_with_another_llvm_does_not_count_but_is_named() {
        let machine = machine(&[toolchain("nightly", 23, true)], Some(LINKER));
        assert_eq!(machine.nightly(), None);
        assert_eq!(machine.lacks(), [Lack::Nightly { found: Some(23) }]);
    }

    #[test]
    fn the_pinned_nightly_stands_in_for_one_with_another_llvm() {
        let machine = machine(&[toolchain("nightly", 23, true), toolchain(PINNED_NIGHTLY, LLVM, false)], Some(LINKER));
        assert_eq!(machine.lacks(), [Lack::Source(PINNED_NIGHTLY)]);
    }

    #[test]
    fn a_toolchain_with_its_source_is_preferred() {
        let machine =
            machine(&[toolchain("nightly", LLVM, false), toolchain(PINNED_NIGHTLY, LLVM, true)], Some(LINKER));
        assert_eq!(machine.nightly().map(|nightly| nightly.name), Some(PINNED_NIGHTLY));
        assert_eq!(machine.lacks(), []);
    }

    #[test]
    fn a_newer_linker_is_as_wrong_as_none() {
        let lacks = machine(&[toolchain("nightly", LLVM, true)], Some("0.13.0")).lacks();
        assert_eq!(lacks, [Lack::Linker { found: Some("0.13.0".to_owned()) }]);
        assert_eq!(lacks[0].to_string(), "bpf-linker is 0.13.0, but 0.10.3 is needed");
    }

    #[test]
    fn versions_are_read_from_what_the_tools_print() {
        assert_eq!(llvm_major("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nLLVM version: 22.1.4\n"), Some(22));
        assert_eq!(llvm_major("rustc 1.97.0-nightly\n"), None);
        assert_eq!(linker_version("bpf-linker 0.10.3\n"), Some("0.10.3"));
        assert_eq!(linker_version("ld 2.40\n"), None);
    }
}
