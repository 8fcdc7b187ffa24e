//! A folder of `results/`: one arm of the study with its settings, and what `study.json` says of how they were run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::finding::Checker;
use super::prereg::Prereg;
use super::run::{Checked, Run, json};
use super::{digest, valid};

/// Says how an arm was run.
pub(crate) const STUDY: &str = "study.json";

/// An arm as read.
#[derive(Debug)]
pub(crate) struct Arm {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Such as `grid`.
    pub(crate) name: String,
    /// `study.json`
    pub(crate) study: Value,
    /// Name and run of each setting, in the order of `study.json`.
    pub(crate) settings: Vec<(String, Run)>,
}

impl Arm {
    /// Reads an arm's folder.
    ///
    /// # Errors
    /// A file is missing or no JSON.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let file = folder.join(STUDY);
        let study = json(&file)?;
        let name = study["arm"].as_str().with_context(|| format!("{} names no arm", file.display()))?.to_owned();
        let settings = study["settings"].as_array().map_or(&[][..], Vec::as_slice);
        let settings = settings.iter().map(|setting| {
            let name =
                setting["name"].as_str().with_context(|| format!("{}: a setting has no name", file.display()))?;
            Ok((name.to_owned(), Run::read(&folder.join(name))?))
        });
        let settings = settings.collect::<Result<_>>()?;
        Ok(Self { folder: folder.to_owned(), name, study, settings })
    }

    /// Whether it was run in a guest.
    pub(crate) fn in_guest(&self) -> bool {
        self.name.starts_with("guest-")
    }

    /// Recomputes its figures; `prereg` are the predictions it must have been run under.
    ///
    /// # Errors
    /// A file is missing or cannot be read at all.
    pub(crate) fn check(&self, prereg: &Prereg) -> Result<Checked> {
        let mut checked = Checked::default();
        let mut study = Checker::of(&self.folder.join(STUDY));
        study.same("SHA-256 of PREREG.md", self.study["prereg_sha256"].as_str().unwrap_or("absent"), &prereg.digest);
        let stored = self.study["settings"].as_array().map_or(&[][..], Vec::as_slice);
        for ((name, run), stored) in self.settings.iter().zip(stored) {
            let attempts = stored["attempts"].as_array().map_or(&[][..], Vec::as_slice);
            let kept = attempts.last().cloned().unwrap_or_default();
            study.exact(
                format!("{name}: refusals of the run that was kept"),
                &kept["refused"],
                Value::Array(Vec::new()),
            );
            for reason in unplanned(prereg, &self.name, name, run) {
                study.holds(false, format!("{name}: a run as announced"), "kept", reason);
            }
            for reason in valid::refusals(run, self.in_guest()) {
                study.holds(false, format!("{name}: a run that counts"), "kept", reason);
            }
            for reason in valid::starved(&kept, self.in_guest()) {
                study.holds(false, format!("{name}: a machine that was not starved"), "kept", reason);
            }
            let checks = run.check()?;
            checked.figures += checks.figures;
            checked.findings.extend(checks.findings);
        }
        let mut folders: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(|| format!("cannot read {}", self.folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()));
            }
        }
        folders.sort();
        let mut named: Vec<String> = self.settings.iter().map(|(name, _)| name.clone()).collect();
        named.sort();
        study.same("settings", named.join(" "), folders.join(" "));
        checked.add(study);
        checked.findings.extend(digest::check(&self.folder)?);
        Ok(checked)
    }
}

/// What of a run is not as PREREG.md announced it.
pub(crate) fn unplanned(prereg: &Prereg, arm: &str, setting: &str, run: &Run) -> Vec<String> {
    let Some((limits, requests)) = prereg.planned(arm, setting) else {
        return vec![format!("PREREG.md has no setting {setting} of arm {arm}")];
    };
    let plan = &run.head["plan"];
    let ran: Vec<&str> = plan["limits"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut reasons = Vec::new();
    if ran != limits {
        reasons.push(format!("limits {} instead of {}", ran.join(" "), limits.join(" ")));
    }
    if plan["requests"] != requests {
        reasons.push(format!("{} requests instead of {requests}", plan["requests"]));
    }
    reasons
}

/// Folders of arms below `results`, sorted by name.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn folders(results: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(results).with_context(|| format!("cannot read {}", results.display()))?;
    let mut folders: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.join(STUDY).is_file()).collect();
    folders.sort();
    Ok(folders)
}
