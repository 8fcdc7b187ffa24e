//! What a sweep is to do.

use serde::{Deserialize, Serialize};

use crate::{
    cgroup::{Bandwidth, CpuLimit, DEFAULT_PERIOD_US, LimitError, Nesting},
    request::FanOut,
    time::DurationNs,
};

/// A sweep over CPU limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepPlan {
    /// Limits in the order they are run.
    pub limits: Vec<CpuLimit>,
    /// Requests at each limit.
    pub requests: u64,
    /// CPU time a request burns.
    pub work_ns: DurationNs,
    /// From an answer to the next request of the same stream.
    pub gap_ns: DurationNs,
    /// Each gap is longer by a part of this that differs from request to request; zero = all are alike.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spread_ns: DurationNs,
    /// Worker threads a request is spread over.
    pub threads: u32,
    /// How they share the work.
    pub mode: FanOut,
    /// Streams at once.
    pub streams: u32,
    /// Pod and container limited, or the container alone.
    pub nesting: Nesting,
    /// CFS period, us.
    pub period_us: u64,
    /// CFS burst of limited arms, us.
    pub burst_us: u64,
    /// A busy thread for each CPU in a group beside the limited ones, with so many times their weight; `None` = nothing beside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<u32>,
}

fn is_zero(length: &DurationNs) -> bool {
    *length == DurationNs::ZERO
}

impl Default for SweepPlan {
    /// The published grid: 100m to 1600m and unlimited, 40 requests of 60 ms, 200 ms apart, one thread, nested.
    fn default() -> Self {
        let milli = [100, 200, 400, 800, 1600].map(CpuLimit::Millicpu);
        Self {
            limits: milli.into_iter().chain([CpuLimit::Unlimited]).collect(),
            requests: 40,
            work_ns: DurationNs::from_millis(60),
            gap_ns: DurationNs::from_millis(200),
            spread_ns: DurationNs::ZERO,
            threads: 1,
            mode: FanOut::Split,
            streams: 1,
            nesting: Nesting::Nested,
            period_us: DEFAULT_PERIOD_US,
            burst_us: 0,
            background: None,
        }
    }
}

/// A plan that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A limit, with this period and burst, is refused.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Nothing to do.
    #[error("{what} is 0: there is nothing to measure; give at least 1")]
    Nothing {
        /// The flag.
        what: &'static str,
    },
    /// The same limit twice.
    #[error("limit {0} is given twice; a run holds each limit once")]
    Twice(CpuLimit),
}

impl SweepPlan {
    /// Checks the plan and gives each limit its bandwidth.
    ///
    /// # Errors
    /// [`PlanError`] names the value and the remedy.
    pub fn arms(&self) -> Result<Vec<(CpuLimit, Bandwidth)>, PlanError> {
        for (what, value) in [
            ("--limits", self.limits.len() as u64),
            ("--requests", self.requests),
            ("--threads", self.threads.into()),
            ("--streams", self.streams.into()),
        ] {
            if value == 0 {
                return Err(PlanError::Nothing { what });
            }
        }
        for (index, limit) in self.limits.iter().enumerate() {
            if self.limits[..index].contains(limit) {
                return Err(PlanError::Twice(*limit));
            }
        }
        self.limits
            .iter()
            .map(|&limit| {
                let burst_us = if limit == CpuLimit::Unlimited { 0 } else { self.burst_us };
                Ok((limit, limit.bandwidth(self.period_us, burst_us)?))
            })
            .collect()
    }

    /// Worker threads the server needs: every stream can have a request at work.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.threads.saturating_mul(self.streams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_published_grid_and_unlimited() {
        let arms = SweepPlan::default().arms().expect("the default can be run");
        let quotas: Vec<_> = arms.iter().map(|(_, bandwidth)| bandwidth.quota.us()).collect();
        assert_eq!(quotas, [Some(10_000), Some(20_000), Some(40_000), Some(80_000), Some(160_000), None]);
    }

    #[test]
    fn a_plan_without_spread_and_background_is_stored_without_them() {
        let text = serde_json::to_string(&SweepPlan::default()).expect("JSON");
        assert!(!text.contains("spread") && !text.contains("background"), "{text}");
        assert_eq!(serde_json::from_str::<SweepPlan>(&text).expect("a plan"), SweepPlan::default());
    }

    #[test]
    fn a_plan_without_requests_or_with_a_limit_twice_is_refused() {
        let nothing = SweepPlan { requests: 0, ..SweepPlan::default() };
        assert!(nothing.arms().expect_err("nothing to do").to_string().contains("--requests"));
        let twice = SweepPlan { limits: vec![CpuLimit::Millicpu(100); 2], ..SweepPlan::default() };
        assert!(twice.arms().expect_err("twice").to_string().contains("100m"));
        let period = SweepPlan { period_us: 999, ..SweepPlan::default() };
        assert!(period.arms().expect_err("too short").to_string().contains("1000"));
    }
}
