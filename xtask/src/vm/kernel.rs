//! Guest kernels: Debian's packages, the newest of each series that apt knows, fetched once and unpacked.
//!
//! Pins no version: a pinned package vanishes from the archive. What was booted stands in the result.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::exec::{Show, collect, exec, line};

/// A line of kernels with one way to throttle, and one build of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Series {
    /// 6.1: queues are throttled, the timer releases all CPUs.
    #[value(name = "6.1-cloud")]
    Cloud61,
    /// 6.12: queues are throttled, other CPUs are released by a call.
    #[value(name = "6.12-cloud")]
    Cloud612,
    /// 6.12 with PREEMPT_RT.
    #[value(name = "6.12-rt")]
    Rt612,
}

/// A kernel ready to boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) series: Series,
    /// `linux-image-6.1.0-57-cloud-amd64 6.1.192-3`
    pub(crate) package: String,
    /// The bzImage.
    pub(crate) image: PathBuf,
}

/// What a guest uses, all built in: nothing loads modules there.
const BUILT_IN: [&str; 14] = [
    "CONFIG_SERIAL_8250_CONSOLE",
    "CONFIG_BLK_DEV_INITRD",
    "CONFIG_BINFMT_SCRIPT",
    "CONFIG_DEVTMPFS",
    "CONFIG_TMPFS",
    "CONFIG_UNIX",
    "CONFIG_INET",
    "CONFIG_CGROUPS",
    "CONFIG_FAIR_GROUP_SCHED",
    "CONFIG_CFS_BANDWIDTH",
    "CONFIG_BPF_SYSCALL",
    "CONFIG_BPF_JIT",
    "CONFIG_BPF_EVENTS",
    "CONFIG_DEBUG_INFO_BTF",
];

impl Series {
    fn name(self) -> &'static str {
        match self {
            Self::Cloud61 => "6.1-cloud",
            Self::Cloud612 => "6.12-cloud",
            Self::Rt612 => "6.12-rt",
        }
    }

    /// What comes before and after the part of the package's name that changes with every upload.
    fn package(self) -> (&'static str, &'static str) {
        match self {
            Self::Cloud61 => ("linux-image-6.1.", "-cloud-amd64"),
            Self::Cloud612 => ("linux-image-6.12.", "-cloud-amd64"),
            Self::Rt612 => ("linux-image-6.12.", "-rt-amd64"),
        }
    }

    /// The newest kernel of this series, fetched into `cache` unless it is there.
    ///
    /// # Errors
    /// apt does not know one or cannot fetch it and none is cached, or it lacks something guests need.
    pub(crate) fn fetch(self, cache: &Path) -> Result<Kernel> {
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let package = match self.known_to_apt() {
            Ok(package) => package,
            Err(error) => match self.newest(&cached(cache)) {
                Some(cached) => {
                    eprintln!("vm-test: {self}: {error:#}; taking the cached {cached}");
                    cached
                }
                None => return Err(error),
            },
        };
        let dir = cache.join(&package);
        if !dir.is_dir() {
            unpack(&package, cache)?;
        }
        let release = package.trim_start_matches("linux-image-");
        let (image, config) = (dir.join(format!("boot/vmlinuz-{release}")), dir.join(format!("boot/config-{release}")));
        let options = fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
        let lacking = lacking(&options);
        ensure!(lacking.is_empty(), "{package} lacks what guests need built in: {}", lacking.join(", "));
        let version = fs::read_to_string(dir.join("version")).unwrap_or_default();
        Ok(Kernel { series: self, package: format!("{package} {}", version.trim()), image })
    }

    /// Asks apt, after an update if it does not know any.
    fn known_to_apt(self) -> Result<String> {
        let (before, _) = self.package();
        let mut search = Command::new("apt-cache");
        search.args(["search", "--names-only", &format!("^{}", before.replace('.', "\\."))]);
        for attempt in 0..2 {
            let (listed, ended) = collect(&mut search, Show::Nothing)?;
            ended?;
            let names: Vec<String> =
                listed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
            if let Some(newest) = self.newest(&names) {
                return Ok(newest);
            }
            if attempt == 0 {
                exec(Command::new("apt-get").args(["update", "-qq"]))?;
            }
        }
        bail!(
            "apt knows no kernel package {}…{} (Debian 12 and its security archive have them)",
            before,
            self.package().1
        )
    }

    /// The newest of `names` that belongs to this series.
    fn newest(self, names: &[String]) -> Option<String> {
        let (before, after) = self.package();
        let upload = |name: &str| -> Option<Vec<u64>> {
            let middle = name.strip_prefix(before)?.strip_suffix(after)?;
            // "117+deb12", "0-57"; not "0-57-cloud-amd64-unsigned", whose suffix is another.
            let only = middle.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
            let numbers = middle.split(|letter: char| !letter.is_ascii_digit()).filter(|digits| !digits.is_empty());
            (only && !middle.contains("-rt") && !middle.contains("-cloud"))
                .then(|| numbers.map(|digits| digits.parse().unwrap_or(0)).collect())
        };
        let candidates = names.iter().filter_map(|name| Some((upload(name)?, name)));
        candidates.max_by(|left, right| left.0.cmp(&right.0).then(Ordering::Equal)).map(|(_, name)| name.clone())
    }
}

