//! The verdict on a limit: what it did to the requests of its cgroup.

use serde::Serialize;

use super::{Cause, NotKnown, of_need, of_recording};
use crate::{
    cgroup::{CpuLimit, LevelName},
    run::{
        agree::Agreement,
        need::Need,
        picture::{LimitPicture, Shares},
    },
    time::DurationNs,
};

/// What a limit did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitVerdict {
    /// The limit.
    pub limit: CpuLimit,
    /// Where most of the requests' time went that was not work; without an answered request, whether threads were held.
    pub cause: Cause,
    /// Quota a period; absent = no limit.
    pub quota_us: Option<u64>,
    /// Period.
    pub period_us: u64,
    /// Answered requests.
    pub requests: u64,
    /// Of those, requests that were held.
    pub throttled_requests: u64,
    /// Sum of their wall times.
    pub wall_ns: DurationNs,
    /// Where that went.
    pub shares: Shares,
    /// Leaf first.
    pub levels: Vec<LevelVerdict>,
    /// CPUs used on average, over the limit; absent = no limit, or not measured.
    pub used_over_limit: Option<f64>,
    /// Time in which some thread was held; absent = not measured.
    pub held_wall_ns: Option<DurationNs>,
    /// Integral of min(idle CPUs, held threads) over it; absent = not measured.
    pub denied_idle_ns: Option<DurationNs>,
    /// The request with the longest wall time, and that time.
    pub slowest: Option<(u64, DurationNs)>,
    /// What limit would have been enough; absent = nothing was observed, or nothing ran.
    pub need: Option<Need>,
    /// Whether the kernel's counters say the same.
    pub kernel_agrees: bool,
    /// What the recording cannot tell.
    pub not_known: Vec<NotKnown>,
}

/// What one level had to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LevelVerdict {
    /// Container or pod.
    pub level: LevelName,
    /// Periods counted; absent = not measured.
    pub periods: Option<u64>,
    /// Of those, periods that ended with a throttled CPU.
    pub throttled: Option<u64>,
}

impl LimitVerdict {
    /// Of a limit.
    #[must_use]
    pub fn of(picture: &LimitPicture) -> Self {
        let requests = || picture.requests.iter().map(|request| &request.line.share);
        let shares: Shares = requests().map(|share| share.shares).sum();
        let incomplete = requests().filter(|share| !share.complete).count() as u64;
        let answered = picture.requests.len() as u64;
        let seen = picture.seen.is_some();
        let held = picture.line.throttled_wall_ns.is_some_and(|held| held != DurationNs::ZERO);
        let cause = match (seen, answered) {
            (false, _) => Cause::NotMeasured,
            (true, 0) if held => Cause::Throttled,
            (true, _) => Cause::of(&shares),
        };
        let open = [
            (seen && incomplete > 0).then_some(NotKnown::Requests { incomplete, answered }),
            (!picture.failed.is_empty()).then_some(NotKnown::Failed { requests: picture.failed.len() as u64 }),
        ];
        let used = picture.line.pod_cpu_ns.filter(|_| picture.line.elapsed_ns != DurationNs::ZERO);
        Self {
            limit: picture.limit,
            cause,
            quota_us: picture.bandwidth.quota.us(),
            period_us: picture.bandwidth.period_us,
            requests: answered,
            throttled_requests: requests().filter(|share| share.shares.throttled() != DurationNs::ZERO).count() as u64,
            wall_ns: requests().map(|share| share.wall_ns).sum(),
            shares,
            levels: picture
                .line
                .levels
                .iter()
                .map(|level| LevelVerdict {
                    level: level.level,
                    periods: level.observed.as_ref().map(|seen| seen.nr_periods),
                    throttled: level.observed.as_ref().map(|seen| seen.nr_throttled),
                })
                .collect(),
            used_over_limit: used
                .zip(picture.limit.cpus())
                .map(|(used, limit)| used.as_millis_f64() / picture.line.elapsed_ns.as_millis_f64() / limit),
            held_wall_ns: picture.line.throttled_wall_ns,
            denied_idle_ns: picture.line.denied_idle_ns,
            slowest: picture.slowest().map(|request| (request.line.request, request.line.share.wall_ns)),
            need: picture.need,
            kernel_agrees: picture.line.agreement == Agreement::Agrees,
            not_known: open
                .into_iter()
                .flatten()
                .chain(of_need(picture.need.as_ref(), picture.cpus))
                .chain(of_recording(picture))
                .collect(),
        }
    }
}
