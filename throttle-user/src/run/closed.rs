//! The closed form beside what was measured: one thread under one quota, with the CPU time that its requests took.
//!
//! It leaves out what [`super::modelled`] has: a second level, slices and the tick. So it is the skeleton that measurements are
//! read against, and no prediction of them.

use serde::{Deserialize, Serialize};

use super::{picture::LimitPicture, record::Head, summary::RunSummary};
use crate::{
    cgroup::CpuLimit,
    model::{bandwidth::Bandwidth, closed_form::OneThread},
    stats::Quantile,
    time::DurationNs,
};

/// Wall times of a limit over all phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The limit, thousandths of a CPU.
    pub millicores: u32,
    /// Shortest.
    pub best_ns: DurationNs,
    /// Median.
    pub p50_ns: DurationNs,
    /// Longest.
    pub worst_ns: DurationNs,
}

/// Points of the curve.
const POINTS: u32 = 240;

/// From the smallest limit of a run to the largest, in equal ratios; empty where requests are not of one thread with the pool to
/// themselves.
#[must_use]
pub fn curve(head: &Head, summary: &RunSummary) -> Vec<Closed> {
    let limits = summary.limits.iter().filter_map(|limit| match limit.limit {
        CpuLimit::Millicpu(milli) => Some(milli),
        CpuLimit::Unlimited => None,
    });
    let (Some(least), Some(most)) = (limits.clone().min(), limits.clone().max()) else { return vec![] };
    let (answered, total) = summary.limits.iter().fold((0, 0_u128), |(answered, total), limit| {
        let each = limit.cpu_time_ns.map_or(0, |time| u128::from(time.0));
        (answered + limit.n, total + each * u128::from(limit.n))
    });
    let mean = total.checked_div(u128::from(answered)).and_then(|mean| u64::try_from(mean).ok());
    let Some(work) = mean.map(DurationNs).filter(|_| applies(head)) else { return vec![] };
    let step = (f64::from(most) / f64::from(least)).powf(1.0 / f64::from(POINTS));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two limits")]
    let between = (0..=POINTS).map(|point| (f64::from(least) * step.powf(f64::from(point))).round() as u32);
    let mut millicores: Vec<u32> = between.chain(limits).collect();
    millicores.sort_unstable();
    millicores.dedup();
    let of = |milli| {
        let one = one_thread(work, milli, head.plan.period_us)?;
        let p50_ns = one.quantile(Quantile::P50);
        Some(Closed { millicores: milli, best_ns: one.best(), p50_ns, worst_ns: one.worst() })
    };
    millicores.into_iter().filter_map(of).collect()
}

/// Wall time by the time from the last refill to the start, for the mean CPU time of a limit's requests; empty as [`curve`], and
/// without a limit.
#[must_use]
pub fn over_phases(head: &Head, limit: &LimitPicture) -> Vec<(DurationNs, DurationNs)> {
    let CpuLimit::Millicpu(milli) = limit.limit else { return vec![] };
    let times = limit.requests.iter().map(|request| request.line.share.cpu_time_ns);
    let mean = times.sum::<DurationNs>().0.checked_div(limit.requests.len() as u64).map(DurationNs);
    let one = mean.filter(|_| applies(head)).and_then(|work| one_thread(work, milli, head.plan.period_us));
    let Some(one) = one else { return vec![] };
    let period = DurationNs::from_micros(head.plan.period_us);
    let phase = |point: u32| DurationNs(period.0 / u64::from(POINTS) * u64::from(point));
    (0..POINTS).map(phase).map(|phase| (phase, one.wall(period - phase))).collect()
}

fn applies(head: &Head) -> bool {
    let plan = &head.plan;
    plan.threads == 1
        && plan.streams == 1
        && plan.burst_us == 0
        && plan.gap_ns >= DurationNs::from_micros(plan.period_us)
}

fn one_thread(work: DurationNs, millicores: u32, period_us: u64) -> Option<OneThread> {
    let set = CpuLimit::Millicpu(millicores).bandwidth(period_us, 0).ok()?;
    let quota = DurationNs::from_micros(set.quota.us()?);
    OneThread::new(work, &Bandwidth::new(quota, DurationNs::from_micros(period_us)).ok()?)
}
