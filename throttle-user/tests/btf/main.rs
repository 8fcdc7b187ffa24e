//! Field offsets out of BTF: of real kernels against other tools, and of blobs that no kernel at hand has.

mod blob;
mod encodings;
mod fields;
mod kernel;
mod malformed;
mod tools;

use std::{fs, path::PathBuf};

/// A file of a kernel.
fn data(kernel: &str, kind: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/btf/{kernel}.{kind}"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
