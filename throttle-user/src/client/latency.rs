//! What was waited: HdrHistograms of wall, service time and latency, and their text form.
//!
//! Owns recording, quantiles that the number of answers supports, and the `.hgrm` format. All values are nanoseconds
//! with three significant digits; the largest is kept exactly beside them.

use std::io::{self, Write};

use hdrhistogram::Histogram;

use crate::request::{Outcome, RequestSpan};
use crate::time::DurationNs;

/// Significant decimal digits of every histogram.
const DIGITS: u8 = 3;
/// Sub-buckets that `DIGITS` takes: twice 10^3, rounded up to a power of two (`SubBucketCount` of the Java original).
const SUB_BUCKETS: u32 = 2048;
/// Reporting points per halving of the distance to 100 %, the HdrHistogram tools' default.
const TICKS_PER_HALF: u32 = 5;

/// Lengths of one kind.
#[derive(Clone, Debug)]
pub struct Lengths {
    histogram: Histogram<u64>,
    max: DurationNs,
}

/// A quantile, where the number of values supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantile {
    /// The value, to three digits.
    Value(DurationNs),
    /// A quantile finer than the values: it would be the maximum under another name.
    TooFew {
        /// Values needed for the quantile to lie below the maximum.
        needed: u64,
    },
}

/// The answered requests of a run, by kind of length; failed requests are counted, and are in none of the lengths.
#[derive(Clone, Debug, Default)]
pub struct LatencyRecord {
    /// The server's wall time of the work.
    pub wall: Lengths,
    /// Sent to received.
    pub service: Lengths,
    /// Due to received.
    pub latency: Lengths,
    /// Due to sent: how late the client was.
    pub late: Lengths,
    /// Requests without an answer.
    pub failed: u64,
}

impl Default for Lengths {
    fn default() -> Self {
        let mut histogram = Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("three digits are allowed"));
        histogram.auto(true);
        Self { histogram, max: DurationNs::ZERO }
    }
}

impl Lengths {
    /// Counts one length in.
    pub fn record(&mut self, length: DurationNs) {
        // A histogram that resizes refuses only what needs more memory than there is; saturation then loses no count.
        if self.histogram.record(length.0).is_err() {
            self.histogram.saturating_record(length.0);
        }
        self.max = self.max.max(length);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The largest, exactly; `None` of none.
    #[must_use]
    pub fn max(&self) -> Option<DurationNs> {
        (self.count() > 0).then_some(self.max)
    }

    /// The value that `permille` of a thousand do not exceed.
    #[must_use]
    pub fn quantile(&self, permille: u32) -> Quantile {
        let needed = 1_000_u64.div_ceil(u64::from(1_000_u32.saturating_sub(permille).max(1)));
        if self.count() < needed {
            return Quantile::TooFew { needed };
        }
        let value = self.histogram.value_at_quantile(f64::from(permille) / 1e3);
        Quantile::Value(DurationNs(value).min(self.max))
    }

    /// The histogram, in nanoseconds.
    #[must_use]
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Forgets all values, and keeps the memory.
    pub fn reset(&mut self) {
        self.histogram.reset();
        self.max = DurationNs::ZERO;
    }
}

impl LatencyRecord {
    /// Counts a finished request in.
    pub fn record(&mut self, span: &RequestSpan) {
        match &span.outcome {
            Outcome::Ok { server } => {
                self.wall.record(server.wall());
                self.service.record(span.service_time());
                self.latency.record(span.latency());
                self.late.record(span.sent_ns.since(span.due_ns));
            }
            Outcome::Failed { .. } => self.failed += 1,
        }
    }
}

/// Writes `lengths` as the percentile distribution text that HdrHistogram's tools print and plot (`.hgrm`;
/// `AbstractHistogram.outputPercentileDistribution` of the Java original), values in milliseconds.
///
/// # Errors
/// Those of `out`.
pub fn write_hgrm(lengths: &Lengths, mut out: impl Write) -> io::Result<()> {
    let histogram = lengths.histogram();
    writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (millis(step.value_iterated_to()), step.quantile_iterated_to());
        if quantile < 1.0 {
            writeln!(out, "{value:12.3} {quantile:14.12} {total:10} {:14.2}", 1.0 / (1.0 - quantile))?;
        } else {
            writeln!(out, "{value:12.3} {quantile:14.12} {total:10}")?;
        }
    }
    let (mean, deviation) = (histogram.mean() / 1e6, histogram.stdev() / 1e6);
    writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]")?;
    writeln!(out, "#[Max     = {:12.3}, Total count    = {:12}]", millis(histogram.max()), histogram.len())?;
    writeln!(out, "#[Buckets = {:12}, SubBuckets     = {SUB_BUCKETS:12}]", histogram.buckets())
}

