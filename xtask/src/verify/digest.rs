//! SHA-256 of every file of an arm, in the format of `sha256sum`: what no arithmetic can recompute must at least be the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::finding::{Checker, Finding};

/// The list's name.
pub(crate) const LIST: &str = "SHA256SUMS";

/// Digest of some bytes, in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Derived from the raw files, large, and therefore not committed.
pub(crate) const NOT_KEPT: &str = "periods.jsonl";

/// Files below a folder, relative to it, sorted; the list itself and what is not committed left out.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("cannot read {}", next.display()))? {
            let path = entry.with_context(|| format!("cannot read {}", next.display()))?.path();
            if path.is_dir() {
                open.push(path);
            } else if let Ok(relative) = path.strip_prefix(folder)
                && relative != Path::new(LIST)
                && !relative.ends_with(NOT_KEPT)
            {
                found.push(relative.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Writes the list of a folder.
///
/// # Errors
/// A file cannot be read or the list not written.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let mut text = String::new();
    for file in files(folder)? {
        let path = folder.join(&file);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.push_str(&format!("{}  {}\n", hex(&bytes), file.display()));
    }
    let list = folder.join(LIST);
    fs::write(&list, text).with_context(|| format!("cannot write {}", list.display()))
}

/// The list of a folder: file and digest.
///
/// # Errors
/// It cannot be read.
#[cfg(test)]
pub(crate) fn listed(folder: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let list = folder.join(LIST);
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let lines = text.lines().filter_map(|line| line.split_once("  "));
    Ok(lines.map(|(digest, file)| (PathBuf::from(file), digest.to_owned())).collect())
}

/// Compares every file of a folder with its list.
///
/// # Errors
/// The list or a file cannot be read.
pub(crate) fn check(folder: &Path) -> Result<Vec<Finding>> {
    let list = folder.join(LIST);
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let mut listed: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once("  ")).map(|(digest, file)| (file, digest)).collect();
    let mut findings = Vec::new();
    for file in files(folder)? {
        let path = folder.join(&file);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = file.display().to_string();
        let mut checker = Checker::of(&path);
        let stored = listed.remove(name.as_str()).unwrap_or("absent");
        checker.same(format!("SHA-256 in {}", list.display()), stored, hex(&bytes));
        findings.extend(checker.findings());
    }
    let mut checker = Checker::of(&list);
    for (file, digest) in listed {
        checker.same(format!("SHA-256 of {file}"), digest, "no such file");
    }
    findings.extend(checker.findings());
    Ok(findings)
}
