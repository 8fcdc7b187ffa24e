//! What one level of the cgroup tree may use: quota, period, burst, and when its next refill comes.
//!
//! A level without a quota has no `Bandwidth`: it is left out of the chain, it never throttles.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::time::{DurationNs, MonoNs};

/// Quota per period of one level, within what the kernel accepts (`kernel/sched/core.c`, `tg_set_cfs_bandwidth`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bandwidth {
    quota: DurationNs,
    period: DurationNs,
    burst: DurationNs,
}

/// A bandwidth the kernel would refuse with EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BandwidthError {
    /// Quota under 1 ms or over the kernel's largest.
    #[error("quota of {} ns is outside 1 ms..2^44 us: the kernel refuses it, choose a larger limit or a longer period", quota.0)]
    Quota {
        /// The quota asked for.
        quota: DurationNs,
    },
    /// Period outside 1 ms..1 s.
    #[error("period of {} ns is outside 1 ms..1 s: the kernel refuses it, choose one inside", period.0)]
    Period {
        /// The period asked for.
        period: DurationNs,
    },
    /// Burst above the quota.
    #[error("burst of {} ns exceeds the quota of {} ns: the kernel refuses it, lower the burst", burst.0, quota.0)]
    Burst {
        /// The burst asked for.
        burst: DurationNs,
        /// The quota it exceeds.
        quota: DurationNs,
    },
}

/// `min_cfs_quota_period`, 1 ms.
const LEAST: DurationNs = DurationNs::from_millis(1);
/// `max_cfs_quota_period`, 1 s.
const LONGEST_PERIOD: DurationNs = DurationNs::from_millis(1_000);
/// `max_cfs_runtime`: `MAX_BW` microseconds, 44 bits.
const LARGEST_QUOTA: DurationNs = DurationNs::from_micros((1 << 44) - 1);

impl Bandwidth {
    /// `quota` of CPU time in each `period`, no burst.
    pub fn new(quota: DurationNs, period: DurationNs) -> Result<Self, BandwidthError> {
        if quota < LEAST || quota > LARGEST_QUOTA {
            return Err(BandwidthError::Quota { quota });
        }
        if period < LEAST || period > LONGEST_PERIOD {
            return Err(BandwidthError::Period { period });
        }
        Ok(Self { quota, period, burst: DurationNs::ZERO })
    }

    /// The same with up to `burst` of unused quota carried over.
    pub fn with_burst(self, burst: DurationNs) -> Result<Self, BandwidthError> {
        if burst > self.quota {
            return Err(BandwidthError::Burst { burst, quota: self.quota });
        }
        Ok(Self { burst, ..self })
    }

    /// CPU time handed out a period.
    #[must_use]
    pub fn quota(&self) -> DurationNs {
        self.quota
    }

    /// Length of a period.
    #[must_use]
    pub fn period(&self) -> DurationNs {
        self.period
    }

    /// Most unused quota carried over a refill.
    #[must_use]
    pub fn burst(&self) -> DurationNs {
        self.burst
    }

    /// Time from `at` to the next refill, in (0, period], given any one `boundary` of the level's grid before or after.
    ///
    /// The grid is fixed for the life of the group: `start_cfs_bandwidth` and the timer only ever add whole periods
    /// (`hrtimer_forward`). A changed period starts another grid.
    #[must_use]
    pub fn to_refill(&self, boundary: MonoNs, at: MonoNs) -> DurationNs {
        let period = self.period.0;
        if at >= boundary {
            DurationNs(period - (at.0 - boundary.0) % period)
        } else {
            match (boundary.0 - at.0) % period {
                0 => self.period,
                rest => DurationNs(rest),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        let ms = DurationNs::from_millis;
        assert!(Bandwidth::new(ms(1), ms(1)).is_ok() && Bandwidth::new(ms(4_000), ms(1_000)).is_ok());
        assert!(matches!(Bandwidth::new(DurationNs(999_999), ms(100)), Err(BandwidthError::Quota { .. })));
        assert!(matches!(Bandwidth::new(ms(10), ms(1_001)), Err(BandwidthError::Period { .. })));
        assert!(matches!(
            Bandwidth::new(ms(10), ms(100)).and_then(|level| level.with_burst(ms(11))),
            Err(BandwidthError::Burst { .. })
        ));
    }

    #[test]
    fn the_next_refill_is_found_from_a_boundary_on_either_side() {
        let level = Bandwidth::new(DurationNs::from_millis(10), DurationNs::from_millis(100)).expect("valid");
        let boundary = MonoNs(5_030_000_000);
        for (at, left) in
            [(5_030_000_000, 100), (5_031_000_000, 99), (5_129_000_000, 1), (5_029_000_000, 1), (4_830_000_000, 100)]
        {
            assert_eq!(level.to_refill(boundary, MonoNs(at)), DurationNs::from_millis(left), "at {at}");
        }
    }
}
