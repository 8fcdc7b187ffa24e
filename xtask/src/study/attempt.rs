//! One attempt at a setting: wait for a quiet machine, sweep, and say whether the run counts.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use super::arms::Setting;
use super::node::{self, Node};
use crate::exec::exec;
use crate::{interrupt, verify};

/// How a setting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its run counts.
    Kept,
    /// It does not.
    Refused,
    /// This machine cannot do it.
    CannotRun,
    /// Ctrl-C.
    Interrupted,
}

/// Where an arm's runs go, and what makes them.
pub(super) struct Place {
    /// The arm's folder.
    pub(super) folder: PathBuf,
    /// `throttle`
    pub(super) program: PathBuf,
}

/// Longest wait for a quiet machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs a setting once; also returns what `study.json` is to note, nothing if nothing was run.
pub(super) fn run(place: &Place, setting: &Setting) -> Result<(Ended, Option<Value>)> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = u32::try_from(cpus).map_or(1.0, f64::from);
    let (idle, load) = node::wait_for_quiet(verify::IDLE_BEFORE, cpus, PATIENCE)?;
    if interrupt::asked() {
        return Ok((Ended::Interrupted, None));
    }
    let out = place.folder.join(&setting.name);
    let (before, start) = (Node::read()?, Instant::now());
    let mut sweep = Command::new(&place.program);
    sweep.arg("sweep").args(setting.arguments()).arg("--out").arg(&out);
    let status = sweep.status().with_context(|| format!("cannot start {}", place.program.display()))?;
    let used = before.until(&Node::read()?);
    let seconds = start.elapsed().as_secs();
    if interrupt::asked() || status.code() == Some(130) {
        return Ok((Ended::Interrupted, None));
    }
    if matches!(status.code(), Some(2 | 3)) {
        return Ok((Ended::CannotRun, None));
    }
    let mut noted = json!({
        "seconds": seconds,
        "idle_before": rounded(idle),
        "load_before": load,
        "foreign": used.map(|used| rounded(used.foreign)),
        "stolen": used.map(|used| rounded(used.stolen)),
    });
    let mut refused = verify::starved(&noted, false);
    match verify::Run::read(&out) {
        Ok(run) => refused.extend(verify::refusals(&run, false)),
        Err(error) => refused.push(format!("ended with {status}: {error:#}")),
    }
    noted["refused"] = json!(refused);
    if !refused.is_empty() {
        return Ok((Ended::Refused, Some(noted)));
    }
    compress(&out)?;
    Ok((Ended::Kept, Some(noted)))
}

/// Three decimals are more than two readings of ticks give.
fn rounded(share: f64) -> f64 {
    (share * 1e3).round() / 1e3
}

/// Moves what is left of an earlier attempt out of the results, where it can be looked at.
pub(super) fn move_aside(folder: &Path, name: &str) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let aside = Path::new("target/study-refused");
    fs::create_dir_all(aside).with_context(|| format!("cannot make {}", aside.display()))?;
    let free = (1..).map(|number| aside.join(format!("{name}-{number}"))).find(|path| !path.exists());
    let to = free.context("no free name")?;
    copy(folder, &to)?;
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    eprintln!("study: moved {} to {}", folder.display(), to.display());
    Ok(())
}

/// Copies a folder with all in it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", from.display()))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target)
                .with_context(|| format!("cannot copy {} to {}", path.display(), target.display()))?;
        }
    }
    Ok(())
}

/// Packs raw files as small as they go: while they were written they had to be quick, and readable after each request.
pub(super) fn compress(run: &Path) -> Result<()> {
    let raw = run.join("raw");
    for entry in fs::read_dir(&raw).with_context(|| format!("cannot read {}", raw.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", raw.display()))?.path();
        let plain = match path.extension() {
            Some(extension) if extension == "xz" => continue,
            Some(extension) if extension == "gz" => {
                let plain = path.with_extension("");
                let unpack = || -> io::Result<()> {
                    let mut events = MultiGzDecoder::new(BufReader::new(File::open(&path)?));
                    let mut out = BufWriter::new(File::create(&plain)?);
                    io::copy(&mut events, &mut out)?;
                    out.flush()?;
                    fs::remove_file(&path)
                };
                unpack().with_context(|| format!("cannot unpack {}", path.display()))?;
                plain
            }
            _ => path,
        };
        exec(Command::new("xz").args(["-9e", "--threads=1", "--check=crc64", "--"]).arg(&plain))
            .context("cannot pack with xz; type: apt-get install xz-utils")?;
    }
    Ok(())
}
