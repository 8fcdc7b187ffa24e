//! Confidence interval of a quantile from order statistics alone: no assumption on the distribution.
//!
//! Of `n` independent samples the number below the true `p` quantile is binomial(n, p), so the interval between the
//! samples at ranks `l` and `u` covers it with probability `P(l <= B <= u - 1)` (David & Nagaraja, Order Statistics, 7.1).
//! Samples that depend on each other (back-to-back requests in one phase) make it too narrow: that is the caller's to say.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

use crate::stats::quantile::Quantile;

/// Where the true quantile lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantileInterval<T> {
    /// Number of samples it rests on.
    pub n: u64,
    /// The quantile in question.
    pub quantile: Quantile,
    /// Lower end, a sample; `None` if `n` is too small for a lower end at this confidence.
    pub lower: Option<T>,
    /// Upper end, a sample; `None` if `n` is too small for an upper end (p99 of 40 samples has none).
    pub upper: Option<T>,
    /// Probability that the interval covers the quantile, at least the confidence asked for.
    pub coverage: f64,
}

/// Narrowest interval with at most half of `1 - confidence` in each tail. `sorted` ascends. `None` without samples or
/// with a confidence outside (0, 1).
#[must_use]
pub fn quantile_interval<T: Copy + Ord>(
    sorted: &[T],
    quantile: Quantile,
    confidence: f64,
) -> Option<QuantileInterval<T>> {
    let n = sorted.len() as u64;
    if n == 0 || !(confidence > 0.0 && confidence < 1.0) {
        return None;
    }
    let tail = (1.0 - confidence) / 2.0;
    let below = Binomial::new(quantile.share(), n).ok()?;
    // Samples at rank r is sorted[r - 1]. Lower rank: the largest l with P(B <= l - 1) <= tail, 0 if none.
    let lower_rank = first(0, n, |rank| below.cdf(rank) > tail);
    // Upper rank: the least u with P(B <= u - 1) >= 1 - tail, n + 1 if none.
    let upper_rank = 1 + first(0, n, |rank| below.cdf(rank) >= 1.0 - tail);
    let at = |rank: u64| usize::try_from(rank.checked_sub(1)?).ok().and_then(|index| sorted.get(index)).copied();
    let (lower, upper) = (at(lower_rank), at(upper_rank));
    let missed_low = if lower.is_some() { below.cdf(lower_rank - 1) } else { 0.0 };
    let reached_high = if upper.is_some() { below.cdf(upper_rank - 1) } else { 1.0 };
    Some(QuantileInterval { n, quantile, lower, upper, coverage: reached_high - missed_low })
}

/// The least value in `from..to` for which `holds` (which stays true once it is), or `to`.
fn first(from: u64, to: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numerator of P(B <= k) over `den^n` for p = num/den, exact.
    fn exact_cdf(n: u64, k: u64, num: u128, den: u128) -> u128 {
        let mut choose = 1u128;
        let mut total = 0u128;
        for i in 0..=k {
            total += choose
                * num.pow(u32::try_from(i).expect("small"))
                * (den - num).pow(u32::try_from(n - i).expect("small"));
            choose = choose * u128::from(n - i) / u128::from(i + 1);
        }
        total
    }

    #[test]
    fn ranks_agree_with_exact_binomial_arithmetic() {
        for (quantile, num, den) in [(Quantile::P50, 1u128, 2u128), (Quantile::P90, 9, 10)] {
            for n in 1..=30u64 {
                let sorted: Vec<u64> = (1..=n).collect();
                let got = quantile_interval(&sorted, quantile, 0.95).expect("samples");
                let whole = den.pow(u32::try_from(n).expect("small"));
                // tail 1/40 each: P <= 1/40 as 40 * numerator <= whole.
                let lower = (1..=n).rev().find(|&l| 40 * exact_cdf(n, l - 1, num, den) <= whole);
                let upper = (1..=n).find(|&u| 40 * (whole - exact_cdf(n, u - 1, num, den)) <= whole);
                assert_eq!((got.n, got.lower, got.upper), (n, lower, upper), "n {n} {quantile:?}");
                assert!(got.coverage >= 0.95);
            }
        }
    }

    #[test]
    fn the_median_of_forty_lies_between_ranks_fourteen_and_twenty_seven() {
        let sorted: Vec<u64> = (1..=40).collect();
        let median = quantile_interval(&sorted, Quantile::P50, 0.95).expect("samples");
        assert_eq!((median.lower, median.upper), (Some(14), Some(27)));
        assert!((median.coverage - 0.9615).abs() < 1e-4, "{}", median.coverage);
    }

    #[test]
    fn the_p99_of_forty_has_no_upper_end() {
        let sorted: Vec<u64> = (1..=40).collect();
        let tail = quantile_interval(&sorted, Quantile::P99, 0.95).expect("samples");
        assert_eq!((tail.n, tail.upper), (40, None));
        assert!(tail.lower.is_some() && tail.coverage >= 0.95);
    }

    #[test]
    fn no_samples_or_an_impossible_confidence_give_no_interval() {
        assert!(quantile_interval::<u64>(&[], Quantile::P50, 0.95).is_none());
        assert!(quantile_interval(&[1u64], Quantile::P50, 1.0).is_none());
        assert!(quantile_interval(&[1u64], Quantile::P50, f64::NAN).is_none());
    }
}
