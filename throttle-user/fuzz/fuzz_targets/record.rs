//! Fuzz target of the entry `record`.
#![no_main]

#[expect(dead_code, reason = "other targets' entries")]
#[path = "../../tests/fuzz_entries/mod.rs"]
mod fuzz_entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_entries::record(bytes));
