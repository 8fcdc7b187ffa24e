//! What the fuzz targets do with their bytes (`throttle-user/fuzz`), also run over the committed corpus by the unit tier.
//!
//! Every function returns on any input; one that panics, hangs or takes all memory has found a fault.

use std::{fs, path::Path, sync::LazyLock};

use tempfile::TempDir;
use throttle_user::{
    cgroup::LevelName,
    cgroup::{Bandwidth, Counters, Group, Version},
    event::Event,
    probe::{btf, decode::decode},
    report::{html, lanes, markdown, perfetto, table, timeline},
    run::{
        Head, RunDir, StoreError,
        derive::derive,
        picture::LimitPicture,
        summary::{RunSummary, summarise},
    },
};

/// Takes one input of a target.
type Entry = fn(&[u8]);

/// An entry, by the name of its target and of its folder of the corpus.
pub(crate) const ENTRIES: [(&str, Entry); 4] = [("btf", btf), ("cgroup", cgroup), ("record", record), ("run", run)];

/// Folder of this process, in the machine's memory where it has a file system there.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a folder for files")
});

/// A record of the ring buffer. What it decodes to is stored and read back as it was.
pub(crate) fn record(bytes: &[u8]) {
    match decode(bytes) {
        Ok(event) => {
            let line = serde_json::to_string(&event).expect("an event is JSON");
            assert_eq!(serde_json::from_str::<Event>(&line).expect("it was written so"), event);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// BTF of a kernel.
pub(crate) fn btf(bytes: &[u8]) {
    for version in [Version::V1, Version::V2] {
        match btf::resolve(bytes, version) {
            Ok(layout) => {
                assert!(layout.layout.cfs_rq_throttled_bit < 8);
                assert!([1, 2].contains(&layout.switch_prev_arg));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Files of a cgroup, with a NUL byte between any two: `cpu.stat`, `cpu.stat.local`, quota, period, burst, then `cpu.stat` of a
/// second reading.
pub(crate) fn cgroup(bytes: &[u8]) {
    let mut files = bytes.split(|&byte| byte == 0);
    let mut next = || files.next().unwrap_or_default();
    let (stat, local, quota, period, burst, later) = (next(), next(), next(), next(), next(), next());
    for version in [Version::V1, Version::V2] {
        let names = match version {
            Version::V1 => ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"],
            Version::V2 => ["cpu.max", "", "cpu.max.burst"],
        };
        let path = FOLDER.path();
        let files =
            [("cpu.stat", stat), ("cpu.stat.local", local), (names[0], quota), (names[1], period), (names[2], burst)];
        for (name, text) in files.iter().filter(|(name, _)| !name.is_empty()) {
            fs::write(path.join(name), text).expect("written");
        }
        let group = Group::new(version, path.to_owned());
        let first = Counters::read(&group);
        fs::write(path.join("cpu.stat"), later).expect("written");
        let second = Counters::read(&group);
        for counters in [&first, &second].into_iter().flatten() {
            let figures = &counters.figures;
            let _ = (figures.nr_periods(), figures.nr_throttled(), figures.nr_bursts());
            let _ = (figures.throttled(), figures.burst(), figures.throttled_local(), figures.usage());
        }
        if let (Ok(first), Ok(second)) = (&first, &second) {
            let _ = first.figures.stat.len() + first.delta(second).map_or(0, |growth| growth.stat.len());
        }
        match Bandwidth::read(&group) {
            Ok(Some(bandwidth)) => {
                let _ = (bandwidth.checked(), bandwidth.cmp_ratio(&Bandwidth::UNLIMITED), bandwidth.to_string());
            }
            Ok(None) => panic!("its quota is there"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A run's folder: `run.json`, `raw/record.jsonl` and the events of each of its limits, with a line `---` between any two. It is
/// refused, or derived and reported.
pub(crate) fn run(bytes: &[u8]) {
    let mut parts = Parts(Some(bytes));
    let path = FOLDER.path().join("run");
    let raw = path.join("raw");
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&raw).expect("a folder");
    fs::write(path.join("run.json"), parts.next().unwrap_or_default()).expect("written");
    fs::write(raw.join("record.jsonl"), parts.next().unwrap_or_default()).expect("written");
    let mut report = || -> Result<String, StoreError> {
        let (dir, head) = RunDir::open(&path)?;
        let (mut derived, mut pictures) = (vec![], vec![]);
        for mut limit in dir.read_record(&head)? {
            let file = raw.join(format!("events-{}.jsonl.gz", limit.begin.limit));
            fs::write(file, compressed(parts.next().unwrap_or_default())).expect("written");
            let (events, kept) = dir.read_events(limit.begin.limit)?;
            limit.kept = kept;
            derived.push(derive(&head, &limit, events.clone()));
            pictures.push(LimitPicture::draw(&head, &limit, events));
        }
        let summary = summarise(&head, &derived);
        dir.write_json("summary.json", &summary)?;
        draw(&head, &summary, &pictures);
        Ok(table::text(&summary) + &markdown::render(&head, &summary))
    };
    match report() {
        Ok(text) => assert!(!text.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Every picture of a run can be drawn, and lanes have no holes.
fn draw(head: &Head, summary: &RunSummary, pictures: &[LimitPicture]) {
    assert!(!timeline::run(pictures, &summary.not_run).is_empty());
    assert!(html::page(head, summary, pictures).expect("it is JSON").ends_with("</html>\n"));
    assert!(!perfetto::trace(pictures).is_empty());
    for picture in pictures {
        assert!(!timeline::limit(picture, LevelName::Container, None).is_empty());
        lanes::svg(picture, lanes::Subject::Whole).expect("drawn");
        for lane in &picture.threads {
            let whole = lane.course.iter().try_fold(picture.window.start, |reached, stretch| {
                (stretch.span.start == reached && stretch.span.end > reached).then_some(stretch.span.end)
            });
            assert!(picture.window.length().0 == 0 || whole == Some(picture.window.end), "{:?}", lane.course);
        }
        for request in &picture.requests {
            assert!(!timeline::request(picture, request).is_empty());
            lanes::svg(picture, lanes::Subject::Request(request)).expect("drawn");
        }
    }
}

fn compressed(lines: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(vec![], flate2::Compression::none());
    std::io::Write::write_all(&mut out, lines).expect("memory");
    out.finish().expect("memory")
}

/// Pieces between lines `---`.
struct Parts<'a>(Option<&'a [u8]>);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        const BORDER: &[u8] = b"\n---\n";
        let rest = self.0?;
        let Some(at) = rest.windows(BORDER.len()).position(|window| window == BORDER) else { return self.0.take() };
        self.0 = Some(&rest[at + BORDER.len()..]);
        // The end of its last line belongs to the part.
        Some(&rest[..=at])
    }
}
