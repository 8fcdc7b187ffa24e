//! The verdict on a run: from which limit on requests were free, by trial and by calculation.

use serde::Serialize;

use super::LimitVerdict;
use crate::{cgroup::CpuLimit, run::need::Need};

/// What the limits of a run come to together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunVerdict {
    /// Each limit, in the order they were run.
    pub limits: Vec<LimitVerdict>,
    /// Limits of the plan that did not begin.
    pub not_run: Vec<CpuLimit>,
    /// The smallest limit tried from which on no request was held, all limits above it included; absent = none.
    pub free_from: Option<CpuLimit>,
    /// The largest limit tried at which a request was held; absent = none.
    pub held_up_to: Option<CpuLimit>,
    /// The least and the largest of the limits calculated as enough, thousandths of a CPU; absent = nothing was observed.
    pub enough_millicores: Option<(u64, u64)>,
    /// Limits tried at or above the largest of those at which requests were held all the same: what was calculated is not
    /// enough for them.
    pub contradicting: Vec<CpuLimit>,
}

impl RunVerdict {
    /// Of a run's limits.
    #[must_use]
    pub fn of(limits: Vec<LimitVerdict>, not_run: Vec<CpuLimit>) -> Self {
        // A limit without answers, or without events, shows nothing.
        let mut tried: Vec<&LimitVerdict> =
            limits.iter().filter(|limit| limit.requests > 0 && limit.held_wall_ns.is_some()).collect();
        tried.sort_by_key(|limit| limit.limit);
        let held: Vec<CpuLimit> =
            tried.iter().filter(|limit| limit.throttled_requests > 0).map(|limit| limit.limit).collect();
        let held_up_to = held.last().copied();
        let free_from = tried.iter().map(|limit| limit.limit).find(|&limit| held_up_to < Some(limit));
        let ranges = || limits.iter().filter_map(|limit| limit.need.as_ref()).map(Need::range);
        let least = ranges().map(|(low, _)| low.limit_millicores).min();
        let most = ranges().map(|(_, high)| high.limit_millicores).max();
        let enough_millicores = least.zip(most);
        let above = |limit: &CpuLimit| match (limit, most) {
            (CpuLimit::Millicpu(milli), Some(most)) => u64::from(*milli) >= most,
            _ => false,
        };
        Self {
            free_from,
            held_up_to,
            enough_millicores,
            contradicting: held.into_iter().filter(above).collect(),
            limits,
            not_run,
        }
    }
}