/// Fetches a package and keeps its `/boot`.
fn unpack(package: &str, cache: &Path) -> Result<()> {
    eprintln!("vm-test: fetching {package}");
    let work = cache.join(format!(".{package}"));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    // The sandbox user cannot write here, and only warns about it.
    exec(
        Command::new("apt-get").args(["-qq", "-o", "APT::Sandbox::User=root", "download", package]).current_dir(&work),
    )?;
    let archive = fs::read_dir(&work)?.flatten().map(|entry| entry.path()).next();
    let archive = archive.with_context(|| format!("apt-get download left no file for {package}"))?;
    let (version, ended) = collect(Command::new("dpkg-deb").arg("-f").arg(&archive).arg("Version"), Show::Nothing)?;
    ended?;
    // The modules of a kernel are 400 MB, and guests load none.
    let mut reader = Command::new("dpkg-deb");
    let mut files = reader
        .arg("--fsys-tarfile")
        .arg(&archive)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", line(&reader)))?;
    let tar = files.stdout.take().context("dpkg-deb has no output")?;
    exec(Command::new("tar").args(["-x", "-f", "-", "./boot"]).current_dir(&work).stdin(tar))?;
    ensure!(files.wait()?.success(), "dpkg-deb cannot read {}", archive.display());
    fs::write(work.join("version"), version)?;
    fs::remove_file(&archive)?;
    fs::rename(&work, cache.join(package)).with_context(|| format!("cannot keep {package} in {}", cache.display()))
}

fn cached(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Options of [`BUILT_IN`] that a kernel's config does not say `y` to.
fn lacking(config: &str) -> Vec<&'static str> {
    let built_in = |option: &str| config.lines().any(|line| line.strip_prefix(option) == Some("=y"));
    BUILT_IN.into_iter().filter(|option| !built_in(option)).collect()
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_newest_upload_is_taken_by_number_not_by_letter() {
        let listed = names(&[
            "linux-image-6.12.100+deb12-cloud-amd64",
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-rt-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-9-cloud-amd64",
        ]);
        assert_eq!(Series::Cloud612.newest(&listed).as_deref(), Some("linux-image-6.12.100+deb12-cloud-amd64"));
        assert_eq!(Series::Rt612.newest(&listed).as_deref(), Some("linux-image-6.12.117+deb12-rt-amd64"));
        assert_eq!(Series::Cloud61.newest(&listed).as_deref(), Some("linux-image-6.1.0-57-cloud-amd64"));
        assert_eq!(Series::Rt612.newest(&[]), None);
    }

    #[test]
    fn a_module_is_not_built_in() {
        let config: String = BUILT_IN.iter().map(|option| format!("{option}=y\n")).collect();
        assert_eq!(lacking(&config), Vec::<&str>::new());
        assert_eq!(lacking(&config.replace("TMPFS=y", "TMPFS=m")), ["CONFIG_DEVTMPFS", "CONFIG_TMPFS"]);
    }
}
