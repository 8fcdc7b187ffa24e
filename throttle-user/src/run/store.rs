//! A run's folder: written as things happen, readable at any moment, also after a kill.

use std::{
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    SCHEMA,
    derive::RawLimit,
    kernel_fs,
    ledger::{self, Kept, Wrong},
    lines::{EventWriter, Lines, read_lines},
    packed,
    record::Head,
    spikes::{self, SpikesHead, ledger::RawGroup},
};
use crate::event::Event;

/// A run folder could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or folder.
    #[error("cannot {what} {}: {source}{}", path.display(), remedy(what, source))]
    File {
        /// "create", "write", "read".
        what: &'static str,
        /// The object.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that cannot be read to its end.
    #[error("{} is damaged at line {line}: {source}; copy the run anew from where it was made", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the system, or the decompressor, said.
        source: io::Error,
    },
    /// Not JSON of the expected form.
    #[error("{} line {line}, column {column}: {what}; no throttle of this version wrote that: restore the file", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// A line that cannot stand where it stands.
    #[error("{} line {line}: {what}; the record was changed after it was written: restore it, or take the line out", path.display())]
    Order {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The plan of a run that no run can have had.
    #[error("{}: {what}; it was changed after it was written: restore it", path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file of events that belongs to no limit.
    #[error("{} belongs to no limit that {RECORD} says was run; put the record back that it was written with, or take it away", path.display())]
    Orphan {
        /// The file.
        path: PathBuf,
    },
    /// Another version wrote it.
    #[error("{} has schema {found}, this program reads {SCHEMA}; use the version of throttle that wrote it", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// Version found.
        found: u64,
    },
    /// Not the head of a run.
    #[error("{} has no number `schema`: it is not the run.json of a run of throttle", path.display())]
    NoSchema {
        /// The file.
        path: PathBuf,
    },
    /// A run of another kind.
    #[error("{} is of a run of {found}, not of {wanted}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What was to be read.
        wanted: &'static str,
    },
    /// There is a run already.
    #[error("{} holds a run already; name another folder with --out", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// Not a place for files.
    #[error("{} is in {kind}, whose folders are the kernel's and hold no files; name another folder with --out", path.display())]
    NoStorage {
        /// The folder.
        path: PathBuf,
        /// The file system.
        kind: &'static str,
    },
}

impl StoreError {
    /// A line that is not JSON of the expected form. Where it is wrong is said once: serde counts lines from the text's
    /// beginning, which here is one line of a file.
    pub(super) fn json(path: &Path, line: usize, source: &serde_json::Error) -> Self {
        let text = source.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned();
        Self::Line { path: path.to_owned(), line, column: source.column(), what }
    }

    /// Whether there was no room for what was to be written: the disk, a quota, or a limit on the size of files.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { source, .. } if is_full(source))
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

fn remedy(what: &str, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound if what == "read" => "; is it the folder of a run?",
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if what == "create" => {
            "; name a folder that can be made with --out"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => match what {
            "create" => "; name a writable folder with --out",
            "read" => "; run as a user who may read it",
            _ => "; make the folder writable for this user, or copy the run to one that is",
        },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space: what was written before is readable"
        }
        io::ErrorKind::FileTooLarge => {
            "; raise the limit on file sizes (ulimit -f): what was written before is readable"
        }
        _ => "",
    }
}

const HEAD: &str = "run.json";
const RECORD: &str = "raw/record.jsonl";
const FIGURES: &str = "figures";

/// What `run.json` holds of one kind of run.
pub trait RunHead: Serialize + DeserializeOwned {
    /// The kind, as `run.json` and people call it.
    const KIND: &'static str;

    /// What its files of events are called after.
    fn event_names(&self) -> Vec<String>;
}

impl RunHead for Head {
    const KIND: &'static str = SWEEP;

    fn event_names(&self) -> Vec<String> {
        self.plan.limits.iter().map(ToString::to_string).collect()
    }
}

impl RunHead for SpikesHead {
    const KIND: &'static str = spikes::KIND;

    fn event_names(&self) -> Vec<String> {
        self.plan.groups.iter().map(|&group| spikes::group_name(group).to_owned()).collect()
    }
}

/// The kind of a run whose head names none.
const SWEEP: &str = "sweep";

/// Most CPUs of a kernel (arch/x86/Kconfig, `NR_CPUS_RANGE_END`).
const MOST_CPUS: u64 = 8_192;

