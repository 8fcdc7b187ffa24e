//! `cargo xtask verify`: recomputes every figure of committed runs from their raw files, and judges the predictions again.
//!
//! Shares no code with throttle-user: it knows the file formats, and nothing of how the observer arrives at them. Needs no root, no
//! BPF and no particular kernel.

mod arm;
mod digest;
mod events;
mod finding;
mod limit;
mod packed;
mod page;
mod period;
mod prediction;
mod prereg;
mod quantile;
mod record;
mod report;
mod request;
mod row;
mod run;
mod shape;
mod summary;
mod threads;
mod valid;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use arm::{Arm, STUDY, folders, unplanned};
pub(crate) use digest::write as write_digests;
pub(crate) use prereg::{Prereg, read as read_prereg};
pub(crate) use run::Run;
pub(crate) use valid::{IDLE_BEFORE, refusals, starved};

use finding::Checker;
use prediction::Study;
use row::Row;
use run::Checked;

/// What `cargo xtask verify` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Folders of arms or of single runs [default: all of results/, with the predictions and the README].
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Write the README files and checksums anew instead of comparing them: after a run, or a change of their wording.
    #[arg(long, conflicts_with = "folders")]
    write: bool,
}

/// Where the study's runs are.
pub(crate) const RESULTS: &str = "results";

/// Runs the command.
///
/// # Errors
/// A file is missing, or cannot be read at all.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let results = Path::new(RESULTS);
    if options.write {
        write(results)?;
        return Ok(ExitCode::SUCCESS);
    }
    let checked = if options.folders.is_empty() { all(results)? } else { some(results, &options.folders)? };
    for finding in &checked.findings {
        println!("{finding}");
    }
    let (figures, wrong) = (checked.figures, checked.findings.len());
    if wrong == 0 {
        println!("verified: {figures} figures recomputed, all as stored");
        Ok(ExitCode::SUCCESS)
    } else {
        println!("NOT verified: {wrong} of {figures} figures or files are not as stored");
        Ok(ExitCode::FAILURE)
    }
}

/// Single folders: an arm with its checksums, or a run.
fn some(results: &Path, folders: &[PathBuf]) -> Result<Checked> {
    let mut checked = Checked::default();
    for folder in folders {
        let checks = if folder.join(STUDY).is_file() {
            Arm::read(folder)?.check(&read_prereg(&results.join("PREREG.md"))?)?
        } else {
            Run::read(folder)?.check()?
        };
        checked.figures += checks.figures;
        checked.findings.extend(checks.findings);
    }
    Ok(checked)
}

/// The whole of `results`.
///
/// # Errors
/// A file is missing, or cannot be read at all.
pub(crate) fn all(results: &Path) -> Result<Checked> {
    let book = Book::read(results)?;
    let mut checked = Checked::default();
    for arm in &book.arms {
        let checks = arm.check(&book.prereg).with_context(|| format!("{}", arm.folder.display()))?;
        println!("{}: {} figures, {} wrong", arm.folder.display(), checks.figures, checks.findings.len());
        checked.figures += checks.figures;
        checked.findings.extend(checks.findings);
    }
    for (path, text) in book.pages() {
        checked.add(same_lines(&path, &text)?);
    }
    Ok(checked)
}

/// Compares a generated text with its file, line by line.
fn same_lines(path: &Path, computed: &str) -> Result<Checker> {
    let stored = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut checker = Checker::of(path);
    let (mut stored_lines, mut computed_lines) = (stored.lines(), computed.lines());
    for number in 1.. {
        match (stored_lines.next(), computed_lines.next()) {
            (None, None) => break,
            (stored, computed) => {
                checker.same(format!("line {number}"), stored.unwrap_or("(none)"), computed.unwrap_or("(none)"));
            }
        }
    }
    Ok(checker)
}

/// Writes what is generated from runs.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn write(results: &Path) -> Result<()> {
    let book = Book::read(results)?;
    for (path, text) in book.pages() {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    for arm in &book.arms {
        write_digests(&arm.folder)?;
    }
    Ok(())
}

/// All arms, the predictions, and what they come to.
pub(crate) struct Book {
    pub(crate) arms: Vec<Arm>,
    pub(crate) prereg: Prereg,
    pub(crate) study: Study,
    results: PathBuf,
}

impl Book {
    fn read(results: &Path) -> Result<Self> {
        let prereg = read_prereg(&results.join("PREREG.md"))?;
        let arms: Vec<Arm> = folders(results)?.iter().map(|folder| Arm::read(folder)).collect::<Result<_>>()?;
        let rows = |arm: &Arm| {
            let settings = arm.settings.iter().map(|(name, run)| Row::of(&arm.name, name, run));
            settings.flatten().collect::<Vec<_>>()
        };
        let study = Study { rows: arms.iter().flat_map(rows).collect() };
        Ok(Self { arms, prereg, study, results: results.to_owned() })
    }

    /// Every generated text with its path.
    fn pages(&self) -> Vec<(PathBuf, String)> {
        let arms = self.arms.iter().map(|arm| (arm.folder.join("README.md"), page::arm(self, arm)));
        arms.chain([(self.results.join("README.md"), page::results(self))]).collect()
    }
}
