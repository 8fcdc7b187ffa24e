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

/// How many spans of several lie over each instant: a step function, as (from, count) in order, ending with count 0.
#[must_use]
pub fn depth(spans: impl IntoIterator<Item = Span>) -> Vec<(MonoNs, u32)> {
    let mut edges: Vec<(MonoNs, i32)> =
        spans.into_iter().filter(|span| !span.is_empty()).flat_map(|span| [(span.start, 1), (span.end, -1)]).collect();
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
    steps
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
    fn depth_counts_the_spans_over_each_instant() {
        assert_eq!(
            depth([span(0, 10), span(2, 4), span(4, 6)]),
            [(0, 1), (2, 2), (6, 1), (10, 0)].map(|(at, n)| (MonoNs(at), n)).into_iter().fold(
                vec![],
                |mut steps: Vec<(MonoNs, u32)>, step| {
                    if step.0 == MonoNs(6) {
                        steps.push((MonoNs(4), 2));
                    }
                    steps.push(step);
                    steps
                }
            )
        );
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