fn millis(ns: u64) -> f64 {
    DurationNs(ns).as_millis_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(ms: impl IntoIterator<Item = u64>) -> Lengths {
        let mut lengths = Lengths::default();
        ms.into_iter().for_each(|ms| lengths.record(DurationNs::from_millis(ms)));
        lengths
    }

    #[test]
    fn a_quantile_finer_than_the_values_is_not_given() {
        assert_eq!(lengths(1..=99).quantile(990), Quantile::TooFew { needed: 100 });
        assert!(matches!(lengths(1..=100).quantile(990), Quantile::Value(_)));
        assert_eq!(lengths([]).quantile(500), Quantile::TooFew { needed: 2 });
        assert_eq!(lengths(1..=9).quantile(900), Quantile::TooFew { needed: 10 });
        assert_eq!(lengths(1..=40).quantile(999), Quantile::TooFew { needed: 1000 });
    }

    #[test]
    fn quantiles_are_right_to_three_digits() {
        let lengths = lengths(1..=1_000);
        for (permille, ms) in [(500, 500.0), (900, 900.0), (990, 990.0)] {
            let Quantile::Value(value) = lengths.quantile(permille) else { panic!("{permille} of a thousand") };
            assert!((value.as_millis_f64() / ms - 1.0).abs() < 1e-3, "p{permille}: {value:?}");
        }
    }

    #[test]
    fn the_maximum_is_exact_and_no_quantile_exceeds_it() {
        let mut lengths = Lengths::default();
        (0..100).for_each(|_| lengths.record(DurationNs(61_234_567)));
        assert_eq!(lengths.max(), Some(DurationNs(61_234_567)));
        assert_eq!(lengths.quantile(990), Quantile::Value(DurationNs(61_234_567)));
        assert_eq!(Lengths::default().max(), None);
    }

    #[test]
    fn hgrm_is_the_text_hdrhistogram_prints() {
        let mut text = Vec::new();
        write_hgrm(&lengths([10, 20, 30, 40]), &mut text).expect("writes to memory");
        let text = String::from_utf8(text).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "       Value     Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[1], "");
        assert_eq!(lines[2], "      10.002 0.000000000000          1           1.00");
        let half = lines.iter().find(|line| line.contains(" 0.500000000000 ")).expect("the median");
        assert!(half.starts_with("      20.") && half.ends_with("          2           2.00"), "{text}");
        let footer = lines.len() - 3;
        assert!(lines[footer - 1].ends_with("1.000000000000          4"), "{text}");
        let mean: f64 = lines[footer]
            .strip_prefix("#[Mean    = ")
            .and_then(|line| line.split_once(", StdDeviation   = ")?.0.trim().parse().ok())
            .expect("a mean");
        assert!((mean / 25.0 - 1.0).abs() < 1e-3, "{text}");
        assert!(lines[footer + 1].ends_with(", Total count    =            4]"), "{text}");
        assert!(lines[footer + 2].ends_with(", SubBuckets     =         2048]"), "{text}");
    }
}
