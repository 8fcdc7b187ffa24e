//! From the raw files of one limit to its lines. Pure: the same raw files give the same lines, byte for byte.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    agree::{Agreement, Check},
    compare::{agreement, broken, changed, checks, level_line, stolen},
    environment::Environment,
    ledger::Kept,
    modelled::{Bracket, Model, model},
    record::{Ending, Head, LimitBegin, LimitEnd},
};
use crate::{
    attribution::{Attribution, RequestShare},
    cgroup::{Bandwidth, CpuLimit, LevelName},
    event::{CgroupId, Event},
    request::{Outcome, RequestSpan},
    time::{DurationNs, MonoNs},
    timeline::{
        Setting, Timeline,
        interval::Span,
        period::{Activity, PeriodRecord, records},
    },
};

/// Everything raw about one limit.
#[derive(Clone, Debug)]
pub struct RawLimit {
    /// Its beginning.
    pub begin: LimitBegin,
    /// Its requests as they came.
    pub spans: Vec<RequestSpan>,
    /// Its end; `None` = the run was killed.
    pub end: Option<LimitEnd>,
    /// How many of its events are at hand.
    pub kept: Kept,
}

impl RawLimit {
    /// What the timeline must know besides the events. The counters were read again while the observer still watched.
    #[must_use]
    pub fn setting(&self, environment: &Environment) -> Setting {
        let after = self.end.as_ref().and_then(|end| end.levels.as_ref());
        let read = after.and_then(|levels| levels.iter().map(|level| level.counters.read_from_ns).min());
        let watched_until = match self.kept {
            Kept::All | Kept::None => read,
            Kept::Until { until, .. } => Some(until),
        };
        let cpus = self.end.iter().flat_map(|end| &end.losses.cpus);
        let tried = cpus.map(|cpu| (cpu.cpu, cpu.tried)).collect();
        Setting { watched_until, tried, ..self.begin.setting(environment) }
    }
}

/// A line of `runs.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum RunLine {
    /// A request.
    Request(Box<RequestLine>),
    /// A request that failed.
    FailedRequest {
        /// The limit.
        limit: CpuLimit,
        /// Number within the limit.
        request: u64,
        /// What went wrong.
        error: String,
    },
    /// A limit.
    Limit(Box<LimitLine>),
}

/// One answered request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestLine {
    /// The limit.
    pub limit: CpuLimit,
    /// Number within the limit, from 0.
    pub request: u64,
    /// Stream.
    pub stream: u32,
    /// When the client sent it.
    pub sent_ns: MonoNs,
    /// When the server had read it.
    pub accepted_ns: MonoNs,
    /// First start of a worker.
    pub started_ns: MonoNs,
    /// Last finish of a worker.
    pub finished_ns: MonoNs,
    /// When the client had the answer.
    pub received_ns: MonoNs,
    /// What the model says; absent where it covers no request of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Bracket>,
    /// Where the wall time went.
    #[serde(flatten)]
    pub share: RequestShare,
}

/// What was observed of one level, bracketed by the two readings of the kernel's counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Period rolls.
    pub nr_periods: u64,
    /// Period rolls at which a CPU was throttled.
    pub nr_throttled: u64,
    /// CPU-summed time throttled by the own quota, from our edges.
    pub throttled_ns: DurationNs,
    /// CPU-summed time throttled by any level, from our edges.
    pub throttled_any_level_ns: DurationNs,
    /// Own throttles that ended.
    pub edges: u64,
    /// Boundaries at which the edges seen so far and the group's list of throttled CPUs did not say the same.
    pub boundaries_with_unseen_edges: u64,
}

/// One level of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelLine {
    /// Container or pod.
    pub level: LevelName,
    /// kernfs id.
    pub cgroup_id: CgroupId,
    /// The kernel's counters before, by its own names and in its own units.
    pub before: KernelNames,
    /// And after; absent when the group was gone or the run was killed.
    pub after: Option<KernelNames>,
    /// How much they grew, in ns; absent as `after`.
    pub kernel: Option<KernelGrowth>,
    /// What we saw between; absent = not measured, there are no events.
    pub observed: Option<Observed>,
}

/// A reading of `cpu.stat`, with `cpu.stat.local` under its own name where the kernel has it (6.6+).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNames {
    /// `cpu.stat`
    #[serde(flatten)]
    pub stat: BTreeMap<String, u64>,
    /// `cpu.stat.local`
    #[serde(rename = "cpu.stat.local", skip_serializing_if = "Option::is_none")]
    pub local: Option<BTreeMap<String, u64>>,
}

