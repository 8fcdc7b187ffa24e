//! Latency of one thread under one quota, in closed form.
//!
//! The thread has `work` of CPU to do, alone in its group, the pool is full at the start and the next refill is `to_refill`
//! away. Slices, leftovers and the tick are left out (the `nested` simulation has them), so this is the skeleton every
//! other figure is checked against: exact, in whole nanoseconds.

use crate::model::bandwidth::Bandwidth;
use crate::stats::Quantile;
use crate::time::DurationNs;

/// One thread's work under one quota without burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneThread {
    work: u64,
    quota: u64,
    period: u64,
}

impl OneThread {
    /// `None` if the level has a burst: what the pool holds then depends on periods before the start.
    #[must_use]
    pub fn new(work: DurationNs, level: &Bandwidth) -> Option<Self> {
        (level.burst() == DurationNs::ZERO).then_some(Self {
            work: work.0,
            quota: level.quota().0,
            period: level.period().0,
        })
    }

    /// Wall time when the next refill is `to_refill` after the start, in (0, period].
    #[must_use]
    pub fn wall(&self, to_refill: DurationNs) -> DurationNs {
        let Self { work, quota, period } = *self;
        let phase = to_refill.0;
        DurationNs(if !self.throttles() {
            work
        } else if phase >= quota {
            // Quota is gone before the refill: each refill from then on gives one quota, the last one less.
            let whole_periods = work.div_ceil(quota) - 2;
            phase + whole_periods * period + (work - quota - whole_periods * quota)
        } else {
            work + self.waits(to_refill) * (period - quota)
        })
    }

    /// How often the thread is throttled; a wait of no length (quota gone exactly at a refill) does not count.
    #[must_use]
    pub fn waits(&self, to_refill: DurationNs) -> u64 {
        let Self { work, quota, .. } = *self;
        if !self.throttles() {
            0
        } else if to_refill.0 > quota {
            work.div_ceil(quota) - 1
        } else {
            work.saturating_sub(to_refill.0).div_ceil(quota).saturating_sub(1)
        }
    }

    /// Shortest wall time over all phases.
    #[must_use]
    pub fn best(&self) -> DurationNs {
        let refills_free_of_waiting = 2;
        DurationNs(self.work + self.stall() * self.chunks().saturating_sub(refills_free_of_waiting))
    }

    /// Longest wall time over all phases.
    #[must_use]
    pub fn worst(&self) -> DurationNs {
        DurationNs(self.work + self.stall() * (self.chunks() - 1))
    }

    /// Probability of no throttle at all when the start falls anywhere in the period alike.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a probability for display; times stay far below 2^53 ns")]
    pub fn chance_unthrottled(&self) -> f64 {
        if !self.throttles() {
            return 1.0;
        }
        (2 * self.quota).saturating_sub(self.work) as f64 / self.period as f64
    }

    /// Quantile of the wall time over all whole-nanosecond phases 1..=period, each as likely.
    #[must_use]
    pub fn quantile(&self, quantile: Quantile) -> DurationNs {
        // Sorted by wall time the phases are: `flat` of them at the best case, then every wall time up to the worst case
        // once, then the rest at the worst case. (For W = 60, Q = 40, P = 100 ms: 20 % at 60, 60..=120, 20 % at 120.)
        let flat = self.chunks() * self.quota - self.work;
        let above_best = quantile.rank(self.period).saturating_sub(1).saturating_sub(flat);
        let spread = self.worst() - self.best();
        self.best() + DurationNs(above_best.min(spread.0))
    }

    fn throttles(&self) -> bool {
        self.quota < self.period && self.work > self.quota
    }

    /// Length of a full wait; zero where there is none.
    fn stall(&self) -> u64 {
        if self.throttles() { self.period - self.quota } else { 0 }
    }

