//! Idle CPUs, from switches to and from the idle task.

use std::collections::BTreeMap;

use super::interval::{Span, Spans};
use crate::{
    event::{Event, What},
    time::MonoNs,
};

/// Idle spans of each CPU that showed at least one idle switch. Before its first one a CPU was in the state that switch
/// left, since every idle switch is recorded.
pub(super) fn spans(events: &[Event], seen: Span) -> BTreeMap<u32, Spans> {
    let mut idle_since: BTreeMap<u32, Option<MonoNs>> = BTreeMap::new();
    let mut spans: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    for event in events {
        let What::Switch { from_idle, to_idle, .. } = event.what else { continue };
        if from_idle {
            let since = idle_since.insert(event.cpu, None).unwrap_or(Some(seen.start));
            spans.entry(event.cpu).or_default().extend(since.map(|since| Span::new(since, event.at)));
        }
        if to_idle {
            idle_since.insert(event.cpu, Some(event.at));
        }
    }
    for (cpu, since) in idle_since {
        spans.entry(cpu).or_default().extend(since.map(|since| Span::new(since, seen.end)));
    }
    spans.into_iter().map(|(cpu, spans)| (cpu, Spans::union(spans))).collect()
}
