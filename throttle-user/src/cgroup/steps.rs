//! The writes that take a group from one bandwidth to another, in an order the kernel accepts at every step.
//!
//! Pure. Owns the control files' names and the rules of order; [`super::bandwidth`] carries the writes out.

use super::bandwidth::{Bandwidth, Quota};
use super::hierarchy::Version;

pub(super) const V1_QUOTA: &str = "cpu.cfs_quota_us";
pub(super) const V1_PERIOD: &str = "cpu.cfs_period_us";
pub(super) const V1_BURST: &str = "cpu.cfs_burst_us";
pub(super) const V2_MAX: &str = "cpu.max";
pub(super) const V2_BURST: &str = "cpu.max.burst";

/// One write to one control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    V1Quota(Quota),
    V1Period(u64),
    V1Burst(u64),
    V2Max(Quota, u64),
    V2Burst(u64),
}

impl Step {
    /// Whether the file is one that kernels before 5.14 lack.
    pub(super) fn is_burst(self) -> bool {
        matches!(self, Self::V1Burst(_) | Self::V2Burst(_))
    }

    /// Name of the control file, and the text to write.
    pub(super) fn file_and_value(self) -> (&'static str, String) {
        match self {
            Self::V1Quota(Quota::Unlimited) => (V1_QUOTA, "-1".to_owned()),
            Self::V1Quota(Quota::Us(us)) => (V1_QUOTA, us.to_string()),
            Self::V1Period(us) => (V1_PERIOD, us.to_string()),
            Self::V1Burst(us) => (V1_BURST, us.to_string()),
            Self::V2Max(Quota::Unlimited, period) => (V2_MAX, format!("max {period}")),
            Self::V2Max(Quota::Us(us), period) => (V2_MAX, format!("{us} {period}")),
            Self::V2Burst(us) => (V2_BURST, us.to_string()),
        }
    }
}

/// Steps from `now` to `want`, in order; none where nothing changes.
pub(super) fn plan(version: Version, now: &Bandwidth, want: &Bandwidth) -> Vec<Step> {
    match version {
        Version::V1 => v1_steps(now, want),
        Version::V2 => v2_steps(now, want),
    }
}

/// v1 has a file for each value, checks each write on its own, and refuses a ratio above the parent's or below a child's
/// (`tg_cfs_schedulable_down`). So burst is lowered first and raised last, and the ratio never leaves the range from the old to
/// the new one: where neither order of quota and period keeps it there, the quota is lifted in between (always allowed: a group
/// without a quota counts with its parent's).
fn v1_steps(now: &Bandwidth, want: &Bandwidth) -> Vec<Step> {
    let low_burst = now.burst_us.min(want.burst_us);
    let mut steps = Vec::new();
    if now.burst_us != low_burst {
        steps.push(Step::V1Burst(low_burst));
    }
    let (quota, period) = (Step::V1Quota(want.quota), Step::V1Period(want.period_us));
    let between = |step: Bandwidth| {
        let (low, high) = if now.cmp_ratio(want).is_le() { (now, want) } else { (want, now) };
        low.cmp_ratio(&step).is_le() && step.cmp_ratio(high).is_le()
    };
    match (now.quota != want.quota, now.period_us != want.period_us) {
        (false, false) => {}
        (true, false) => steps.push(quota),
        (false, true) => steps.push(period),
        (true, true) if between(Bandwidth { period_us: want.period_us, ..*now }) => steps.extend([period, quota]),
        (true, true) if between(Bandwidth { quota: want.quota, ..*now }) => steps.extend([quota, period]),
        (true, true) => steps.extend([Step::V1Quota(Quota::Unlimited), period, quota]),
    }
    if want.burst_us != low_burst {
        steps.push(Step::V1Burst(want.burst_us));
    }
    steps
}

