//! Burning a stated amount of a thread's CPU time in user mode.
//!
//! Owns the calibration and the loop. The loop is integer work in chunks of about [`CHUNK`]; the thread clock is read
//! once a chunk (a system call: `CLOCK_THREAD_CPUTIME_ID` has no vDSO path), so that the kernel's part of the work
//! stays well under one per cent and a limit meets the thread in user mode, as it meets an ordinary program.

use std::hint::black_box;

use serde::Serialize;

use crate::time::{DurationNs, MonoNs, now, thread_cpu};

/// CPU time of one full chunk.
const CHUNK: DurationNs = DurationNs::from_micros(100);
/// A remainder shorter than this is not worth another chunk: it is the order of a clock reading.
const REMAINDER: u64 = 500;
/// Samples per calibration, and the CPU time each is sized to take.
const SAMPLES: u32 = 15;
const SAMPLE: DurationNs = DurationNs::from_micros(400);

/// How fast this machine does the integer work, as measured at start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Loop iterations per microsecond of CPU time, from the fastest sample.
    pub iterations_per_us: f64,
    /// Iterations of a full chunk.
    pub chunk_iterations: u64,
    /// CPU time of one reading of the thread clock, ns, from the fastest sample.
    pub clock_read_ns: u64,
}

/// Burns CPU time at a calibrated rate. Cheap to copy: one calibration serves every worker.
#[derive(Clone, Copy, Debug)]
pub struct Burner {
    calibration: Calibration,
}

impl Burner {
    /// Measures the rate on the calling thread, in about 10 ms of its CPU time.
    ///
    /// Each sample is timed with the thread's CPU clock, so preemption and throttling lengthen the calibration without
    /// changing it; the fastest sample is taken because interference (interrupts, cold caches, a low clock) only slows.
    #[must_use]
    pub fn calibrate() -> Self {
        let mut iterations = 1_000;
        let mut rate = sample_rate(iterations);
        while cpu_of(|| spin(iterations)) < SAMPLE {
            iterations *= 2;
        }
        for _ in 0..SAMPLES {
            rate = rate.max(sample_rate(iterations));
        }
        let clock_read_ns = (0..SAMPLES).map(|_| cpu_of(|| {}).0).min().unwrap_or(0);
        let chunk_iterations = iterations_for(CHUNK.0, rate);
        Self { calibration: Calibration { iterations_per_us: rate * 1e3, chunk_iterations, clock_read_ns } }
    }

    /// What was measured.
    #[must_use]
    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Burns `work` of the calling thread's CPU time and returns what it really took, as the thread's own clock has it.
    ///
    /// The end is approached in shrinking steps: three quarters of what is left at a time, so that a machine which runs
    /// slower than calibrated overshoots by a quarter of a small step instead of a part of a whole chunk.
    pub fn burn(&self, work: DurationNs) -> DurationNs {
        let start = thread_cpu();
        let end = start + work;
        let mut now = start;
        while now.0 + REMAINDER < end.0 {
            let left = end.0 - now.0;
            if left > 2 * CHUNK.0 {
                spin(self.calibration.chunk_iterations);
            } else {
                let step = (left - left / 4).saturating_sub(self.calibration.clock_read_ns);
                spin(iterations_for(step, self.calibration.iterations_per_us / 1e3));
            }
            now = thread_cpu();
        }
        now - start
    }

    /// Keeps the calling thread busy until an instant, in user mode but for the two readings of its clock (that of the wall has a
    /// vDSO path), and returns the CPU time that took. A thread that does not run then notices when it runs again.
    pub fn burn_until(&self, end: MonoNs) -> DurationNs {
        let start = thread_cpu();
        let iterations = iterations_for(GLANCE.0, self.calibration.iterations_per_us / 1e3);
        while now() < end {
            spin(iterations);
        }
        thread_cpu() - start
    }
}

/// How long the loop that watches the wall clock runs between two looks.
const GLANCE: DurationNs = DurationNs::from_micros(5);

/// CPU time `work` takes on the calling thread, one clock reading included.
fn cpu_of(work: impl FnOnce()) -> DurationNs {
    let start = thread_cpu();
    work();
    thread_cpu() - start
}

/// Iterations per nanosecond of CPU time over one sample.
#[expect(clippy::cast_precision_loss, reason = "both stay far below 2^53")]
fn sample_rate(iterations: u64) -> f64 {
    let took = cpu_of(|| spin(iterations)).0.max(1);
    iterations as f64 / took as f64
}

/// Iterations that take `ns` at `rate` iterations per nanosecond; at least one, so that the burn always advances.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ns and rate are positive, and the product of a chunk and any real rate is far below 2^53"
)]
fn iterations_for(ns: u64, rate: f64) -> u64 {
    ((ns as f64 * rate) as u64).max(1)
}

/// The work itself: a xorshift chain. Each step needs the one before, so it can be neither vectorised nor skipped.
#[inline(never)]
fn spin(iterations: u64) {
    let mut state = black_box(0x9E37_79B9_7F4A_7C15_u64);
    for _ in 0..iterations {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::thread_cpu;

    #[test]
    fn burnt_cpu_time_is_what_was_asked_within_two_per_cent() {
        let burner = Burner::calibrate();
        for work in [DurationNs::from_millis(2), DurationNs::from_millis(10), DurationNs::from_millis(60)] {
            let ratios: Vec<f64> = (0..15).map(|_| burner.burn(work).as_millis_f64() / work.as_millis_f64()).collect();
            let mut sorted = ratios.clone();
            sorted.sort_by(f64::total_cmp);
            assert!((0.98..=1.02).contains(&sorted[7]), "asked {work:?}, took {ratios:?} of it");
        }
    }

    #[test]
    fn the_burner_reports_what_the_thread_clock_says() {
        let burner = Burner::calibrate();
        let before = thread_cpu();
        let reported = burner.burn(DurationNs::from_millis(5));
        let outside = thread_cpu() - before;
        assert!(reported <= outside);
        assert!((reported.0 as f64) > 0.95 * outside.0 as f64, "reported {reported:?} of {outside:?}");
    }

    #[test]
    fn no_work_burns_nothing() {
        assert_eq!(Burner::calibrate().burn(DurationNs::ZERO), DurationNs::ZERO);
    }

    #[test]
    fn burning_until_an_instant_ends_at_it_and_not_before() {
        let burner = Burner::calibrate();
        for _ in 0..10 {
            let (begin, before) = (now(), thread_cpu());
            let end = begin + DurationNs::from_millis(3);
            let used = burner.burn_until(end);
            let (wall, outside) = (now().since(begin), thread_cpu() - before);
            assert!(wall >= DurationNs::from_millis(3));
            assert!(used <= outside && used <= wall, "{used:?} of {outside:?} in {wall:?}");
        }
        assert!(burner.burn_until(MonoNs(0)) < DurationNs::from_millis(1), "an instant that has passed");
    }

    #[test]
    fn two_calibrations_agree() {
        let [first, second] = [0; 2].map(|_| Burner::calibrate().calibration().iterations_per_us);
        assert!((0.5..=2.0).contains(&(first / second)), "{first} and {second} iterations per us");
    }
}