/// Growth of the counters that are compared. Absent = this kernel does not count it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelGrowth {
    /// `nr_periods`
    pub nr_periods: Option<u64>,
    /// `nr_throttled`
    pub nr_throttled: Option<u64>,
    /// `throttled_time`/`throttled_usec`
    pub throttled_ns: Option<DurationNs>,
    /// The same of `cpu.stat.local`.
    pub throttled_any_level_ns: Option<DurationNs>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitLine {
    /// The limit.
    pub limit: CpuLimit,
    /// Quota; `None` = no limit.
    pub quota_us: Option<u64>,
    /// Period.
    pub period_us: u64,
    /// Burst.
    pub burst_us: u64,
    /// Leaf first.
    pub levels: Vec<LevelLine>,
    /// From the first request's start to the last one's end plus one gap, as far as requests were answered: the time the
    /// pod's CPU is set against.
    pub elapsed_ns: DurationNs,
    /// Time on CPU of the container's threads within it; absent = not measured.
    pub pod_cpu_ns: Option<DurationNs>,
    /// Time in which some thread of the container was held by a limit; absent = not measured.
    pub throttled_wall_ns: Option<DurationNs>,
    /// Of that, time in which none of its threads ran; absent = not measured.
    pub fully_throttled_ns: Option<DurationNs>,
    /// Idle time of all CPUs within `throttled_wall_ns`; absent = not measured.
    pub node_idle_ns: Option<DurationNs>,
    /// Integral of min(idle CPUs, held threads) over it; absent = not measured.
    pub denied_idle_ns: Option<DurationNs>,
    /// Records lost.
    pub lost_events: u64,
    /// Tracepoints that must have fired and did not, reconstructed from what the scheduler and the timers noted.
    pub untraced_events: u64,
    /// CPU time the hypervisor took from all CPUs meanwhile, in steps of 10 ms; absent = not readable.
    pub stolen_ns: Option<DurationNs>,
    /// Each comparison with the kernel.
    pub checks: Vec<Check>,
    /// What they come to.
    pub agreement: Agreement,
    /// What the model says about its requests.
    pub model: Model,
    /// How it ended.
    pub ending: Ending,
}

/// A line of `periods.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodLine {
    /// The limit.
    pub limit: CpuLimit,
    /// Container or pod.
    pub level: LevelName,
    /// The period.
    #[serde(flatten)]
    pub period: PeriodRecord,
}

/// All lines of one limit.
#[derive(Clone, Debug)]
pub struct Derived {
    /// Lines of `runs.jsonl`: requests, then the limit.
    pub lines: Vec<RunLine>,
    /// Lines of `periods.jsonl`.
    pub periods: Vec<PeriodLine>,
}

impl Derived {
    /// The answered requests.
    pub fn requests(&self) -> impl Iterator<Item = &RequestLine> {
        self.lines.iter().filter_map(|line| match line {
            RunLine::Request(request) => Some(&**request),
            RunLine::FailedRequest { .. } | RunLine::Limit(_) => None,
        })
    }
}

/// Derives a limit's lines from its raw record and events.
#[must_use]
pub fn derive(head: &Head, raw: &RawLimit, events: Vec<Event>) -> Derived {
    let setting = raw.setting(&head.environment);
    explain(head, raw, &Timeline::build(events, &setting), &setting)
}

/// Derives a limit's lines from its raw record and its timeline.
#[must_use]
pub fn explain(head: &Head, raw: &RawLimit, timeline: &Timeline, setting: &Setting) -> Derived {
    let window = bracket(raw, timeline);
    let (mut lines, limit) = lines(head, raw, timeline, setting);
    lines.push(RunLine::Limit(Box::new(limit)));
    let periods = raw
        .begin
        .levels
        .iter()
        .flat_map(|level| {
            records(timeline, setting, level.cgroup_id)
                .into_iter()
                .filter(|period| period.end_ns > window.start && period.end_ns <= window.end)
                .map(|period| PeriodLine { limit: raw.begin.limit, level: level.level, period })
        })
        .collect();
    Derived { lines, periods }
}

/// A line a request, in the order of the record, and the limit's.
pub(super) fn lines(head: &Head, raw: &RawLimit, timeline: &Timeline, setting: &Setting) -> (Vec<RunLine>, LimitLine) {
    let leaf = raw.begin.levels.first().map_or(CgroupId(0), |level| level.cgroup_id);
    let attribution = Attribution::new(timeline, setting, &leaf);
    let mut lines: Vec<RunLine> =
        raw.spans.iter().map(|span| request_line(raw.begin.limit, span, &attribution)).collect();
    let limit = limit_line(head, raw, timeline, setting, leaf, bracket(raw, timeline), &mut lines);
    (lines, limit)
}

