//! Order statistics and their intervals, by exact arithmetic on logarithms of binomial terms. Written for the verifier alone.

/// Value at rank ceil(percent / 100 * n) of ascending values.
pub(crate) fn nearest_rank(sorted: &[u64], percent: u64) -> Option<u64> {
    let rank = (percent * sorted.len() as u64).div_ceil(100);
    sorted.get(usize::try_from(rank).ok()?.checked_sub(1)?).copied()
}

/// Arithmetic mean, rounded down.
pub(crate) fn mean(values: &[u64]) -> Option<u64> {
    let sum: u64 = values.iter().sum();
    sum.checked_div(values.len() as u64)
}

/// The interval of a quantile: order statistics with at most 2.5 % beyond each end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    /// `None`: so few values bound it on this side by none of them.
    pub(crate) lower: Option<u64>,
    /// See `lower`.
    pub(crate) upper: Option<u64>,
    /// Probability that it covers the quantile.
    pub(crate) coverage: f64,
}

const TAIL: f64 = 0.025;

/// Of the quantile `percent` of ascending values.
pub(crate) fn interval(sorted: &[u64], percent: u32) -> Option<Interval> {
    let n = sorted.len();
    if n == 0 {
        return None;
    }
    // below[k] = P(at most k of n values lie under the quantile)
    let p = f64::from(percent) / 100.0;
    let mut sum = 0.0;
    let mut choose = 0.0_f64; // ln of n over k
    let below: Vec<f64> = (0..=n)
        .map(|k| {
            if k > 0 {
                choose += (number(n - k + 1) / number(k)).ln();
            }
            sum += (choose + number(k) * p.ln() + number(n - k) * (1.0 - p).ln()).exp();
            sum
        })
        .collect();
    // Lower end at rank l: P(B <= l - 1) <= TAIL. Upper end at rank u: P(B <= u - 1) >= 1 - TAIL.
    let lower = (1..=n).rev().find(|&rank| below[rank - 1] <= TAIL);
    let upper = (1..=n).find(|&rank| below[rank - 1] >= 1.0 - TAIL);
    let low = lower.map_or(0.0, |rank| below[rank - 1]);
    let high = upper.map_or(1.0, |rank| below[rank - 1]);
    let at = |rank: Option<usize>| rank.map(|rank| sorted[rank - 1]);
    Some(Interval { lower: at(lower), upper: at(upper), coverage: high - low })
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ranks_of_forty_and_four_hundred() {
        let forty: Vec<u64> = (1..=40).collect();
        assert_eq!((nearest_rank(&forty, 50), nearest_rank(&forty, 99)), (Some(20), Some(40)));
        let median = interval(&forty, 50).expect("values");
        assert_eq!((median.lower, median.upper), (Some(14), Some(27)));
        assert!((median.coverage - 0.9615).abs() < 1e-4);
        let many: Vec<u64> = (1..=400).collect();
        let tail = interval(&many, 99).expect("values");
        assert_eq!(nearest_rank(&many, 99), Some(396));
        assert!(tail.lower.is_some_and(|lower| lower < 396) && tail.upper.is_some_and(|upper| upper > 396), "{tail:?}");
        assert_eq!(interval(&forty, 99).and_then(|tail| tail.upper), None);
        assert_eq!((nearest_rank(&[], 50), interval(&[], 50)), (None, None));
    }
}
