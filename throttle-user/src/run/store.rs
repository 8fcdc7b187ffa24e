//! A run's folder: written as things happen, readable at any moment, also after a kill.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    SCHEMA,
    record::{Head, RawLine},
};
use crate::{cgroup::CpuLimit, event::Event};

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
    /// Not JSON of the expected form.
    #[error("{} line {line} is not what this program wrote: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Another version wrote it.
    #[error("{} has schema {found}, this program reads {SCHEMA}; use the version of throttle that wrote it", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// Version found.
        found: u64,
    },
    /// There is a run already.
    #[error("{} holds a run already; name another folder with --out", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
}

fn remedy(what: &str, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound if what == "read" => "; is it the folder of a run?",
        io::ErrorKind::NotFound => "; name a folder that can be made with --out",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "; name a writable folder with --out",
        io::ErrorKind::StorageFull => "; free some space: what was written before is readable",
        _ => "",
    }
}

const HEAD: &str = "run.json";
const RECORD: &str = "raw/record.jsonl";
const FIGURES: &str = "figures";

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
    pub fn create(path: &Path, head: &Head) -> Result<Self, StoreError> {
        let dir = Self { path: path.to_owned() };
        if dir.file(HEAD).exists() || dir.file(RECORD).exists() {
            return Err(StoreError::Taken { path: path.to_owned() });
        }
        let raw = dir.file("raw");
        fs::create_dir_all(&raw).map_err(|source| StoreError::File { what: "create", path: raw, source })?;
        dir.write_json(HEAD, head)?;
        Ok(dir)
    }

    /// Removes what [`Self::create`] made, as long as nothing was recorded.
    pub fn discard(self) {
        let empty = fs::metadata(self.file(RECORD)).is_ok_and(|record| record.len() == 0);
        if empty {
            // Only what this run made: a folder that holds anything else stays.
            let _ = fs::remove_dir_all(self.file("raw"));
            for name in [HEAD, "runs.jsonl", "periods.jsonl"] {
                let _ = fs::remove_file(self.file(name));
            }
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// Opens an existing run.
    ///
    /// # Errors
    /// [`StoreError`] if there is none, or another version wrote it.
    pub fn open(path: &Path) -> Result<(Self, Head), StoreError> {
        let dir = Self { path: path.to_owned() };
        let file = dir.file(HEAD);
        let text = fs::read_to_string(&file).map_err(|source| StoreError::File {
            what: "read",
            path: file.clone(),
            source,
        })?;
        let bad = |source| StoreError::Line { path: file.clone(), line: 1, source };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(bad)?;
        match value.get("schema").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(SCHEMA) => {}
            found => return Err(StoreError::Schema { path: file, found: found.unwrap_or(0) }),
        }
        let head = serde_json::from_value(value).map_err(bad)?;
        Ok((dir, head))
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

    /// Opens the event file of a limit.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn events(&self, limit: CpuLimit) -> Result<EventWriter, StoreError> {
        let path = self.file(&event_file(limit));
        let file =
            File::create(&path).map_err(|source| StoreError::File { what: "create", path: path.clone(), source })?;
        // Buffered on both sides: an event is written in dozens of small pieces, and compressing each costs more than all else.
        let out = BufWriter::with_capacity(1 << 16, GzEncoder::new(BufWriter::new(file), Compression::fast()));
        Ok(EventWriter { path, out: Some(out) })
    }

    /// Reads the raw record. A last line cut off by a kill is left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read_record(&self) -> Result<Vec<RawLine>, StoreError> {
        let path = self.file(RECORD);
        let file = File::open(&path).map_err(|source| StoreError::File { what: "read", path: path.clone(), source })?;
        read_lines(&path, file)
    }

    /// Reads the events of a limit. A stream cut off by a kill yields what was written whole.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read_events(&self, limit: CpuLimit) -> Result<Vec<Event>, StoreError> {
        let path = self.file(&event_file(limit));
        let file = File::open(&path).map_err(|source| StoreError::File { what: "read", path: path.clone(), source })?;
        read_lines(&path, MultiGzDecoder::new(BufReader::new(file)))
    }

    /// Writes a whole file: beside it first, then renamed over it, so that a reader never sees half.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn write(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let path = self.file(name);
        let beside = self.file(&format!(".{name}.new"));
        let failed = |source| StoreError::File { what: "write", path: path.clone(), source };
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path)).map_err(failed)
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
        let text = serde_json::to_string_pretty(value).map_err(|source| StoreError::Line {
            path: self.file(name),
            line: 1,
            source,
        })?;
        self.write(name, &(text + "\n"))
    }
}