fn request_line(limit: CpuLimit, span: &RequestSpan, attribution: &Attribution<'_>) -> RunLine {
    let failed = |error: &str| RunLine::FailedRequest { limit, request: span.request, error: error.to_owned() };
    match &span.outcome {
        Outcome::Failed { error } => failed(error),
        Outcome::Ok { server } => match attribution.explain(server) {
            None => failed("the server named no worker"),
            Some(share) => RunLine::Request(Box::new(RequestLine {
                limit,
                request: span.request,
                stream: span.stream,
                sent_ns: span.sent_ns,
                accepted_ns: server.accepted_ns,
                started_ns: server.started_ns,
                finished_ns: server.finished_ns,
                received_ns: span.received_ns,
                model: None,
                share,
            })),
        },
    }
}

/// From the end of the first readings to the start of the last ones.
pub(super) fn bracket(raw: &RawLimit, timeline: &Timeline) -> Span {
    let start = raw.begin.levels.iter().map(|level| level.counters.read_until_ns).max();
    let after = raw.end.as_ref().and_then(|end| end.levels.as_ref());
    let end = after.and_then(|levels| levels.iter().map(|level| level.counters.read_from_ns).min());
    Span::new(start.unwrap_or_default(), end.unwrap_or_else(|| timeline.end()))
}

fn limit_line(
    head: &Head,
    raw: &RawLimit,
    timeline: &Timeline,
    setting: &Setting,
    leaf: CgroupId,
    window: Span,
    lines: &mut [RunLine],
) -> LimitLine {
    let Bandwidth { quota, period_us, burst_us } = raw.begin.bandwidth;
    let levels: Vec<LevelLine> =
        raw.begin.levels.iter().map(|before| level_line(before, raw, timeline, window)).collect();
    let requests: Vec<&RequestLine> = lines
        .iter()
        .filter_map(|line| match line {
            RunLine::Request(request) => Some(&**request),
            RunLine::FailedRequest { .. } | RunLine::Limit(_) => None,
        })
        .collect();
    // Without any event nothing was measured, which is not the same as nothing.
    let seen = timeline.span.is_some();
    let checks = checks(&levels, &requests);
    let served = served(&requests, head.plan.gap_ns);
    let (model, brackets) = model(head, raw, seen, &requests);
    let activity = Activity::of(timeline, setting, leaf);
    let lost_events = raw
        .end
        .as_ref()
        .map_or(0, |end| end.losses.total())
        .max(timeline.gaps.iter().map(|gap| u64::from(gap.lost)).sum());
    // The server's threads are where the plan put them: another hand moved them.
    let left =
        timeline.departures(setting).into_iter().filter(|departure| window.contains(departure.at_ns)).map(|it| {
            let after = it.at_ns.since(window.start).as_millis_f64() / 1e3;
            format!(
                "thread {} left its cgroup {after:.3} s after the first reading: what it did then is not known",
                it.tid
            )
        });
    let ending = raw.end.as_ref().map_or_else(
        || Ending::Broken { cause: "the run was killed during this limit".to_owned() },
        |end| end.ending.clone(),
    );
    let answered = lines.iter_mut().filter_map(|line| match line {
        RunLine::Request(request) => Some(request),
        RunLine::FailedRequest { .. } | RunLine::Limit(_) => None,
    });
    for (request, bracket) in answered.zip(brackets) {
        request.model = Some(bracket);
    }
    LimitLine {
        limit: raw.begin.limit,
        quota_us: quota.us(),
        period_us,
        burst_us,
        agreement: agreement(
            raw,
            lost_events,
            &checks,
            changed(raw, timeline, window).into_iter().chain(left).chain(broken(timeline)),
        ),
        levels,
        elapsed_ns: served.length(),
        pod_cpu_ns: seen.then(|| activity.used(served)),
        throttled_wall_ns: seen.then(|| activity.held().total_within(window)),
        fully_throttled_ns: seen.then(|| activity.fully_held(window)),
        node_idle_ns: idle_while_held(timeline, &activity, window),
        denied_idle_ns: activity.denied_idle(timeline, window),
        lost_events,
        untraced_events: timeline.untraced,
        stolen_ns: stolen(raw),
        checks,
        model,
        ending,
    }
}

/// The requests' stretch of time, with the gap that follows the last one.
fn served(requests: &[&RequestLine], gap: DurationNs) -> Span {
    let start = requests.iter().map(|request| request.started_ns).min();
    let end = requests.iter().map(|request| request.finished_ns).max();
    match (start, end) {
        (Some(start), Some(end)) => Span::new(start, end + gap),
        _ => Span::new(MonoNs(0), MonoNs(0)),
    }
}

/// Idle CPU time within the held stretches of a window; `None` = idle CPUs not measured.
pub(super) fn idle_while_held(timeline: &Timeline, activity: &Activity, window: Span) -> Option<DurationNs> {
    let idle = timeline.idle_cpus(window)?;
    let held = activity.held().within(window).flat_map(|held| idle.within(held).collect::<Vec<_>>());
    Some(held.map(|(span, cpus)| DurationNs(span.length().0.saturating_mul(u64::from(cpus)))).sum())
}
