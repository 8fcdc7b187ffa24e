//! Files of JSON lines: written so that every whole line is readable after a kill, and read with the number of the line that is
//! wrong.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use serde::{Serialize, de::DeserializeOwned};

use super::store::StoreError;
use crate::event::Event;

/// A file of JSON lines, each flushed as it is written.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Lines {
    pub(super) fn append(path: PathBuf) -> Result<Self, StoreError> {
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
    pub(super) fn create(path: PathBuf) -> Result<Self, StoreError> {
        let file =
            File::create(&path).map_err(|source| StoreError::File { what: "create", path: path.clone(), source })?;
        // Buffered on both sides: an event is written in dozens of small pieces, and compressing each costs more than all else.
        let out = BufWriter::with_capacity(1 << 16, GzEncoder::new(BufWriter::new(file), Compression::fast()));
        Ok(Self { path, out: Some(out) })
    }

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

/// What a file of lines held.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read<T> {
    /// One value a line: the value at index 0 stood in line 1.
    pub(super) values: Vec<T>,
    /// The end is missing: of the last line, or of the compressed stream.
    pub(super) cut_off: bool,
}

/// Reads JSON lines; an incomplete end (a kill) is left out, anything else that does not parse is an error.
pub(super) fn read_lines<T: DeserializeOwned>(path: &Path, source: impl io::Read) -> Result<Read<T>, StoreError> {
    let mut values = Vec::new();
    let mut reader = BufReader::new(source);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        match reader.read_until(b'\n', &mut text) {
            Ok(0) => break,
            // Every line was written with its end: one without is cut off.
            Ok(_) if text.pop() != Some(b'\n') => return Ok(Read { values, cut_off: true }),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Read { values, cut_off: true }),
            Err(source) => return Err(StoreError::Damaged { path: path.to_owned(), line, source }),
        }
        match serde_json::from_slice(&text) {
            Ok(value) => values.push(value),
            Err(source) => return Err(StoreError::json(path, line, &source)),
        }
    }
    Ok(Read { values, cut_off: false })
}

#[cfg(test)]
mod tests {
    use flate2::read::MultiGzDecoder;

    use super::*;

    fn read<T: DeserializeOwned>(text: &[u8]) -> Result<Read<T>, StoreError> {
        read_lines(Path::new("record.jsonl"), text)
    }

    #[test]
    fn a_line_cut_off_by_a_kill_is_left_out_and_said_so() {
        assert_eq!(read::<u32>(b"1\n2\n3").expect("two whole lines"), Read { values: vec![1, 2], cut_off: true });
        assert_eq!(read::<u32>(b"1\n2\n").expect("all"), Read { values: vec![1, 2], cut_off: false });
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_column_once() {
        let said = read::<Vec<u32>>(b"[1]\n[2\n[3]\n").expect_err("line 2 is bad").to_string();
        assert!(said.starts_with("record.jsonl line 2, column 2: "), "{said}");
        assert_eq!(said.matches("line ").count(), 1, "{said}");
    }

    #[test]
    fn bytes_that_are_no_text_are_named_by_their_line() {
        let said = read::<String>(b"\"a\"\n\"\xff\"\n").expect_err("not UTF-8").to_string();
        assert!(said.starts_with("record.jsonl line 2"), "{said}");
    }

    #[test]
    fn events_flushed_but_never_finished_are_readable() {
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        out.write_all(b"1\n2\n").expect("memory");
        out.flush().expect("memory");
        let cut = out.get_ref().clone();
        let read: Read<u32> = read_lines(Path::new("x"), MultiGzDecoder::new(&cut[..])).expect("flushed lines");
        assert_eq!(read, Read { values: vec![1, 2], cut_off: true });
    }

    #[test]
    fn a_compressed_stream_with_a_wrong_byte_is_named_with_the_line_it_broke_at() {
        let mut out = GzEncoder::new(Vec::new(), Compression::none());
        out.write_all(b"1\n2\n").expect("memory");
        let mut bytes = out.finish().expect("memory");
        let at = bytes.windows(2).position(|pair| pair == b"2\n").expect("stored as it is");
        bytes[at] = b'3';
        let error = read_lines::<u32>(Path::new("x"), MultiGzDecoder::new(&bytes[..])).expect_err("the checksum");
        assert!(error.to_string().starts_with("x is damaged at line 3"), "{error}");
    }
}