/// A run's folder.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the folder of a new run and writes its head.
    ///
    /// # Errors
    /// [`StoreError`]; a folder that already holds a run is refused.
    pub fn create<H: RunHead>(path: &Path, head: &H) -> Result<Self, StoreError> {
        if let Some(kind) = kernel_fs::holding(path) {
            return Err(StoreError::NoStorage { path: path.to_owned(), kind });
        }
        let dir = Self { path: path.to_owned() };
        if dir.file(HEAD).exists() || dir.file(RECORD).exists() {
            return Err(StoreError::Taken { path: path.to_owned() });
        }
        let raw = dir.file("raw");
        fs::create_dir_all(&raw).map_err(|source| StoreError::File { what: "create", path: raw, source })?;
        if let Err(error) = dir.write_json(HEAD, head) {
            dir.discard(head);
            return Err(match error {
                // The folder is there, but not for us: another one will do.
                StoreError::File { path, source, .. } if !is_full(&source) => {
                    StoreError::File { what: "create", path, source }
                }
                error => error,
            });
        }
        Ok(dir)
    }

    /// Removes what a run with this head made, as long as nothing was recorded. Anything else in the folder stays.
    pub fn discard<H: RunHead>(&self, head: &H) {
        if fs::metadata(self.file(RECORD)).is_ok_and(|record| record.len() > 0) {
            return;
        }
        let events = head.event_names().into_iter().map(event_file);
        let others = [RECORD, HEAD, "runs.jsonl", "spikes.jsonl", "periods.jsonl"].map(str::to_owned);
        for name in others.into_iter().chain(events) {
            let _ = fs::remove_file(self.file(&name));
        }
        let _ = fs::remove_dir(self.file("raw"));
        let _ = fs::remove_dir(&self.path);
    }

    /// Opens an existing run.
    ///
    /// # Errors
    /// [`StoreError`] if there is none, another version wrote it, or it is of another kind.
    pub fn open<H: RunHead>(path: &Path) -> Result<(Self, H), StoreError> {
        let dir = Self { path: path.to_owned() };
        let file = dir.file(HEAD);
        let (text, found) = dir.head()?;
        if found != H::KIND {
            return Err(StoreError::Kind { path: file, found, wanted: H::KIND });
        }
        // Not from the value: the text knows its lines.
        let head = serde_json::from_slice(&text).map_err(|source| StoreError::json(&file, source.line(), &source))?;
        Ok((dir, head))
    }

    /// The kind of a run ([`RunHead::KIND`]).
    ///
    /// # Errors
    /// [`StoreError`] if there is none, or another version wrote it.
    pub fn kind(path: &Path) -> Result<String, StoreError> {
        Ok(Self { path: path.to_owned() }.head()?.1)
    }

    /// Text of the head, and what kind it says it is of.
    fn head(&self) -> Result<(Vec<u8>, String), StoreError> {
        let file = self.file(HEAD);
        let text = fs::read(&file).map_err(|source| StoreError::File { what: "read", path: file.clone(), source })?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|source| StoreError::json(&file, source.line(), &source))?;
        match value.get("schema").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(SCHEMA) => {}
            Some(found) => return Err(StoreError::Schema { path: file, found }),
            None => return Err(StoreError::NoSchema { path: file }),
        }
        let cpus = value.pointer("/environment/cpus").and_then(serde_json::Value::as_u64);
        if let Some(cpus) = cpus.filter(|&cpus| cpus > MOST_CPUS) {
            let what = format!("it is of a machine with {cpus} CPUs, and Linux has at most {MOST_CPUS}");
            return Err(StoreError::Plan { path: file, what });
        }
        let kind = value.get("kind").and_then(serde_json::Value::as_str).unwrap_or(SWEEP).to_owned();
        Ok((text, kind))
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens the raw record for appending.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn record(&self) -> Result<Lines, StoreError> {
        Lines::append(self.file(RECORD))
    }

    /// Opens a derived file of lines, emptied.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn derived(&self, name: &str) -> Result<Lines, StoreError> {
        let path = self.file(name);
        fs::write(&path, "").map_err(|source| StoreError::File { what: "write", path: path.clone(), source })?;
        Lines::append(path)
    }

    /// Opens the event file of a limit, or of a group of spikes.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn events(&self, of: impl Display) -> Result<EventWriter, StoreError> {
        EventWriter::create(self.file(&event_file(of)))
    }

    /// Reads the raw record, checked against the head and the files of events. A last line cut off by a kill is left out.
    ///
    /// # Errors
    /// [`StoreError`] names the line that cannot be.
    pub fn read_record(&self, head: &Head) -> Result<Vec<RawLimit>, StoreError> {
        let limits = ledger::limits(head, self.raw_lines()?).map_err(|wrong| self.refused(wrong))?;
        self.no_orphans(head, limits.len())?;
        Ok(limits)
    }

    /// The same of a run of spikes.
    ///
    /// # Errors
    /// [`StoreError`] names the line that cannot be.
    pub fn read_spikes(&self, head: &SpikesHead) -> Result<Vec<RawGroup>, StoreError> {
        let groups = spikes::ledger::groups(head, self.raw_lines()?).map_err(|wrong| self.refused(wrong))?;
        self.no_orphans(head, groups.len())?;
        Ok(groups)
    }

    fn raw_lines<T: DeserializeOwned>(&self) -> Result<Vec<T>, StoreError> {
        let path = self.file(RECORD);
        let Some((path, source)) = packed::open(&path)? else {
            return Err(StoreError::File { what: "read", path, source: io::ErrorKind::NotFound.into() });
        };
        Ok(read_lines(&path, source)?.values)
    }

    fn refused(&self, wrong: Wrong) -> StoreError {
        match wrong.line {
            Some(line) => StoreError::Order { path: self.file(RECORD), line, what: wrong.what },
            None => StoreError::Plan { path: self.file(HEAD), what: wrong.what },
        }
    }

    /// Every file of events belongs to one of those that were run, or to the one that was about to begin when the run ended.
    fn no_orphans(&self, head: &impl RunHead, run: usize) -> Result<(), StoreError> {
        let raw = self.file("raw");
        let listed = fs::read_dir(&raw).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let listed = listed.map_err(|source| StoreError::File { what: "read", path: raw, source })?;
        let begun = head.event_names().into_iter().take(run + 1).map(|name| self.file(&event_file(name)));
        let known: Vec<PathBuf> = begun.flat_map(|path| [packed::packed(&path), path]).collect();
        let mut events: Vec<PathBuf> = listed.into_iter().map(|entry| entry.path()).collect();
        events.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("events-")));
        events.sort();
        match events.into_iter().find(|path| !known.contains(path)) {
            Some(path) => Err(StoreError::Orphan { path }),
            None => Ok(()),
        }
    }

    /// Reads the events of a limit, or of a group of spikes, and how many of them are there. A stream cut off by a kill yields
    /// what was written whole.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read_events(&self, of: impl Display) -> Result<(Vec<Event>, Kept), StoreError> {
        let Some((path, source)) = packed::open(&self.file(&event_file(of)))? else {
            return Ok((vec![], Kept::None));
        };
        let read = read_lines::<Event>(&path, source)?;
        ledger::numbered(&read.values).map_err(|wrong| StoreError::Order {
            path: path.clone(),
            line: wrong.line.unwrap_or(0),
            what: wrong.what,
        })?;
        let kept = match read.values.iter().map(|event| event.at).max() {
            None => Kept::None,
            Some(until) if read.cut_off => Kept::Until { until, more: None },
            Some(_) => Kept::All,
        };
        Ok((read.values, kept))
    }

    /// A limit of the record together with its events.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn with_events(&self, mut raw: RawLimit) -> Result<(RawLimit, Vec<Event>), StoreError> {
        let (events, kept) = self.read_events(raw.begin.limit)?;
        raw.kept = kept;
        Ok((raw, events))
    }

    /// Writes a whole file: beside it first, then renamed over it, so that a reader never sees half.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn write(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let path = self.file(name);
        let beside = self.file(&format!(".{name}.new"));
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path)).map_err(|source| {
            // What was there before stays; the half beside it is of no use to anybody.
            let _ = fs::remove_file(&beside);
            StoreError::File { what: "write", path, source }
        })
    }

    /// Writes a whole file of JSON lines.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn write_lines<T: Serialize>(&self, name: &str, values: impl IntoIterator<Item = T>) -> Result<(), StoreError> {
        let mut text = String::new();
        for value in values {
            text += &serde_json::to_string(&value).map_err(|error| StoreError::json(&self.file(name), 1, &error))?;
            text.push('\n');
        }
        self.write(name, &text)
    }

    /// Writes a figure into the folder for figures.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn write_figure(&self, name: &str, svg: &str) -> Result<(), StoreError> {
        let folder = self.file(FIGURES);
        fs::create_dir_all(&folder).map_err(|source| StoreError::File {
            what: "create",
            path: folder.clone(),
            source,
        })?;
        let path = folder.join(name);
        fs::write(&path, svg).map_err(|source| StoreError::File { what: "write", path, source })
    }

    /// Writes a whole file as indented JSON.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let text =
            serde_json::to_string_pretty(value).map_err(|error| StoreError::json(&self.file(name), 1, &error))?;
        self.write(name, &(text + "\n"))
    }
}

fn event_file(of: impl Display) -> String {
    format!("raw/events-{of}.jsonl.gz")
}
