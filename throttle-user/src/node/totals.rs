//! Counters of one cgroup since the observation began. They only grow; what was never measured is absent, not 0.

use crate::{
    time::{DurationNs, MonoNs},
    timeline::{
        interval::{Span, Steps},
        level::Throttle,
        live::LivePeriod,
    },
};

/// Upper bounds of the buckets, ns: from a tenth of a millisecond, shorter than which a timer's own latency weighs, to ten periods of
/// the usual length.
const BOUNDS: [u64; BUCKETS] = [
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    20_000_000,
    40_000_000,
    60_000_000,
    80_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
];
const BUCKETS: usize = 12;

/// How often lengths of time fell between fixed bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    above: u64,
    sum_ns: u64,
}

impl Histogram {
    /// Counts a length.
    pub fn observe(&mut self, length: DurationNs) {
        match BOUNDS.iter().position(|&bound| length.0 <= bound) {
            Some(bucket) => self.counts[bucket] += 1,
            None => self.above += 1,
        }
        self.sum_ns = self.sum_ns.saturating_add(length.0);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.above
    }

    /// Sum of all lengths.
    #[must_use]
    pub fn sum(&self) -> DurationNs {
        DurationNs(self.sum_ns)
    }

    /// Upper bound of each bucket, and how many lengths fell into it and no lower one; the last is without a bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<DurationNs>, u64)> + '_ {
        let bounded = BOUNDS.iter().zip(&self.counts).map(|(&bound, &count)| (Some(DurationNs(bound)), count));
        bounded.chain([(None, self.above)])
    }
}

/// The greatest of the values seen in the current minute and the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    minute: u64,
    now: Option<u32>,
    before: Option<u32>,
}

impl Peak {
    const MINUTE: u64 = 60_000_000_000;

    fn observe(&mut self, at: MonoNs, value: u32) {
        self.turn(at);
        self.now = self.now.max(Some(value));
    }

    fn turn(&mut self, at: MonoNs) {
        let minute = at.0 / Self::MINUTE;
        if minute > self.minute {
            self.before = self.now.filter(|_| minute == self.minute + 1);
            (self.minute, self.now) = (minute, None);
        }
    }

    /// The greatest value of the last one to two minutes; `None` = none was seen.
    #[must_use]
    pub fn at(mut self, now: MonoNs) -> Option<u32> {
        self.turn(now);
        self.now.max(self.before)
    }
}

/// Counters of one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Periods that ended, as the kernel counts `nr_periods`.
    pub periods: u64,
    /// Those at whose end some CPU was throttled, as the kernel counts `nr_throttled`.
    pub throttled_periods: u64,
    /// Those of which something is not known.
    pub incomplete_periods: u64,
    /// Throttled time summed over CPUs, as the kernel counts `throttled_time`.
    pub throttled_cpus: DurationNs,
    /// Time in which some CPU's queue was throttled.
    pub throttled_wall: DurationNs,
    /// Time in which threads were held and none ran; absent where threads are not followed.
    pub fully_throttled: Option<DurationNs>,
    /// CPU time that left the quota's pool.
    pub drawn: DurationNs,
    /// Time on CPU; absent where threads are not followed.
    pub used: Option<DurationNs>,
    /// CPU time that was idle while threads were held; absent where threads are not followed or idle CPUs not recorded.
    pub denied_idle: Option<DurationNs>,
    /// Lengths of throttles of one CPU.
    pub throttles: Histogram,
    /// From a period's start to its first throttle, of the periods that had one.
    pub exhaustion: Histogram,
    /// Most threads on CPU at once in the last minutes; absent where threads are not followed.
    pub peak_parallelism: Peak,
    /// Most CPUs out of quota at once in the last minutes.
    pub peak_throttled_cpus: Peak,
    /// What CPUs gave back beyond what they drew, to be taken off what they draw next: a counter never falls.
    given_back: DurationNs,
}

impl Totals {
    /// A period ended.
    pub fn period(&mut self, period: &LivePeriod) {
        let LivePeriod { record, boundary, drawn_ns } = period;
        self.periods += boundary.periods;
        if boundary.throttled() {
            self.throttled_periods += boundary.periods;
        }
        self.incomplete_periods += u64::from(!record.complete);
        self.throttled_wall += record.throttled_wall_ns;
        grow(&mut self.fully_throttled, record.fully_held_ns);
        grow(&mut self.used, record.used_ns);
        grow(&mut self.denied_idle, record.denied_idle_ns);
        if let Some(peak) = record.peak_parallelism {
            self.peak_parallelism.observe(record.end_ns, peak);
        }
        let spans = record.throttles.iter().map(|throttle| Span::new(throttle.start_ns, throttle.end_ns));
        let window = Span::new(record.start_ns, record.end_ns);
        let most = Steps::depth(spans).within(window).map(|(_, count)| count).max();
        self.peak_throttled_cpus.observe(record.end_ns, most.unwrap_or(0));
        if let Some(after) = record.exhausted_after_ns {
            self.exhaustion.observe(after);
        }
        match drawn_ns {
            Some(drawn) if *drawn < 0 => self.given_back += DurationNs(drawn.unsigned_abs()),
            Some(drawn) => {
                let drawn = DurationNs(drawn.unsigned_abs());
                self.drawn += drawn.saturating_sub(self.given_back);
                self.given_back = self.given_back.saturating_sub(drawn);
            }
            None => {}
        }
    }

    /// A throttle of one CPU ended.
    pub fn throttle(&mut self, throttle: &Throttle) {
        let counted = throttle.counted();
        if counted > DurationNs::ZERO {
            self.throttled_cpus += counted;
            self.throttles.observe(counted);
        }
    }
}

fn grow(total: &mut Option<DurationNs>, more: Option<DurationNs>) {
    if let Some(more) = more {
        *total.get_or_insert_default() += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::CgroupId, timeline::level::EndedBy};

    #[test]
    fn lengths_fall_into_the_first_bucket_that_holds_them() {
        let mut histogram = Histogram::default();
        for ns in [0, 100_000, 100_001, 80_000_000, 1_000_000_001] {
            histogram.observe(DurationNs(ns));
        }
        let counts: Vec<u64> = histogram.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!((histogram.count(), histogram.sum()), (5, DurationNs(1_080_200_002)));
        assert!(BOUNDS.is_sorted());
    }

    #[test]
    fn a_peak_is_of_this_minute_and_the_one_before() {
        let minute = |minutes: u64| MonoNs(minutes * Peak::MINUTE);
        let mut peak = Peak::default();
        assert_eq!(peak.at(minute(5)), None);
        peak.observe(minute(5), 3);
        peak.observe(minute(6), 1);
        assert_eq!((peak.at(minute(6)), peak.at(minute(7)), peak.at(minute(8))), (Some(3), Some(1), None));
    }

    #[test]
    fn a_throttle_that_nobody_suffered_counts_for_nothing() {
        let mut totals = Totals::default();
        let throttle = |start: Option<u64>| Throttle {
            cgroup: CgroupId(1),
            cpu: 0,
            marked: MonoNs(100),
            start: start.map(MonoNs),
            end: Some(MonoNs(500)),
            ended_by: Some(EndedBy::Period),
            complete: true,
        };
        totals.throttle(&throttle(None));
        assert_eq!((totals.throttles.count(), totals.throttled_cpus), (0, DurationNs::ZERO));
        totals.throttle(&throttle(Some(200)));
        assert_eq!((totals.throttles.count(), totals.throttled_cpus), (1, DurationNs(300)));
    }
}
