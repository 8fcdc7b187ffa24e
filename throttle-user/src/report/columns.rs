//! More stretches than can be seen, cut into columns: each is what most of its time was.

use crate::{
    run::picture::Span,
    time::{DurationNs, MonoNs},
};

/// Where the column with a number begins, of `count` over a window; the one after the last ends it.
pub(super) fn edge(window: Span, column: usize, count: usize) -> MonoNs {
    let part = u128::from(window.length().0) * column as u128 / count.max(1) as u128;
    window.start + DurationNs(u64::try_from(part).unwrap_or(u64::MAX))
}

/// What most of each of `count` columns was; `None` where nothing was more than anything. Stretches are in order and do not
/// overlap. Of two that are equal the first counts.
pub(super) fn most<K: Copy + PartialEq>(
    stretches: impl IntoIterator<Item = (Span, K)>,
    window: Span,
    count: usize,
) -> Vec<Option<K>> {
    let mut stretches = stretches.into_iter().peekable();
    let mut columns = Vec::with_capacity(count);
    for column in 0..count {
        let part = Span::new(edge(window, column, count), edge(window, column + 1, count));
        let mut times: Vec<(K, DurationNs)> = Vec::new();
        let mut drawn = DurationNs::ZERO;
        while let Some(&(span, kind)) = stretches.peek() {
            if span.start >= part.end {
                break;
            }
            let time = span.clip(part).length();
            drawn += time;
            match times.iter_mut().find(|(other, _)| *other == kind) {
                Some((_, sum)) => *sum += time,
                None => times.push((kind, time)),
            }
            // One that goes on is counted in the next column as well.
            if span.end > part.end {
                break;
            }
            stretches.next();
        }
        let nothing = part.length().saturating_sub(drawn);
        // The first of equals: max_by_key takes the last.
        let longest = times.into_iter().rev().max_by_key(|(_, time)| *time);
        columns.push(longest.filter(|&(_, time)| time != DurationNs::ZERO && time >= nothing).map(|(kind, _)| kind));
    }
    columns
}

/// The same as stretches: neighbours of one kind joined, nothing left out.
pub(super) fn joined<K: Copy + PartialEq>(columns: &[Option<K>], window: Span) -> Vec<(Span, K)> {
    let mut first = 0;
    let mut joined = Vec::new();
    for run in columns.chunk_by(|one, other| one == other) {
        let span = Span::new(edge(window, first, columns.len()), edge(window, first + run.len(), columns.len()));
        first += run.len();
        joined.extend(run[0].map(|kind| (span, kind)));
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(from: u64, to: u64) -> Span {
        Span::new(MonoNs(from), MonoNs(to))
    }

    #[test]
    fn a_column_is_what_most_of_it_was_and_empty_where_that_is_nothing() {
        let stretches = [(span(0, 12), 'a'), (span(12, 18), 'b'), (span(18, 20), 'a'), (span(29, 30), 'c')];
        assert_eq!(most(stretches, span(0, 40), 4), [Some('a'), Some('b'), None, None]);
        assert_eq!(most(stretches, span(29, 31), 2), [Some('c'), None]);
        assert_eq!(joined(&most(stretches, span(0, 20), 4), span(0, 20)), [(span(0, 10), 'a'), (span(10, 20), 'b')]);
    }

    proptest! {
        /// By counting instants.
        #[test]
        fn columns_are_the_majority_of_their_instants(
            lengths in prop::collection::vec((1u64..9, 0u8..3), 0..40), window in (0u64..60, 1u64..60), count in 1usize..20
        ) {
            let mut at = 0;
            let stretches: Vec<(Span, u8)> = lengths.iter().map(|&(length, kind)| {
                at += length;
                (span(at - length, at), kind)
            }).collect();
            let window = span(window.0, window.0 + window.1);
            for (column, found) in most(stretches.iter().copied(), window, count).into_iter().enumerate() {
                let (from, to) = (edge(window, column, count), edge(window, column + 1, count));
                let instants = |wanted: Option<u8>| (from.0..to.0).filter(|&instant| {
                    stretches.iter().find(|(span, _)| span.contains(MonoNs(instant))).map(|(_, kind)| *kind) == wanted
                }).count();
                let largest = (0..3).map(|kind| instants(Some(kind))).max().unwrap_or(0);
                match found {
                    Some(kind) => prop_assert!(instants(Some(kind)) == largest && largest >= instants(None)),
                    None => prop_assert!(largest == 0 || largest < instants(None)),
                }
            }
        }
    }
}
