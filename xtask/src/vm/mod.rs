//! `cargo xtask vm-test`: the kernel tests and the study on kernels other than the running one, in emulated guests.

mod binaries;
mod console;
mod guest;
mod initramfs;
mod kernel;
mod qemu;
mod study;
mod sweep;
mod verdict;

pub(crate) use sweep::{Options as SweepOptions, run as run_sweep};

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;

use crate::counts::Counts;
use crate::cpu_cgroup::Priority;
use crate::{interrupt, setup};
use binaries::TestBinary;
use guest::Step;
use kernel::{Kernel, Series};
use qemu::Mode;
use study::Study;
use verdict::Verdict;

/// Which guests to run, and how much in them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Only this kernel; may be given several times. All by default.
    #[arg(long = "kernel", value_enum, value_name = "SERIES")]
    kernels: Vec<Series>,
    /// Only this mode; may be given several times. Both by default.
    #[arg(long = "mode", value_enum, value_name = "MODE")]
    modes: Vec<Mode>,
    /// Only tests whose names contain this, and not the study; may be given several times.
    #[arg(long = "test", value_name = "PART", conflicts_with = "full")]
    tests: Vec<String>,
    /// The whole study, 40 requests at each limit, and its figures against the published ones (many minutes).
    #[arg(long)]
    full: bool,
}

/// Boots of a guest whose kernel dies: MTTCG at times lets a guest run into code it is just patching.
const BOOTS: usize = 3;
/// Lines of the console shown of a guest that failed.
const SHOWN: usize = 40;

/// Runs the guests and prints a line for each.
///
/// Exit code: 0 all held; 1 a guest failed; 3 this machine cannot run guests; 130 interrupted.
///
/// # Errors
/// The toolchain cannot be completed, something does not build, or a kernel cannot be fetched.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(why) = obstacle() {
        eprintln!("vm-test: {why}");
        return Ok(ExitCode::from(3));
    }
    setup::run(&setup::Options {})?;
    interrupt::listen()?;
    let held = guests(options)?.failed == 0;
    Ok(ExitCode::from(if interrupt::asked() { 130 } else { u8::from(!held) }))
}

/// What keeps guests from running here, with the command that mends it; none: they can.
pub(crate) fn obstacle() -> Option<String> {
    let on_path = |name: &str| {
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(name).is_file())
    };
    missing(on_path, Path::new(guest::BUSYBOX).is_file())
}

/// Runs the guests, several at a time as far as the machine has CPUs, and adds up their tests. A guest that ended without any
/// counts as one that failed.
///
/// # Errors
/// As [`run`].
pub(crate) fn guests(options: &Options) -> Result<Counts> {
    let folder = target_folder().join("vm");
    let study = match options.tests.as_slice() {
        [] => Some(if options.full { Study::full() } else { Study::quick() }),
        _ => None,
    };
    let kernels: Vec<Kernel> = chosen(&options.kernels)
        .into_iter()
        .map(|series| series.fetch(&folder.join("kernels")))
        .collect::<Result<_>>()?;
    let mut binaries = binaries::build()?;
    binaries.keep(&options.tests);
    ensure!(study.is_some() || !binaries.tests.is_empty(), "no test's name contains {}", options.tests.join(" or "));
    let limit = limit(options.full);
    let steps: Vec<Step> =
        study.iter().map(|study| study.step()).chain(binaries.tests.iter().map(TestBinary::step)).collect();
    let initramfs = folder.join("initramfs.cpio");
    fs::write(&initramfs, guest::root(&binaries, &steps, limit)?)
        .with_context(|| format!("cannot write {}", initramfs.display()))?;
    let lab = Lab { folder, initramfs, tests: binaries.tests, study, limit };

    // Two-CPU guests live in real time. The builds needed no priority.
    let _priority = Priority::take().inspect_err(|why| eprintln!("vm-test: without priority: {why:#}")).ok();
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let mut counts = Counts::default();
    for mode in chosen(&options.modes) {
        counts += lab.side_by_side(&kernels, mode, (cpus / mode.threads()).max(1))?;
    }
    Ok(counts)
}

/// What all guests share.
struct Lab {
    folder: PathBuf,
    initramfs: PathBuf,
    tests: Vec<TestBinary>,
    study: Option<Study>,
    limit: Duration,
}

