//! One boot: QEMU without KVM, under a time limit, with the console and the results in files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::console::End;
use crate::exec::{exec, line};

/// The emulator, of Debian's package qemu-system-x86.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// How a guest's time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// One CPU, whose time is the number of its instructions: the same run twice gives the same result, whatever the load.
    Icount,
    /// Two CPUs in real time: a starved host shifts the figures.
    Smp,
}

/// What one boot came to.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    pub(crate) end: End,
    /// The time limit ended it.
    pub(crate) timed_out: bool,
    pub(crate) took: Duration,
    pub(crate) console: String,
    pub(crate) log: PathBuf,
    /// What the guest wrote to its second serial port: a tar archive.
    pub(crate) results: PathBuf,
}

/// How often the guest is looked after.
const POLL: Duration = Duration::from_millis(100);

impl Mode {
    /// CPUs of this machine a guest keeps busy.
    pub(crate) fn threads(self) -> usize {
        match self {
            Self::Icount => 1,
            Self::Smp => 2,
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            // 2 ns an instruction; idle time is skipped. The clock of the board must follow, or results are not the same twice.
            Self::Icount => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=1,sleep=off",
                "-smp",
                "1",
                "-rtc",
                "base=2026-01-01,clock=vm",
            ],
            Self::Smp => &["-accel", "tcg,thread=multi", "-smp", "2"],
        }
    }
}

/// `-machine pc`, never `microvm`: without an HPET or PM timer to calibrate by, a loaded host makes guests hang at boot.
/// No random instructions, which would differ from run to run. `oops=panic panic=-1` with `-no-reboot`: a dead kernel ends
/// QEMU. `noirqdebug`: PREEMPT_RT's threaded handler of the serial ports looks like a storm of stray interrupts.
const ARGUMENTS: [&str; 12] = [
    "-machine",
    "pc",
    "-cpu",
    "max,-rdrand,-rdseed",
    "-m",
    "768",
    "-nodefaults",
    "-no-user-config",
    "-no-reboot",
    "-display",
    "none",
    "-append",
];
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet oops=panic panic=-1 reboot=t mitigations=off nokaslr tsc=reliable \
                                no_timer_check noirqdebug cryptomgr.notests";

/// Boots `image` with `initramfs` and waits for its end, at most for `limit`. Logs go to `logs`, named after the guest.
///
/// # Errors
/// QEMU cannot be started, or a log cannot be written or read.
pub(crate) fn boot(
    image: &Path,
    initramfs: &Path,
    mode: Mode,
    limit: Duration,
    logs: &Path,
    name: &str,
) -> Result<Boot> {
    fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let file = |ending: &str| logs.join(format!("{name}.{ending}"));
    let (log, results, own) = (file("console"), file("tar"), file("qemu"));
    let mut command = Command::new(QEMU);
    // A word the kernel does not know becomes a variable of init's environment, and so of the tests'.
    command.args(mode.arguments()).args(ARGUMENTS).arg(format!("{KERNEL_ARGUMENTS} THROTTLE_GUEST={mode}"));
    command.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    for port in [&log, &results] {
        // A comma in the path would end it.
        command.arg("-serial").arg(format!("file:{}", port.display().to_string().replace(',', ",,")));
    }
    let said = File::create(&own).with_context(|| format!("cannot create {}", own.display()))?;
    let started = Instant::now();
    let mut qemu = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said)
        .spawn()
        .with_context(|| format!("cannot start `{}`", line(&command)))?;
    let timed_out = !ends_within(&mut qemu, limit).context("cannot wait for QEMU")?;
    let took = started.elapsed();
    let console = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    if console.is_empty() {
        // The guest never spoke: QEMU may have.
        eprint!("{}", fs::read_to_string(&own).unwrap_or_default());
    }
    Ok(Boot { end: End::read(&console), timed_out, took, console, log, results })
}

/// Waits for `child`, and kills it when the time is over.
fn ends_within(child: &mut Child, limit: Duration) -> std::io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
}

impl Boot {
    /// Unpacks what the guest handed out into `folder`, in place of what is there.
    ///
    /// # Errors
    /// It is no whole archive, or cannot be written there.
    pub(crate) fn unpack(&self, folder: &Path) -> Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        exec(Command::new("tar").arg("-xf").arg(&self.results).arg("-C").arg(folder))
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Icount => "icount",
            Self::Smp => "smp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_outlives_its_limit_is_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
        assert!(!ends_within(&mut child, Duration::ZERO).expect("waited"));
        assert!(!child.try_wait().expect("reaped").expect("over").success());
        let mut child = Command::new("true").spawn().expect("true");
        assert!(ends_within(&mut child, Duration::from_secs(600)).expect("waited"));
    }
}
