//! Losses on the time axis. A gap is found by a jump in a CPU's sequence numbers, and blanks what it may have changed.

use std::collections::{BTreeMap, BTreeSet};

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

/// Gaps of time-ordered events, each with the index of the event that ends it, in the order of these; a gap that nothing ends,
/// because the CPU tried to write more after its last record, lasts to the end. As long as a CPU has shown no switch, what ran
/// there may have been there from the beginning on: a gap then reaches back to it.
///
/// An interrupt may write its record into the middle of another one's: the two then share a number, or the later number has the
/// earlier place or stamp. So a CPU's events are taken in the order of their numbers, and a number twice is no loss.
pub(super) fn find(events: &[Event], tried: &BTreeMap<u32, u64>, seen: Span) -> Vec<(usize, Gap)> {
    let mut finder = Finder::new(seen.start);
    let mut gaps = finder.next(events, &[]);
    gaps.extend(finder.last(tried, seen.end).into_iter().map(|gap| (events.len(), gap)));
    gaps.sort_by_key(|&(index, gap)| (index, gap.cpu));
    gaps
}

/// Finds gaps in events that come one lot after the other.
pub(super) struct Finder {
    begin: MonoNs,
    cpus: BTreeMap<u32, Cpu>,
}

/// What was seen of a CPU.
struct Cpu {
    /// Its next number.
    expected: i64,
    /// Its last record, or the beginning.
    since: MonoNs,
    switched: bool,
}

impl Finder {
    /// `begin`: since then it is watched.
    pub(super) fn new(begin: MonoNs) -> Self {
        Self { begin, cpus: BTreeMap::new() }
    }

    /// Gaps of the next lot, each with the index of the event that ends it, in the order of these. `known`: later events that are there
    /// already; their numbers are not missing.
    pub(super) fn next(&mut self, events: &[Event], known: &[Event]) -> Vec<(usize, Gap)> {
        let mut numbered: BTreeMap<u32, Vec<(i64, usize)>> = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            let expected = self.cpus.get(&event.cpu).map_or(0, |cpu| cpu.expected);
            let numbers = numbered.entry(event.cpu).or_default();
            let last = numbers.last().map_or(expected - 1, |&(number, _)| number);
            numbers.push((unfold(last, event.seq), index));
        }
        let mut gaps = Vec::new();
        for (cpu, mut numbers) in numbered {
            numbers.sort_unstable();
            let begin = Cpu { expected: 0, since: self.begin, switched: false };
            let seen = self.cpus.entry(cpu).or_insert(begin);
            for (number, index) in numbers {
                let event = &events[index];
                if let Some(lost) = lost(number, seen.expected).and_then(|lost| missing(lost, number, cpu, known)) {
                    gaps.push((index, Gap { cpu, span: Span::new(seen.since.min(event.at), event.at), lost }));
                }
                seen.switched |= matches!(event.what, What::Switch { .. });
                seen.expected = seen.expected.max(number + 1);
                if seen.switched {
                    seen.since = seen.since.max(event.at);
                }
            }
        }
        gaps.sort_by_key(|&(index, gap)| (index, gap.cpu));
        gaps
    }

    /// Gaps that no event ends.
    pub(super) fn last(&self, tried: &BTreeMap<u32, u64>, end: MonoNs) -> Vec<Gap> {
        let of = |(&cpu, &tried): (&u32, &u64)| {
            let seen = self.cpus.get(&cpu);
            let expected = seen.map_or(0, |seen| seen.expected);
            #[expect(clippy::cast_possible_truncation, reason = "records carry the low half of the count")]
            let lost = lost(unfold(expected, tried as u32), expected)?;
            let since = seen.map_or(self.begin, |seen| seen.since);
            Some(Gap { cpu, span: Span::new(since.min(end), end), lost })
        };
        tried.iter().filter_map(of).collect()
    }
}

/// What of the `lost` numbers before one is not among those of later events; `None` = nothing.
fn missing(lost: u32, number: i64, cpu: u32, known: &[Event]) -> Option<u32> {
    let here = known.iter().filter(|event| event.cpu == cpu).map(|event| unfold(number, event.seq));
    let here: BTreeSet<i64> = here.filter(|&other| other < number && other >= number - i64::from(lost)).collect();
    lost.checked_sub(u32::try_from(here.len()).unwrap_or(u32::MAX)).filter(|&lost| lost > 0)
}

/// The number of which a record carries the low half: the one nearest to `near`.
fn unfold(near: i64, seq: u32) -> i64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the low half, as the record has it")]
    let low = near as u32;
    near + i64::from(seq.wrapping_sub(low).cast_signed())
}

fn lost(number: i64, expected: i64) -> Option<u32> {
    u32::try_from(number - expected).ok().filter(|&lost| lost > 0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::CgroupId;

    fn events(numbered: &[(u64, u32)]) -> Vec<Event> {
        let exit = What::Exit { thread: 1, cgroup: CgroupId(1) };
        numbered.iter().map(|&(at, seq)| Event { at: MonoNs(at), cpu: 0, seq, what: exit.clone() }).collect()
    }

    fn lost(numbered: &[(u64, u32)], tried: u64) -> Vec<(usize, u32)> {
        let seen = Span::new(MonoNs(0), MonoNs(1_000));
        let gaps = find(&events(numbered), &BTreeMap::from([(0, tried)]), seen);
        gaps.into_iter().map(|(index, gap)| (index, gap.lost)).collect()
    }

    #[test]
    fn a_record_written_into_the_middle_of_another_is_no_loss() {
        assert_eq!(lost(&[(10, 0), (20, 2), (21, 1), (30, 3)], 4), []);
        assert_eq!(lost(&[(10, 1), (11, 0), (30, 2)], 3), []);
        // Two records within the writing of another: it sets the count back.
        assert_eq!(lost(&[(10, 0), (12, 1), (13, 2), (11, 1), (14, 2), (15, 3)], 4), []);
    }

    #[test]
    fn what_is_missing_at_the_beginning_in_the_middle_and_at_the_end_is_counted() {
        assert_eq!(lost(&[(10, 2), (20, 3), (30, 5), (31, 4), (40, 8)], 10), [(0, 2), (4, 2), (5, 1)]);
        assert_eq!(lost(&[], 3), [(0, 3)]);
        assert_eq!(lost(&[], 0), []);
    }

    #[test]
    fn lot_by_lot_the_same_gaps_are_found_and_what_has_come_already_is_not_missing() {
        let all = events(&[(10, 2), (20, 3), (30, 5), (31, 4), (40, 8)]);
        for cut in 0..=all.len() {
            let mut finder = Finder::new(MonoNs(0));
            let mut found = finder.next(&all[..cut], &all[cut..]);
            found.extend(finder.next(&all[cut..], &[]).into_iter().map(|(index, gap)| (index + cut, gap)));
            let whole = find(&all, &BTreeMap::new(), Span::new(MonoNs(0), MonoNs(99)));
            assert_eq!(found, whole, "{cut}");
        }
    }

    #[test]
    fn numbers_begin_anew_after_the_last_one() {
        let numbers: Vec<(u64, u32)> =
            [u32::MAX - 1, u32::MAX, 1, 0, 2].into_iter().zip(1..).map(|(seq, at)| (at, seq)).collect();
        let first = find(&events(&numbers), &BTreeMap::new(), Span::new(MonoNs(0), MonoNs(9)));
        assert!(first.is_empty(), "{first:?}");
    }
}
