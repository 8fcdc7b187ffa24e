//! The edges beside what kprobes on `throttle_cfs_rq` and `unthrottle_cfs_rq` see of the same throttles: two ways that share
//! nothing but the clock. Run in guests (`cargo xtask vm-test`), where kprobes are allowed.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    fs,
    path::Path,
};

use throttle_ebpf::config::Layout;
use throttle_user::{
    cgroup::{Bandwidth, Nesting},
    event::CgroupId,
    time::{MonoNs, now},
};

use crate::observed::{Bench, Look, finish, limited, one_at_a_time, start};

const TRACING: &str = "/sys/kernel/tracing";
/// Functions whose names the probes of this test bear.
const EVENTS: &str = "events/throttle_test/enable";

/// A throttle of a group's queue on a CPU: from the return of the function that set the mark to the return of the one that took
/// it away, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edge {
    start: u64,
    end: u64,
}

/// By group and CPU, in the order of time.
type Edges = BTreeMap<(CgroupId, u32), Vec<Edge>>;

/// Probes on the two functions. Removed when dropped.
struct Kprobes;

impl Kprobes {
    /// Which group and CPU a `struct cfs_rq *` in `%di`, the first argument, belongs to (Documentation/trace/kprobetrace.rst:
    /// `+OFFSET(POINTER)` reads memory).
    fn attach(layout: &Layout) -> Self {
        let group = [layout.cfs_rq_tg, layout.tg_cgroup, layout.cgroup_kn, layout.kn_id]
            .iter()
            .fold("%di".to_owned(), |inner, offset| format!("+{offset}({inner})"));
        let cpu = format!("+{}(+{}(%di))", layout.rq_cpu, layout.cfs_rq_rq);
        let mut probes = String::new();
        for (name, function) in [("mark", "throttle_cfs_rq"), ("clear", "unthrottle_cfs_rq")] {
            let _ = writeln!(probes, "p:throttle_test/{name} {function} group={group}:u64 queue={cpu}:u32");
            // Whether it was throttled: the function returns without when runtime came meanwhile.
            let _ = writeln!(probes, "r:throttle_test/{name}ed {function} done=$retval:u8");
        }
        write("trace_clock", "mono");
        write("buffer_size_kb", "8192");
        write("kprobe_events", &probes);
        write(EVENTS, "1");
        Self
    }

    /// What they saw so far.
    fn edges(&self) -> Edges {
        let text = fs::read_to_string(Path::new(TRACING).join("trace")).expect("the trace");
        let lost = text.lines().filter(|line| line.contains("LOST")).count();
        assert_eq!(lost, 0, "{text}");
        let mut inside: BTreeMap<u32, VecDeque<(CgroupId, u32)>> = BTreeMap::new();
        let mut open: BTreeMap<(CgroupId, u32), u64> = BTreeMap::new();
        let mut edges = Edges::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Line { cpu, at, event, fields } = Line::of(line).unwrap_or_else(|| panic!("{line}"));
            let field = |name: &str| {
                let value = fields.iter().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                value.and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("no {name} in {line}"))
            };
            let running = inside.entry(cpu).or_default();
            match event {
                "mark" | "clear" => {
                    running.push_back((CgroupId(field("group")), u32::try_from(field("queue")).expect("a CPU")));
                }
                "marked" => {
                    let queue = running.pop_back().expect("it was entered");
                    if field("done") != 0 {
                        open.insert(queue, at);
                    }
                }
                "cleared" => {
                    let queue = running.pop_back().expect("it was entered");
                    if let Some(start) = open.remove(&queue) {
                        edges.entry(queue).or_default().push(Edge { start, end: at });
                    }
                }
                other => panic!("{other}"),
            }
        }
        edges
    }
}

impl Drop for Kprobes {
    fn drop(&mut self) {
        for (file, text) in [(EVENTS, "0"), ("kprobe_events", ""), ("trace", "")] {
            let _ = fs::write(Path::new(TRACING).join(file), text);
        }
    }
}

fn write(file: &str, text: &str) {
    fs::write(Path::new(TRACING).join(file), text).unwrap_or_else(|error| panic!("{file}: {error}\n{text}"));
}

