//! The periods that a request crossed.

use super::{Doing, LevelPicture, Span, Stretch};
use crate::{
    run::derive::RequestLine,
    time::{DurationNs, MonoNs},
};

/// A cell of the container's period grid that a request met, and what it did in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossed {
    /// The part of the cell that the request was there for.
    pub span: Span,
    /// Place of the period in [`LevelPicture::periods`]; absent = its timer rested, or it ended after the last reading.
    pub period: Option<usize>,
    /// On a CPU in it.
    pub on_cpu_ns: DurationNs,
    /// Held by a limit in it.
    pub held_ns: DurationNs,
}

/// Most cells of a request that are kept, from its beginning on: some hours of them.
const MOST: u64 = 100_000;

/// The cells from a request's first start to its last finish, in order, `MOST` at most.
pub(super) fn periods(line: &RequestLine, period: DurationNs, course: &[Stretch], leaf: &LevelPicture) -> Vec<Crossed> {
    let Some(phase) = line.share.phase_ns else { return vec![] };
    let whole = Span::new(line.started_ns, line.finished_ns);
    let count = (phase + whole.length()).0.div_ceil(period.0.max(1)).min(MOST);
    let first = MonoNs(line.started_ns.0.saturating_sub(phase.0));
    let cell = |number: u64| {
        let start = first + DurationNs(period.0.saturating_mul(number));
        let span = Span::new(start, start + period).clip(whole);
        let of = |wanted: fn(&Doing) -> bool| {
            let after = course.partition_point(|stretch| stretch.span.end <= span.start);
            let inside = course[after..].iter().take_while(|stretch| stretch.span.start < span.end);
            inside.filter(|stretch| wanted(&stretch.doing)).map(|stretch| stretch.span.clip(span).length()).sum()
        };
        // A late timer's record stands for several cells.
        let at = leaf.periods.partition_point(|period| period.period.end_ns <= start);
        Crossed {
            span,
            period: leaf.periods.get(at).filter(|period| period.period.start_ns <= start).map(|_| at),
            on_cpu_ns: of(|doing| matches!(doing, Doing::OnCpu { .. })),
            held_ns: of(|doing| matches!(doing, Doing::Throttled { .. })),
        }
    };
    (0..count).map(cell).collect()
}