    /// Quotas needed for the work, at least 1.
    fn chunks(&self) -> u64 {
        self.work.div_ceil(self.quota).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_MS: u64 = 100;

    fn case(work_us: u64, millicores: u64) -> OneThread {
        let quota = DurationNs::from_micros(millicores * PERIOD_MS);
        let level = Bandwidth::new(quota, DurationNs::from_millis(PERIOD_MS)).expect("valid");
        OneThread::new(DurationNs::from_micros(work_us), &level).expect("no burst")
    }

    /// Walks the period in steps of 10 us, off the edges: wall times in ms (sorted), waits, share with a wait.
    fn over_phases(case: &OneThread) -> (Vec<f64>, Vec<u64>, f64) {
        let phases = (1..=PERIOD_MS * 100).map(|step| DurationNs::from_micros(step * 10 - 5));
        let mut walls: Vec<f64> = phases.clone().map(|phase| case.wall(phase).as_millis_f64()).collect();
        walls.sort_by(f64::total_cmp);
        let waits: Vec<u64> = phases.map(|phase| case.waits(phase)).collect();
        let throttled = waits.iter().filter(|&&count| count > 0).count();
        #[expect(clippy::cast_precision_loss, reason = "a share of 10 000 phases")]
        let share = throttled as f64 / waits.len() as f64;
        (walls, waits, share)
    }

    /// Limit in millicores, wall min, max, mean in ms, waits from..to, throttled share of phases in per cent: the
    /// published table, which was made by a brute-force simulation without slice or tick.
    type Row = (u64, f64, f64, f64, std::ops::RangeInclusive<u64>, f64);

    fn check_table(work_us: u64, rows: &[Row]) {
        for (millicores, min, max, mean, waits_allowed, share) in rows {
            let case = case(work_us, *millicores);
            let (walls, waits, throttled) = over_phases(&case);
            #[expect(clippy::cast_precision_loss, reason = "10 000 phases")]
            let got_mean = walls.iter().sum::<f64>() / walls.len() as f64;
            let label = format!("{millicores}m, {work_us} us");
            assert!((walls[0] - min).abs() < 0.02 && (walls[walls.len() - 1] - max).abs() < 0.02, "{label}: {walls:?}");
            assert!((got_mean - mean).abs() <= 0.6, "{label}: mean {got_mean}");
            assert!((throttled * 100.0 - share).abs() <= 0.6, "{label}: throttled in {throttled}");
            if *share >= 100.0 {
                let (least, most) = (waits.iter().min(), waits.iter().max());
                assert_eq!((least, most), (Some(waits_allowed.start()), Some(waits_allowed.end())), "{label}");
            }
            assert!(
                (case.best().as_millis_f64() - min).abs() < 1e-9 && (case.worst().as_millis_f64() - max).abs() < 1e-9
            );
            assert!((1.0 - case.chance_unthrottled() - throttled).abs() <= 1e-3, "{label}");
        }
    }

    #[test]
    fn sixty_milliseconds_of_work_give_the_published_table() {
        check_table(
            60_000,
            &[
                (100, 420.0, 510.0, 470.0, 5..=5, 100.0),
                (200, 140.0, 220.0, 188.0, 2..=2, 100.0),
                (300, 60.0, 130.0, 106.0, 1..=1, 100.0),
                (400, 60.0, 120.0, 90.0, 0..=1, 80.0),
                (500, 60.0, 110.0, 78.0, 0..=1, 60.0),
                (600, 60.0, 60.0, 60.0, 0..=0, 0.0),
                (700, 60.0, 60.0, 60.0, 0..=0, 0.0),
                (1600, 60.0, 60.0, 60.0, 0..=0, 0.0),
            ],
        );
    }

    #[test]
    fn sixty_one_milliseconds_of_work_give_the_published_table() {
        check_table(
            61_000,
            &[
                (100, 511.0, 601.0, 552.0, 5..=6, 100.0),
                (200, 221.0, 301.0, 254.0, 2..=3, 100.0),
                (300, 131.0, 201.0, 156.0, 1..=2, 100.0),
                (400, 61.0, 121.0, 92.0, 0..=1, 81.0),
                (500, 61.0, 111.0, 79.0, 0..=1, 61.0),
                (600, 61.0, 101.0, 69.0, 0..=1, 41.0),
                (700, 61.0, 61.0, 61.0, 0..=0, 0.0),
            ],
        );
    }

    #[test]
    fn medians_and_tails_over_phases_are_the_known_ones() {
        // W, limit, p50, p99 in ms, rounded to 1 ms at their source.
        for (work_us, millicores, p50, p99) in [
            (60_000, 100, 470.0, 510.0),
            (60_000, 200, 190.0, 220.0),
            (60_000, 400, 90.0, 120.0),
            (60_000, 800, 60.0, 60.0),
            (60_500, 100, 551.0, 600.0),
            (60_500, 200, 251.0, 300.0),
            (60_500, 400, 91.0, 120.0),
            (60_500, 800, 61.0, 61.0),
        ] {
            let case = case(work_us, millicores);
            let (walls, ..) = over_phases(&case);
            let formula = [Quantile::P50, Quantile::P99].map(|q| case.quantile(q).as_millis_f64());
            for (integrated, formula, known) in [(walls[4_999], formula[0], p50), (walls[9_899], formula[1], p99)] {
                assert!((integrated - known).abs() <= 1.0, "{millicores}m W {work_us}: {integrated}, known {known}");
                assert!(
                    (integrated - formula).abs() <= 0.02,
                    "{millicores}m W {work_us}: {integrated}, formula {formula}"
                );
            }
        }
    }

    #[test]
    fn a_quota_of_a_whole_period_never_throttles_one_thread() {
        let case = case(1_000_000, 1000);
        assert_eq!(
            (case.wall(DurationNs(1)), case.worst()),
            (DurationNs::from_millis(1_000), DurationNs::from_millis(1_000))
        );
    }
}
