//! From the raw files of one group of steps to its lines. Pure: the same raw files give the same lines, byte for byte.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Predicted, SpikesHead, Step,
    escape::{Escape, at_level},
    ledger::{RawGroup, RawStep},
    predict::{LevelGrid, predict},
};
use crate::{
    attribution::{Attribution, Shares},
    cgroup::{LevelName, Nesting},
    event::{CgroupId, Event},
    model::{
        bandwidth::Bandwidth,
        history::{History, Job},
        poller::{Housekeeping, Poller},
        prometheus::Edition,
        sight::{Query, Sight, sight},
    },
    request::SpikeSpan,
    run::{
        agree::{Agreement, Check},
        compare::{agreement, broken, changed, checks, level_line},
        derive::{LevelLine, PeriodLine, RawLimit, bracket},
        record::{Ending, LimitBegin, LimitEnd},
    },
    time::{DurationNs, MonoNs},
    timeline::{
        Setting, Timeline,
        boundary::Grid,
        interval::{Span, Spans},
        period::{Activity, records},
    },
};

/// A line of `spikes.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum DerivedLine {
    /// A spike.
    Spike(Box<SpikeLine>),
    /// A step.
    Step(Box<StepLine>),
}

/// One spike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpikeLine {
    /// The group.
    pub nesting: Nesting,
    /// Number of the step.
    pub step: u32,
    /// Number of the spike in it.
    pub spike: u64,
    /// When it was due.
    pub due_ns: MonoNs,
    /// How long it was to be.
    pub length_ns: DurationNs,
    /// How late its latest thread started.
    pub late_ns: DurationNs,
    /// CPU time it would use without a limit.
    pub expected_ns: DurationNs,
    /// CPU time it used, by its threads' own clocks.
    pub consumed_ns: DurationNs,
    /// Where its threads' time from due to end went, summed over them; asleep is late.
    #[serde(flatten)]
    pub shares: Shares,
    /// For each limited level, leaf first: from the due time to its next boundary; absent = none seen.
    pub boundary_after_ns: Vec<Option<DurationNs>>,
    /// For each limited level: whether its `nr_throttled` grew for it.
    pub counted: Vec<bool>,
    /// Why it was not held although it wanted more than a quota; absent = it was, or did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escape: Option<Escape>,
    /// What the model says; absent where it covers no spike of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Predicted>,
}