/// v2 takes quota and period together and knows no order between levels. The burst is written again after `cpu.max`, because
/// kernels 5.14 to 6.9 shrink it a thousandfold there (fixed by 49217ea147df).
fn v2_steps(now: &Bandwidth, want: &Bandwidth) -> Vec<Step> {
    let low_burst = now.burst_us.min(want.burst_us);
    let mut steps = Vec::new();
    if now.burst_us != low_burst {
        steps.push(Step::V2Burst(low_burst));
    }
    let changed = (now.quota, now.period_us) != (want.quota, want.period_us);
    if changed {
        steps.push(Step::V2Max(want.quota, want.period_us));
    }
    if want.burst_us != low_burst || (changed && want.burst_us > 0) {
        steps.push(Step::V2Burst(want.burst_us));
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::limit::{MAX_PERIOD_US, MIN_US};
    use super::*;

    fn limited(quota_us: u64, period_us: u64, burst_us: u64) -> Bandwidth {
        Bandwidth { quota: Quota::Us(quota_us), period_us, burst_us }
    }

    /// Applies `step` as `tg_set_cfs_bandwidth` would for a group between a parent and a child: what it refuses, this refuses.
    fn kernel(
        at: Bandwidth,
        step: Step,
        parent: &Bandwidth,
        child: &Bandwidth,
        shrinks_burst: bool,
    ) -> Result<Bandwidth, String> {
        let next = match step {
            Step::V1Quota(quota) => Bandwidth { quota, ..at },
            Step::V1Period(period_us) => Bandwidth { period_us, ..at },
            Step::V1Burst(burst_us) | Step::V2Burst(burst_us) => Bandwidth { burst_us, ..at },
            Step::V2Max(quota, period_us) => Bandwidth { quota, period_us, ..at },
        };
        if next.quota.us().is_some_and(|quota| quota < MIN_US || next.burst_us > quota) {
            return Err(format!("{next} is out of range"));
        }
        if matches!(step, Step::V1Quota(_) | Step::V1Period(_)) && next.quota != Quota::Unlimited {
            if next.cmp_ratio(parent).is_gt() {
                return Err(format!("{next} is above the parent's {parent}"));
            }
            if child.quota != Quota::Unlimited && child.cmp_ratio(&next).is_gt() {
                return Err(format!("{next} is below the child's {child}"));
            }
        }
        let shrunk =
            if matches!(step, Step::V2Max(..)) && shrinks_burst { next.burst_us / 1_000 } else { next.burst_us };
        Ok(Bandwidth { burst_us: shrunk, ..next })
    }

    fn run(now: &Bandwidth, want: &Bandwidth, steps: Vec<Step>, shrinks_burst: bool) -> Result<Bandwidth, String> {
        let (low, high) = if now.cmp_ratio(want).is_le() { (now, want) } else { (want, now) };
        steps.into_iter().try_fold(*now, |at, step| kernel(at, step, high, low, shrinks_burst))
    }

    fn any_bandwidth() -> impl Strategy<Value = Bandwidth> {
        let quota = prop_oneof![1 => Just(Quota::Unlimited), 4 => (MIN_US..2_000_000).prop_map(Quota::Us)];
        (quota, prop_oneof![Just(100_000), MIN_US..=MAX_PERIOD_US], 0_u64..=100).prop_map(
            |(quota, period_us, percent)| {
                let burst_us = quota.us().map_or(0, |us| us * percent / 100);
                Bandwidth { quota, period_us, burst_us }
            },
        )
    }

    proptest! {
        #[test]
        fn v1_steps_reach_the_goal_between_a_parent_and_a_child_without_a_refusal(now in any_bandwidth(), want in any_bandwidth()) {
            prop_assert_eq!(run(&now, &want, v1_steps(&now, &want), false), Ok(want));
        }

        #[test]
        fn v2_steps_reach_the_goal_on_kernels_that_shrink_the_burst_and_on_those_that_do_not(
            now in any_bandwidth(), want in any_bandwidth(), shrinks: bool,
        ) {
            prop_assert_eq!(run(&now, &want, v2_steps(&now, &want), shrinks), Ok(want));
        }

        #[test]
        fn equal_values_are_not_written_again(now in any_bandwidth()) {
            prop_assert!(v1_steps(&now, &now).is_empty() && v2_steps(&now, &now).is_empty());
        }
    }

    #[test]
    fn a_ratio_that_neither_order_keeps_in_range_goes_through_no_quota() {
        let steps = v1_steps(&limited(20_000, 100_000, 0), &limited(30_000, 120_000, 0));
        assert_eq!(steps, [Step::V1Quota(Quota::Unlimited), Step::V1Period(120_000), Step::V1Quota(Quota::Us(30_000))]);
    }
}
