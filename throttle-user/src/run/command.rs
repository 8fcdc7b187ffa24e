//! One command under one limit: what was recorded of it, and where its threads' time went.
//!
//! Pure, as [`super::derive`], whose figures and comparisons it shares.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    agree::{Agreement, Check},
    compare::{agreement, broken, changed, checks, level_line},
    derive::{LevelLine, RawLimit, bracket, idle_while_held},
    environment::Environment,
    ledger::Kept,
    levelled::{self, LevelledPeriod},
    need::Need,
    record::Ending,
};
use crate::{
    attribution::{Attribution, Shares},
    cgroup::{CpuLimit, Nesting},
    event::{CgroupId, Event},
    time::{DurationNs, MonoNs},
    timeline::{Setting, Timeline, interval::Span, period::Activity, thread::Departure},
};

/// Version of [`CommandRun`] as JSON. Changes when a reader of the former would misread the latter.
pub const SCHEMA: u32 = 1;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum CommandStatus {
    /// By itself.
    Exited {
        /// With this code.
        code: u8,
    },
    /// By a signal.
    Killed {
        /// Its number.
        signal: u8,
    },
}

impl CommandStatus {
    /// What a shell shows for it: the code, or 128 + the signal's number.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Exited { code } => code,
            Self::Killed { signal } => 128_u8.saturating_add(signal),
        }
    }
}

/// What was recorded of a command, besides the events.
#[derive(Clone, Debug)]
pub struct RawCommand {
    /// Program and arguments; bytes that are not UTF-8 replaced.
    pub command: Vec<String>,
    /// Process id of its main process.
    pub pid: u32,
    /// Which groups were limited.
    pub nesting: Nesting,
    /// Groups above them with a quota of their own, nearest first.
    pub limits_above: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// Limit, counters before and after, losses.
    pub limit: RawLimit,
    /// When it was let go.
    pub started_ns: MonoNs,
    /// When its main process was seen to have ended.
    pub ended_ns: MonoNs,
    /// How that ended.
    pub status: CommandStatus,
    /// Names of threads as far as they lived long enough to be asked.
    pub names: BTreeMap<u32, String>,
    /// Processes of the command that still ran then, and were killed.
    pub killed: u64,
}

/// A command explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandRun {
    /// [`SCHEMA`]
    pub schema: u32,
    /// Program and arguments.
    pub command: Vec<String>,
    /// How its main process ended.
    pub status: CommandStatus,
    /// Processes that still ran then, and were killed.
    pub killed: u64,
    /// When it was let go, `CLOCK_MONOTONIC`.
    pub started_ns: MonoNs,
    /// From then until its main process had ended.
    pub wall_ns: DurationNs,
    /// Of that, how much all that follows is about: less than the whole where more events came than may be kept.
    pub observed_ns: DurationNs,
    /// The limit.
    pub limit: CpuLimit,
    /// Which groups had it.
    pub nesting: Nesting,
    /// Quota; absent = no limit.
    pub quota_us: Option<u64>,
    /// Period.
    pub period_us: u64,
    /// Burst.
    pub burst_us: u64,
    /// Groups above with a quota of their own.
    pub limits_above: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// CPUs used on average.
    pub cpus_used: f64,
    /// That over the limit; absent = no limit, or observed for less than a period, of which a whole quota may be used.
    pub cpus_used_over_limit: Option<f64>,
    /// Where the time of all threads went, summed over threads.
    #[serde(flatten)]
    pub shares: Shares,
    /// Time in which some thread was held by a limit.
    pub throttled_wall_ns: DurationNs,
    /// Of that, time in which no thread ran.
    pub fully_throttled_ns: DurationNs,
    /// Idle share of the machine's CPUs within `throttled_wall_ns`; absent = never throttled, or not measured.
    pub node_idle_share: Option<f64>,
    /// Integral of min(idle CPUs, held threads) over it; absent = not measured.
    pub denied_idle_ns: Option<DurationNs>,
    /// What limit it would have needed; absent = nothing ran.
    pub need: Option<Need>,
    /// Whether the kernel's thread ids are those of this pid namespace, so that names could be asked for.
    pub names_known: bool,
    /// Threads that left the command's cgroups for others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub departures: Vec<Departure>,
    /// Every thread, most throttled first.
    pub threads: Vec<ThreadRow>,
    /// Every period of the container in which its timer ran, in order.
    pub periods: Vec<LevelledPeriod>,
    /// Leaf first, with the kernel's counters; the readings also bracket what came after the main process's end.
    pub levels: Vec<LevelLine>,
    /// Records lost.
    pub lost_events: u64,
    /// Tracepoints that this kernel did not fire although it must have come to them, as far as they were noticed.
    pub untraced_events: u64,
    /// Each comparison with the kernel.
    pub checks: Vec<Check>,
    /// What they come to.
    pub agreement: Agreement,
    /// Whether it was observed to its end.
    pub ending: Ending,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRow {
    /// Thread id.
    pub tid: u32,
    /// Its name when last asked; absent = it was gone before, or see [`CommandRun::names_known`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// From the command's start to the thread's first event.
    pub first_ns: DurationNs,
    /// From then to its end, or the command's.
    pub life_ns: DurationNs,
    /// Where that went.
    #[serde(flatten)]
    pub shares: Shares,
}