impl SpikeLine {
    /// Whether a limit held a thread of it before its end.
    #[must_use]
    pub fn held(&self) -> bool {
        self.shares.throttled() > DurationNs::ZERO
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepLine {
    /// The group.
    pub nesting: Nesting,
    /// Its number in the group.
    pub number: u32,
    /// What was done.
    #[serde(flatten)]
    pub step: Step,
    /// Spikes planned.
    pub planned: u64,
    /// Spikes begun.
    pub spikes: u64,
    /// CPU time they would have used without a limit.
    pub expected_ns: DurationNs,
    /// CPU time they used.
    pub consumed_ns: DurationNs,
    /// Where their threads' time from due to end went; the sum is `expected_ns`.
    #[serde(flatten)]
    pub shares: Shares,
    /// Of `expected_ns` less `consumed_ns`, what nothing of that explains: time on CPU by the switches less that by the threads' own clocks.
    pub unexplained_ns: i64,
    /// Spikes that wanted more than a quota.
    pub wanted_more: u64,
    /// Spikes that were held.
    pub held: u64,
    /// Of these, only by an ancestor.
    pub held_by_ancestor_only: u64,
    /// For each limited level: held spikes for which its `nr_throttled` grew.
    pub counted: Vec<u64>,
    /// Spikes not held although they wanted more, by why.
    pub escapes: BTreeMap<Escape, u64>,
    /// Spikes within what the model allows, and held where it says always or not where it says never; absent as there.
    pub as_predicted: Option<u64>,
    /// What Prometheus would have shown had the step gone on for a quarter of an hour; absent = no events, or no whole spike.
    pub shown: Option<Sight>,
    /// How far the boundary that the generator learnt lay from the timer's, within half a period; absent = one of the two is not known.
    pub learnt_off_ns: Option<i64>,
    /// Leaf first, with the kernel's counters.
    pub levels: Vec<LevelLine>,
    /// Records lost.
    pub lost_events: u64,
    /// Each comparison with the kernel.
    pub checks: Vec<Check>,
    /// What they come to.
    pub agreement: Agreement,
    /// How it ended.
    pub ending: Ending,
}

/// All lines of one group.
#[derive(Clone, Debug)]
pub struct DerivedGroup {
    /// Lines of `spikes.jsonl`: of each step its spikes, then the step.
    pub lines: Vec<DerivedLine>,
    /// Lines of `periods.jsonl`.
    pub periods: Vec<PeriodLine>,
}

/// A throttle shorter than this may be a stamp's error.
const SLOP: DurationNs = DurationNs::from_millis(1);
/// CPU time that a spike may differ from the model by what neither knows: clock readings, timer latency.
const METER: DurationNs = DurationNs::from_micros(400);
/// A step is looked at through a poller as if it had gone on for so long.
const SHOWN_OVER: DurationNs = DurationNs::from_millis(900_000);

/// Derives a group's lines from its raw record and events.
#[must_use]
pub fn derive(head: &SpikesHead, raw: &RawGroup, events: Vec<Event>) -> DerivedGroup {
    let whole = whole(raw);
    let setting = whole.setting(&head.environment);
    let timeline = Timeline::build(events, &setting);
    let scene = Scene::new(head, raw, &timeline, &setting);
    let mut lines = Vec::new();
    for step in &raw.steps {
        let (spikes, step) = scene.step(step);
        lines.extend(spikes.into_iter().map(|line| DerivedLine::Spike(Box::new(line))));
        lines.push(DerivedLine::Step(Box::new(step)));
    }
    let window = bracket(&whole, &timeline);
    let periods = raw.begin.levels.iter().flat_map(|level| {
        records(&timeline, &setting, level.cgroup_id)
            .into_iter()
            .filter(|period| period.end_ns > window.start && period.end_ns <= window.end)
            .map(|period| PeriodLine { limit: raw.begin.limit, level: level.level, period })
            .collect::<Vec<_>>()
    });
    let periods = periods.collect();
    DerivedGroup { lines, periods }
}

/// Each step as a history that pollers and alarms are held against; `None` = it has no spikes, or there are no events.
#[must_use]
pub fn histories(head: &SpikesHead, raw: &RawGroup, events: Vec<Event>) -> Vec<(Step, Option<History>)> {
    let setting = whole(raw).setting(&head.environment);
    let timeline = Timeline::build(events, &setting);
    let scene = Scene::new(head, raw, &timeline, &setting);
    let of = |step: &RawStep| {
        let attribution = Attribution::new(&timeline, &setting, &scene.leaf);
        let held: Vec<Vec<Span>> = step.spikes.iter().map(|spike| held(&attribution, spike)).collect();
        timeline.span.and_then(|_| scene.history(step, &held))
    };
    raw.steps.iter().map(|step| (step.step, of(step))).collect()
}

/// The group as one limit of a sweep has it.
fn whole(raw: &RawGroup) -> RawLimit {
    RawLimit { begin: raw.begin.clone(), spans: vec![], end: raw.end.clone(), kept: raw.kept }
}

struct Scene<'a> {
    head: &'a SpikesHead,
    raw: &'a RawGroup,
    timeline: &'a Timeline,
    setting: &'a Setting,
    leaf: CgroupId,
    activity: Activity,
}

impl<'a> Scene<'a> {
    fn new(head: &'a SpikesHead, raw: &'a RawGroup, timeline: &'a Timeline, setting: &'a Setting) -> Self {
        let leaf = raw.begin.levels.first().map_or(CgroupId(0), |level| level.cgroup_id);
        Self { head, raw, timeline, setting, leaf, activity: Activity::of(timeline, setting, leaf) }
    }

