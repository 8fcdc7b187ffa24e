//! Losses on the time axis. A gap is found by a jump in a CPU's sequence numbers, and blanks what it may have changed.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::{
    interval::Span,
    thread::{Segment, State, ThreadLine},
};
use crate::event::Event;

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

/// Gaps of time-ordered events.
pub(super) fn find(events: &[Event]) -> Vec<Gap> {
    let mut last: HashMap<u32, (u32, crate::time::MonoNs)> = HashMap::new();
    let mut gaps = Vec::new();
    for event in events {
        if let Some((seq, at)) = last.insert(event.cpu, (event.seq, event.at)) {
            let lost = event.seq.wrapping_sub(seq.wrapping_add(1));
            if lost != 0 {
                gaps.push(Gap { cpu: event.cpu, span: Span::new(at, event.at), lost });
            }
        } else if event.seq != 0 {
            let start = events.first().map_or(event.at, |first| first.at);
            gaps.push(Gap { cpu: event.cpu, span: Span::new(start, event.at), lost: event.seq });
        }
    }
    gaps
}

/// Whether a span meets a gap.
pub(super) fn touches(gaps: &[Gap], span: Span) -> bool {
    gaps.iter().any(|gap| gap.span.start < span.end && span.start <= gap.span.end)
}

/// Blanks what a lost record may have changed: a thread's state stays unknown from the gap to the thread's next event. A
/// thread seen running on another CPU is sure to be there until it is seen to leave.
pub(super) fn blank(threads: &mut BTreeMap<u32, ThreadLine>, gaps: &[Gap]) {
    if gaps.is_empty() {
        return;
    }
    for line in threads.values_mut() {
        line.segments = line.segments.iter().flat_map(|&segment| cut(segment, gaps)).collect();
    }
}

fn cut(segment: Segment, gaps: &[Gap]) -> Vec<Segment> {
    let hit = gaps
        .iter()
        .filter(|gap| gap.span.start < segment.span.end && segment.span.start < gap.span.end)
        .filter(|gap| !matches!(segment.state, State::Running { cpu } if cpu != gap.cpu))
        .map(|gap| gap.span.start)
        .min();
    let Some(from) = hit else { return vec![segment] };
    let known = segment.clip(Span::new(segment.span.start, from));
    let unknown = Segment {
        span: Span::new(from.max(segment.span.start), segment.span.end),
        state: State::Unknown,
        uncharged: crate::time::DurationNs::ZERO,
    };
    [known, unknown].into_iter().filter(|part| !part.span.is_empty()).collect()
}
