//! A number that only grows, known at the instants at which it grew.

use crate::time::{DurationNs, MonoNs};
use crate::timeline::interval::{Span, Spans};

/// A counter over time: 0 before its first point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Instants and values, both ascending.
    points: Vec<(MonoNs, u64)>,
    /// Whether it grows evenly from one point to the next, the first being at 0, or holds its value until then.
    even: bool,
}

impl Counter {
    /// A counter that has each value from its instant on; points in order.
    #[must_use]
    pub fn steps(points: impl IntoIterator<Item = (MonoNs, u64)>) -> Self {
        Self { points: points.into_iter().collect(), even: false }
    }

    /// The time that had passed inside `spans`, in ns.
    #[must_use]
    pub fn of_spans(spans: &Spans) -> Self {
        let mut points = Vec::new();
        let mut passed = 0;
        for span in spans.iter() {
            points.push((span.start, passed));
            passed += span.length().0;
            points.push((span.end, passed));
        }
        Self { points, even: true }
    }

    /// The same for stretches in order that each stand for so many at once, such as threads on CPUs.
    #[must_use]
    pub fn of_steps(stretches: impl IntoIterator<Item = (Span, u32)>) -> Self {
        let mut points = Vec::new();
        let mut passed = 0_u64;
        for (span, count) in stretches {
            points.push((span.start, passed));
            passed = passed.saturating_add(span.length().0.saturating_mul(u64::from(count)));
            points.push((span.end, passed));
        }
        Self { points, even: true }
    }

    /// Its value at an instant.
    #[must_use]
    pub fn at(&self, at: MonoNs) -> u64 {
        let after = self.points.partition_point(|(when, _)| *when <= at);
        let Some(&(from, low)) = after.checked_sub(1).and_then(|last| self.points.get(last)) else { return 0 };
        match self.points.get(after) {
            Some(&(to, high)) if self.even && to > from => {
                let passed = u128::from(at.since(from).0) * u128::from(high - low) / u128::from(to.since(from).0);
                low + u64::try_from(passed).unwrap_or(0)
            }
            _ => low,
        }
    }

    /// By how much it grows in a span, its end included and its start not.
    #[must_use]
    pub fn growth(&self, span: Span) -> u64 {
        self.at(span.end) - self.at(span.start)
    }

    /// The first instant in a span, its end included and its start not, at which it stands higher than before; of a counter that
    /// grows evenly, the end of the first stretch in which it does.
    #[must_use]
    pub fn first_growth(&self, span: Span) -> Option<MonoNs> {
        let before = self.at(span.start);
        let first = self.points.partition_point(|(when, _)| *when <= span.start);
        self.points[first..]
            .iter()
            .take_while(|(when, _)| *when <= span.end)
            .find(|(_, value)| *value > before)
            .map(|(when, _)| *when)
    }

    /// The most it grows over any stretch of a length. Growth over a stretch changes evenly while neither end meets a point, so the
    /// most is found with a point at one of the ends.
    #[must_use]
    pub fn largest_growth(&self, length: DurationNs) -> u64 {
        let ends = self.points.iter().flat_map(|&(at, value)| {
            let (before, after) = (MonoNs(at.0.saturating_sub(length.0)), at + length);
            [value - self.at(before), self.at(after) - value]
        });
        ends.max().unwrap_or(0)
    }

    /// What a span of it would look like again and again: from `span.start`, where it begins at 0, `times` times in a row.
    #[must_use]
    pub fn repeated(&self, span: Span, times: u64) -> Self {
        let (base, grown) = (self.at(span.start), self.growth(span));
        let first = self.points.partition_point(|(when, _)| *when <= span.start);
        let last = self.points.partition_point(|(when, _)| *when < span.end).max(first);
        let inside = &self.points[first..last];
        let points = (0..times).flat_map(|time| {
            let (shift, lift) = (DurationNs(time * span.length().0), time * grown);
            let begins = (span.start + shift, lift);
            let ends = (span.end + shift, lift + grown);
            let within = inside.iter().map(move |&(when, value)| (when + shift, value - base + lift));
            std::iter::once(begins).chain(within).chain([ends])
        });
        Self { points: points.collect(), even: self.even }
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
    fn a_step_counts_from_its_instant_on() {
        let counter = Counter::steps([(MonoNs(10), 1), (MonoNs(20), 5)]);
        assert_eq!([0, 9, 10, 19, 20, 99].map(|at| counter.at(MonoNs(at))), [0, 0, 1, 1, 5, 5]);
        assert_eq!((counter.growth(span(9, 10)), counter.growth(span(10, 19))), (1, 0));
        assert_eq!(counter.first_growth(span(10, 20)), Some(MonoNs(20)));
        assert_eq!(counter.first_growth(span(20, 90)), None);
    }

    #[test]
    fn time_in_spans_grows_inside_them_and_rests_between() {
        let spans = Spans::union([span(10, 20), span(40, 50)]);
        let counter = Counter::of_spans(&spans);
        assert_eq!([5, 15, 20, 30, 45, 60].map(|at| counter.at(MonoNs(at))), [0, 5, 10, 10, 15, 20]);
        let two_at_once = Counter::of_steps([(span(10, 20), 2), (span(20, 30), 1)]);
        assert_eq!([15, 20, 25, 30, 31].map(|at| two_at_once.at(MonoNs(at))), [10, 20, 25, 30, 30]);
    }

    proptest! {
        #[test]
        fn a_repetition_grows_by_the_same_in_every_round(
            gaps in prop::collection::vec((1_u64..30, 1_u64..5), 1..20), from in 0_u64..100, length in 1_u64..100, at in 0_u64..100,
            even in any::<bool>(),
        ) {
            let (mut when, mut value) = (0, 0);
            // What grows evenly begins at 0.
            let points = gaps.iter().enumerate().map(|(index, &(gap, more))| {
                (when, value) = (when + gap, if even && index == 0 { 0 } else { value + more });
                (MonoNs(when), value)
            });
            let counter = Counter { points: points.collect(), even };
            let stretch = span(from, from + length);
            let repeated = counter.repeated(stretch, 3);
            let inside = (at % length) + 1;
            let once = counter.growth(span(from, from + inside));
            for round in 0..3 {
                let start = from + round * length;
                let again = repeated.growth(span(start, start + inside));
                // What grows evenly is rounded to whole units at either end.
                prop_assert!(again.abs_diff(once) <= u64::from(even), "{} in round {}, {} once", again, round, once);
            }
            prop_assert_eq!(repeated.at(MonoNs(from)), 0);
        }
    }
}
