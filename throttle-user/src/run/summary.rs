//! The figures of the table: one row a limit.

use serde::{Deserialize, Serialize};

use super::{
    SCHEMA,
    agree::Agreement,
    derive::{Derived, LimitLine, RequestLine, RunLine},
    modelled::Predicted,
    record::{Ending, Head},
};
use crate::{
    cgroup::{CpuLimit, LevelName},
    stats::{Quantile, QuantileInterval, Summary, quantile_interval},
    time::DurationNs,
};

/// `summary.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// [`SCHEMA`]
    pub schema: u32,
    /// Definition of every quantile in it.
    pub quantile_definition: String,
    /// One row a limit, in the order they were run.
    pub limits: Vec<LimitSummary>,
    /// Limits of the plan that did not begin.
    pub not_run: Vec<CpuLimit>,
}

impl RunSummary {
    /// Whether the whole plan was done and all of it is as it should be.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.not_run.is_empty() && self.limits.iter().all(LimitSummary::is_right)
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitSummary {
    /// The limit.
    pub limit: CpuLimit,
    /// Requests planned.
    pub planned: u64,
    /// Requests answered.
    pub n: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Median wall time; absent without an answered request.
    pub p50_ns: Option<DurationNs>,
    /// Nearest-rank 99th percentile; absent under 100 requests, which cannot tell it from the maximum.
    pub p99_ns: Option<DurationNs>,
    /// Where the true median lies, at 95 % or better, if requests were independent of each other.
    pub p50_interval: Option<QuantileInterval<DurationNs>>,
    /// The same of the 99th percentile; absent as `p99_ns`.
    pub p99_interval: Option<QuantileInterval<DurationNs>>,
    /// Longest wall time.
    pub max_ns: Option<DurationNs>,
    /// Mean wall time.
    pub mean_ns: Option<DurationNs>,
    /// Mean CPU time a request used, by the workers' clocks.
    pub cpu_time_ns: Option<DurationNs>,
    /// `p99_ns`, under 100 requests `max_ns`, over the work asked of the critical path.
    pub tail_over_work: Option<f64>,
    /// CPUs the pod used on average between first start and last finish plus one gap.
    pub pod_cpus: Option<f64>,
    /// That over the limit; absent = no limit.
    pub pod_cpus_over_limit: Option<f64>,
    /// Mean time held by any limit.
    pub throttled_wall_ns: Option<DurationNs>,
    /// Of that, own level out of quota.
    pub throttled_own_ns: Option<DurationNs>,
    /// Of that, only ancestors out of quota.
    pub throttled_ancestor_ns: Option<DurationNs>,
    /// The kernel's `throttled_time` of the container alone, per request: what most tools show. Absent = not read.
    pub kernel_container_only_ns: Option<DurationNs>,
    /// Mean run-queue wait.
    pub runqueue_ns: Option<DurationNs>,
    /// Largest `unknown` share of a request's wall time, nearest-rank p99 over requests.
    pub unknown_share_p99: Option<f64>,
    /// Throttled and counted periods of the container, observed; absent = no limit.
    pub throttled_periods: Option<u64>,
    /// See `throttled_periods`.
    pub counted_periods: Option<u64>,
    /// Idle share of the node's CPUs while the pod was throttled; absent = never throttled, or not measured.
    pub node_idle_share: Option<f64>,
    /// What the model predicts for the measured CPU time and phases; absent where it covers none of the requests.
    pub model: Option<Predicted>,
    /// Why not.
    pub no_model: Option<String>,
    /// What the first request that failed failed of; absent = none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_because: Option<String>,
    /// Whether there are events of it; without them what they tell is absent, and was not measured.
    pub observed: bool,
    /// Records lost.
    pub lost_events: u64,
    /// Tracepoints the kernel did not fire, reconstructed.
    pub untraced_events: u64,
    /// Whether the kernel's counters agree.
    pub agreement: Agreement,
    /// How it ended.
    pub ending: Ending,
}

impl LimitSummary {
    fn is_right(&self) -> bool {
        let whole = self.ending == Ending::Complete && self.n == self.planned && self.failed == 0;
        whole && self.agreement == Agreement::Agrees
    }
}

/// Of the intervals in a summary.
const CONFIDENCE: f64 = 0.95;

/// Summarises derived limits.
#[must_use]
pub fn summarise(head: &Head, derived: &[Derived]) -> RunSummary {
    RunSummary {
        schema: SCHEMA,
        quantile_definition:
            "nearest rank: of n sorted values the one at rank ceil(p n); no p99 of fewer than 100 values".to_owned(),
        limits: derived.iter().filter_map(|derived| limit(head, derived)).collect(),
        not_run: head.plan.limits.iter().skip(derived.len()).copied().collect(),
    }
}

/// Summarises one limit; `None` if it has no limit line.
#[must_use]
pub fn limit(head: &Head, derived: &Derived) -> Option<LimitSummary> {
    let line = derived.lines.iter().find_map(|line| match line {
        RunLine::Limit(line) => Some(&**line),
        RunLine::Request(_) | RunLine::FailedRequest { .. } => None,
    })?;
    let requests: Vec<&RequestLine> = derived.requests().collect();
    let n = requests.len() as u64;
    let walls: Vec<DurationNs> = requests.iter().map(|request| request.share.wall_ns).collect();
    let wall = Summary::of(&walls);
    let p99 = wall.and_then(|wall| wall.p99);
    let mut sorted = walls;
    sorted.sort_unstable();
    let interval = |quantile: Quantile| quantile_interval(&sorted, quantile, CONFIDENCE);
    let mean = |of: fn(&RequestLine) -> DurationNs| {
        let total: DurationNs = requests.iter().map(|request| of(request)).sum();
        total.0.checked_div(n).map(DurationNs)
    };
    let pod_cpus = line.pod_cpu_ns.filter(|_| line.elapsed_ns != DurationNs::ZERO);
    let pod_cpus = pod_cpus.map(|used| ratio(used.0, line.elapsed_ns.0));
    let observed = line.throttled_wall_ns.is_some();
    let share = |of: fn(&RequestLine) -> DurationNs| mean(of).filter(|_| observed);
    let container = line.levels.iter().find(|level| level.level == LevelName::Container);
    let seen = container.filter(|_| line.quota_us.is_some()).and_then(|level| level.observed.as_ref());
    Some(LimitSummary {
        limit: line.limit,
        planned: head.plan.requests,
        n,
        failed: derived.lines.iter().filter(|line| matches!(line, RunLine::FailedRequest { .. })).count() as u64,
        failed_because: derived.lines.iter().find_map(|line| match line {
            RunLine::FailedRequest { error, .. } => Some(error.clone()),
            RunLine::Request(_) | RunLine::Limit(_) => None,
        }),
        p50_ns: wall.map(|wall| wall.p50),
        p99_ns: p99,
        p50_interval: interval(Quantile::P50),
        p99_interval: p99.and_then(|_| interval(Quantile::P99)),
        max_ns: wall.map(|wall| wall.max),
        mean_ns: wall.map(|wall| wall.mean),
        cpu_time_ns: mean(|request| request.share.cpu_time_ns),
        tail_over_work: p99.or(wall.map(|wall| wall.max)).map(|tail| ratio(tail.0, critical_work(head).0)),
        pod_cpus,
        pod_cpus_over_limit: pod_cpus.zip(line.limit.cpus()).map(|(used, limit)| used / limit),
        throttled_wall_ns: share(|request| request.share.shares.throttled()),
        throttled_own_ns: share(|request| request.share.shares.throttled_own_ns),
        throttled_ancestor_ns: share(|request| request.share.shares.throttled_ancestor_ns),
        kernel_container_only_ns: container
            .and_then(|level| level.kernel.as_ref()?.throttled_ns)
            .and_then(|total| total.0.checked_div(n).map(DurationNs)),
        runqueue_ns: share(|request| request.share.shares.runqueue_ns),
        unknown_share_p99: unknown_share_p99(&requests),
        throttled_periods: seen.map(|seen| seen.nr_throttled),
        counted_periods: seen.map(|seen| seen.nr_periods),
        node_idle_share: node_idle_share(head, line),
        model: line.model.predicted().cloned(),
        no_model: line.model.because().map(str::to_owned),
        observed,
        lost_events: line.lost_events,
        untraced_events: line.untraced_events,
        agreement: line.agreement.clone(),
        ending: line.ending.clone(),
    })
}

/// Work of the critical path: of a split fan-out one thread's part.
fn critical_work(head: &Head) -> DurationNs {
    match head.plan.mode {
        crate::request::FanOut::Split => DurationNs(head.plan.work_ns.0 / u64::from(head.plan.threads.max(1))),
        crate::request::FanOut::Whole => head.plan.work_ns,
    }
}

fn unknown_share_p99(requests: &[&RequestLine]) -> Option<f64> {
    let mut parts: Vec<u64> = requests
        .iter()
        .filter(|request| request.share.wall_ns != DurationNs::ZERO)
        .map(|request| request.share.shares.unknown_ns.0 * 1_000_000 / request.share.wall_ns.0)
        .collect();
    parts.sort_unstable();
    Quantile::P99.of(&parts).map(|ppm| ratio(ppm, 1_000_000))
}

fn node_idle_share(head: &Head, line: &LimitLine) -> Option<f64> {
    let capacity = line.throttled_wall_ns?.0 * u64::from(head.environment.cpus);
    let idle = line.node_idle_ns?;
    (capacity > 0).then(|| ratio(idle.0, capacity))
}

#[expect(clippy::cast_precision_loss, reason = "ratios for display; operands are far below 2^53")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
