//! `throttle timeline --perfetto`: decoded by Perfetto's own definition of the format, and held against the report.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage as _, Value as Field};
use serde_json::Value;

use crate::made::{plan, run_of, whole};

fn trace(run: &Path) -> DynamicMessage {
    let file = run.join("trace.perfetto");
    let mut command = Command::new(env!("CARGO_BIN_EXE_throttle"));
    let output = command.arg("timeline").arg(run).arg("--perfetto").arg(&file).output().expect("throttle starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/perfetto/trace.descriptor");
    let pool = DescriptorPool::decode(&*fs::read(path).expect("the definition")).expect("a descriptor");
    let message = pool.get_message_by_name("perfetto.protos.Trace").expect("a trace");
    DynamicMessage::decode(message, &*fs::read(file).expect("written")).expect("decodes")
}

/// Every field is one that Perfetto defines, of its type: what does not fit is kept as unknown.
fn assert_known(message: &DynamicMessage) {
    let unknown: Vec<_> = message.unknown_fields().collect();
    assert!(unknown.is_empty(), "{}: {unknown:?}", message.descriptor().full_name());
    for (_, value) in message.fields() {
        let nested: Vec<&DynamicMessage> = match value {
            Field::Message(message) => vec![message],
            Field::List(list) => list.iter().filter_map(Field::as_message).collect(),
            _ => vec![],
        };
        nested.into_iter().for_each(assert_known);
    }
}

fn get(message: &DynamicMessage, field: &str) -> Field {
    message.get_field_by_name(field).unwrap_or_else(|| panic!("no field {field}")).into_owned()
}

fn number(message: &DynamicMessage, field: &str) -> u64 {
    get(message, field).as_u64().expect("a number")
}

fn text(message: &DynamicMessage, field: &str) -> String {
    get(message, field).as_str().expect("text").to_owned()
}

/// A slice of a track.
struct Slice {
    name: String,
    from: u64,
    to: u64,
    depth: usize,
    flows: Vec<u64>,
    notes: BTreeMap<String, Field>,
}

/// Tracks by their full name, each with its slices and its counter's values.
#[derive(Default)]
struct Track {
    slices: Vec<Slice>,
    counts: Vec<(u64, f64)>,
}

fn tracks(trace: &DynamicMessage) -> BTreeMap<String, Track> {
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut tracks: BTreeMap<String, Track> = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<Slice>> = BTreeMap::new();
    for packet in get(trace, "packet").as_list().expect("packets") {
        let packet = packet.as_message().expect("a packet");
        assert_eq!(get(packet, "trusted_packet_sequence_id").as_u32(), Some(1));
        if packet.has_field_by_name("track_descriptor") {
            let field = get(packet, "track_descriptor");
            let track = field.as_message().expect("a track");
            let parent = track.has_field_by_name("parent_uuid").then(|| number(track, "parent_uuid"));
            // A parent is described before its children.
            let prefix = parent.map_or_else(String::new, |parent| format!("{}/", names[&parent]));
            let name = format!("{prefix}{}", text(track, "name"));
            assert!(names.insert(number(track, "uuid"), name.clone()).is_none(), "{name} has another's number");
            assert!(tracks.insert(name.clone(), Track::default()).is_none(), "{name} twice");
        } else if packet.has_field_by_name("track_event") {
            assert_eq!(get(packet, "timestamp_clock_id").as_u32(), Some(3));
            let at = number(packet, "timestamp");
            let field = get(packet, "track_event");
            let event = field.as_message().expect("an event");
            let uuid = number(event, "track_uuid");
            let stack = open.entry(uuid).or_default();
            match get(event, "type").as_enum_number().expect("a type") {
                1 => stack.push(Slice {
                    name: text(event, "name"),
                    from: at,
                    to: at,
                    depth: stack.len(),
                    flows: get(event, "flow_ids").as_list().expect("flows").iter().filter_map(Field::as_u64).collect(),
                    notes: notes(event),
                }),
                2 => {
                    let mut slice = stack.pop().expect("what ends has begun");
                    slice.to = at;
                    assert!(slice.to >= slice.from);
                    tracks.get_mut(&names[&uuid]).expect("a track").slices.push(slice);
                }
                4 => {
                    let value = get(event, "double_counter_value").as_f64().expect("a number");
                    tracks.get_mut(&names[&uuid]).expect("a track").counts.push((at, value));
                }
                other => panic!("type {other}"),
            }
        }
    }
    assert!(open.values().all(Vec::is_empty), "a slice has no end");
    tracks
}

fn notes(event: &DynamicMessage) -> BTreeMap<String, Field> {
    let value = |note: &DynamicMessage| {
        let of = ["uint_value", "double_value", "string_value"].into_iter().find(|of| note.has_field_by_name(of));
        get(note, of.expect("a value"))
    };
    let list = get(event, "debug_annotations");
    list.as_list()
        .expect("notes")
        .iter()
        .filter_map(Field::as_message)
        .map(|note| (text(note, "name"), value(note)))
        .collect()
}

