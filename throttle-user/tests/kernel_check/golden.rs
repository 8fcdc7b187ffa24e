//! The facts of kernels we know, as committed text. `THROTTLE_BLESS=1` writes that of the running one; of a kernel that is not among
//! them it is left where tests keep files, in a guest's results among them, from where it can be added to [`COMMITTED`].

use std::{
    fs,
    path::{Path, PathBuf},
};

use throttle_user::check::{Grade, Report, text::text};

use crate::{AGREEMENT, checked};

/// Facts that differ from machine to machine, or from run to run, of one kernel.
const VOLATILE: [&str; 9] = [
    "kernel",
    "CPUs online",
    "BTF",
    "locked memory",
    "own cgroup",
    "limits on this process",
    "steal time",
    "throttles",
    AGREEMENT,
];

/// Of those, the ones that mean something else on another machine.
const OF_THE_MACHINE: [&str; 3] = ["CPUs online", "limits on this process", "steal time"];

/// By series and flavour.
const COMMITTED: [(&str, &str); 1] = [("6.18-fc-v657", include_str!("../data/check/6.18-fc-v657.txt"))];

#[test]
fn kernel_the_facts_of_this_kernel_are_those_committed() {
    let shown = text(&masked(checked().report.clone()));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let path = path(release.trim());
    if std::env::var_os("THROTTLE_BLESS").is_some() {
        fs::write(&path, &shown).expect("written");
        return;
    }
    match committed(release.trim()) {
        Some(golden) => assert_eq!(shown, golden, "differs from {}; THROTTLE_BLESS=1 writes it anew", path.display()),
        // A kernel that is not among ours: what holds of every one is held in the other tests.
        None => {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{}.txt", key(release.trim())));
            fs::write(&kept, &shown).expect("written");
            eprintln!("no text of this kernel is committed; it is in {}", kept.display());
        }
    }
}

#[test]
fn the_committed_kernels_are_found_by_their_releases() {
    for (release, key) in [
        ("6.1.0-41-cloud-amd64", "6.1-cloud-amd64"),
        ("6.12.57+deb13-cloud-amd64", "6.12-cloud-amd64"),
        ("6.12.63+deb13-rt-amd64", "6.12-rt-amd64"),
        ("6.18.44", "6.18"),
        ("6.8.0-52-generic", "6.8-generic"),
        ("7", "7"),
    ] {
        assert_eq!(self::key(release), key);
    }
}

/// Volatile facts without what was found, and without what that means.
fn masked(mut report: Report) -> Report {
    let smp = std::env::var("THROTTLE_GUEST").as_deref() == Ok("smp");
    for fact in report.sections.iter_mut().flat_map(|section| &mut section.facts) {
        if VOLATILE.contains(&fact.name.as_str()) {
            "...".clone_into(&mut fact.found);
        }
        // See the test of the spin.
        let is_near = smp && fact.name == AGREEMENT && fact.grade == Grade::Less;
        if is_near || OF_THE_MACHINE.contains(&fact.name.as_str()) {
            (fact.grade, fact.costs) = (Grade::Good, None);
        }
    }
    Report::new(report.sections)
}

/// Series and flavour of a kernel's release: without patch levels and build numbers, which change with every update.
fn key(release: &str) -> String {
    let mut parts = release.split('-');
    let series: Vec<&str> = parts.next().unwrap_or_default().split('.').take(2).collect();
    let flavour = parts.filter(|part| !part.bytes().all(|byte| byte.is_ascii_digit()));
    std::iter::once(series.join(".").as_str()).chain(flavour).collect::<Vec<_>>().join("-")
}

fn path(release: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/check").join(format!("{}.txt", key(release)))
}

/// Inside the binary, which guests run without the sources.
fn committed(release: &str) -> Option<&'static str> {
    COMMITTED.iter().find(|(known, _)| *known == key(release)).map(|(_, text)| *text)
}
