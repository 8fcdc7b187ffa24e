//! `cargo xtask vm-sweep`: `throttle sweep`, or `throttle spikes`, in one guest, and its run's folder out of it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::guest::{self, Step, quoted};
use super::kernel::Series;
use super::qemu::{self, Mode};
use super::study::{RUN, STUDY};
use super::{binaries, console, obstacle, target_folder, verdict};
use crate::cpu_cgroup::Priority;
use crate::setup;

/// Where to sweep, and what.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The guest's kernel.
    #[arg(long, value_enum, value_name = "SERIES")]
    kernel: Series,
    /// How the guest's time passes.
    #[arg(long, value_enum, value_name = "MODE", default_value = "icount")]
    mode: Mode,
    /// Where the run's folder goes on this machine. It must not exist yet.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A guest that takes longer hangs.
    #[arg(long, value_name = "MINUTES", default_value_t = 30)]
    patience: u64,
    /// What to run there.
    #[arg(long, value_enum, value_name = "VERB", default_value = "sweep")]
    verb: Verb,
    /// For the verb as they stand, but for --out (`throttle sweep --help` lists what it takes).
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// A verb of `throttle` that leaves a run's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Verb {
    /// Limits and requests.
    Sweep,
    /// One limit and spikes.
    Spikes,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Spikes => "spikes",
        }
    }
}

/// Sweeps, prints what the sweep printed, and ends with its exit code; 3 if this machine cannot run guests.
///
/// # Errors
/// The toolchain cannot be completed, something does not build, the kernel cannot be fetched, or the guest broke off.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(why) = obstacle() {
        eprintln!("vm-sweep: {why}");
        return Ok(ExitCode::from(3));
    }
    ensure!(!options.out.exists(), "{} exists; name another folder with --out", options.out.display());
    setup::run(&setup::Options {})?;
    let folder = target_folder().join("vm");
    let kernel = options.kernel.fetch(&folder.join("kernels"))?;
    let binaries = binaries::build_program()?;
    let limit = Duration::from_secs(60 * options.patience);
    // Several of these may run at once, and beside the tests.
    let name = format!("sweep-{}-{}-{}", options.kernel, options.mode, std::process::id());
    let scratch = folder.join("sweeps").join(&name);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let initramfs = scratch.join("initramfs.cpio");
    fs::write(&initramfs, guest::root(&binaries, &[step(options.verb, &options.args)], limit)?)
        .with_context(|| format!("cannot write {}", initramfs.display()))?;

    let _priority = Priority::take().inspect_err(|why| eprintln!("vm-sweep: without priority: {why:#}")).ok();
    eprintln!("vm-sweep: booting {}", kernel.package);
    let boot = qemu::boot(&kernel.image, &initramfs, options.mode, limit, &scratch, "guest")?;
    if let Some(problem) = verdict::cut_short(&boot) {
        eprintln!("{}", console::last_lines(&boot.console, super::SHOWN));
        bail!("{problem}; the whole console is in {}", boot.log.display());
    }
    let results = scratch.join("results");
    boot.unpack(&results)?;
    let text = |ending: &str| fs::read_to_string(results.join(format!("{STUDY}.{ending}"))).unwrap_or_default();
    eprint!("{}", text("out"));
    print!("{}", text("printed"));
    let code = text("code");
    let code: u8 = code.trim().parse().with_context(|| format!("the guest's sweep ended with {code:?}"))?;
    let run = results.join(RUN);
    if run.is_dir() {
        keep(&run, &options.out)?;
        eprintln!("vm-sweep: {} in {} s: {}", kernel.package, boot.took.as_secs(), options.out.display());
    }
    fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    Ok(ExitCode::from(code))
}

fn step(verb: Verb, args: &[String]) -> Step {
    let words: Vec<String> = args.iter().map(|word| quoted(word)).collect();
    Step {
        name: STUDY.to_owned(),
        command: format!("throttle {} {} --out {RUN} > {STUDY}.printed", verb.name(), words.join(" ")),
    }
}

/// Moves a folder, also from one filesystem to another.
fn keep(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    crate::exec::exec(std::process::Command::new("mv").arg("-T").arg(from).arg(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_the_guests_sweep_word_by_word() {
        let words = ["--limits", "100m,none", "it's"].map(str::to_owned);
        let command = r"throttle sweep '--limits' '100m,none' 'it'\''s' --out run > sweep.printed";
        assert_eq!(step(Verb::Sweep, &words), Step { name: "sweep".to_owned(), command: command.to_owned() });
        assert!(step(Verb::Spikes, &words).command.starts_with("throttle spikes '--limits' "));
    }
}
