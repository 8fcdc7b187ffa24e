//! A CPU limit as people write it, and the quota it becomes.
//!
//! Owns parsing (`100m`, `0.5`, `2`, `unlimited`), the arithmetic of the kubelet, and every reason to refuse a limit before the
//! kernel does. Does not touch cgroups; [`super::bandwidth`] does.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::bandwidth::{Bandwidth, Quota};

/// The shortest period and the shortest quota the kernel takes, us (`kernel/sched/core.c`, `min_cfs_quota_period`, 1 ms).
pub const MIN_US: u64 = 1_000;
/// The longest period the kernel takes, us (`max_cfs_quota_period`, 1 s).
pub const MAX_PERIOD_US: u64 = 1_000_000;
/// The period of the kubelet and of the kernel unless told otherwise, us.
pub const DEFAULT_PERIOD_US: u64 = 100_000;
/// The smallest limit that is not rounded up by the kubelet, in thousandths of a CPU.
pub const MIN_MILLICPU: u32 = 10;

/// How much CPU a container may use. Ordered: unlimited is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum CpuLimit {
    /// Thousandths of a CPU, at least [`MIN_MILLICPU`].
    Millicpu(u32),
    /// No limit.
    Unlimited,
}

/// A limit, period or burst that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Not a limit.
    #[error("CPU limit {text:?} does not parse; write 200m, 0.5, 2 or unlimited (nothing finer than 1m)")]
    Syntax {
        /// What was given.
        text: String,
    },
    /// Zero.
    #[error("CPU limit {text:?} is zero, which would let nothing run; write `unlimited` for no limit, or at least 10m")]
    Zero {
        /// What was given.
        text: String,
    },
    /// Below what the kubelet would set.
    #[error(
        "CPU limit {text:?} is below 10m, kubelet's floor of 1 ms per 100 ms (it would act as 10m); use at least 10m"
    )]
    BelowFloor {
        /// What was given.
        text: String,
    },
    /// Period outside the kernel's range.
    #[error(
        "period {period_us} us is outside the kernel's 1000 us to 1000000 us (1 ms to 1 s); 100000 us is the kubelet's"
    )]
    Period {
        /// What was given.
        period_us: u64,
    },
    /// Quota below the kernel's minimum.
    #[error(
        "a quota of {quota_us} us per {period_us} us is below the kernel's least quota of 1000 us; raise the limit to at least {}m, or \
         lengthen the period to at least {} us",
        (MIN_US * 1_000).div_ceil(*period_us), (MIN_US * period_us).div_ceil((*quota_us).max(1))
    )]
    Quota {
        /// What the limit comes to, us.
        quota_us: u64,
        /// For this period, us.
        period_us: u64,
    },
    /// Burst above quota.
    #[error(
        "burst {burst_us} us is above the quota of {quota_us} us, which the kernel refuses; use at most {quota_us} us"
    )]
    Burst {
        /// What was given, us.
        burst_us: u64,
        /// The quota, us.
        quota_us: u64,
    },
    /// Burst on top of nothing.
    #[error("burst {burst_us} us needs a limit to burst over; give a limit or leave the burst out")]
    BurstWithoutLimit {
        /// What was given, us.
        burst_us: u64,
    },
}

impl CpuLimit {
    /// Quota and period of this limit, computed as the kubelet does: `quota_us = millicpu * period_us / 1000`, rounded down
    /// (`pkg/kubelet/cm/helpers_linux.go`, `MilliCPUToQuota`). Where the kubelet would raise the quota to 1 ms, this refuses, so that a
    /// run never measures another limit than the one it is labelled with.
    ///
    /// # Errors
    /// [`LimitError::Period`], [`LimitError::Quota`], [`LimitError::Burst`], [`LimitError::BurstWithoutLimit`].
    pub fn bandwidth(self, period_us: u64, burst_us: u64) -> Result<Bandwidth, LimitError> {
        let quota = match self {
            Self::Unlimited => Quota::Unlimited,
            Self::Millicpu(milli) => {
                Quota::Us(u64::from(milli).checked_mul(period_us).ok_or(LimitError::Period { period_us })? / 1_000)
            }
        };
        Bandwidth { quota, period_us, burst_us }.checked()
    }

    /// CPUs, or `None` without a limit.
    #[must_use]
    pub fn cpus(self) -> Option<f64> {
        match self {
            Self::Millicpu(milli) => Some(f64::from(milli) / 1e3),
            Self::Unlimited => None,
        }
    }
}

impl FromStr for CpuLimit {
    type Err = LimitError;

    fn from_str(given: &str) -> Result<Self, LimitError> {
        let text = given.trim();
        if matches!(text, "unlimited" | "max") {
            return Ok(Self::Unlimited);
        }
        let milli = match text.strip_suffix('m') {
            Some(whole) => digits(whole),
            None => decimal_milli(text),
        };
        let named = || given.to_owned();
        match milli {
            None => Err(LimitError::Syntax { text: named() }),
            Some(0) => Err(LimitError::Zero { text: named() }),
            Some(milli) if milli < MIN_MILLICPU => Err(LimitError::BelowFloor { text: named() }),
            Some(milli) => Ok(Self::Millicpu(milli)),
        }
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Millicpu(milli) => f.pad(&format!("{milli}m")),
            Self::Unlimited => f.pad("unlimited"),
        }
    }
}