fn derived(run: &Path, name: &str) -> Vec<Value> {
    let report = Command::new(env!("CARGO_BIN_EXE_throttle")).arg("report").arg(run).output().expect("starts");
    assert_eq!(report.status.code(), Some(0));
    let lines = fs::read_to_string(run.join(name)).expect("derived");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_field_is_one_of_perfettos_format_and_slices_of_a_track_nest() {
    let (_dir, run) = run_of(plan(), &whole());
    let trace = trace(&run);
    assert_known(&trace);
    for (name, track) in tracks(&trace) {
        for depth in 0..2 {
            let mut slices: Vec<_> = track.slices.iter().filter(|slice| slice.depth == depth).collect();
            slices.sort_by_key(|slice| slice.from);
            assert!(slices.windows(2).all(|pair| pair[0].to <= pair[1].from), "{name}: slices overlap");
        }
        assert!(track.counts.is_sorted_by_key(|(at, _)| *at), "{name}");
    }
}

#[test]
fn requests_and_periods_are_slices_with_the_reports_figures() {
    let (_dir, run) = run_of(plan(), &whole());
    let tracks = tracks(&trace(&run));
    let requests = &tracks["limit 100m/requests/stream 0"];
    let ms = |field: &Value| field.as_f64().expect("ns") / 1e6;
    let of_requests: Vec<Value> =
        derived(&run, "runs.jsonl").into_iter().filter(|line| line["type"] == "request").collect();
    assert_eq!(requests.slices.iter().filter(|slice| slice.depth == 0).count(), of_requests.len());
    for line in of_requests {
        let name = format!("request {}", line["request"]);
        let slice = requests.slices.iter().find(|slice| slice.name == name).expect("drawn");
        assert_eq!((Some(slice.from), Some(slice.to)), (line["started_ns"].as_u64(), line["finished_ns"].as_u64()));
        for (note, field) in [
            ("wall_ms", "wall_ns"),
            ("on_cpu_ms", "on_cpu_ns"),
            ("throttled_own_ms", "throttled_own_ns"),
            ("throttled_ancestor_ms", "throttled_ancestor_ns"),
            ("runqueue_ms", "runqueue_ns"),
        ] {
            assert_eq!(slice.notes[note].as_f64(), Some(ms(&line[field])), "{note}");
        }
        // What is nested in it makes it up, and the held parts are what the report calls throttled.
        let inside =
            requests.slices.iter().filter(|part| part.depth == 1 && slice.from <= part.from && part.to <= slice.to);
        let (mut all, mut held) = (0, 0);
        for part in inside {
            all += part.to - part.from;
            held += if part.name.starts_with("throttled") { part.to - part.from } else { 0 };
        }
        assert_eq!(Some(all), line["wall_ns"].as_u64());
        let throttled = line["throttled_own_ns"].as_u64().zip(line["throttled_ancestor_ns"].as_u64());
        assert_eq!(throttled.map(|(own, ancestor)| own + ancestor), Some(held));
    }
    let periods = derived(&run, "periods.jsonl");
    for level in ["container", "pod"] {
        let slices = &tracks[&format!("limit 100m/{level}/periods")].slices;
        let lines: Vec<&Value> = periods.iter().filter(|line| line["level"] == level).collect();
        assert_eq!(slices.len(), lines.len());
        for (slice, line) in slices.iter().zip(lines) {
            assert_eq!(slice.name, format!("period {}", line["index"]));
            assert_eq!((Some(slice.from), Some(slice.to)), (line["start_ns"].as_u64(), line["end_ns"].as_u64()));
            assert_eq!(slice.notes["used_ms"].as_f64(), Some(ms(&line["used_ns"])));
        }
    }
}

#[test]
fn the_counters_of_a_period_end_at_what_it_used_and_what_that_leaves() {
    let (_dir, run) = run_of(plan(), &whole());
    let tracks = tracks(&trace(&run));
    let container = |name: &str| &tracks[&format!("limit 100m/container/{name}")];
    let (used, left) = (container("CPU used in the period"), container("quota left"));
    assert_eq!(used.counts.len(), left.counts.len());
    for ((at, used), (_, left)) in used.counts.iter().zip(&left.counts) {
        assert!((used + left - 10.0).abs() < 1e-9, "at {at}: {used} and {left}");
    }
    // Each period begins with nothing used.
    let mut ends = used.counts.chunk_by(|_, (_, next)| *next != 0.0).map(|counts| counts[counts.len() - 1]);
    for slice in &container("periods").slices {
        let (at, value) = ends.next().expect("a period has a beginning");
        let expected = slice.notes["used_ms"].as_f64().expect("a number");
        assert!((value - expected).abs() < 1e-6, "{}: {value} and {expected}", slice.name);
        assert!(slice.from <= at && at <= slice.to);
    }
    assert_eq!(ends.next(), None);
}

#[test]
fn flows_lead_from_a_request_to_the_throttles_that_held_it_and_to_no_other() {
    let (_dir, run) = run_of(plan(), &whole());
    let tracks = tracks(&trace(&run));
    let throttles: Vec<&Slice> = tracks
        .iter()
        .filter(|(name, _)| name.contains("/out of quota, CPU "))
        .flat_map(|(_, track)| &track.slices)
        .collect();
    let requests = &tracks["limit 100m/requests/stream 0"];
    for request in requests.slices.iter().filter(|slice| slice.depth == 0) {
        assert!(!request.flows.is_empty(), "{}", request.name);
        for flow in &request.flows {
            let ends: Vec<_> = throttles.iter().filter(|slice| slice.flows.contains(flow)).collect();
            assert_eq!(ends.len(), 1, "a flow has one end");
            let held = requests.slices.iter().filter(|part| part.depth == 1 && part.name.starts_with("throttled"));
            let meets = |part: &Slice| part.from < ends[0].to && ends[0].from < part.to;
            assert!(held.filter(|part| request.from <= part.from && part.to <= request.to).any(meets));
        }
    }
    let sent: usize = requests.slices.iter().map(|slice| slice.flows.len()).sum();
    assert_eq!(throttles.iter().map(|slice| slice.flows.len()).sum::<usize>(), sent);
}
