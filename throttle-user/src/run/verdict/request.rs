//! The verdict on one request.

use serde::Serialize;

use super::{Cause, LevelShare, NotKnown, of_need, of_recording};
use crate::{
    cgroup::CpuLimit,
    run::{
        need::Need,
        picture::{Doing, LimitPicture, RequestPicture, Shares},
    },
    time::DurationNs,
};

/// Why a request took as long as it did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestVerdict {
    /// The limit it ran under.
    pub limit: CpuLimit,
    /// Its number.
    pub request: u64,
    /// Where most of the time went that was not work.
    pub cause: Cause,
    /// First start to last finish.
    pub wall_ns: DurationNs,
    /// Where that went, along the critical path.
    pub shares: Shares,
    /// CPU time of all its workers by their own clocks.
    pub cpu_time_ns: DurationNs,
    /// Quota a period; absent = no limit.
    pub quota_us: Option<u64>,
    /// Period.
    pub period_us: u64,
    /// Leaf first, those that were out of quota while it was held.
    pub levels: Vec<LevelShare>,
    /// Held while no level was seen to be out of quota.
    pub unnamed_ns: DurationNs,
    /// Longest time it was held at a stretch.
    pub longest_ns: DurationNs,
    /// Periods it crossed; absent = no limit, or no boundary seen.
    pub periods: Option<u32>,
    /// Of those, periods in which it was held.
    pub throttled_periods: u32,
    /// What limit would have been enough; absent = nothing was observed.
    pub need: Option<Need>,
    /// What the recording cannot tell.
    pub not_known: Vec<NotKnown>,
}

impl RequestVerdict {
    /// Of a request of a limit.
    #[must_use]
    pub fn of(limit: &LimitPicture, request: &RequestPicture) -> Self {
        let share = &request.line.share;
        let unknown = (share.shares.unknown_ns != DurationNs::ZERO)
            .then_some(NotKnown::Time { unknown_ns: share.shares.unknown_ns, wall_ns: share.wall_ns });
        let incomplete = share.incomplete.iter().map(|&why| NotKnown::Request { why });
        let of_observed = limit.seen.is_some().then(|| {
            let reasons = unknown.into_iter().chain(incomplete).chain(of_need(request.need.as_ref(), limit.cpus));
            reasons.collect::<Vec<_>>()
        });
        Self {
            limit: limit.limit,
            request: request.line.request,
            cause: if limit.seen.is_some() { Cause::of(&share.shares) } else { Cause::NotMeasured },
            wall_ns: share.wall_ns,
            shares: share.shares,
            cpu_time_ns: share.cpu_time_ns,
            quota_us: limit.bandwidth.quota.us(),
            period_us: limit.bandwidth.period_us,
            levels: levels(limit, request),
            unnamed_ns: held(request).filter(|(_, levels)| *levels == 0).map(|(length, _)| length).sum(),
            longest_ns: longest(request),
            periods: share.periods,
            throttled_periods: share.throttled_periods,
            need: request.need,
            not_known: of_observed.into_iter().flatten().chain(of_recording(limit)).collect(),
        }
    }
}

/// Held stretches: how long, and which levels of the path were out.
fn held(request: &RequestPicture) -> impl Iterator<Item = (DurationNs, u16)> + '_ {
    request.course.iter().filter_map(|stretch| match stretch.doing {
        Doing::Throttled { levels, .. } => Some((stretch.span.length(), levels.0)),
        _ => None,
    })
}

fn levels(limit: &LimitPicture, request: &RequestPicture) -> Vec<LevelShare> {
    let share = |distance: usize| {
        let bit = 1_u16.checked_shl(u32::try_from(distance).ok()?)?;
        let time = |wanted: &dyn Fn(u16) -> bool| -> DurationNs {
            held(request).filter(|(_, levels)| wanted(*levels)).map(|(length, _)| length).sum()
        };
        let out_ns = time(&|levels| levels & bit != 0);
        let level = limit.path.get(distance)?;
        let name = limit.levels.iter().find(|drawn| drawn.cgroup == *level).and_then(|drawn| drawn.name);
        let share = LevelShare { level: name, cgroup_id: *level, out_ns, alone_ns: time(&|levels| levels == bit) };
        (out_ns != DurationNs::ZERO).then_some(share)
    };
    (0..limit.path.len()).filter_map(share).collect()
}

/// Stretches that follow each other are one, whatever level held them.
fn longest(request: &RequestPicture) -> DurationNs {
    let (mut longest, mut current) = (DurationNs::ZERO, DurationNs::ZERO);
    for stretch in &request.course {
        current = match stretch.doing {
            Doing::Throttled { .. } => current + stretch.span.length(),
            _ => DurationNs::ZERO,
        };
        longest = longest.max(current);
    }
    longest
}
