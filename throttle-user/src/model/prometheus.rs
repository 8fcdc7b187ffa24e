//! What Prometheus makes of samples: `increase`, `rate`, and the value an instant selector shows.
//!
//! Follows `extrapolatedRate` in promql/functions.go and `vectorSelectorSingle` in promql/engine.go of Prometheus operation by
//! operation, so that results agree to the last digits. Native histograms, and the modifiers `anchored` and `smoothed`, are
//! not covered.

use serde::{Deserialize, Serialize};

use crate::time::DurationNs;

/// A sample as Prometheus stores it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds: its timestamp, of any epoch.
    pub at_ms: i64,
    /// `None` = a stale marker: the series has ended here.
    pub value: Option<f64>,
}

/// How long an instant selector looks back for the newest sample: the default of `--query.lookback-delta`.
pub const LOOKBACK: DurationNs = DurationNs::from_millis(300_000);

/// Versions of Prometheus that differ in what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edition {
    /// Up to 2.50: a range holds both its ends, and extrapolation to where a counter was 0 may reach further than half an interval.
    UpTo2_50,
    /// 2.51 to 2.55: that is limited (CHANGELOG.md of 2.51.0, change 13725).
    From2_51,
    /// From 3.0: a range does not hold its start (CHANGELOG.md of 3.0.0, change 13904).
    #[default]
    From3,
}

impl Edition {
    fn holds_start(self) -> bool {
        self != Self::From3
    }
}

/// `increase(x[range])` at an instant; `None` = Prometheus returns nothing: fewer than two samples in the range.
#[must_use]
pub fn increase(samples: &[Sample], at_ms: i64, range: DurationNs, edition: Edition) -> Option<f64> {
    extrapolated(samples, at_ms, range, edition).map(|(grown, factor)| grown * factor)
}

/// `rate(x[range])` at an instant, a second.
#[must_use]
pub fn rate(samples: &[Sample], at_ms: i64, range: DurationNs, edition: Edition) -> Option<f64> {
    extrapolated(samples, at_ms, range, edition).map(|(grown, factor)| grown * (factor / seconds(millis(range))))
}

/// The value that the selector `x` has at an instant: the newest sample, unless it is too old or a stale marker.
#[must_use]
pub fn instant(samples: &[Sample], at_ms: i64, lookback: DurationNs, edition: Edition) -> Option<f64> {
    let after = samples.partition_point(|sample| sample.at_ms <= at_ms);
    let newest = samples[..after].last()?;
    let oldest = at_ms - millis(lookback);
    (newest.at_ms > oldest || (edition.holds_start() && newest.at_ms == oldest)).then_some(newest.value?)
}

/// Growth from the first to the last sample, resets added, and the factor that extrapolates it to the range.
fn extrapolated(samples: &[Sample], at_ms: i64, range: DurationNs, edition: Edition) -> Option<(f64, f64)> {
    let start_ms = at_ms - millis(range);
    let from = samples.partition_point(|sample| match edition.holds_start() {
        true => sample.at_ms < start_ms,
        false => sample.at_ms <= start_ms,
    });
    let to = samples.partition_point(|sample| sample.at_ms <= at_ms).max(from);
    let mut values = samples[from..to].iter().filter_map(|sample| Some((sample.at_ms, sample.value?)));
    let (first_ms, first) = values.next()?;
    let (mut last_ms, mut last, mut intervals, mut resets) = (first_ms, first, 0_u32, 0.0);
    for (when, value) in values {
        if value < last {
            resets += last;
        }
        (last_ms, last, intervals) = (when, value, intervals + 1);
    }
    if intervals == 0 {
        return None;
    }
    let grown = last - first + resets;

    let sampled = seconds(last_ms - first_ms);
    let average = sampled / f64::from(intervals);
    let threshold = average * 1.1;
    // A series that ends well inside the range is taken to go on for half an interval there.
    let limited = |length: f64| if length >= threshold { average / 2.0 } else { length };
    // No counter is below 0: it began where its slope meets that.
    let to_zero = if grown > 0.0 && first >= 0.0 { sampled * (first / grown) } else { f64::INFINITY };
    let to_start = seconds(first_ms - start_ms);
    let before = match edition {
        Edition::UpTo2_50 => limited(to_start.min(to_zero)),
        Edition::From2_51 | Edition::From3 => limited(to_start).min(to_zero),
    };
    let after = limited(seconds(at_ms - last_ms));
    Some((grown, (sampled + before + after) / sampled))
}

