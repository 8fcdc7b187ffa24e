//! Raw files in the form they are kept in: as they were written, or packed with xz.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;

/// The raw file `name` (such as `record.jsonl` or `events-200m.jsonl`, without an ending of its form), opened, and its path.
///
/// # Errors
/// It is there in no form, or cannot be unpacked.
pub(crate) fn open(run: &Path, name: &str) -> Result<(PathBuf, Box<dyn BufRead>)> {
    let path = |ending: &str| run.join("raw").join(format!("{name}{ending}"));
    let there = ["", ".gz", ".xz"].map(path).into_iter().find(|path| path.exists()).unwrap_or_else(|| path(""));
    let cannot = || format!("cannot read {}", there.display());
    let file = BufReader::new(File::open(&there).with_context(cannot)?);
    let ending = there.extension().unwrap_or_default().to_owned();
    let text: Box<dyn BufRead> = if ending == "gz" {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else if ending == "xz" {
        let (mut file, mut text) = (file, Vec::new());
        lzma_rs::xz_decompress(&mut file, &mut text).map_err(anyhow::Error::new).with_context(cannot)?;
        Box::new(Cursor::new(text))
    } else {
        Box::new(file)
    };
    Ok((there, text))
}
