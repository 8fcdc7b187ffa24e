//! Ends that were not seen, carried over to the threads that were held.

use std::collections::{BTreeMap, HashMap};

use super::{
    CountsFrom, Setting,
    interval::{Span, Spans},
    level::{EndedBy, Throttle},
    thread::{Segment, State, ThreadLine},
};
use crate::{event::CgroupId, time::MonoNs};

/// A level's throttles on one CPU.
#[derive(Default)]
struct Marks {
    all: Spans,
    /// Those in which records were lost.
    doubtful: Spans,
}

impl Marks {
    fn of(throttles: &[Throttle], end: MonoNs) -> HashMap<(CgroupId, u32), Self> {
        let mut grouped: HashMap<(CgroupId, u32), Vec<&Throttle>> = HashMap::new();
        for throttle in throttles {
            grouped.entry((throttle.cgroup, throttle.cpu)).or_default().push(throttle);
        }
        let marks = |throttles: Vec<&Throttle>| Self {
            all: Spans::union(throttles.iter().map(|throttle| throttle.span(end))),
            doubtful: Spans::union(throttles.iter().filter(|throttle| !throttle.complete).map(|it| it.span(end))),
        };
        grouped.into_iter().map(|(key, throttles)| (key, marks(throttles))).collect()
    }
}

/// Ends the hold of threads where their levels were released unseen: the end of such a throttle is known only later, and may by
/// then lie before another one's start.
pub(super) fn release(threads: &mut BTreeMap<u32, ThreadLine>, throttles: &[Throttle], setting: &Setting, end: MonoNs) {
    let unseen = |throttle: &Throttle| matches!(throttle.ended_by, Some(EndedBy::Grant | EndedBy::Boundary));
    if !throttles.iter().any(unseen) {
        return;
    }
    let marks = Marks::of(throttles, end);
    let once = setting.counts_from == CountsFrom::Task;
    for line in threads.values_mut() {
        let released = |segment: Segment| {
            // A move ends a segment of a thread that is held.
            let (State::Throttled { cpu }, Some(leaf)) = (segment.state, line.cgroup_at(segment.span.start)) else {
                return vec![segment];
            };
            let of: Vec<&Marks> = setting.path(&leaf).iter().filter_map(|&level| marks.get(&(level, cpu))).collect();
            // Where records were lost it is not known which of them the end was.
            if of.iter().any(|marks| marks.doubtful.within(segment.span).next().is_some()) {
                return vec![segment];
            }
            held(segment, cpu, &Spans::union(of.iter().flat_map(|marks| marks.all.within(segment.span))), once)
        };
        line.segments = line.segments.iter().flat_map(|&segment| released(segment)).collect();
    }
}

/// The parts of a throttled segment in which it was held and in which it waited. `once`: released, it is not held again without
/// having run.
fn held(segment: Segment, cpu: u32, marks: &Spans, once: bool) -> Vec<Segment> {
    let held: Vec<Span> = marks.iter().collect();
    if held.first().is_none_or(|first| first.start != segment.span.start) {
        // Held by a level that is not known.
        return vec![segment];
    }
    let waited =
        |from: MonoNs, to: MonoNs| Segment { span: Span::new(from, to), state: State::Waiting { cpu }, ..segment };
    let mut parts = vec![];
    let mut from = segment.span.start;
    for span in held.into_iter().take(if once { 1 } else { usize::MAX }) {
        parts.push(waited(from, span.start));
        parts.push(Segment { span, ..segment });
        from = span.end;
    }
    parts.push(waited(from, segment.span.end));
    parts.retain(|part| !part.span.is_empty());
    parts
}