fn event_file(limit: CpuLimit) -> String {
    format!("raw/events-{limit}.jsonl.gz")
}

/// A file of JSON lines, each flushed as it is written.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Lines {
    fn append(path: PathBuf) -> Result<Self, StoreError> {
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(|source| StoreError::File {
            what: "write",
            path: path.clone(),
            source,
        })?;
        Ok(Self { path, out: BufWriter::new(file) })
    }

    /// Writes one line.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn write(&mut self, value: &impl Serialize) -> Result<(), StoreError> {
        let failed = |source| StoreError::File { what: "write", path: self.path.clone(), source };
        let line = serde_json::to_string(value).map_err(|error| failed(error.into()))?;
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(failed)
    }
}

/// The compressed events of one limit.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    out: Option<BufWriter<GzEncoder<BufWriter<File>>>>,
}

impl EventWriter {
    /// Writes one event.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn write(&mut self, event: &Event) -> Result<(), StoreError> {
        let path = &self.path;
        let Some(out) = &mut self.out else { return Ok(()) };
        serde_json::to_writer(&mut *out, event)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .map_err(|source| StoreError::File { what: "write", path: path.clone(), source })
    }

    /// Makes everything written so far readable, also if nothing follows.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn flush(&mut self) -> Result<(), StoreError> {
        let path = &self.path;
        self.out.as_mut().map_or(Ok(()), Write::flush).map_err(|source| StoreError::File {
            what: "write",
            path: path.clone(),
            source,
        })
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn finish(&mut self) -> Result<(), StoreError> {
        let Some(out) = self.out.take() else { return Ok(()) };
        let path = &self.path;
        let finished = out.into_inner().map_err(io::IntoInnerError::into_error).and_then(GzEncoder::finish);
        finished.and_then(|mut inner| inner.flush()).map_err(|source| StoreError::File {
            what: "write",
            path: path.clone(),
            source,
        })
    }
}

/// Reads JSON lines; an incomplete end (a kill) is left out, anything else that does not parse is an error.
fn read_lines<T: DeserializeOwned>(path: &Path, source: impl Read) -> Result<Vec<T>, StoreError> {
    let mut values = Vec::new();
    let mut reader = BufReader::new(source);
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        match reader.read_line(&mut text) {
            // Every line was written with its end: one without is cut off.
            Ok(_) if !text.ends_with('\n') => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(source) => return Err(StoreError::File { what: "read", path: path.to_owned(), source }),
        }
        match serde_json::from_str(&text) {
            Ok(value) => values.push(value),
            Err(source) => return Err(StoreError::Line { path: path.to_owned(), line, source }),
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_cut_off_by_a_kill_is_left_out_and_a_bad_line_is_named() {
        let path = Path::new("record.jsonl");
        assert_eq!(read_lines::<u32>(path, &b"1\n2\n3"[..]).expect("two whole lines"), [1, 2]);
        assert_eq!(read_lines::<Vec<u32>>(path, &b"[1]\n[2"[..]).expect("one whole line"), [[1]]);
        let error = read_lines::<Vec<u32>>(path, &b"[1]\n[2\n[3]\n"[..]).expect_err("line 2 is bad");
        assert!(error.to_string().contains("record.jsonl line 2"), "{error}");
    }

    #[test]
    fn events_flushed_but_never_finished_are_readable() {
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        out.write_all(b"1\n2\n").expect("memory");
        out.flush().expect("memory");
        let cut = out.get_ref().clone();
        let read: Vec<u32> = read_lines(Path::new("x"), MultiGzDecoder::new(&cut[..])).expect("flushed lines");
        assert_eq!(read, [1, 2]);
    }
}
