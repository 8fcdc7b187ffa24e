//! What the page is given: the pictures as JSON, small enough for an hour of periods.
//!
//! Times are whole microseconds from the first reading of the limit, lengths that the report states whole nanoseconds. A course is
//! a flat list of length and kind, without holes, from `from_us` on. Kinds of a thread's time are numbered as
//! [`Kind::ALL`]; a CPU has three more, then the limit's threads.

use serde::Serialize;

use crate::{
    cgroup::{CpuLimit, LevelName},
    report::{
        columns,
        command::level_name,
        paint::Kind,
        timeline::notices,
        verdict::{self, Words},
    },
    run::{
        Head,
        closed::{self, Closed},
        levelled::LevelledPeriod,
        picture::{CpuDoing, LevelPicture, LimitPicture, RequestPicture, Span, Stretch},
        summary::RunSummary,
        verdict::{LimitVerdict, RequestVerdict, RunVerdict},
    },
    time::{DurationNs, MonoNs},
};

/// Most stretches of a lane; of more, what most of each part was.
const MOST: usize = 60_000;
/// Kinds of a CPU's time after those of a thread's.
const IDLE: usize = Kind::ALL.len();
const OTHER: usize = IDLE + 1;
const FIRST_THREAD: usize = OTHER + 1;

/// Everything the page shows.
#[derive(Serialize)]
pub(super) struct Page<'a> {
    pub(super) title: String,
    machine: String,
    plan: String,
    kinds: Vec<&'static str>,
    verdict: Words,
    pub(super) summary: &'a RunSummary,
    limits: Vec<Limit>,
    /// By the closed form, for limits between the smallest and the largest; empty where it does not apply.
    curve: Vec<Closed>,
}

#[derive(Serialize)]
struct Limit {
    limit: CpuLimit,
    quota_ns: Option<DurationNs>,
    period_ns: DurationNs,
    length_us: i64,
    seen: bool,
    cut_off_us: Option<i64>,
    notices: Vec<String>,
    verdict: Words,
    levels: Vec<Level>,
    threads: Vec<Lane>,
    cpus: Vec<Lane>,
    requests: Vec<Request>,
    failed: Vec<(u64, String)>,
    /// CPU, from, to, records.
    gaps: Vec<(u32, i64, i64, u32)>,
    broken_us: Vec<(i64, i64)>,
    /// Phase and wall time, ns; empty where it does not apply.
    closed_form: Vec<(DurationNs, DurationNs)>,
}

#[derive(Serialize)]
struct Level {
    name: &'static str,
    periods: Periods,
    /// When its quota was out on some CPU: from, to.
    out_us: Vec<(i64, i64)>,
}

/// Columns of equal length, one entry a period.
#[derive(Default, Serialize)]
struct Periods {
    index: Vec<u64>,
    from_us: Vec<i64>,
    to_us: Vec<i64>,
    /// -1 = not measured.
    used_us: Vec<i64>,
    quota_us: Vec<i64>,
    /// -1 = no quota was out.
    out_after_us: Vec<i64>,
    out_us: Vec<i64>,
    /// -1 = not measured, as in all that follows.
    held_us: Vec<i64>,
    denied_us: Vec<i64>,
    /// Bit 0 container, 1 pod, 2 a group above; in which order they ran out is not told.
    levels: Vec<u8>,
    complete: Vec<u8>,
    periods: Vec<u64>,
}

#[derive(Serialize)]
struct Lane {
    name: String,
    from_us: i64,
    course: Vec<i64>,
    /// Longer than 0: shorter stretches than this were merged.
    merged_us: i64,
}

#[derive(Serialize)]
struct Request {
    request: u64,
    stream: u32,
    from_us: i64,
    wall_ns: DurationNs,
    cpu_time_ns: DurationNs,
    shares_ns: Vec<DurationNs>,
    throttled_ns: DurationNs,
    periods: Option<u32>,
    throttled_periods: u32,
    phase_ns: Option<DurationNs>,
    complete: bool,
    course: Vec<i64>,
    verdict: Words,
}

impl<'a> Page<'a> {
    pub(super) fn new(head: &Head, summary: &'a RunSummary, limits: &[LimitPicture]) -> Self {
        let plan = &head.plan;
        let machine = &head.environment;
        let verdicts: Vec<LimitVerdict> = limits.iter().map(LimitVerdict::of).collect();
        let run = RunVerdict::of(verdicts.clone(), summary.not_run.clone());
        Self {
            title: format!("CPU limits and the latency of requests of {} ms CPU time", plan.work_ns.as_millis_f64()),
            machine: format!("Linux {}, {} CPUs", machine.kernel, machine.cpus),
            plan: format!(
                "{} requests at each limit, {} stream(s), {} thread(s) a request, {} ms between an answer and the next request",
                plan.requests,
                plan.streams,
                plan.threads,
                plan.gap_ns.as_millis_f64()
            ),
            kinds: Kind::ALL.iter().map(|kind| kind.word()).chain(["idle", "other work"]).collect(),
            verdict: verdict::run(&run),
            limits: limits.iter().zip(&verdicts).map(|(limit, verdict)| of_limit(head, limit, verdict)).collect(),
            curve: closed::curve(head, summary),
            summary,
        }
    }
}

/// Microseconds from the beginning of what is drawn.
struct Zero(MonoNs);

impl Zero {
    fn us(&self, at: MonoNs) -> i64 {
        let ns = i128::from(at.0) - i128::from(self.0.0);
        i64::try_from((ns + 500).div_euclid(1_000)).unwrap_or(i64::MAX)
    }

    fn span(&self, span: Span) -> (i64, i64) {
        (self.us(span.start), self.us(span.end))
    }
}