impl Lab {
    /// Runs a guest of each kernel, `workers` at a time.
    fn side_by_side(&self, kernels: &[Kernel], mode: Mode, workers: usize) -> Result<Counts> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..workers.min(kernels.len()) {
                scope.spawn(|| {
                    while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if interrupt::asked() {
                            return;
                        }
                        let result = self.guest(kernel, mode);
                        if let Ok(mut results) = results.lock() {
                            results.push(result);
                        }
                    }
                });
            }
        });
        let results = results.into_inner().map_err(|_| anyhow!("a guest's thread panicked"))?;
        let counts: Vec<Counts> = results.into_iter().collect::<Result<_>>()?;
        Ok(counts.into_iter().fold(Counts::default(), |mut sum, counts| {
            sum += counts;
            sum
        }))
    }

    /// Boots one guest, again if its kernel dies, says how it went, and returns its tests.
    fn guest(&self, kernel: &Kernel, mode: Mode) -> Result<Counts> {
        let name = format!("{}-{mode}", kernel.series);
        eprintln!("vm-test: {name}: booting {}", kernel.package);
        let logs = self.folder.join("logs");
        let mut deaths: Vec<String> = Vec::new();
        let boot = loop {
            let boot = qemu::boot(&kernel.image, &self.initramfs, mode, self.limit, &logs, &name)?;
            if !verdict::again(&boot, mode) || deaths.len() + 1 >= BOOTS || interrupt::asked() {
                break boot;
            }
            eprintln!("vm-test: {name}: {:?}; booting again", boot.end);
            deaths.push(format!("{:?}", boot.end));
        };
        let verdict = verdict::judge(&boot, mode, &self.tests, self.study, &self.folder.join("out").join(&name))?;
        println!("{}", line(&name, kernel, &verdict, deaths.len(), boot.took));
        if !verdict.held() {
            let whole = boot.log.display();
            eprintln!("{}", console::last_lines(&boot.console, SHOWN));
            eprintln!("vm-test: {name}: the whole console is in {whole}");
        }
        Ok(counted(&verdict))
    }
}

/// A guest's line in the output.
fn line(name: &str, kernel: &Kernel, verdict: &Verdict, deaths: usize, took: Duration) -> String {
    let running = verdict.kernel.as_deref().unwrap_or("?");
    let mut text = format!("{name}: {running} ({}): {}, {} s", kernel.package, verdict.counts, took.as_secs());
    if deaths > 0 {
        text.push_str(&format!("; its kernel died {deaths} times before"));
    }
    if !verdict.held() {
        text.push_str("; FAILED: ");
        text.push_str(&verdict.problems.join("; "));
    }
    text
}

/// What a verdict adds to the tier: at least one failure if it did not hold.
fn counted(verdict: &Verdict) -> Counts {
    let mut counts = verdict.counts;
    if !verdict.held() {
        counts.failed = counts.failed.max(1);
    }
    counts
}

fn missing(on_path: impl Fn(&str) -> bool, busybox: bool) -> Option<String> {
    for tool in ["apt-get", "dpkg-deb"] {
        if !on_path(tool) {
            return Some(format!("no {tool}: guests boot kernels of Debian's packages"));
        }
    }
    let mut packages = Vec::new();
    if !on_path(qemu::QEMU) {
        packages.push("qemu-system-x86");
    }
    if !busybox {
        packages.push("busybox-static");
    }
    let list = packages.join(" ");
    (!packages.is_empty())
        .then(|| format!("{list} not installed; type: apt-get install --no-install-recommends {list}"))
}

fn chosen<T: ValueEnum + Clone>(asked: &[T]) -> Vec<T> {
    if asked.is_empty() { T::value_variants().to_vec() } else { asked.to_vec() }
}

/// A guest that takes longer hangs. On two CPUs of their own they take well under a minute, or about five for the whole study.
fn limit(full: bool) -> Duration {
    Duration::from_secs(if full { 1_200 } else { 240 })
}

fn target_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        Kernel { series: Series::Rt612, package: "linux-image-6.12.1-rt-amd64 6.12.1-1".to_owned(), image: "x".into() }
    }

    #[test]
    fn what_is_missing_comes_with_the_command_that_installs_it() {
        assert_eq!(missing(|_| true, true), None);
        let without_qemu = missing(|name| name != qemu::QEMU, false).expect("two packages are missing");
        assert!(without_qemu.ends_with("apt-get install --no-install-recommends qemu-system-x86 busybox-static"));
        assert!(missing(|name| name != "apt-get", true).is_some_and(|why| why.contains("Debian")));
    }

    #[test]
    fn a_guests_line_names_the_kernel_that_ran_the_tests_and_the_trouble() {
        let counts = Counts { passed: 12, ..Counts::default() };
        let held = Verdict { kernel: Some("6.12.1-rt".to_owned()), counts, problems: vec![] };
        assert_eq!(
            line("6.12-rt-smp", &kernel(), &held, 1, Duration::from_secs(34)),
            "6.12-rt-smp: 6.12.1-rt (linux-image-6.12.1-rt-amd64 6.12.1-1): 12 passed, 0 failed, 0 skipped, 34 s; its \
             kernel died 1 times before"
        );
        let failed = Verdict { problems: vec!["sweep ended with 1".to_owned()], ..held };
        assert!(line("x", &kernel(), &failed, 0, Duration::ZERO).ends_with("; FAILED: sweep ended with 1"));
    }

    #[test]
    fn a_guest_without_any_test_counts_as_a_failure() {
        assert_eq!(counted(&Verdict::default()), Counts { failed: 1, ..Counts::default() });
        let counts = Counts { passed: 3, failed: 2, ..Counts::default() };
        assert_eq!(counted(&Verdict { counts, ..Verdict::default() }), counts);
    }
}
