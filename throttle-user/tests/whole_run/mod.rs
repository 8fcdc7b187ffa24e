//! What tests of whole runs of `throttle` share: starting it, one at a time, and reading the folder that it leaves.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A later run looks for what an earlier one left behind.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn throttle(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throttle"));
    command.args(words).stdin(Stdio::null());
    command
}

pub(crate) fn done(command: &mut Command) -> Output {
    let output = command.output().expect("throttle starts");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a file of the run");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The text of each of these files.
pub(crate) fn derived(dir: &Path, names: [&'static str; 4]) -> BTreeMap<&'static str, String> {
    let read = |name: &'static str| (name, fs::read_to_string(dir.join(name)).expect("a derived file"));
    names.into_iter().map(read).collect()
}

pub(crate) fn of_type<'a>(lines: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["type"] == kind)
}

pub(crate) fn ns(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_else(|| panic!("{field} of {line}"))
}
