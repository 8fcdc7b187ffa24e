//! Half-open spans of time and sets of them: the arithmetic that every share, union and overlap rests on.

use serde::{Deserialize, Serialize};

use crate::time::{DurationNs, MonoNs};

/// `[start, end)`; never ends before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    /// First instant.
    pub start: MonoNs,
    /// First instant after it.
    pub end: MonoNs,
}

impl Span {
    /// A span; empty at `start` when `end` lies before it.
    #[must_use]
    pub fn new(start: MonoNs, end: MonoNs) -> Self {
        Self { start, end: end.max(start) }
    }

    /// Its length.
    #[must_use]
    pub fn length(self) -> DurationNs {
        self.end.since(self.start)
    }

    /// Whether it has no length.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The part inside `window`; empty when they do not meet.
    #[must_use]
    pub fn clip(self, window: Self) -> Self {
        Self::new(self.start.max(window.start), self.end.min(window.end))
    }

    /// Whether an instant lies in it.
    #[must_use]
    pub fn contains(self, at: MonoNs) -> bool {
        self.start <= at && at < self.end
    }
}

/// Sorted, disjoint, non-empty spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<Span>);

impl Spans {
    /// The union of any spans.
    pub fn union(spans: impl IntoIterator<Item = Span>) -> Self {
        let mut spans: Vec<_> = spans.into_iter().filter(|span| !span.is_empty()).collect();
        spans.sort_unstable();
        let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => merged.push(span),
            }
        }
        Self(merged)
    }

    /// Length of all spans together.
    #[must_use]
    pub fn total(&self) -> DurationNs {
        self.0.iter().map(|span| span.length()).sum()
    }

    /// The spans in order.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().copied()
    }

    /// The parts inside `window`, in order.
    pub fn within(&self, window: Span) -> impl Iterator<Item = Span> + '_ {
        let first = self.0.partition_point(|span| span.end <= window.start);
        self.0[first..]
            .iter()
            .take_while(move |span| span.start < window.end)
            .map(move |span| span.clip(window))
            .filter(|span| !span.is_empty())
    }

    /// Length of the parts inside `window`.
    #[must_use]
    pub fn total_within(&self, window: Span) -> DurationNs {
        self.within(window).map(Span::length).sum()
    }

    /// The parts of `self` that lie in `other`.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self(self.0.iter().flat_map(|&span| other.within(span)).collect())
    }

    /// The parts of `self` that lie outside `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut left = Vec::with_capacity(self.0.len());
        for &span in &self.0 {
            let mut start = span.start;
            for cut in other.within(span) {
                left.push(Span::new(start, cut.start));
                start = cut.end;
            }
            left.push(Span::new(start, span.end));
        }
        left.retain(|span| !span.is_empty());
        Self(left)
    }
}

/// A number that changes at instants: 0 before the first and after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps(Vec<(MonoNs, u32)>);

impl Steps {
    /// How many of several spans lie over each instant.
    #[must_use]
    pub fn depth(spans: impl IntoIterator<Item = Span>) -> Self {
        let spans = spans.into_iter().filter(|span| !span.is_empty());
        let mut edges: Vec<(MonoNs, i32)> = spans.flat_map(|span| [(span.start, 1), (span.end, -1)]).collect();
        edges.sort_unstable();
        let mut steps: Vec<(MonoNs, u32)> = Vec::with_capacity(edges.len());
        let mut count = 0i32;
        for (at, change) in edges {
            count += change;
            let level = count.unsigned_abs();
            match steps.last_mut() {
                Some(last) if last.0 == at => last.1 = level,
                _ => steps.push((at, level)),
            }
        }
        Self(steps)
    }

    /// The stretches inside `window` over which the number is the same and not 0, in order.
    pub fn within(&self, window: Span) -> impl Iterator<Item = (Span, u32)> + '_ {
        let first = self.0.partition_point(|(at, _)| *at <= window.start).saturating_sub(1);
        let last = self.0.partition_point(|(at, _)| *at < window.end).max(first);
        let ends = self.0[first..].iter().skip(1).map(|(at, _)| *at).chain([MonoNs(u64::MAX)]);
        let steps = self.0[first..last].iter().zip(ends).filter(|((_, count), _)| *count > 0);
        let clipped = steps.map(move |(&(at, count), end)| (Span::new(at, end).clip(window), count));
        clipped.filter(|(span, _)| !span.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span::new(MonoNs(start), MonoNs(end))
    }

    #[test]
    fn touching_spans_merge_and_empty_ones_vanish() {
        let union = Spans::union([span(5, 7), span(1, 3), span(3, 4), span(9, 9)]);
        assert_eq!(union, Spans(vec![span(1, 4), span(5, 7)]));
        assert_eq!(union.total(), DurationNs(5));
    }

    #[test]
    fn steps_count_the_spans_over_each_instant() {
        let steps = Steps::depth([span(0, 10), span(2, 4), span(4, 6), span(20, 21)]);
        let within = |from, to| steps.within(span(from, to)).collect::<Vec<_>>();
        assert_eq!(
            within(0, 30),
            [(span(0, 2), 1), (span(2, 4), 2), (span(4, 6), 2), (span(6, 10), 1), (span(20, 21), 1)]
        );
        assert_eq!(within(3, 7), [(span(3, 4), 2), (span(4, 6), 2), (span(6, 7), 1)]);
        assert_eq!(within(10, 20), []);
        assert_eq!(within(25, 30), []);
    }

    fn some_spans() -> impl Strategy<Value = Vec<Span>> {
        proptest::collection::vec((0u64..200, 0u64..30), 0..20)
            .prop_map(|pairs| pairs.into_iter().map(|(start, length)| span(start, start + length)).collect())
    }

    proptest! {
        #[test]
        fn a_union_covers_exactly_the_instants_of_its_spans(spans in some_spans(), window in (0u64..200, 0u64..50)) {
            let union = Spans::union(spans.iter().copied());
            let window = span(window.0, window.0 + window.1);
            let counted = (window.start.0..window.end.0)
                .filter(|&at| spans.iter().any(|span| span.contains(MonoNs(at))))
                .count() as u64;
            prop_assert_eq!(union.total_within(window), DurationNs(counted));
            for pair in union.0.windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
        }

        #[test]
        fn an_intersection_covers_the_common_instants(left in some_spans(), right in some_spans()) {
            let (a, b) = (Spans::union(left), Spans::union(right));
            let counted = (0..400)
                .filter(|&at| [&a, &b].iter().all(|set| set.iter().any(|span| span.contains(MonoNs(at)))))
                .count() as u64;
            prop_assert_eq!(a.intersect(&b).total(), DurationNs(counted));
        }

        #[test]
        fn what_is_cut_out_and_what_is_common_make_up_the_whole(left in some_spans(), right in some_spans()) {
            let (a, b) = (Spans::union(left), Spans::union(right));
            let rest = a.minus(&b);
            prop_assert_eq!(rest.intersect(&b).total(), DurationNs::ZERO);
            prop_assert_eq!(Spans::union(rest.iter().chain(a.intersect(&b).iter())), a);
        }
    }
}
