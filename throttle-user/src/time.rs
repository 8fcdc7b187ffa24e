//! Time as the observer keeps it: nanoseconds of `CLOCK_MONOTONIC`.
//!
//! Owns the two newtypes every stamp and every length is stored in, and the anchor that turns a monotonic stamp into
//! wall-clock time for display. Does not read clocks on its own except through [`now`] and [`ClockAnchor::take`].

use std::ops::{Add, AddAssign, Sub};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// An instant of `CLOCK_MONOTONIC`, in nanoseconds since boot (suspend excluded). `bpf_ktime_get_ns()` reads the same clock
/// (`kernel/bpf/helpers.c`, `bpf_ktime_get_ns` -> `ktime_get_mono_fast_ns`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MonoNs(pub u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationNs(pub u64);

impl MonoNs {
    /// Length from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> DurationNs {
        DurationNs(self.0.saturating_sub(earlier.0))
    }
}

impl Add<DurationNs> for MonoNs {
    type Output = Self;
    /// Stamps come from files as well: one near the end of time stays there.
    fn add(self, length: DurationNs) -> Self {
        Self(self.0.saturating_add(length.0))
    }
}

impl DurationNs {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A length given in whole milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// A length given in whole microseconds.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// The length in milliseconds, for display.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "display only; lengths stay far below 2^53 ns")]
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl From<u64> for DurationNs {
    fn from(ns: u64) -> Self {
        Self(ns)
    }
}

impl From<DurationNs> for u64 {
    fn from(length: DurationNs) -> Self {
        length.0
    }
}

impl DurationNs {
    /// Difference, zero when `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for DurationNs {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for DurationNs {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for DurationNs {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl std::iter::Sum for DurationNs {
    fn sum<I: Iterator<Item = Self>>(lengths: I) -> Self {
        lengths.fold(Self::ZERO, Add::add)
    }
}

/// Reads `clock` in nanoseconds; zero if the kernel refuses the clock, which Linux never does for the clocks used here.
fn read(clock: ClockId) -> u64 {
    clock_gettime(clock)
        .map_or(0, |t| u64::try_from(t.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec()).unwrap_or(0))
}

/// `CLOCK_MONOTONIC` now.
#[must_use]
pub fn now() -> MonoNs {
    MonoNs(read(ClockId::CLOCK_MONOTONIC))
}

/// CPU time consumed so far by the calling thread (`CLOCK_THREAD_CPUTIME_ID`).
#[must_use]
pub fn thread_cpu() -> DurationNs {
    DurationNs(read(ClockId::CLOCK_THREAD_CPUTIME_ID))
}

/// CPU time consumed so far by the calling process (`CLOCK_PROCESS_CPUTIME_ID`).
#[must_use]
pub fn process_cpu() -> DurationNs {
    DurationNs(read(ClockId::CLOCK_PROCESS_CPUTIME_ID))
}

/// One reading that ties the three clocks together, taken once per run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnchor {
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: u64,
    /// `CLOCK_BOOTTIME`, ns: runs on through suspend, so a growing difference to `monotonic_ns` means the machine slept.
    pub boottime_ns: u64,
    /// `CLOCK_REALTIME`, ns since 1970.
    pub realtime_ns: u64,
    /// Width of the reading, ns: the real instant lies within this of each value.
    pub error_ns: u64,
}

impl ClockAnchor {
    /// Takes an anchor now; the narrowest of eight tries.
    #[must_use]
    pub fn take() -> Self {
        (0..8)
            .map(|_| {
                let before = now().0;
                let boottime_ns = read(ClockId::CLOCK_BOOTTIME);
                let realtime_ns = read(ClockId::CLOCK_REALTIME);
                let after = now().0;
                Self { monotonic_ns: before.midpoint(after), boottime_ns, realtime_ns, error_ns: after - before }
            })
            .min_by_key(|anchor| anchor.error_ns)
            .unwrap_or(Self { monotonic_ns: 0, boottime_ns: 0, realtime_ns: 0, error_ns: u64::MAX })
    }

    /// How long the machine slept between `self` and a `later` anchor; zero within the readings' error.
    #[must_use]
    pub fn suspended_until(&self, later: &Self) -> DurationNs {
        // The monotonic value is the middle of two readings and may lie a little after the boottime one.
        let ahead = |anchor: &Self| i128::from(anchor.boottime_ns) - i128::from(anchor.monotonic_ns);
        let slept = u64::try_from(ahead(later) - ahead(self)).unwrap_or(0);
        let error = self.error_ns + later.error_ns;
        DurationNs(if slept <= error { 0 } else { slept })
    }

    /// Wall-clock time of a monotonic stamp, ns since 1970.
    #[must_use]
    pub fn realtime_ns(&self, at: MonoNs) -> u64 {
        if at.0 >= self.monotonic_ns {
            self.realtime_ns + (at.0 - self.monotonic_ns)
        } else {
            self.realtime_ns - (self.monotonic_ns - at.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(monotonic_ns: u64, boottime_ns: u64, error_ns: u64) -> ClockAnchor {
        ClockAnchor { monotonic_ns, boottime_ns, realtime_ns: 5_000, error_ns }
    }

    #[test]
    fn a_sleep_shows_as_the_growth_of_boottime_over_monotonic() {
        assert_eq!(anchor(100, 150, 2).suspended_until(&anchor(200, 950, 3)), DurationNs(700));
        assert_eq!(anchor(100, 150, 2).suspended_until(&anchor(200, 254, 3)), DurationNs::ZERO);
    }

    #[test]
    fn wall_time_is_found_before_and_after_the_anchor() {
        let a = anchor(1_000, 1_000, 0);
        assert_eq!(a.realtime_ns(MonoNs(1_200)), 5_200);
        assert_eq!(a.realtime_ns(MonoNs(900)), 4_900);
    }

    #[test]
    fn clocks_run_forward() {
        let (a, b) = (ClockAnchor::take(), ClockAnchor::take());
        assert!(b.monotonic_ns >= a.monotonic_ns);
        assert_eq!(a.suspended_until(&b), DurationNs::ZERO);
    }
}
