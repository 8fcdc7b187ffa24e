//! Threads that no record shows, because the only one was lost: until when there may have been one.
//!
//! It ran, waited or was held from the loss on without ever getting or leaving a CPU again. A CPU that is idle runs nobody,
//! and nobody waits for it; whoever is held on it is held by a level whose timer is armed, and lists it within a period.

use std::collections::BTreeMap;

use super::{
    boundary::Boundary,
    gap::Gap,
    interval::{Span, Spans},
    level::Throttle,
};
use crate::{
    event::CgroupId,
    time::{DurationNs, MonoNs},
};

/// The longest period there is (kernel/sched/core.c, `max_cfs_quota_period`).
const LONGEST: DurationNs = DurationNs::from_millis(1_000);
/// A release follows its boundary within this.
const RELEASE: DurationNs = DurationNs::from_millis(10);

/// Stretches from each loss on in which there may be such threads.
pub(super) fn threads(
    gaps: &[Gap],
    idle: &BTreeMap<u32, Spans>,
    throttles: &[Throttle],
    boundaries: &BTreeMap<CgroupId, Vec<Boundary>>,
    cpus: u32,
    seen: Span,
) -> Spans {
    if gaps.is_empty() {
        return Spans::default();
    }
    let period = boundaries.values().flatten().map(|boundary| boundary.period).max();
    // A timer is as late as a hypervisor makes it.
    let late = boundaries.values().flatten().map(|boundary| boundary.entry.since(boundary.due)).max();
    let settles = period.unwrap_or(LONGEST).min(LONGEST) + late.map_or(RELEASE, |late| late.max(RELEASE));
    let free: Vec<Spans> = (0..cpus).map(|cpu| free(cpu, idle, throttles, seen.end)).collect();
    let until = |gap: &Gap| {
        let later = Span::new(gap.span.end + settles, seen.end);
        let first = |free: &Spans| free.within(later).next().map_or(seen.end, |span| span.start);
        free.iter().map(first).max().unwrap_or(seen.end)
    };
    Spans::union(gaps.iter().map(|gap| Span::new(gap.span.start, until(gap))))
}

/// When a CPU was idle and no level was out of quota on it, nor just before: one that idles takes a while to find that it has
/// somebody to run again.
fn free(cpu: u32, idle: &BTreeMap<u32, Spans>, throttles: &[Throttle], end: MonoNs) -> Spans {
    let held = throttles.iter().filter(|throttle| throttle.cpu == cpu).map(|throttle| throttle.span(end));
    let held = held.map(|span| Span::new(span.start, span.end + RELEASE));
    idle.get(&cpu).map_or_else(Spans::default, |idle| idle.minus(&Spans::union(held)))
}
