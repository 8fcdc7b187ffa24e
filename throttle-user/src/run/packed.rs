//! Raw files as they are written, and as they are kept: packed with xz, a third smaller than what gzip makes of the same events.

use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;

use super::StoreError;

/// A raw file and what is in it.
type Source = (PathBuf, Box<dyn Read>);

/// What a packed file has in place of `.gz`, or behind its name.
const ENDING: &str = "xz";

/// Where the packed form of a raw file is.
pub(super) fn packed(path: &Path) -> PathBuf {
    let written = if is_gzip(path) { path.with_extension("") } else { path.to_owned() };
    let mut name = written.into_os_string();
    name.push(".");
    name.push(ENDING);
    name.into()
}

/// Opens a raw file in the form it is there, and says which file that is; `None` = in neither.
///
/// # Errors
/// [`StoreError::File`]; [`StoreError::Damaged`] if a packed one cannot be unpacked.
pub(super) fn open(path: &Path) -> Result<Option<Source>, StoreError> {
    if let Some(file) = find(path)? {
        let file = BufReader::new(file);
        let source: Box<dyn Read> = if is_gzip(path) { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        return Ok(Some((path.to_owned(), source)));
    }
    let path = packed(path);
    let Some(file) = find(&path)? else { return Ok(None) };
    let mut text = Vec::new();
    match lzma_rs::xz_decompress(&mut BufReader::new(file), &mut text) {
        Ok(()) => Ok(Some((path, Box::new(Cursor::new(text))))),
        Err(error) => {
            // What was unpacked ends where the damage is.
            let line = text.iter().filter(|&&byte| byte == b'\n').count() + 1;
            Err(StoreError::Damaged { path, line, source: io::Error::new(io::ErrorKind::InvalidData, error) })
        }
    }
}

fn find(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::File { what: "read", path: path.to_owned(), source }),
    }
}

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> Option<(PathBuf, String)> {
        let (path, mut source) = open(path).expect("readable")?;
        let mut text = String::new();
        source.read_to_string(&mut text).expect("text");
        Some((path, text))
    }

    #[test]
    fn a_file_is_read_in_either_form_and_a_damaged_one_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let plain = dir.path().join("record.jsonl");
        assert_eq!(text(&plain), None);
        let mut bytes = Vec::new();
        lzma_rs::xz_compress(&mut &b"1\n2\n"[..], &mut bytes).expect("packs");
        let packed = dir.path().join("record.jsonl.xz");
        std::fs::write(&packed, &bytes).expect("written");
        assert_eq!(text(&plain), Some((packed.clone(), "1\n2\n".to_owned())));
        std::fs::write(&plain, "3\n").expect("written");
        assert_eq!(text(&plain), Some((plain, "3\n".to_owned())));

        let events = dir.path().join("events-200m.jsonl.gz");
        assert_eq!(super::packed(&events), dir.path().join("events-200m.jsonl.xz"));
        std::fs::write(super::packed(&events), &bytes[..bytes.len() - 20]).expect("written");
        assert!(matches!(open(&events), Err(StoreError::Damaged { .. })));
    }
}