    fn step(&self, raw: &RawStep) -> (Vec<SpikeLine>, StepLine) {
        let attribution = Attribution::new(self.timeline, self.setting, &self.leaf);
        let seen = self.timeline.span.is_some();
        let held: Vec<Vec<Span>> = raw.spikes.iter().map(|spike| held(&attribution, spike)).collect();
        let history = self.history(raw, &held);
        let predicted = self.predicted(raw);
        let mut spikes: Vec<SpikeLine> = raw
            .spikes
            .iter()
            .zip(&held)
            .map(|(spike, held)| self.spike(raw.number, spike, held, &attribution, history.as_ref()))
            .collect();
        for (line, predicted) in spikes.iter_mut().zip(predicted.iter().flatten()) {
            line.model = Some(*predicted);
        }
        let limit = self.as_limit(raw);
        let window = bracket(&limit, self.timeline);
        let levels: Vec<LevelLine> =
            limit.begin.levels.iter().map(|before| level_line(before, &limit, self.timeline, window)).collect();
        let checks = checks(&levels, &[]);
        let gaps = self.timeline.gaps.iter().filter(|gap| gap.span.start < window.end && window.start < gap.span.end);
        let lost_events: u64 = gaps.map(|gap| u64::from(gap.lost)).sum();
        let ending = raw.after.as_ref().map_or_else(
            || Ending::Broken { cause: "the run was killed during this step".to_owned() },
            |(_, ending)| ending.clone(),
        );
        let mut escapes = BTreeMap::new();
        for escape in spikes.iter().filter_map(|spike| spike.escape) {
            *escapes.entry(escape).or_default() += 1;
        }
        let shares: Shares = spikes.iter().map(|spike| spike.shares).sum();
        let of_held = |counts: &dyn Fn(&SpikeLine) -> bool| {
            spikes.iter().filter(|spike| spike.held() && counts(spike)).count() as u64
        };
        let consumed_ns: DurationNs = spikes.iter().map(|spike| spike.consumed_ns).sum();
        let line = StepLine {
            nesting: self.raw.nesting,
            number: raw.number,
            step: raw.step,
            planned: self.head.plan.spikes(raw.step),
            spikes: spikes.len() as u64,
            expected_ns: spikes.iter().map(|spike| spike.expected_ns).sum(),
            consumed_ns,
            unexplained_ns: shares.on_cpu_ns.0.cast_signed().saturating_sub(consumed_ns.0.cast_signed()),
            shares,
            wanted_more: raw.spikes.iter().filter(|spike| self.wants_more(spike)).count() as u64,
            held: of_held(&|_| true),
            held_by_ancestor_only: of_held(&|spike| spike.shares.throttled_own_ns == DurationNs::ZERO),
            counted: (0..limit.begin.levels.len()).map(|level| of_held(&|spike| spike.counted[level])).collect(),
            escapes,
            as_predicted: predicted.is_some().then(|| spikes.iter().filter(|spike| as_predicted(spike)).count() as u64),
            shown: history.filter(|history| seen && !history.jobs.is_empty()).map(|history| shown(&history)),
            learnt_off_ns: self.learnt_off(raw),
            agreement: agreement(
                &limit,
                lost_events,
                &checks,
                changed(&limit, self.timeline, window).into_iter().chain(broken(self.timeline)),
            ),
            levels,
            lost_events,
            checks,
            ending,
        };
        (spikes, line)
    }

    fn spike(
        &self,
        step: u32,
        spike: &SpikeSpan,
        held: &[Span],
        attribution: &Attribution<'_>,
        history: Option<&History>,
    ) -> SpikeLine {
        let window = Span::new(spike.due_ns, spike.until_ns);
        let shares: Shares = spike.workers.iter().map(|worker| attribution.tile(worker.tid, window).0).sum();
        let levels = &self.raw.begin.levels;
        let counted = |level: usize| {
            let counter = history.and_then(|history| history.levels.get(level)).map(|level| &level.throttled);
            let grew = |span: &Span| {
                counter.is_some_and(|it| it.first_growth(Span::new(span.start, span.end + SLOP)).is_some())
            };
            held.iter().any(grew)
        };
        let escaped = shares.throttled() == DurationNs::ZERO && self.wants_more(spike);
        SpikeLine {
            nesting: self.raw.nesting,
            step,
            spike: spike.spike,
            due_ns: spike.due_ns,
            length_ns: window.length(),
            late_ns: spike.late(),
            expected_ns: spike.expected(),
            consumed_ns: spike.consumed(),
            boundary_after_ns: levels.iter().map(|level| self.to_boundary(level.cgroup_id, spike.due_ns)).collect(),
            counted: (0..levels.len()).map(counted).collect(),
            escape: escaped.then(|| self.escape(window, &shares)),
            model: None,
            shares,
        }
    }

    /// More CPU time in the time it has than a quota: it would be held if its periods and pools were its alone.
    fn wants_more(&self, spike: &SpikeSpan) -> bool {
        let quota = self.raw.begin.bandwidth.quota.us().map_or(u64::MAX, |us| us * 1_000);
        spike.expected().saturating_sub(spike.lost_to_late_starts()).0 > quota
    }

    /// Of several levels the one that came nearest to holding it.
    fn escape(&self, spike: Span, shares: &Shares) -> Escape {
        if shares.unknown_ns > DurationNs::ZERO {
            return Escape::Unknown;
        }
        let levels = self.raw.begin.levels.iter();
        let judged = levels.map(|level| at_level(self.timeline.boundaries_of(level.cgroup_id), &self.activity, spike));
        judged.max().unwrap_or(Escape::Unknown)
    }

    fn to_boundary(&self, level: CgroupId, at: MonoNs) -> Option<DurationNs> {
        Grid::at(self.timeline.boundaries_of(level), at).map(|grid| grid.to_next(at))
    }

