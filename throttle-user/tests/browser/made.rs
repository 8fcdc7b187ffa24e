//! Runs of the study as pages: a copy of a committed one, derived anew by the program under test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

/// A run's folder, with what `throttle report` derives of it and its page.
pub(crate) struct Made {
    _folder: TempDir,
    pub(crate) run: PathBuf,
    pub(crate) page: PathBuf,
}

impl Made {
    /// A real run of two limits, 200m and none.
    pub(crate) fn two_limits() -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/tests/data/run");
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run");
        copy(&from, &run);
        let page = folder.path().join("page.html");
        throttle(&["report", &run.display().to_string()]);
        throttle(&["timeline", &run.display().to_string(), "--html", &page.display().to_string()]);
        Self { _folder: folder, run, page }
    }

    pub(crate) fn summary(&self) -> Value {
        let text = fs::read_to_string(self.run.join("summary.json")).expect("derived");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Lines of a derived file.
    pub(crate) fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.run.join(name)).expect("derived");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Requests of a limit, in order.
    pub(crate) fn requests(&self, limit: &str) -> Vec<Value> {
        let lines = self.lines("runs.jsonl").into_iter();
        lines.filter(|line| line["type"] == "request" && line["limit"] == limit).collect()
    }
}

fn throttle(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_throttle")).args(args).output().expect("throttle starts");
    // 1: the run is not whole, or not all is right; its page shows that.
    assert!(output.status.code().is_some_and(|code| code < 2), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("there") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, &target).map(|_| ()).expect("copied") }
    }
}
