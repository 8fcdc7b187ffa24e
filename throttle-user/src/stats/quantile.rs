//! The one definition of a quantile used everywhere: an exact order statistic of the raw samples.
//!
//! Nearest rank: of `n` sorted samples the `p` quantile is the one at rank `ceil(p * n)`, counted from 1. It is always a
//! value that was measured, never an interpolation, and the rank is computed in integers.

use serde::{Deserialize, Serialize};

/// A quantile strictly between the minimum and the maximum, in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Quantile(u32);

/// Parts in the whole.
const WHOLE: u64 = 1_000_000;

impl Quantile {
    /// The median.
    pub const P50: Self = Self(500_000);
    /// Nine tenths.
    pub const P90: Self = Self(900_000);
    /// Ninety-nine hundredths.
    pub const P99: Self = Self(990_000);

    /// A quantile from parts per million; `None` outside 1..=999 999.
    #[must_use]
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm > 0 && (ppm as u64) < WHOLE { Some(Self(ppm)) } else { None }
    }

    /// The quantile as a share of one.
    #[must_use]
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// Nearest rank among `n` samples, counted from 1: `ceil(p * n)`. Zero only for `n == 0`.
    #[must_use]
    pub fn rank(self, n: u64) -> u64 {
        let exact = (u128::from(self.0) * u128::from(n)).div_ceil(u128::from(WHOLE));
        u64::try_from(exact).unwrap_or(n)
    }

    /// Whether `n` samples can tell this quantile from the nearer extreme: at least one sample is expected beyond it,
    /// `n * min(p, 1 - p) >= 1`. p99 needs 100 samples, p90 needs 10; below that show the maximum and say so.
    #[must_use]
    pub fn supported(self, n: u64) -> bool {
        let tail = u64::from(self.0).min(WHOLE - u64::from(self.0));
        u128::from(tail) * u128::from(n) >= u128::from(WHOLE)
    }

    /// The sample at this quantile's rank; `None` for no samples. `sorted` ascends.
    #[must_use]
    pub fn of<T: Copy + Ord>(self, sorted: &[T]) -> Option<T> {
        debug_assert!(sorted.is_sorted(), "quantiles are taken of sorted samples");
        let rank = usize::try_from(self.rank(sorted.len() as u64)).ok()?;
        sorted.get(rank.checked_sub(1)?).copied()
    }
}

impl TryFrom<u32> for Quantile {
    type Error = String;
    fn try_from(ppm: u32) -> Result<Self, String> {
        Self::from_ppm(ppm).ok_or_else(|| format!("quantile {ppm} ppm is not between 1 and 999999"))
    }
}

impl From<Quantile> for u32 {
    fn from(quantile: Quantile) -> Self {
        quantile.0
    }
}

/// What a set of samples says, no finer than their number supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary<T> {
    /// Number of samples, at least 1.
    pub n: u64,
    /// Smallest sample.
    pub min: T,
    /// Median; of a single sample that sample.
    pub p50: T,
    /// 90th percentile; `None` under 10 samples.
    pub p90: Option<T>,
    /// 99th percentile; `None` under 100 samples.
    pub p99: Option<T>,
    /// Largest sample.
    pub max: T,
    /// Arithmetic mean, rounded down to a whole unit.
    pub mean: T,
}

impl<T: Copy + Ord + Into<u64> + From<u64>> Summary<T> {
    /// Summary of `samples` in any order; `None` if there are none.
    #[must_use]
    pub fn of(samples: &[T]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let n = sorted.len() as u64;
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let total: u128 = sorted.iter().map(|&sample| u128::from(sample.into())).sum();
        let mean = T::from(u64::try_from(total / u128::from(n)).ok()?);
        let when_supported = |quantile: Quantile| quantile.of(&sorted).filter(|_| quantile.supported(n));
        Some(Self {
            n,
            min,
            p50: Quantile::P50.of(&sorted)?,
            p90: when_supported(Quantile::P90),
            p99: when_supported(Quantile::P99),
            max,
            mean,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ninety_nine_percent_of_one_hundred_is_the_ninety_ninth_and_not_the_maximum() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!(Quantile::P99.of(&sorted), Some(99));
        assert_eq!(Quantile::P50.of(&sorted), Some(50));
        assert_eq!(Quantile::P99.of(&sorted[..40]), Some(40));
        assert_eq!(Quantile::P50.of(&sorted[..1]), Some(1));
        assert_eq!(Quantile::P50.of::<u64>(&[]), None);
    }

    #[test]
    fn ranks_stay_exact_where_floating_point_would_round_up() {
        // 0.55 * 100 is 55.00000000000001 in binary floating point; its ceiling would be 56.
        assert_eq!(Quantile::from_ppm(550_000).map(|q| q.rank(100)), Some(55));
        assert_eq!(Quantile::P99.rank(u64::MAX), 18_262_276_632_972_456_099);
    }

    #[test]
    fn a_quantile_is_supported_from_the_first_n_with_a_sample_beyond_it() {
        for (quantile, least) in [(Quantile::P50, 2), (Quantile::P90, 10), (Quantile::P99, 100)] {
            assert!(quantile.supported(least) && !quantile.supported(least - 1), "{quantile:?}");
        }
        assert!(Quantile::from_ppm(0).is_none() && Quantile::from_ppm(1_000_000).is_none());
    }

    #[test]
    fn a_summary_shows_no_percentile_its_samples_do_not_support() {
        let forty = Summary::of(&(1..=40u64).rev().collect::<Vec<_>>()).expect("forty samples");
        assert_eq!(forty, Summary { n: 40, min: 1, p50: 20, p90: Some(36), p99: None, max: 40, mean: 20 });
        assert_eq!(Summary::of(&[7u64]).map(|s| (s.p50, s.p90, s.p99)), Some((7, None, None)));
        assert_eq!(Summary::<u64>::of(&[]), None);
    }

    proptest! {
        /// Definition by counting: the least sample with at least p*n samples at or below it.
        #[test]
        fn the_quantile_is_the_least_sample_with_enough_samples_at_or_below_it(
            mut samples in prop::collection::vec(0u64..50, 1..200), ppm in 1u32..1_000_000,
        ) {
            samples.sort_unstable();
            let quantile = Quantile::from_ppm(ppm).expect("in range");
            let enough = |value: u64| {
                let at_or_below = samples.iter().filter(|&&sample| sample <= value).count() as u64;
                at_or_below * WHOLE >= u64::from(ppm) * samples.len() as u64
            };
            let expected = samples.iter().copied().find(|&value| enough(value));
            prop_assert_eq!(quantile.of(&samples), expected);
        }
    }
}