/// `<comm>-<pid> [<cpu>] <flags> <seconds>.<microseconds>: <event>: (<where>) <field> …`
struct Line<'a> {
    cpu: u32,
    at: u64,
    event: &'a str,
    fields: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (task, rest) = line.split_once(" [")?;
        assert!(!task.is_empty());
        let (cpu, rest) = rest.split_once(']')?;
        let mut words = rest.split_whitespace();
        let (seconds, micros) = words.nth(1)?.strip_suffix(':')?.split_once('.')?;
        let at = seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1_000;
        let event = words.next()?.strip_suffix(':')?;
        Some(Self { cpu: cpu.parse().ok()?, at, event, fields: words.collect() })
    }
}

/// How far a stamp of ours may be from the kprobe's. On two emulated CPUs the host takes one away between the two at times.
fn within_ns() -> u64 {
    match std::env::var("THROTTLE_GUEST").as_deref() {
        Ok("icount") => 5_000,
        _ => 50_000,
    }
}

/// The same throttles, by both.
fn same(case: &str, pod: Bandwidth, container: Bandwidth, role: &str) {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Nested);
    let levels = bench.levels();
    pod.write(&levels[1].1).expect("a limit");
    container.write(&levels[0].1).expect("a limit");
    let kprobes = Kprobes::attach(&bench.kernel.layout);
    let mut since = MonoNs(0);
    let seen = bench.observe(&levels, Look::default(), || {
        since = now();
        finish(start(role, &levels[0].1));
    });
    let kernel = kprobes.edges();
    drop(kprobes);
    assert_eq!(seen.losses.total(), 0, "{case}: {:?}", seen.losses);
    let mut apart: Vec<u64> = Vec::new();
    for (_, group) in &levels {
        let id = CgroupId(group.id().expect("an id"));
        for cpu in 0..seen.setting.cpus {
            let ours = seen.timeline.throttles.iter().filter(|throttle| (throttle.cgroup, throttle.cpu) == (id, cpu));
            let ours: Vec<Edge> = ours
                .filter(|throttle| throttle.marked > since)
                .filter_map(|throttle| Some(Edge { start: throttle.marked.0, end: throttle.end?.0 }))
                .collect();
            let theirs: Vec<Edge> = kernel.get(&(id, cpu)).into_iter().flatten().copied().collect();
            let theirs: Vec<Edge> = theirs.into_iter().filter(|edge| edge.start > since.0).collect();
            assert_eq!(ours.len(), theirs.len(), "{case}: cgroup {} on CPU {cpu}:\n{ours:?}\n{theirs:?}", id.0);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                apart.extend([ours.start.abs_diff(theirs.start), ours.end.abs_diff(theirs.end)]);
            }
        }
    }
    assert!(apart.len() >= 6, "{case}: {} edges", apart.len());
    apart.sort_unstable();
    println!(
        "{case}: {} edges, apart {} ns at the median, {} ns at most",
        apart.len(),
        apart[apart.len() / 2],
        apart[apart.len() - 1]
    );
    let within = within_ns();
    assert!(apart.iter().all(|&apart| apart <= within), "{case}: {apart:?} ns apart");
}

#[test]
#[ignore = "needs kprobes: run in guests by `cargo xtask vm-test`"]
fn guest_the_edges_of_a_container_that_runs_out_are_those_of_kprobes() {
    same("kprobes container", limited(150, 100), limited(30, 100), "burn 2 200");
}

#[test]
#[ignore = "needs kprobes: run in guests by `cargo xtask vm-test`"]
fn guest_the_edges_of_a_pod_and_a_container_that_both_run_out_are_those_of_kprobes() {
    same("kprobes both", limited(30, 100), limited(30, 100), "burn 2 200");
}

#[test]
#[ignore = "needs kprobes: run in guests by `cargo xtask vm-test`"]
fn guest_the_edges_of_short_periods_are_those_of_kprobes() {
    same("kprobes short periods", limited(90, 100), limited(2, 10), "burn 1 100");
}

#[test]
#[ignore = "needs kprobes: run in guests by `cargo xtask vm-test`"]
fn guest_the_edges_of_wakeups_into_a_group_out_of_quota_are_those_of_kprobes() {
    same("kprobes wakeups", limited(150, 100), limited(30, 100), "enqueue 200");
}