fn us(length: DurationNs) -> i64 {
    i64::try_from(length.0.saturating_add(500) / 1_000).unwrap_or(i64::MAX)
}

fn of_limit(head: &Head, limit: &LimitPicture, verdict: &LimitVerdict) -> Limit {
    let zero = Zero(limit.window.start);
    let number = |tid: u32| limit.threads.iter().position(|lane| lane.tid == tid);
    let cpu = |doing: CpuDoing| match doing {
        CpuDoing::Thread { tid } => number(tid).map_or(OTHER, |thread| FIRST_THREAD + thread),
        CpuDoing::Idle => IDLE,
        CpuDoing::Other => OTHER,
        CpuDoing::Unknown => Kind::Unknown as usize,
    };
    Limit {
        limit: limit.limit,
        quota_ns: limit.bandwidth.quota.us().map(DurationNs::from_micros),
        period_ns: DurationNs::from_micros(limit.bandwidth.period_us),
        length_us: zero.us(limit.window.end),
        seen: limit.seen.is_some(),
        cut_off_us: limit.cut_off.map(|at| zero.us(at)),
        notices: notices(limit),
        verdict: verdict::limit(verdict),
        levels: limit.levels.iter().map(|level| of_level(&zero, level)).collect(),
        threads: limit
            .threads
            .iter()
            .map(|lane| {
                let course = lane.course.iter().map(|stretch| (stretch.span, Kind::of(stretch.doing) as usize));
                of_lane(&zero, limit.window, format!("thread {}", lane.tid), course.collect())
            })
            .collect(),
        cpus: limit
            .cpu_lanes
            .iter()
            .map(|lane| {
                let course = lane.course.iter().map(|&(span, doing)| (span, cpu(doing)));
                of_lane(&zero, limit.window, format!("CPU {}", lane.cpu), course.collect())
            })
            .collect(),
        requests: limit.requests.iter().map(|request| of_request(&zero, limit, request)).collect(),
        failed: limit.failed.clone(),
        gaps: limit
            .gaps
            .iter()
            .map(|gap| {
                let (from, to) = zero.span(gap.span);
                (gap.cpu, from, to, gap.lost)
            })
            .collect(),
        broken_us: limit.broken.iter().map(|&span| zero.span(span)).collect(),
        closed_form: closed::over_phases(head, limit),
    }
}

fn of_level(zero: &Zero, level: &LevelPicture) -> Level {
    let mut periods = Periods::default();
    for LevelledPeriod { period, out, out_wall_ns } in &level.periods {
        let bit = |level: Option<LevelName>| match level {
            Some(LevelName::Container) => 1,
            Some(LevelName::Pod) => 2,
            None => 4,
        };
        periods.index.push(period.index);
        periods.from_us.push(zero.us(period.start_ns));
        periods.to_us.push(zero.us(period.end_ns));
        periods.used_us.push(period.used_ns.map_or(-1, us));
        periods.quota_us.push(period.quota_ns.map_or(0, us));
        periods.out_after_us.push(out.first().map_or(-1, |level| us(level.after_ns)));
        periods.out_us.push(us(*out_wall_ns));
        periods.held_us.push(period.held_wall_ns.map_or(-1, us));
        periods.denied_us.push(period.denied_idle_ns.map_or(-1, us));
        periods.levels.push(out.iter().fold(0, |bits, level| bits | bit(level.level)));
        periods.complete.push(u8::from(period.complete));
        periods.periods.push(period.periods);
    }
    Level {
        name: level_name(level.name),
        periods,
        out_us: level.out_anywhere().into_iter().map(|span| zero.span(span)).collect(),
    }
}

fn of_lane(zero: &Zero, window: Span, name: String, course: Vec<(Span, usize)>) -> Lane {
    let (course, merged_us) = if course.len() > MOST {
        let columns = columns::most(course, window, MOST / 2);
        let part = DurationNs(window.length().0 / (MOST as u64 / 2));
        (columns::joined(&columns, window), us(part))
    } else {
        (course, 0)
    };
    Lane { name, from_us: zero.us(window.start), course: flat(zero, window.start, &course), merged_us }
}

/// Lengths and kinds; a length is the difference of two rounded instants, so that none drifts.
fn flat(zero: &Zero, from: MonoNs, course: &[(Span, usize)]) -> Vec<i64> {
    let mut reached = zero.us(from);
    let mut flat = Vec::with_capacity(course.len() * 2);
    for &(span, kind) in course {
        let (start, end) = zero.span(span);
        if start > reached {
            flat.extend([start - reached, Kind::Unknown as i64]);
        }
        if end > start {
            flat.extend([end - start, i64::try_from(kind).unwrap_or(0)]);
        }
        reached = end;
    }
    flat
}

fn of_request(zero: &Zero, limit: &LimitPicture, request: &RequestPicture) -> Request {
    let line = &request.line;
    let kind = |stretch: &Stretch| (stretch.span, Kind::of(stretch.doing) as usize);
    let course: Vec<(Span, usize)> = request.course.iter().map(kind).collect();
    Request {
        request: line.request,
        stream: line.stream,
        from_us: zero.us(line.started_ns),
        wall_ns: line.share.wall_ns,
        cpu_time_ns: line.share.cpu_time_ns,
        shares_ns: Kind::ALL.iter().map(|kind| kind.share(&line.share.shares)).collect(),
        throttled_ns: line.share.shares.throttled(),
        periods: line.share.periods,
        throttled_periods: line.share.throttled_periods,
        phase_ns: line.share.phase_ns,
        complete: line.share.complete,
        course: flat(zero, line.started_ns, &course),
        verdict: verdict::request(&RequestVerdict::of(limit, request)),
    }
}
