//! Spikes: load confined to slots of a second, bounded by time and not by work.
//!
//! Owns the schedule (pure) and the threads that keep it. A second has ten slots of 100 ms; so many of them, evenly spread, begin
//! with a spike of a fixed length, the others are idle. Due times count from one origin, each anew, so nothing drifts; a spike
//! that begins late ends on time all the same.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::prctl::set_timerslack;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::gettid;

use super::burn::Burner;
use crate::request::{SpikeSpan, WorkerSpan};
use crate::time::{DurationNs, MonoNs, now};

/// Length of a slot.
pub const SLOT: DurationNs = DurationNs::from_millis(100);
/// Slots of a second.
pub const SLOTS: u32 = 10;
/// Shortest spike: a hundredth of a slot.
const SHORTEST: DurationNs = DurationNs(SLOT.0 / 100);
const SECOND: DurationNs = DurationNs(SLOT.0 * SLOTS as u64);

/// What a generator is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpikePlan {
    /// Length of each spike, at most a slot.
    pub length: DurationNs,
    /// Slots of each second that begin with one, 1 to 10.
    pub per_second: u32,
    /// How long: spikes due before its end are begun.
    pub duration: DurationNs,
    /// Threads that spike together.
    pub threads: u32,
}

/// A plan that cannot be kept, or was not.
#[derive(Debug, thiserror::Error)]
pub enum SpikeError {
    /// Length out of range.
    #[error("spikes of {} ms are outside 1 to 100 ms: each begins a slot of 100 ms and ends in it", length.as_millis_f64())]
    Length {
        /// The length asked for.
        length: DurationNs,
    },
    /// Number out of range.
    #[error("{per_second} spikes a second are outside 1 to 10: a second has ten slots")]
    PerSecond {
        /// The number asked for.
        per_second: u32,
    },
    /// No time, or no thread.
    #[error("{what} is 0: there is nothing to do; give at least 1")]
    Nothing {
        /// The flag.
        what: &'static str,
    },
    /// A thread could not be started.
    #[error("cannot start thread spike-{thread}: {cause}. Check the process limit (ulimit -u) and pids.max")]
    Start {
        /// Which one.
        thread: u32,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// A thread could not wait, or ended.
    #[error("a spike thread broke off: {cause}")]
    Broke {
        /// Why.
        cause: String,
    },
}

impl SpikePlan {
    /// The same plan, if it can be kept.
    ///
    /// # Errors
    /// [`SpikeError`] names the value and the remedy.
    pub fn checked(self) -> Result<Self, SpikeError> {
        let Self { length, per_second, duration, threads } = self;
        if !(SHORTEST..=SLOT).contains(&length) {
            return Err(SpikeError::Length { length });
        }
        if !(1..=SLOTS).contains(&per_second) {
            return Err(SpikeError::PerSecond { per_second });
        }
        for (what, nothing) in [("--duration", duration == DurationNs::ZERO), ("--threads", threads == 0)] {
            if nothing {
                return Err(SpikeError::Nothing { what });
            }
        }
        Ok(self)
    }

    /// When spike `number` (from 0) of a run with this origin is due. Of a second's ten slots, those numbered `k * 10 / n` carry
    /// one, rounded down.
    #[must_use]
    pub fn due(&self, origin: MonoNs, number: u64) -> MonoNs {
        let each = u64::from(self.per_second.max(1));
        let (second, within) = (number / each, number % each);
        let slot = within * u64::from(SLOTS) / each;
        origin + DurationNs(second.saturating_mul(SECOND.0).saturating_add(slot * SLOT.0))
    }

    /// How many spikes are due before the end.
    #[must_use]
    pub fn spikes(&self) -> u64 {
        let each = u64::from(self.per_second.max(1));
        let whole = self.duration.0 / SECOND.0 * each;
        let end = MonoNs(self.duration.0);
        whole + (whole..whole + each).take_while(|&number| self.due(MonoNs(0), number) < end).count() as u64
    }

    /// Runs the spikes from `origin` on; `stop` ends it before the next one. Nothing is written or told meanwhile, which would use
    /// of the quota under test: the spans are kept in memory until all is over.
    ///
    /// # Errors
    /// [`SpikeError::Start`]; [`SpikeError::Broke`] with what was done lost.
    pub fn run(&self, burner: &Burner, origin: MonoNs, stop: &Arc<AtomicBool>) -> Result<Vec<SpikeSpan>, SpikeError> {
        let mut threads = Vec::new();
        for thread in 0..self.threads {
            let (plan, burner, ends) = (*self, *burner, Arc::clone(stop));
            let started = std::thread::Builder::new()
                .name(format!("spike-{thread}"))
                .spawn(move || plan.spike(&burner, origin, &ends))
                .map_err(|cause| SpikeError::Start { thread, cause });
            match started {
                Ok(handle) => threads.push(handle),
                Err(error) => {
                    stop.store(true, Ordering::Release);
                    return Err(error);
                }
            }
        }
        let broke = |cause: String| SpikeError::Broke { cause };
        let mut parts = Vec::new();
        for thread in threads {
            let part = thread.join().map_err(|_| broke("it panicked".to_owned()))?;
            parts.push(part.map_err(|errno| broke(format!("it cannot wait: {errno}")))?);
        }
        let done = parts.iter().map(Vec::len).min().unwrap_or(0);
        Ok((0..done)
            .zip(0_u64..)
            .map(|(index, spike)| {
                let due_ns = self.due(origin, spike);
                let workers = parts.iter().map(|part| part[index].clone()).collect();
                SpikeSpan { spike, due_ns, until_ns: due_ns + self.length, workers }
            })
            .collect())
    }

