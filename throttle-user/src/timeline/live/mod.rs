//! A timeline of a recording that does not end: takes events as they come, hands out what is over, and forgets it.
//!
//! The state machines are those of [`Timeline::build`](super::Timeline::build); so are the records, as long as everything that
//! tells of a period comes within [`Patience`] of its end. A test holds both against each other.
//!
//! ```text
//! push -> [Intake: put in order, up to a watermark] -> [state machines] -> [hand out: what no later event can change]
//! ```

mod hand_out;
mod intake;
#[cfg(test)]
mod properties;

use std::collections::BTreeMap;

use super::{CountsFrom, Setting, boundary::Boundary, gap::Gap, level::Throttle, period::PeriodRecord, replay::Replay};
use crate::{
    event::{CgroupId, Event},
    time::{DurationNs, MonoNs},
};
use intake::{Intake, Next};

/// How long to wait for what may still be told, and how long to keep what is needed to understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A remote call whose record does not come within this was not traced.
    pub call: DurationNs,
    /// A timer run that was not seen this long after it was due was not traced; a loss is over this long after it.
    pub lag: DurationNs,
    /// Throttles and states of threads are kept this long.
    pub keep: DurationNs,
}

impl Default for Patience {
    /// The longest period is one second (kernel/sched/core.c, `max_cfs_quota_period`): a queue that is still throttled is listed
    /// again within it, and a timer that was armed has run.
    fn default() -> Self {
        Self {
            call: DurationNs::from_millis(1_100),
            lag: DurationNs::from_millis(2_000),
            keep: DurationNs::from_millis(4_000),
        }
    }
}

/// A period that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePeriod {
    /// What happened in it, as a whole recording would say.
    pub record: PeriodRecord,
    /// The boundary that ended it.
    pub boundary: Boundary,
    /// CPU time that left the pool since the boundary before: what was used, but for the up to 5 ms that each CPU may hold of a slice
    /// (kernel/sched/fair.c, `sched_cfs_bandwidth_slice`). Below 0 where CPUs gave back more than they drew. Absent where the pool
    /// at the beginning is not known: a first boundary, a changed limit, a run that was not traced.
    pub drawn_ns: Option<i64>,
}

/// What is over since it was last asked for.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Periods; those of one cgroup in order.
    pub periods: Vec<LivePeriod>,
    /// Throttles that ended.
    pub throttles: Vec<Throttle>,
}

/// Counts of what went otherwise than it should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Events that came after others that should have come later.
    pub late: u64,
    /// Records that are missing from the CPUs' sequences.
    pub lost: u64,
    /// Stretches with lost records.
    pub gaps: u64,
    /// Timer runs that came after it had been concluded that they were not traced.
    pub contradicted: u64,
    /// Tracepoints that must have fired and did not.
    pub untraced: u64,
}

/// The state.
pub struct Live {
    setting: Setting,
    patience: Patience,
    intake: Intake,
    /// Since when the observer watches, if that was said.
    begin: Option<MonoNs>,
    /// From the first event on.
    replay: Option<Replay<'static>>,
    /// Everything up to here was taken in.
    cursor: MonoNs,
    /// What was before this is forgotten.
    kept_from: MonoNs,
    groups: BTreeMap<CgroupId, Group>,
    /// Throttles that ended and were handed out, but are still needed.
    ended: Vec<Throttle>,
    /// Cgroups that are gone, and since when.
    leaving: Vec<(MonoNs, CgroupId)>,
    counts: LiveCounts,
}

/// How far a cgroup's periods were handed out.
#[derive(Clone, Debug, Default)]
struct Group {
    /// The last boundary that was dealt with.
    last: Option<Boundary>,
    /// The last run of its timer that was seen.
    heard: MonoNs,
    /// Records handed out.
    records: u64,
    /// Since when its threads are followed, if not from the beginning.
    followed_since: Option<MonoNs>,
}

/// Stands in while a replay is kept.
static NO_SETTING: Setting = Setting::none();

impl Live {
    /// Of a node with `cpus` CPUs online, on a kernel that counts from `counts_from`.
    #[must_use]
    pub fn new(counts_from: CountsFrom, cpus: u32, patience: Patience) -> Self {
        Self::with(Setting { counts_from, cpus, ..Setting::none() }, patience)
    }

    fn with(setting: Setting, patience: Patience) -> Self {
        Self {
            setting,
            patience,
            intake: Intake::default(),
            begin: None,
            replay: None,
            cursor: MonoNs(0),
            kept_from: MonoNs(0),
            groups: BTreeMap::new(),
            ended: vec![],
            leaving: vec![],
            counts: LiveCounts::default(),
        }
    }

    /// The observer watches since then; if it is not said, since the first event.
    pub fn watched_since(&mut self, at: MonoNs) {
        self.begin = Some(at);
    }

    /// A cgroup is there: its path of ids, itself first. `followed`: its threads are recorded from now on.
    pub fn add(&mut self, path: Vec<CgroupId>, followed: bool) {
        let Some(&cgroup) = path.first() else { return };
        self.leaving.retain(|(_, gone)| *gone != cgroup);
        self.setting.paths.insert(cgroup, path);
        if followed && self.setting.followed.insert(cgroup) {
            self.groups.entry(cgroup).or_default().followed_since = Some(self.cursor);
        }
    }

