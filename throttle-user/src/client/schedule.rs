//! When requests are due: closed loop with a gap, or open loop by a fixed spacing.
//!
//! Owns the arithmetic, and no clock: every function takes instants and returns instants, so a schedule is exact for as
//! long as it runs and a late sender shows as lateness instead of moving the schedule.

use std::num::{NonZeroU32, NonZeroU64};

use crate::time::{DurationNs, MonoNs};

/// How requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each stream sends, waits for the answer, waits the gap, and sends again. A slow answer delays the next request,
    /// so the latency of a closed loop leaves out the wait a fixed schedule would have seen.
    Closed {
        /// Streams at once, one connection each, all starting together.
        streams: NonZeroU32,
        /// From an answer to the next request of the same stream.
        gap: DurationNs,
        /// Each gap is longer by a part of this that differs from request to request; all together cover it evenly.
        spread: DurationNs,
    },
    /// Requests fall due by the clock whether or not earlier ones were answered.
    Open {
        /// Distance of due times.
        spacing: Spacing,
    },
}

/// The `number`-th of a sequence that covers `0..spread` evenly, however many of it are taken: multiples of the golden ratio, of
/// which only the fraction is kept (Weyl's sequence). A gap of whole CFS periods starts every request at the same point of a
/// period; lengthened by this, starts cover the period.
#[must_use]
pub(super) fn part_of(spread: DurationNs, number: u64) -> DurationNs {
    /// 2^64 / golden ratio.
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let fraction = number.wrapping_mul(STEP);
    DurationNs(u64::try_from((u128::from(spread.0) * u128::from(fraction)) >> 64).unwrap_or(spread.0))
}

/// A rate as a fraction: `requests` are due every `period`. Kept as a fraction so that no rate drifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spacing {
    period_ns: NonZeroU64,
    requests: NonZeroU64,
}

/// When a run stops sending. With both, whichever comes first; with neither it runs until cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// After so many requests over all streams.
    pub requests: Option<u64>,
    /// When this long has passed since the start: nothing is sent, or falls due, at or after it.
    pub duration: Option<DurationNs>,
}

impl Spacing {
    /// One request every `interval`; `None` for an empty interval.
    #[must_use]
    pub fn every(interval: DurationNs) -> Option<Self> {
        Some(Self { period_ns: NonZeroU64::new(interval.0)?, requests: NonZeroU64::MIN })
    }

    /// `requests` every thousand seconds, so that a rate a second can have three decimals; `None` for no requests.
    #[must_use]
    pub fn per_thousand_seconds(requests: u64) -> Option<Self> {
        Some(Self { period_ns: NonZeroU64::new(1_000_000_000_000)?, requests: NonZeroU64::new(requests)? })
    }

    /// When request `number` (from 0) of a run started at `start` is due: rounded down to the nanosecond, each from the
    /// start anew, so roundings never add up. Ends at the last instant of the clock.
    #[must_use]
    pub fn due(&self, start: MonoNs, number: u64) -> MonoNs {
        let offset = u128::from(number) * u128::from(self.period_ns.get()) / u128::from(self.requests.get());
        MonoNs(start.0.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX)))
    }
}

impl End {
    /// Whether request `number` (from 0), due at `due` in a run started at `start`, is still to be sent.
    #[must_use]
    pub fn allows(&self, start: MonoNs, number: u64, due: MonoNs) -> bool {
        self.requests.is_none_or(|requests| number < requests)
            && self.duration.is_none_or(|duration| due.since(start) < duration)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: MonoNs = MonoNs(5_000_000_000);

    #[test]
    fn an_interval_is_kept_to_the_nanosecond() {
        let spacing = Spacing::every(DurationNs::from_millis(200)).expect("not empty");
        assert_eq!(spacing.due(START, 0), START);
        assert_eq!(spacing.due(START, 3), START + DurationNs::from_millis(600));
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_does_not_drift() {
        let spacing = Spacing::per_thousand_seconds(3_000).expect("three a second");
        assert_eq!(spacing.due(START, 1), START + DurationNs(333_333_333));
        assert_eq!(spacing.due(START, 3), START + DurationNs(1_000_000_000));
        assert_eq!(spacing.due(START, 3_000_000), START + DurationNs(1_000_000_000_000_000));
    }

    #[test]
    fn the_parts_of_a_spread_leave_no_hole() {
        let spread = DurationNs::from_millis(100);
        let mut parts: Vec<u64> = (0..100).map(|number| part_of(spread, number).0).collect();
        parts.sort_unstable();
        assert!(parts.windows(2).all(|pair| (300_000..2_700_000).contains(&(pair[1] - pair[0]))), "{parts:?}");
        assert!(parts[0] < 2_000_000 && (97_000_000..100_000_000).contains(&parts[99]));
        assert_eq!(part_of(DurationNs::ZERO, 7), DurationNs::ZERO);
    }

    #[test]
    fn no_rate_and_no_interval_are_refused() {
        assert_eq!(Spacing::per_thousand_seconds(0), None);
        assert_eq!(Spacing::every(DurationNs::ZERO), None);
    }

    #[test]
    fn a_run_ends_at_whichever_comes_first() {
        let end = End { requests: Some(10), duration: Some(DurationNs::from_millis(1_000)) };
        assert!(end.allows(START, 9, START));
        assert!(!end.allows(START, 10, START));
        assert!(end.allows(START, 0, START + DurationNs(999_999_999)));
        assert!(!end.allows(START, 0, START + DurationNs(1_000_000_000)));
        assert!(End::default().allows(START, u64::MAX, MonoNs(u64::MAX)));
    }

    proptest! {
        #[test]
        fn due_times_are_the_exact_fraction_rounded_down(
            start in 0..1_u64 << 60, number in 0..1_u64 << 32, rate in 1..1_000_000_000_u64
        ) {
            let spacing = Spacing::per_thousand_seconds(rate).expect("a rate");
            let offset = u128::from(spacing.due(MonoNs(start), number).0 - start);
            let exact = u128::from(number) * 1_000_000_000_000;
            prop_assert!(offset * u128::from(rate) <= exact);
            prop_assert!(exact < (offset + 1) * u128::from(rate));
        }

        #[test]
        fn due_times_never_go_back(start in any::<u64>(), number in any::<u32>(), ns in 1..1_u64 << 50) {
            let spacing = Spacing::every(DurationNs(ns)).expect("an interval");
            let number = u64::from(number);
            prop_assert!(spacing.due(MonoNs(start), number) <= spacing.due(MonoNs(start), number + 1));
        }
    }
}