/// Derives everything from what was recorded.
#[must_use]
pub fn derive(raw: RawCommand, events: Vec<Event>) -> CommandRun {
    let setting = raw.limit.setting(&raw.environment);
    explain(raw, &Timeline::build(events, &setting), &setting)
}

/// Derives everything from a timeline.
#[must_use]
pub fn explain(raw: RawCommand, timeline: &Timeline, setting: &Setting) -> CommandRun {
    let observed_until = match raw.limit.kept {
        Kept::All => raw.ended_ns,
        Kept::Until { until, .. } => until.max(raw.started_ns).min(raw.ended_ns),
        Kept::None => raw.started_ns,
    };
    let window = Span::new(raw.started_ns, observed_until);
    // Events carry ids of the root pid namespace. If the command's own is not among them, ours is another one.
    let names_known = timeline.threads.contains_key(&raw.pid);
    let begin = &raw.limit.begin;
    let leaf = begin.levels.first().map_or(CgroupId(0), |level| level.cgroup_id);
    let activity = Activity::of(timeline, setting, leaf);
    let period = DurationNs::from_micros(begin.bandwidth.period_us);
    let counted = bracket(&raw.limit, timeline);
    let levels: Vec<LevelLine> =
        begin.levels.iter().map(|before| level_line(before, &raw.limit, timeline, counted)).collect();
    let checks = checks(&levels, &[]);
    let end = raw.limit.end.as_ref();
    let seen_lost: u64 = timeline.gaps.iter().map(|gap| u64::from(gap.lost)).sum();
    let lost_events = end.map_or(0, |end| end.losses.total()).max(seen_lost);
    let threads = threads(&raw, timeline, setting, leaf, window, names_known);
    let throttled_wall_ns = activity.held().total_within(window);
    let cpus_used = ratio(activity.used(window).0, window.length().0);
    CommandRun {
        schema: SCHEMA,
        status: raw.status,
        killed: raw.killed,
        started_ns: raw.started_ns,
        wall_ns: raw.ended_ns.since(raw.started_ns),
        observed_ns: window.length(),
        names_known,
        limit: begin.limit,
        nesting: raw.nesting,
        quota_us: begin.bandwidth.quota.us(),
        period_us: begin.bandwidth.period_us,
        burst_us: begin.bandwidth.burst_us,
        cpus_used,
        cpus_used_over_limit: begin.limit.cpus().filter(|_| window.length() >= period).map(|limit| cpus_used / limit),
        shares: threads.iter().map(|thread| thread.shares).sum(),
        throttled_wall_ns,
        fully_throttled_ns: activity.fully_held(window),
        node_idle_share: idle_while_held(timeline, &activity, window)
            .filter(|_| throttled_wall_ns != DurationNs::ZERO)
            .map(|idle| ratio(idle.0, throttled_wall_ns.0 * u64::from(raw.environment.cpus))),
        denied_idle_ns: activity.denied_idle(timeline, window),
        need: Need::of(
            timeline.threads.values().filter(|line| line.was_in(|group| setting.path(&group).contains(&leaf))),
            window,
            activity.stopped(),
            period,
            raw.environment.cpus,
        ),
        departures: timeline.departures(setting).into_iter().filter(|it| window.contains(it.at_ns)).collect(),
        threads,
        periods: levelled::periods(begin, timeline, setting, leaf)
            .into_iter()
            .filter(|LevelledPeriod { period, .. }| period.end_ns > window.start && period.start_ns < window.end)
            .collect(),
        levels,
        lost_events,
        untraced_events: timeline.untraced,
        agreement: agreement(
            &raw.limit,
            lost_events,
            &checks,
            changed(&raw.limit, timeline, counted).into_iter().chain(broken(timeline)),
        ),
        checks,
        ending: end.map_or_else(
            || Ending::Broken { cause: "the counters were not read again".to_owned() },
            |end| end.ending.clone(),
        ),
        command: raw.command,
        limits_above: raw.limits_above,
        environment: raw.environment,
    }
}

fn threads(
    raw: &RawCommand,
    timeline: &Timeline,
    setting: &Setting,
    leaf: CgroupId,
    window: Span,
    names_known: bool,
) -> Vec<ThreadRow> {
    let attribution = Attribution::new(timeline, setting, &leaf);
    let mut rows: Vec<ThreadRow> = timeline
        .threads
        .iter()
        .filter(|(_, line)| line.was_in(|group| setting.path(&group).contains(&leaf)))
        .filter_map(|(&tid, line)| {
            let seen = Span::new(line.segments.first()?.span.start, line.segments.last()?.span.end);
            // One that left lives on unseen.
            let left = line.stays.last().is_some_and(|stay| !setting.follows(stay.cgroup));
            let life = Span::new(seen.start, if left { window.end } else { seen.end }).clip(window);
            if life.is_empty() {
                return None;
            }
            let (shares, _) = attribution.tile(tid, life);
            Some(ThreadRow {
                tid,
                comm: raw.names.get(&tid).filter(|_| names_known).cloned(),
                first_ns: life.start.since(window.start),
                life_ns: life.length(),
                shares,
            })
        })
        .collect();
    rows.sort_by_key(|row| {
        let most = |length: DurationNs| std::cmp::Reverse(length);
        (most(row.shares.throttled()), most(row.shares.on_cpu_ns), row.tid)
    });
    rows
}

#[expect(clippy::cast_precision_loss, reason = "ratios for display; operands are far below 2^53")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