    /// A cgroup is gone. It is forgotten once what is still on its way has come.
    pub fn remove(&mut self, cgroup: CgroupId) {
        self.leaving.push((self.cursor, cgroup));
    }

    /// An event, in any order across CPUs.
    pub fn push(&mut self, event: Event) {
        self.intake.push(event);
    }

    /// All events up to `watermark` have been pushed: takes them in, and hands out what is over.
    pub fn advance(&mut self, watermark: MonoNs) -> Finished {
        self.counts.late += self.intake.order(watermark, self.cursor, self.begin);
        self.step(watermark, Some(self.patience.call));
        let finished = self.hand_out(self.cursor, false);
        self.forget();
        finished
    }

    /// Nothing more comes. `tried`: records that each CPU tried to write, `watched_until`: until when the observer surely watched,
    /// where that is known.
    pub fn finish(mut self, tried: &BTreeMap<u32, u64>, watched_until: Option<MonoNs>) -> Finished {
        self.counts.late += self.intake.order(MonoNs(u64::MAX), self.cursor, self.begin);
        let last = self.intake.last().unwrap_or(self.cursor);
        self.step(last, None);
        let end = watched_until.map_or(last + DurationNs(1), |until| until.max(last + DurationNs(1)));
        let counts = &mut self.counts;
        if let Some(replay) = self.replay.take() {
            let mut replay = replay.under(&self.setting);
            let before = replay.gaps.len();
            replay.end(self.intake.lost_at_last(tried, end), end);
            note_gaps(&replay.gaps[before..], counts);
            self.replay = Some(replay.under(&NO_SETTING));
        }
        self.hand_out(end, true)
    }

    /// What went otherwise than it should.
    #[must_use]
    pub fn counts(&self) -> LiveCounts {
        let untraced = self.replay.as_ref().map_or(0, |replay| replay.threads.untraced());
        LiveCounts { untraced: self.counts.untraced + untraced, ..self.counts }
    }

    /// Events that are waiting for others, cgroups known.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.intake.len(), self.setting.paths.len())
    }

    /// Takes in what is in order up to a watermark. A grant's call is waited for as long as `call`; absent: no longer.
    fn step(&mut self, watermark: MonoNs, call: Option<DurationNs>) {
        let Self { intake, begin, replay, setting, counts, cursor, .. } = self;
        let setting: &Setting = setting;
        let mut open: Option<Replay<'_>> = replay.take().map(|replay| replay.under(setting));
        let mut until = watermark;
        loop {
            match intake.next() {
                Next::Event { event, ahead, gap } => {
                    let replay = open.get_or_insert_with(|| {
                        Replay::new(setting, begin.map_or(event.at, |begin| begin.min(event.at)))
                    });
                    intake.announced().for_each(|(thread, cgroup, at)| replay.threads.announce(thread, cgroup, at));
                    replay.step(&event, &ahead, gap);
                    note_gaps(gap.as_slice(), counts);
                }
                Next::Undecided { at } if call.is_none_or(|call| at + call < watermark) => intake.give_up(),
                Next::Undecided { at } => {
                    until = MonoNs(at.0.saturating_sub(1)).min(until);
                    break;
                }
                Next::Nothing => break,
            }
        }
        *replay = open.map(|replay| replay.under(&NO_SETTING));
        *cursor = until.max(*cursor);
    }

    fn forget(&mut self) {
        let before = MonoNs(self.cursor.0.saturating_sub(self.patience.keep.0)).max(self.kept_from);
        self.kept_from = before;
        self.ended.retain(|throttle| throttle.end.is_some_and(|end| end > before));
        let Some(replay) = &mut self.replay else { return };
        let lag = self.patience.lag;
        if !replay.gaps.is_empty() && replay.gaps.iter().all(|gap| gap.span.end + lag < self.cursor) {
            replay.levels.trust();
            replay.threads.trust();
            replay.gaps.retain(|gap| gap.span.end > before);
        }
        replay.levels.forget(before);
        replay.threads.forget(before);
        replay.idle.forget(before);
        for (cgroup, group) in &mut self.groups {
            // An armed timer runs: one that is not seen for so long is gone, as a group is that went while it was throttled.
            if group.heard < before && group.last.as_ref().is_some_and(|last| last.active) {
                group.last = None;
                replay.levels.forget_group(*cgroup);
            }
        }
        // Of a cgroup that nobody told of, nothing says that it is gone; it is remembered while its timer runs.
        let paths = &self.setting.paths;
        let unknown = self.groups.iter().filter(|(cgroup, group)| !paths.contains_key(cgroup) && group.heard < before);
        let gone: Vec<CgroupId> = self
            .leaving
            .iter()
            .filter(|(since, _)| *since < before)
            .map(|&(_, cgroup)| cgroup)
            .chain(unknown.map(|(&cgroup, _)| cgroup))
            .collect();
        self.leaving.retain(|(since, _)| *since >= before);
        for cgroup in gone {
            replay.levels.forget_group(cgroup);
            replay.threads.forget_group(cgroup);
            replay.boundaries.remove(&cgroup);
            self.setting.paths.remove(&cgroup);
            self.setting.followed.remove(&cgroup);
            self.groups.remove(&cgroup);
        }
    }
}

fn note_gaps(gaps: &[Gap], counts: &mut LiveCounts) {
    counts.gaps += gaps.len() as u64;
    counts.lost += gaps.iter().map(|gap| u64::from(gap.lost)).sum::<u64>();
}