impl From<CpuLimit> for String {
    fn from(limit: CpuLimit) -> Self {
        limit.to_string()
    }
}

impl TryFrom<String> for CpuLimit {
    type Error = LimitError;
    fn try_from(text: String) -> Result<Self, LimitError> {
        text.parse()
    }
}

/// ASCII digits only: `u32::from_str` alone would take a sign.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `2`, `0.5`, `.5`, `1.` in thousandths; `None` for anything finer than a thousandth or not a number.
fn decimal_milli(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { digits(whole)? };
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 3 {
        return None;
    }
    let thousandths = digits(&format!("{fraction:0<3}"))?;
    whole.checked_mul(1_000)?.checked_add(thousandths)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<CpuLimit, LimitError> {
        text.parse()
    }

    #[test]
    fn every_way_of_writing_a_limit_is_read() {
        for (text, milli) in
            [("100m", 100), ("0.5", 500), ("2", 2_000), ("1600m", 1_600), (".25", 250), ("1.", 1_000), ("0.0100", 10)]
        {
            assert_eq!(parse(text), Ok(CpuLimit::Millicpu(milli)), "{text}");
        }
        assert_eq!(parse("unlimited"), Ok(CpuLimit::Unlimited));
        assert_eq!(parse(" max "), Ok(CpuLimit::Unlimited));
    }

    #[test]
    fn what_is_no_limit_is_refused_by_name() {
        for text in
            ["", "m", ".", "-1", "+5", "1e3", "100M", "0.0005", "1,5", "5000000", "99999999999m", "1.5m", "2 2", "½"]
        {
            assert_eq!(parse(text), Err(LimitError::Syntax { text: text.to_owned() }), "{text}");
        }
        for text in ["0", "0m", "0.000"] {
            assert_eq!(parse(text), Err(LimitError::Zero { text: text.to_owned() }), "{text}");
        }
        let said = parse("9m").expect_err("below the floor").to_string();
        assert!(said.contains("9m") && said.contains("kubelet's floor") && said.contains("1 ms per 100 ms"), "{said}");
    }

    #[test]
    fn quotas_are_the_kubelets() {
        let quota =
            |milli, period_us| CpuLimit::Millicpu(milli).bandwidth(period_us, 0).map(|bandwidth| bandwidth.quota);
        assert_eq!(quota(100, 100_000), Ok(Quota::Us(10_000)));
        assert_eq!(quota(10, 100_000), Ok(Quota::Us(1_000)));
        assert_eq!(quota(1_600, 100_000), Ok(Quota::Us(160_000)));
        assert_eq!(quota(333, 10_001), Ok(Quota::Us(3_330)));
    }

    #[test]
    fn a_quota_the_kernel_refuses_names_both_ways_out() {
        let error = CpuLimit::Millicpu(50).bandwidth(10_000, 0).expect_err("500 us");
        assert_eq!(error, LimitError::Quota { quota_us: 500, period_us: 10_000 });
        let said = error.to_string();
        assert!(said.contains("at least 100m") && said.contains("at least 20000 us"), "{said}");
    }

    #[test]
    fn periods_and_bursts_are_held_to_the_kernels_range() {
        for period_us in [0, 999, 1_000_001, u64::MAX] {
            assert_eq!(CpuLimit::Millicpu(2_000).bandwidth(period_us, 0), Err(LimitError::Period { period_us }));
            assert_eq!(CpuLimit::Unlimited.bandwidth(period_us, 0), Err(LimitError::Period { period_us }));
        }
        assert!(CpuLimit::Millicpu(1_000).bandwidth(1_000, 1_000).is_ok());
        assert_eq!(
            CpuLimit::Millicpu(200).bandwidth(100_000, 20_001),
            Err(LimitError::Burst { burst_us: 20_001, quota_us: 20_000 })
        );
        assert_eq!(CpuLimit::Unlimited.bandwidth(100_000, 1), Err(LimitError::BurstWithoutLimit { burst_us: 1 }));
    }

    #[test]
    fn unlimited_is_greater_than_any_limit() {
        assert!(CpuLimit::Unlimited > CpuLimit::Millicpu(u32::MAX));
        assert!(CpuLimit::Millicpu(200) > CpuLimit::Millicpu(100));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(milli in MIN_MILLICPU..) {
            let limit = CpuLimit::Millicpu(milli);
            prop_assert_eq!(limit.to_string().parse(), Ok(limit));
            let json = serde_json::to_string(&limit).expect("serializes");
            prop_assert_eq!(serde_json::from_str::<CpuLimit>(&json).expect("parses"), limit);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,12}") {
            let _ = parse(&text);
        }

        #[test]
        fn decimals_and_millis_agree(whole in 1_u32..1_000, thousandths in 0_u32..1_000) {
            prop_assert_eq!(parse(&format!("{whole}.{thousandths:03}")), Ok(CpuLimit::Millicpu(whole * 1_000 + thousandths)));
        }

        #[test]
        fn a_granted_bandwidth_is_within_the_kernels_range(milli: u32, period_us in 0_u64..2_000_000, burst_us in 0_u64..5_000_000) {
            if let Ok(granted) = CpuLimit::Millicpu(milli).bandwidth(period_us, burst_us) {
                let quota = granted.quota.us().expect("limited");
                prop_assert!(quota >= MIN_US && granted.burst_us <= quota);
                prop_assert!((MIN_US..=MAX_PERIOD_US).contains(&granted.period_us));
            }
        }
    }
}
