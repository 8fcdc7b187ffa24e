//! The state as JSON. Times are `CLOCK_MONOTONIC` ns, lengths ns; what was not measured or does not apply is absent.

use serde::Serialize;

use super::state::State;
use crate::{
    event::CgroupId,
    kubernetes::Name,
    kubernetes::Pods,
    node::{Census, Histogram, Member, Totals},
    time::{ClockAnchor, DurationNs, MonoNs},
    timeline::{live::LivePeriod, period::PeriodRecord},
};

/// Version of these rows.
pub const SCHEMA: u32 = 1;

/// Answer of `/api/v1/cgroups`.
#[derive(Debug, Serialize)]
pub struct Cgroups {
    /// Version of the rows.
    pub schema: u32,
    /// Ties the times in it to the wall clock.
    pub clock: ClockAnchor,
    /// Since when the node is observed; absent = not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_since_ns: Option<MonoNs>,
    /// The cgroups, by path.
    pub cgroups: Vec<CgroupRow>,
}

/// One cgroup.
#[derive(Debug, Serialize)]
pub struct CgroupRow {
    /// Its kernfs id: the inode of its directory.
    pub id: CgroupId,
    /// What it is called.
    #[serde(flatten)]
    pub name: Name,
    /// The mount shows it.
    pub visible: bool,
    /// It has a quota of its own now.
    pub limited: bool,
    /// Its limit; absent = it has no such files.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitRow>,
    /// What was counted; absent = no period of it ended since it is observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub totals: Option<TotalsRow>,
    /// End of its last period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_period_ns: Option<MonoNs>,
    /// Since when it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_since_ns: Option<MonoNs>,
}

/// A limit.
#[derive(Debug, Serialize)]
pub struct LimitRow {
    /// Quota; absent = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_us: Option<u64>,
    /// Period.
    pub period_us: u64,
    /// Burst.
    pub burst_us: u64,
}

/// Counters since the observation began.
#[derive(Debug, Serialize)]
pub struct TotalsRow {
    /// As [`Totals::periods`], and so on.
    pub periods: u64,
    /// Ended with a throttled CPU.
    pub throttled_periods: u64,
    /// Not known in whole.
    pub incomplete_periods: u64,
    /// Summed over CPUs.
    pub throttled_cpu_ns: DurationNs,
    /// Some CPU throttled.
    pub throttled_wall_ns: DurationNs,
    /// Threads held and none ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fully_throttled_ns: Option<DurationNs>,
    /// Left the pool.
    pub drawn_ns: DurationNs,
    /// On CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_ns: Option<DurationNs>,
    /// Idle while threads were held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_idle_ns: Option<DurationNs>,
    /// Throttles of one CPU.
    pub throttles: HistogramRow,
    /// From a period's start to its first throttle.
    pub exhaustion: HistogramRow,
}

/// A histogram.
#[derive(Debug, Serialize)]
pub struct HistogramRow {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum_ns: DurationNs,
    /// Upper bound of each bucket (absent for the last) and how many fell into it and no lower one.
    pub buckets: Vec<(Option<DurationNs>, u64)>,
}

/// One line of `/api/v1/periods`.
#[derive(Debug, Serialize)]
pub struct PeriodLine<'a> {
    /// What the cgroup is called.
    #[serde(flatten)]
    pub name: Name,
    /// The period.
    #[serde(flatten)]
    pub record: &'a PeriodRecord,
    /// CPU time that left the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drawn_ns: Option<i64>,
    /// Some CPU was throttled as it ended.
    pub throttled_at_end: bool,
}

/// Of a member.
#[must_use]
pub fn name(id: CgroupId, member: Option<&Member>, pods: &Pods) -> Name {
    match member.and_then(|member| member.path.as_deref()) {
        Some(path) => Name::of(path, pods),
        // Of another node on this machine, or above the node's own container.
        None => Name::of(&format!("(id {}, outside the visible tree)", id.0), pods),
    }
}

/// Of the cgroups that have a limit or were counted.
#[must_use]
pub fn cgroups(state: &State, wanted: impl Fn(&Name) -> bool) -> Cgroups {
    let rows = state.census.members().filter(|(_, member)| member.is_limited() || member.totals.is_some());
    let mut cgroups: Vec<CgroupRow> =
        rows.map(|(id, member)| row(id, member, &state.pods)).filter(|row| wanted(&row.name)).collect();
    cgroups.sort_by(|a, b| a.name.path.cmp(&b.name.path));
    Cgroups { schema: SCHEMA, clock: ClockAnchor::take(), observed_since_ns: state.own.since, cgroups }
}

fn row(id: CgroupId, member: &Member, pods: &Pods) -> CgroupRow {
    CgroupRow {
        id,
        name: name(id, Some(member), pods),
        visible: member.path.is_some(),
        limited: member.is_limited(),
        limit: member.bandwidth.map(|limit| LimitRow {
            quota_us: limit.quota.us(),
            period_us: limit.period_us,
            burst_us: limit.burst_us,
        }),
        totals: member.totals.as_deref().map(TotalsRow::of),
        last_period_ns: member.last,
        gone_since_ns: member.gone,
    }
}

impl TotalsRow {
    fn of(totals: &Totals) -> Self {
        Self {
            periods: totals.periods,
            throttled_periods: totals.throttled_periods,
            incomplete_periods: totals.incomplete_periods,
            throttled_cpu_ns: totals.throttled_cpus,
            throttled_wall_ns: totals.throttled_wall,
            fully_throttled_ns: totals.fully_throttled,
            drawn_ns: totals.drawn,
            used_ns: totals.used,
            denied_idle_ns: totals.denied_idle,
            throttles: HistogramRow::of(&totals.throttles),
            exhaustion: HistogramRow::of(&totals.exhaustion),
        }
    }
}

impl HistogramRow {
    fn of(histogram: &Histogram) -> Self {
        Self { count: histogram.count(), sum_ns: histogram.sum(), buckets: histogram.buckets().collect() }
    }
}

impl<'a> PeriodLine<'a> {
    /// Of a period.
    #[must_use]
    pub fn of(period: &'a LivePeriod, census: &Census, pods: &Pods) -> Self {
        let id = period.record.cgroup;
        Self {
            name: name(id, census.get(id), pods),
            record: &period.record,
            drawn_ns: period.drawn_ns,
            throttled_at_end: period.boundary.throttled(),
        }
    }
}