    /// One thread's part of every spike.
    fn spike(&self, burner: &Burner, origin: MonoNs, stop: &AtomicBool) -> Result<Vec<WorkerSpan>, Errno> {
        // A thread is woken up to 50 us late for others' sake unless it says otherwise (`Documentation/…/timerslack`).
        set_timerslack(1)?;
        let tid = gettid().as_raw().unsigned_abs();
        let spikes = self.spikes();
        let mut parts = Vec::with_capacity(usize::try_from(spikes.min(4_096)).unwrap_or(0));
        for number in 0..spikes {
            let due = self.due(origin, number);
            sleep_until(due)?;
            if stop.load(Ordering::Acquire) {
                break;
            }
            let started_ns = now();
            let cpu_time_ns = burner.burn_until(due + self.length);
            parts.push(WorkerSpan { tid, started_ns, finished_ns: now(), cpu_time_ns });
        }
        Ok(parts)
    }
}

/// Sleeps until an instant of `CLOCK_MONOTONIC`; not at all if it has passed.
fn sleep_until(at: MonoNs) -> Result<(), Errno> {
    let at = TimeSpec::from_duration(std::time::Duration::from_nanos(at.0));
    loop {
        match clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(length: u64) -> DurationNs {
        DurationNs::from_millis(length)
    }

    fn plan(length: u64, per_second: u32, duration: u64) -> SpikePlan {
        SpikePlan { length: ms(length), per_second, duration: ms(duration), threads: 1 }
    }

    #[test]
    fn spikes_begin_slots_that_are_spread_over_the_second() {
        let slots = |per_second| {
            let plan = plan(60, per_second, 2_000);
            (0..u64::from(per_second)).map(|number| plan.due(MonoNs(0), number).0 / SLOT.0).collect::<Vec<_>>()
        };
        assert_eq!((slots(1), slots(2), slots(5)), (vec![0], vec![0, 5], vec![0, 2, 4, 6, 8]));
        assert_eq!((slots(3), slots(10)), (vec![0, 3, 6], (0..10).collect()));
        assert_eq!(plan(60, 3, 2_000).due(MonoNs(7), 4), MonoNs(7) + ms(1_300));
    }

    #[test]
    fn a_run_holds_the_spikes_that_are_due_before_its_end() {
        assert_eq!([1, 1_000, 1_001, 3_500].map(|duration| plan(60, 1, duration).spikes()), [1, 1, 2, 4]);
        assert_eq!([100, 101, 1_000, 1_550].map(|duration| plan(60, 10, duration).spikes()), [1, 2, 10, 16]);
    }

    #[test]
    fn a_plan_that_cannot_be_kept_is_refused_with_the_value() {
        for (bad, word) in [
            (plan(0, 1, 1_000), "0 ms"),
            (plan(101, 1, 1_000), "101 ms"),
            (plan(60, 11, 1_000), "11 spikes"),
            (plan(60, 0, 1_000), "0 spikes"),
            (plan(60, 1, 0), "--duration"),
            (SpikePlan { threads: 0, ..plan(60, 1, 1_000) }, "--threads"),
        ] {
            let said = bad.checked().expect_err("refused").to_string();
            assert!(said.contains(word), "{said}");
        }
        assert!(plan(1, 1, 1).checked().is_ok() && plan(100, 10, 1).checked().is_ok());
    }

    #[test]
    fn spikes_are_kept_to_the_schedule_and_report_what_they_used() {
        let plan = SpikePlan { threads: 2, ..plan(4, 10, 350) };
        let origin = now() + ms(30);
        let spans = plan.run(&Burner::calibrate(), origin, &Arc::default()).expect("runs");
        assert_eq!(spans.len(), 4);
        for span in &spans {
            assert_eq!(span.due_ns, origin + ms(100 * span.spike));
            assert_eq!((span.until_ns, span.expected()), (span.due_ns + ms(4), ms(8)));
            assert_eq!(span.workers.len(), 2);
            for worker in &span.workers {
                assert!(worker.started_ns >= span.due_ns && worker.finished_ns >= span.until_ns, "{span:?}");
                assert!(worker.cpu_time_ns <= worker.finished_ns.since(worker.started_ns), "{span:?}");
            }
            assert_ne!(span.workers[0].tid, span.workers[1].tid);
        }
    }

    #[test]
    fn a_run_that_is_stopped_keeps_what_was_done() {
        let stop = Arc::new(AtomicBool::new(true));
        let spans = plan(4, 10, 60_000).run(&Burner::calibrate(), now(), &stop).expect("runs");
        assert_eq!(spans, []);
    }

    proptest! {
        #[test]
        fn due_times_are_whole_slots_apart_and_never_two_in_one(per_second in 1_u32..=10, number in 0_u64..1 << 30) {
            let plan = plan(60, per_second, 1_000);
            let (this, next) = (plan.due(MonoNs(0), number).0, plan.due(MonoNs(0), number + 1).0);
            prop_assert!(next > this && (next - this) % SLOT.0 == 0);
            let second = plan.due(MonoNs(0), number + u64::from(per_second)).0 - this;
            prop_assert_eq!(second, SECOND.0);
        }
    }
}
