//! Writes tracks, slices and counters as packets.

use super::wire::{
    BOOTTIME, Clock, ClockSnapshot, CounterDescriptor, Data, DebugAnnotation, EXPLICIT, EventType, MONOTONIC, REALTIME,
    Trace, TracePacket, TrackDescriptor, TrackEvent, Value,
};
use crate::{
    run::picture::Span,
    time::{ClockAnchor, DurationNs, MonoNs},
};

/// All packets are of one writer.
const SEQUENCE: u32 = 1;

/// What is said beside a slice.
pub(super) enum Note {
    Ms(DurationNs),
    Count(u64),
    Text(String),
}

#[derive(Default)]
pub(super) struct Writer {
    trace: Trace,
    tracks: u64,
}

impl Writer {
    pub(super) fn finish(self) -> Trace {
        self.trace
    }

    /// Ties the clocks together.
    pub(super) fn clock(&mut self, anchor: ClockAnchor) {
        let ClockAnchor { monotonic_ns, boottime_ns, realtime_ns, error_ns: _ } = anchor;
        let clock = |(id, at)| Clock { clock_id: Some(id), timestamp: Some(at) };
        let clocks = [(MONOTONIC, monotonic_ns), (BOOTTIME, boottime_ns), (REALTIME, realtime_ns)].map(clock);
        let snapshot = ClockSnapshot { clocks: clocks.into(), primary_trace_clock: i32::try_from(MONOTONIC).ok() };
        self.packet(Some(MonoNs(monotonic_ns)), Data::ClockSnapshot(snapshot));
    }

    /// A track that holds others, shown in the order in which they are made.
    pub(super) fn group(&mut self, parent: Option<u64>, name: &str) -> u64 {
        self.describe(parent, name, |track| track.child_ordering = Some(EXPLICIT))
    }

    /// A track of slices.
    pub(super) fn track(&mut self, parent: Option<u64>, name: &str) -> u64 {
        self.describe(parent, name, |_| {})
    }

    /// A track of numbers.
    pub(super) fn counter(&mut self, parent: Option<u64>, name: &str, unit: &str) -> u64 {
        let unit_name = Some(unit.to_owned());
        self.describe(parent, name, |track| track.counter = Some(CounterDescriptor { unit_name }))
    }

    fn describe(&mut self, parent: Option<u64>, name: &str, more: impl FnOnce(&mut TrackDescriptor)) -> u64 {
        self.tracks += 1;
        let mut track = TrackDescriptor {
            uuid: Some(self.tracks),
            name: Some(name.to_owned()),
            parent_uuid: parent,
            counter: None,
            child_ordering: None,
            sibling_order_rank: i32::try_from(self.tracks).ok(),
        };
        more(&mut track);
        self.packet(None, Data::TrackDescriptor(track));
        self.tracks
    }

    /// A slice with a beginning and an end; none without a length.
    pub(super) fn slice(
        &mut self,
        track: u64,
        category: &str,
        name: &str,
        span: Span,
        flows: &[u64],
        notes: &[(&str, Note)],
    ) {
        if !span.is_empty() {
            self.begin(track, category, name, span.start, flows, notes);
            self.end(track, span.end);
        }
    }

    pub(super) fn begin(
        &mut self,
        track: u64,
        category: &str,
        name: &str,
        at: MonoNs,
        flows: &[u64],
        notes: &[(&str, Note)],
    ) {
        let event = TrackEvent {
            r#type: Some(EventType::SliceBegin.into()),
            track_uuid: Some(track),
            categories: vec![category.to_owned()],
            name: Some(name.to_owned()),
            double_counter_value: None,
            flow_ids: flows.to_vec(),
            debug_annotations: notes.iter().map(|(name, note)| annotation(name, note)).collect(),
        };
        self.packet(Some(at), Data::TrackEvent(event));
    }

    pub(super) fn end(&mut self, track: u64, at: MonoNs) {
        let event =
            TrackEvent { r#type: Some(EventType::SliceEnd.into()), track_uuid: Some(track), ..TrackEvent::default() };
        self.packet(Some(at), Data::TrackEvent(event));
    }

    /// A number from an instant on.
    pub(super) fn count(&mut self, track: u64, at: MonoNs, value: f64) {
        let event = TrackEvent {
            r#type: Some(EventType::Counter.into()),
            track_uuid: Some(track),
            double_counter_value: Some(value),
            ..TrackEvent::default()
        };
        self.packet(Some(at), Data::TrackEvent(event));
    }

    fn packet(&mut self, at: Option<MonoNs>, data: Data) {
        self.trace.packet.push(TracePacket {
            timestamp: at.map(|at| at.0),
            timestamp_clock_id: at.map(|_| MONOTONIC),
            trusted_packet_sequence_id: Some(SEQUENCE),
            data: Some(data),
        });
    }
}

fn annotation(name: &str, note: &Note) -> DebugAnnotation {
    let value = match note {
        Note::Ms(length) => Value::Double(length.as_millis_f64()),
        Note::Count(count) => Value::Uint(*count),
        Note::Text(text) => Value::Text(text.clone()),
    };
    DebugAnnotation { name: Some(name.to_owned()), value: Some(value) }
}