    /// The step as one limit of a sweep has it: its own readings, the group's events and losses.
    fn as_limit(&self, raw: &RawStep) -> RawLimit {
        let begin = LimitBegin {
            levels: raw.before.levels.clone().unwrap_or_default(),
            quiet: raw.before.quiet,
            stolen_ns: raw.before.stolen_ns,
            clock: raw.before.clock,
            ..self.raw.begin.clone()
        };
        let end = raw.after.as_ref().map(|(after, ending)| LimitEnd {
            limit: begin.limit,
            levels: after.levels.clone(),
            quiet: after.quiet,
            stolen_ns: after.stolen_ns,
            losses: self.raw.end.as_ref().map(|end| end.losses.clone()).unwrap_or_default(),
            clock: after.clock,
            ending: ending.clone(),
        });
        RawLimit { begin, spans: vec![], end, kept: self.raw.kept }
    }

    /// What is true of the group while the step spiked: whole seconds, so that it can be repeated.
    fn history(&self, raw: &RawStep, held: &[Vec<Span>]) -> Option<History> {
        let (first, last) = (raw.spikes.first()?, raw.spikes.last()?);
        const SECOND: u64 = 1_000_000_000;
        let seconds = last.due_ns.since(first.due_ns).0 / SECOND + 1;
        let span = Span::new(first.due_ns, first.due_ns + DurationNs(seconds * SECOND));
        let jobs = raw.spikes.iter().zip(held).map(|(spike, held)| Job {
            span: Span::new(spike.due_ns, spike.until_ns + spike.overrun()),
            held: held.clone(),
        });
        let levels: Vec<CgroupId> = self.raw.begin.levels.iter().map(|level| level.cgroup_id).collect();
        Some(History::observed(self.timeline, self.setting, self.leaf, &levels, span, jobs.collect()))
    }

    fn predicted(&self, raw: &RawStep) -> Option<Vec<Predicted>> {
        let first = raw.spikes.first()?;
        let hz = self.head.environment.hz?;
        let set = self.raw.begin.bandwidth;
        if self.head.plan.threads != 1 || set.burst_us != 0 {
            return None;
        }
        let us = DurationNs::from_micros;
        let bandwidth = Bandwidth::new(us(set.quota.us()?), us(set.period_us)).ok()?;
        // A period before the first spike the group rested.
        let base = MonoNs(first.due_ns.0.saturating_sub(bandwidth.period().0));
        let levels = self.raw.begin.levels.iter().map(|level| {
            let grid = Grid::at(self.timeline.boundaries_of(level.cgroup_id), first.due_ns)?;
            Some(LevelGrid { bandwidth, boundary: grid.point })
        });
        Some(predict(base, &levels.collect::<Option<Vec<_>>>()?, hz, &raw.spikes))
    }

    /// Learnt less true, in the half period around it.
    fn learnt_off(&self, raw: &RawStep) -> Option<i64> {
        let learnt = raw.learnt?;
        let grid = Grid::at(self.timeline.boundaries_of(self.leaf), learnt.point_ns)?;
        let (off, period) = (grid.phase(learnt.point_ns).0.cast_signed(), grid.period.0.cast_signed());
        Some(if off > period / 2 { off - period } else { off })
    }
}

/// When some thread of a spike was held, up to when the last of them noticed its end.
fn held(attribution: &Attribution<'_>, spike: &SpikeSpan) -> Vec<Span> {
    let of = |tid: u32, until: MonoNs| attribution.tile(tid, Span::new(spike.due_ns, until)).1;
    Spans::union(spike.workers.iter().flat_map(|worker| of(worker.tid, worker.finished_ns))).iter().collect()
}

/// Whether a spike got what the model allows, and was held or not as it says.
fn as_predicted(spike: &SpikeLine) -> bool {
    let Some(model) = spike.model else { return false };
    // For want of a CPU it may have got less.
    let most = model.most_ns + METER;
    let least = model.least_ns.saturating_sub(METER + spike.shares.runqueue_ns);
    let held = if model.held_in == 0 {
        !spike.held()
    } else {
        !model.is_always() || spike.held() || spike.shares.runqueue_ns > METER
    };
    held && (least..=most).contains(&spike.consumed_ns)
}

/// The step repeated, through the kubelet's eyes and a scrape twice a minute.
fn shown(history: &History) -> Sight {
    let times = SHOWN_OVER.0.div_ceil(history.span.length().0.max(1));
    let scrape_ns = DurationNs::from_millis(30_000);
    let poller = Poller {
        housekeeping: Some(Housekeeping::KUBELET),
        scrape_ns,
        offset_ns: DurationNs(scrape_ns.0 / 3),
        seed: 1,
    };
    let query = Query { window_ns: DurationNs(4 * scrape_ns.0), every_ns: scrape_ns, edition: Edition::From3 };
    sight(&history.repeated(times), 0, &poller, &query)
}

/// Which levels there are, leaf first.
#[must_use]
pub fn level_names(nesting: Nesting) -> &'static [LevelName] {
    match nesting {
        Nesting::Flat => &[LevelName::Container],
        Nesting::Nested => &[LevelName::Container, LevelName::Pod],
    }
}
