//! Every seed of the fuzz targets' corpus, and every input that once found a fault, through the same code as in the fuzzer.

mod fuzz_entries;

use std::{fs, path::PathBuf};

use fuzz_entries::ENTRIES;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

#[test]
fn every_input_of_the_corpus_is_taken_or_refused() {
    for (name, entry) in ENTRIES {
        let folder = folder().join("corpus").join(name);
        let seeds = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut ran = 0;
        for seed in seeds {
            let path = seed.expect("a seed").path();
            eprintln!("{}", path.display());
            entry(&fs::read(&path).expect("a seed is readable"));
            ran += 1;
        }
        assert!(ran > 0, "{} is empty", folder.display());
    }
}

#[test]
fn every_entry_has_its_target() {
    let targets = fs::read_dir(folder().join("fuzz_targets")).expect("the targets");
    let mut targets: Vec<String> =
        targets.map(|target| target.expect("a target").file_name().to_string_lossy().into_owned()).collect();
    targets.sort();
    assert_eq!(targets, ENTRIES.map(|(name, _)| format!("{name}.rs")));
}