fn millis(length: DurationNs) -> i64 {
    i64::try_from(length.0 / 1_000_000).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "as Prometheus does it; milliseconds stay far below 2^53")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: i64 = 60_000;
    const ALL: [Edition; 3] = [Edition::UpTo2_50, Edition::From2_51, Edition::From3];

    /// `first+stepxN` of promtool's notation, one value each `every` ms from 0.
    fn series(every: i64, runs: &[(f64, f64, usize)]) -> Vec<Sample> {
        let values = runs.iter().flat_map(|&(first, step, times)| {
            (0..=times).scan(first, move |next, _| {
                let value = *next;
                *next += step;
                Some(value)
            })
        });
        (0..)
            .step_by(usize::try_from(every).expect("positive"))
            .zip(values)
            .map(|(at_ms, value)| sample(at_ms, value))
            .collect()
    }

    fn sample(at_ms: i64, value: f64) -> Sample {
        Sample { at_ms, value: Some(value) }
    }

    fn length(ms: i64) -> DurationNs {
        DurationNs::from_millis(ms.unsigned_abs())
    }

    #[track_caller]
    fn near(got: Option<f64>, want: f64) {
        let got = got.expect("a value");
        assert!((got - want).abs() <= 1e-9 * want.abs().max(1.0), "{got}, not {want}");
    }

    #[test]
    fn increases_are_those_of_prometheus_own_tests() {
        // promql/promqltest/testdata/functions.test (3.x): `load 5m`, increase at 50m over 50m and 100m.
        for (run, over_50m, over_100m) in [
            (vec![(0.0, 10.0, 10)], 100.0, 100.0),
            (vec![(0.0, 18.0, 5), (0.0, 18.0, 5)], 160.0, 162.0),
            (vec![(10.0, 10.0, 10)], 100.0, 105.0),
            (vec![(1.0, 10.0, 10)], 100.0, 101.0),
        ] {
            let samples = series(5 * MINUTE, &run);
            near(increase(&samples, 50 * MINUTE, length(50 * MINUTE), Edition::From3), over_50m);
            near(increase(&samples, 50 * MINUTE, length(100 * MINUTE), Edition::From3), over_100m);
        }
        // The same file of 2.42.
        for run in [vec![(0.0, 10.0, 10)], vec![(0.0, 10.0, 5), (0.0, 10.0, 5)]] {
            let (samples, want) = (series(5 * MINUTE, &run), if run.len() == 1 { 100.0 } else { 90.0 });
            near(increase(&samples, 50 * MINUTE, length(50 * MINUTE), Edition::UpTo2_50), want);
            near(increase(&samples, 50 * MINUTE, length(100 * MINUTE), Edition::UpTo2_50), want);
        }
        let reset = series(5 * MINUTE, &[(0.0, 1.0, 3), (2.0, 1.0, 2)]);
        for edition in ALL {
            near(increase(&reset, 30 * MINUTE, length(30 * MINUTE), edition), 7.0);
        }
    }

    #[test]
    fn rates_are_those_of_prometheus_own_tests() {
        let middle = series(5 * MINUTE, &[(0.0, 27.0, 4), (0.0, 27.0, 5)]);
        near(rate(&middle, 50 * MINUTE, length(50 * MINUTE), Edition::From3), 0.08);
        let middle = series(5 * MINUTE, &[(0.0, 10.0, 4), (0.0, 10.0, 5)]);
        near(rate(&middle, 50 * MINUTE, length(50 * MINUTE), Edition::UpTo2_50), 0.03);

        let end = series(5 * MINUTE, &[(0.0, 10.0, 9), (0.0, 0.0, 0), (10.0, 0.0, 0)]);
        assert_eq!(
            rate(&end, 50 * MINUTE, length(5 * MINUTE), Edition::From3),
            None,
            "one sample, the other at the start"
        );
        near(rate(&end, 50 * MINUTE, length(6 * MINUTE), Edition::From3), 0.0);
        near(rate(&end, 50 * MINUTE, length(5 * MINUTE), Edition::UpTo2_50), 0.0);

        // testcounter_zero_cutoff: `load 4m`, rate[20m] at 10m and at 50m.
        let new = [0.5, 0.55, 0.6, 0.6, 0.6, 0.6];
        let old = [0.5, 0.55, 0.6, 0.65, 0.7, 0.6];
        for (minute, (new, old)) in (0..6_i32).zip(new.into_iter().zip(old)) {
            let samples = series(4 * MINUTE, &[(60.0 * f64::from(minute), 240.0, 10)]);
            for (edition, early) in [(Edition::UpTo2_50, old), (Edition::From2_51, new), (Edition::From3, new)] {
                near(rate(&samples, 10 * MINUTE, length(20 * MINUTE), edition), early);
                // 50 min: the range reaches from 30 to 50, samples from 32 to 40 lie in it.
                near(rate(&samples, 50 * MINUTE, length(20 * MINUTE), edition), 0.6);
            }
        }
    }

    #[test]
    fn an_instant_selector_forgets_after_five_minutes_and_at_a_stale_marker() {
        let samples = [sample(0, 7.0), Sample { at_ms: 10 * MINUTE, value: None }, sample(20 * MINUTE, 9.0)];
        let shown = |at_ms| instant(&samples, at_ms, LOOKBACK, Edition::From3);
        assert_eq!([-1, 0, 5 * MINUTE - 1, 5 * MINUTE].map(shown), [None, Some(7.0), Some(7.0), None]);
        assert_eq!(instant(&samples, 5 * MINUTE, LOOKBACK, Edition::UpTo2_50), Some(7.0), "both ends are held");
        assert_eq!([10 * MINUTE, 20 * MINUTE - 1, 20 * MINUTE].map(shown), [None, None, Some(9.0)]);
        // A range passes over the marker.
        near(
            increase(&samples, 20 * MINUTE, length(20 * MINUTE + 1), Edition::From3),
            2.0 * (20.0 + 0.001 / 60.0) / 20.0,
        );
    }

    proptest! {
        /// Samples at a fixed distance of a counter that grows evenly: whatever the offsets, what is extrapolated is its slope.
        #[test]
        fn an_even_counter_has_its_slope_as_rate(
            every in 1_000_i64..30_000, offset in 0_i64..30_000, slope in 0.01_f64..1e4, range in 120_000_i64..600_000,
        ) {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let value = |at: i64| 1e9 + slope * at as f64 / 1000.0;
            let samples: Vec<Sample> = (0..200).map(|n| offset % every + n * every).map(|at| sample(at, value(at))).collect();
            let at_ms = samples[samples.len() - 1].at_ms;
            prop_assume!(at_ms > range);
            for edition in ALL {
                let got = rate(&samples, at_ms, length(range), edition).expect("many samples");
                prop_assert!((got - slope).abs() <= 1e-4 * slope.max(1.0), "{} for {}", got, slope);
                let grown = increase(&samples, at_ms, length(range), edition).expect("many samples");
                prop_assert!((grown - got * seconds(range)).abs() <= 1e-9 * grown.max(1.0));
            }
        }

        /// What is between the first and the last sample is never lost nor counted twice, and no more than an interval is added at
        /// either end.
        #[test]
        fn extrapolation_is_bounded_by_an_interval_at_either_end(
            gaps in prop::collection::vec((1_i64..60_000, 0_u32..1_000), 2..60), back in 1_i64..600_000, ahead in 0_i64..60_000,
        ) {
            let (mut at, mut value) = (0, 0.0);
            let samples: Vec<Sample> = gaps.iter().map(|&(gap, more)| {
                (at, value) = (at + gap, value + f64::from(more));
                sample(at, value)
            }).collect();
            let at_ms = at + ahead;
            for edition in ALL {
                let start = at_ms - back;
                let inside: Vec<&Sample> = samples.iter()
                    .filter(|sample| sample.at_ms > start || (edition.holds_start() && sample.at_ms == start)).collect();
                let got = increase(&samples, at_ms, length(back), edition);
                prop_assert_eq!(got.is_some(), inside.len() >= 2);
                let (Some(got), Some(first), Some(last)) = (got, inside.first(), inside.last()) else { continue };
                let seen = last.value.expect("a value") - first.value.expect("a value");
                #[expect(clippy::cast_precision_loss, reason = "few samples")]
                let most = seen * (1.0 + 2.2 / (inside.len() - 1) as f64);
                prop_assert!(got >= seen - 1e-9 && got <= most + 1e-6, "{} outside {}..{}", got, seen, most);
            }
        }
    }
}
