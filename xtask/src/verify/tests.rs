//! The verifier on a real run, whole and with single digits changed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};

use super::{Run, digest};

/// A run of a few requests that `throttle sweep` made.
fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/run")
}

/// A copy of the run in a folder of its own, removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Self {
        let to = std::env::temp_dir().join(format!("throttle-verify-{}-{name}", std::process::id()));
        let copy = Self(to);
        for file in digest::files(&sample())
            .expect("the sample is there")
            .iter()
            .map(PathBuf::as_path)
            .chain([Path::new("periods.jsonl")])
        {
            let target = copy.0.join(file);
            fs::create_dir_all(target.parent().expect("it has a folder")).expect("the folder can be made");
            fs::copy(sample().join(file), target).expect("the file can be copied");
        }
        copy
    }

    fn findings(&self) -> Vec<String> {
        match Run::read(&self.0).and_then(|run| run.check()) {
            Ok(checked) => checked.findings.iter().map(ToString::to_string).collect(),
            Err(error) => vec![format!("{error:#}")],
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // What cannot be removed is in the system's folder for such files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text_of(path: &Path) -> String {
    let bytes = fs::read(path).expect("the file can be read");
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut text = String::new();
        MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut text).expect("gzip of text");
        return text;
    }
    String::from_utf8(bytes).expect("text")
}

fn write_text(path: &Path, text: &str) {
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut out = GzEncoder::new(fs::File::create(path).expect("the file can be written"), Compression::best());
        out.write_all(text.as_bytes()).and_then(|()| out.finish().map(drop)).expect("the file can be written");
    } else {
        fs::write(path, text).expect("the file can be written");
    }
}

/// The text with one digit changed, and which line it was in.
fn flipped(text: &str, at: usize) -> (String, String) {
    let digit = text.as_bytes()[at];
    let mut other = text.as_bytes().to_vec();
    other[at] = if digit == b'9' { b'0' } else { digit + 1 };
    let from = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let line = text[from..].lines().next().unwrap_or_default();
    (String::from_utf8(other).expect("digits are ASCII"), line.to_owned())
}

/// Positions of digits, spread over the whole text.
fn digits(text: &str, wanted: usize) -> Vec<usize> {
    let all: Vec<usize> =
        text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit()).map(|(at, _)| at).collect();
    let step = (all.len() / wanted).max(1);
    all.into_iter().step_by(step).collect()
}

#[test]
fn a_real_run_is_as_its_raw_files_give_it() {
    let copy = Copy::new("whole");
    assert_eq!(copy.findings(), Vec::<String>::new());
    let figures = Run::read(&copy.0).and_then(|run| run.check()).expect("it can be read").figures;
    assert!(figures > 500, "{figures} figures compared");
}

/// By arithmetic alone, without any checksum. What it cannot see: the low digits of what is known up to microseconds an edge, and
/// what nothing else in the run depends on.
#[test]
fn most_digits_changed_in_a_derived_file_or_the_record_are_found_by_arithmetic() {
    let copy = Copy::new("derived");
    for (file, tenths) in [("summary.json", 8), ("report.md", 10), ("runs.jsonl", 8), ("raw/record.jsonl", 6)] {
        let path = copy.0.join(file);
        let text = text_of(&path);
        let mut unseen = Vec::new();
        let mut tried = 0;
        for at in digits(&text, 80) {
            let (changed, line) = flipped(&text, at);
            // Of the report the cells of its tables.
            if file == "report.md" && (!line.starts_with('|') || line.starts_with("| limit")) {
                continue;
            }
            write_text(&path, &changed);
            tried += 1;
            if copy.findings().is_empty() {
                unseen.push(text[at.saturating_sub(30)..(at + 10).min(text.len())].to_owned());
            }
        }
        write_text(&path, &text);
        assert!(
            tried > 20 && 10 * (tried - unseen.len()) >= tenths * tried,
            "{file}: {tried} tried, unseen {unseen:#?}"
        );
    }
}

#[test]
fn a_digit_changed_in_any_file_is_caught_by_its_checksum_at_least() {
    let copy = Copy::new("sums");
    digest::write(&copy.0).expect("the list can be written");
    assert_eq!(digest::check(&copy.0).expect("the list can be read"), vec![]);
    for file in digest::files(&copy.0).expect("the files can be listed") {
        let path = copy.0.join(&file);
        let (bytes, text) = (fs::read(&path).expect("the file can be read"), text_of(&path));
        for at in digits(&text, 5) {
            write_text(&path, &flipped(&text, at).0);
            let findings = digest::check(&copy.0).expect("the list can be read");
            let named: Vec<_> = findings.iter().filter(|finding| finding.file == path).collect();
            assert!(named.len() == 1 && named[0].stored != named[0].computed, "{}: {findings:?}", file.display());
        }
        fs::write(&path, bytes).expect("the file can be written");
    }
    fs::write(copy.0.join("stray.txt"), "1").expect("a file can be added");
    fs::remove_file(copy.0.join("report.md")).expect("a file can be removed");
    let findings = digest::check(&copy.0).expect("the list can be read");
    assert_eq!(findings.len(), 2, "one file too many, one too few: {findings:?}");
}

#[test]
fn a_shifted_switch_of_a_worker_shows_in_its_request() {
    let copy = Copy::new("events");
    let path = copy.0.join("raw/events-200m.jsonl.gz");
    let text = text_of(&path);
    // 1 ms less on CPU than the request says.
    let ran =
        |line: &str| line.split_once("\"ran\":").and_then(|(_, ran)| ran.split([',', '}']).next()?.parse::<u64>().ok());
    let line = text
        .lines()
        .rfind(|line| line.contains("\"left\":\"throttled\"") && ran(line).is_some_and(|ran| ran > 1_500_000))
        .expect("a worker ran")
        .to_owned();
    let length = ran(&line).expect("a number");
    let longer = line.replace(&format!("\"ran\":{length}"), &format!("\"ran\":{}", length - 1_000_000));
    write_text(&path, &text.replace(&line, &longer));
    let findings = copy.findings();
    assert!(findings.iter().any(|finding| finding.contains("on_cpu_ns")), "{findings:?}");
}

/// One digit of every committed file of the study, at a place that differs from file to file.
#[test]
fn a_digit_changed_in_any_committed_file_is_caught() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    for arm in super::folders(&results).expect("the results can be read") {
        let listed = digest::listed(&arm).expect("the arm has a list");
        let files = digest::files(&arm).expect("the files can be listed");
        assert_eq!(listed.len(), files.len(), "{}: files and list", arm.display());
        for (number, file) in files.iter().enumerate() {
            let bytes = fs::read(arm.join(file)).expect("the file can be read");
            let stored = listed.get(file).unwrap_or_else(|| panic!("{} is not listed", file.display()));
            assert_eq!(*stored, digest::hex(&bytes), "{}", file.display());
            let digits: Vec<usize> =
                bytes.iter().enumerate().filter(|(_, byte)| byte.is_ascii_digit()).map(|(at, _)| at).collect();
            let at = digits[(number * 7_919) % digits.len()];
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_ne!(*stored, digest::hex(&changed), "{} at {at}", file.display());
        }
    }
}
