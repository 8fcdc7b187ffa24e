//! What the program finds against what pahole and bpftool find (`tests/data/btf/README.md`).

use std::collections::BTreeMap;

use throttle_ebpf::config::ABSENT;
use throttle_user::{
    cgroup::Version,
    event::{Era, KernelFacts},
    probe::btf::resolve,
};

use crate::data;
use crate::fields::{FIELDS, found, inside};

/// What the tools printed: a member and its place a line, then prototypes.
struct Expected {
    places: BTreeMap<String, Option<(u32, u32)>>,
    prototypes: Vec<String>,
}

impl Expected {
    fn of(kernel: &str) -> Self {
        let text = String::from_utf8(data(kernel, "expected")).expect("text");
        let (prototypes, places): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("typedef"));
        let number = |text: &str| text.parse::<u32>().expect("a number");
        let places = places.iter().map(|line| {
            let (member, place) = line.split_once(' ').expect("a member and its place");
            let place = match place.split_once(':') {
                Some((byte, bit)) => Some((number(byte), number(bit))),
                None if place == "absent" => None,
                None => Some((number(place), 0)),
            };
            (member.to_owned(), place)
        });
        Self { places: places.collect(), prototypes: prototypes.into_iter().map(str::to_owned).collect() }
    }

    /// Byte and bit of a path, the sum of its members' places.
    fn place(&self, path: &str) -> Option<(u32, u32)> {
        let mut names = path.split('.');
        let mut within = names.next()?;
        let mut place = (0, 0);
        for name in names {
            let (byte, bit) = (*self.places.get(&format!("{within}.{name}")).expect("the tools were asked"))?;
            place = (place.0 + byte, bit);
            within = inside(name).unwrap_or("");
        }
        Some(place)
    }

    fn offset(&self, path: &str) -> u32 {
        match path.strip_suffix(":bit") {
            Some(path) => self.place(path).map_or(ABSENT, |(_, bit)| bit),
            None => self.place(path).map_or(ABSENT, |(byte, _)| byte),
        }
    }

    /// Arguments of a tracepoint behind the `void *`.
    fn arguments(&self, tracepoint: &str) -> Option<Vec<&str>> {
        let prototype = self.prototypes.iter().find(|line| line.contains(&format!("(*btf_trace_{tracepoint})(")))?;
        let (_, arguments) = prototype.split_once(")(")?;
        Some(arguments.trim_end_matches(");").split(", ").skip(1).collect())
    }
}

/// Every field of a kernel, on either version of the cpu controller. `trusted`: `hierarchical_quota` is kept up on v2 as well.
fn agrees(kernel: &str, facts: KernelFacts, trusted: bool) {
    let (blob, expected) = (data(kernel, "btf"), Expected::of(kernel));
    for version in [Version::V1, Version::V2] {
        let layout = resolve(&blob, version).unwrap_or_else(|error| panic!("{kernel}: {error}"));
        for ((path, _), found) in FIELDS.iter().zip(found(&layout)) {
            let distrusted = *path == "cfs_bandwidth.hierarchical_quota" && version == Version::V2 && !trusted;
            let expected = if distrusted { ABSENT } else { expected.offset(path) };
            assert_eq!(found, expected, "{path} of {kernel}, {version:?}");
        }
        assert_eq!(found(&layout).len(), FIELDS.len());
        assert_eq!(layout.facts, facts, "{kernel}");
        let arguments = expected.arguments("sched_switch").expect("every kernel switches");
        let tasks = arguments.windows(2).position(|pair| pair == ["struct task_struct *"; 2]);
        assert_eq!(Some(layout.switch_prev_arg as usize), tasks, "{kernel}");
        assert_eq!(layout.facts.csd_tracepoints, expected.arguments("csd_function_exit").is_some(), "{kernel}");
    }
}

pub(crate) const DIRECT: KernelFacts = KernelFacts { era: Era::Direct, csd_tracepoints: false, local_counter: false };
const ASYNC: KernelFacts = KernelFacts { era: Era::Async, csd_tracepoints: true, local_counter: true };

#[test]
fn on_6_1_all_offsets_are_those_of_pahole_and_throttles_end_directly() {
    agrees("6.1-amd64", DIRECT, false);
    agrees("6.1-cloud-amd64", DIRECT, false);
    agrees("6.1-rt-amd64", DIRECT, false);
}

#[test]
fn on_6_12_all_offsets_are_those_of_pahole_and_throttles_end_by_ipi() {
    agrees("6.12-cloud-amd64", ASYNC, true);
    agrees("6.12-rt-amd64", ASYNC, true);
}

#[test]
fn on_6_18_all_offsets_are_those_of_pahole_and_tasks_are_throttled() {
    agrees("6.18", KernelFacts { era: Era::Task, ..ASYNC }, true);
}
