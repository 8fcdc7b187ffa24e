//! Losses on the time axis. A gap is found by a jump in a CPU's sequence numbers, and blanks what it may have changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    interval::{Span, Spans},
    thread::{Segment, State, ThreadLine},
};
use crate::{
    event::{Event, What},
    time::{DurationNs, MonoNs},
};

/// A stretch in which a CPU lost records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The CPU.
    pub cpu: u32,
    /// From its last record before the loss to its first one after.
    #[serde(flatten)]
    pub span: Span,
    /// Records lost.
    pub lost: u32,
}

/// Gaps of time-ordered events, each with the index of the event that ends it; a gap that nothing ends, because the CPU tried to
/// write more after its last record, lasts to the end. As long as a CPU has shown no switch, what ran there may have been there
/// from the beginning on: a gap then reaches back to it.
pub(super) fn find(events: &[Event], tried: &BTreeMap<u32, u64>, seen: Span) -> Vec<(usize, Gap)> {
    let mut cpus: BTreeMap<u32, Cpu> = BTreeMap::new();
    let mut gaps = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let cpu = cpus.entry(event.cpu).or_insert(Cpu { expected: 0, since: seen.start, switched: false });
        let gap = |lost| Gap { cpu: event.cpu, span: Span::new(cpu.since, event.at), lost };
        gaps.extend(lost(event.seq, cpu.expected).map(|lost| (index, gap(lost))));
        cpu.switched |= matches!(event.what, What::Switch { .. });
        cpu.expected = event.seq.wrapping_add(1);
        if cpu.switched {
            cpu.since = event.at;
        }
    }
    for (&cpu, &tried) in tried {
        let last = cpus.get(&cpu);
        #[expect(clippy::cast_possible_truncation, reason = "records carry the low half of the count")]
        let lost = lost(tried as u32, last.map_or(0, |last| last.expected));
        let span = Span::new(last.map_or(seen.start, |last| last.since), seen.end);
        gaps.extend(lost.map(|lost| (events.len(), Gap { cpu, span, lost })));
    }
    gaps
}

/// What was seen of a CPU.
struct Cpu {
    /// Its next sequence number.
    expected: u32,
    /// Its last record, or the beginning.
    since: MonoNs,
    switched: bool,
}

/// How many were lost before a sequence number. An interrupt may write its record into the middle of another one's: the two then
/// share a number or stand in the wrong order, and nothing is lost.
fn lost(seq: u32, expected: u32) -> Option<u32> {
    let lost = seq.wrapping_sub(expected);
    (1..=u32::MAX / 2).contains(&lost).then_some(lost)
}

/// The instants at which records may be missing, both ends of each gap among them.
pub(super) fn instants(gaps: &[Gap]) -> Spans {
    Spans::union(gaps.iter().map(|gap| Span::new(gap.span.start, gap.span.end + DurationNs(1))))
}

/// Whether a span meets such an instant, its end included.
pub(super) fn touches(lost: &Spans, span: Span) -> bool {
    lost.within(Span::new(span.start, span.end + DurationNs(1))).next().is_some()
}

/// Blanks what a lost record may have changed: a thread's state stays unknown from the gap to the thread's next event (from
/// the gap's end on, the tracker sees to it). A thread seen running on another CPU is sure to be there until it is seen to
/// leave.
pub(super) fn blank(threads: &mut BTreeMap<u32, ThreadLine>, gaps: &[Gap]) {
    if gaps.is_empty() {
        return;
    }
    let mut of_cpu: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    gaps.iter().for_each(|gap| of_cpu.entry(gap.cpu).or_default().push(gap.span));
    let of_cpu: BTreeMap<u32, Spans> = of_cpu.into_iter().map(|(cpu, spans)| (cpu, Spans::union(spans))).collect();
    let any = Spans::union(gaps.iter().map(|gap| gap.span));
    let none = Spans::default();
    for line in threads.values_mut() {
        let doubtful = |segment: &Segment| match segment.state {
            State::Running { cpu } => of_cpu.get(&cpu).unwrap_or(&none),
            _ => &any,
        };
        line.segments = line.segments.iter().flat_map(|&segment| cut(segment, doubtful(&segment))).collect();
    }
}

fn cut(segment: Segment, gaps: &Spans) -> Vec<Segment> {
    let Some(hit) = gaps.within(segment.span).next() else { return vec![segment] };
    let known = segment.clip(Span::new(segment.span.start, hit.start));
    let span = Span::new(hit.start, segment.span.end);
    let unknown = Segment { span, state: State::Unknown, uncharged: DurationNs::ZERO };
    [known, unknown].into_iter().filter(|part| !part.span.is_empty()).collect()
}
