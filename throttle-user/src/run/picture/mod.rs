//! What is drawn of a run: periods, lanes and requests of one limit, in no format.
//!
//! Every picture of a run (text, SVG, HTML, trace, terminal) is made from these values, and these from the raw files by the same
//! pure code as the figures of the report: what two of them state of one thing is the same number.

mod crossed;
mod lanes;

use std::collections::BTreeSet;

use super::{
    derive::{Derived, LimitLine, RawLimit, RequestLine, RunLine, bracket, lines},
    ledger::Kept,
    levelled::{self, LevelledPeriod},
    need::Need,
    record::Head,
};
use crate::{
    attribution::Attribution,
    cgroup::{Bandwidth, CpuLimit, LevelName},
    event::{CgroupId, Event, Levels},
    time::{ClockAnchor, DurationNs, MonoNs},
    timeline::{
        Setting, Timeline,
        interval::{Spans, Steps},
        period::Activity,
    },
};

pub use crate::{
    attribution::{Doing, Shares, Stretch},
    timeline::{gap::Gap, interval::Span},
};
pub use crossed::Crossed;
pub use lanes::{CpuDoing, CpuLane, Out, ThreadLane};

/// One limit of a run.
#[derive(Clone, Debug)]
pub struct LimitPicture {
    /// The limit.
    pub limit: CpuLimit,
    /// As the kernel showed it.
    pub bandwidth: Bandwidth,
    /// CPUs of the machine.
    pub cpus: u32,
    /// The clocks at the limit's beginning.
    pub clock: ClockAnchor,
    /// What is drawn: from the first reading of the counters to the last one, or to the end of what is known.
    pub window: Span,
    /// First to last event; absent = nothing was observed, only the requests are known.
    pub seen: Option<Span>,
    /// Set where the file of events ends before the run did: the last instant that is known.
    pub cut_off: Option<MonoNs>,
    /// Path of the container: itself first, then its parent, and so on. [`Doing::Throttled`] counts along it.
    pub path: Vec<CgroupId>,
    /// Leaf first, then its ancestors as far as they were out of quota.
    pub levels: Vec<LevelPicture>,
    /// Threads of the container, those that were held longest first.
    pub threads: Vec<ThreadLane>,
    /// CPUs, in order.
    pub cpu_lanes: Vec<CpuLane>,
    /// Answered requests, in order.
    pub requests: Vec<RequestPicture>,
    /// Requests without an answer: number and error.
    pub failed: Vec<(u64, String)>,
    /// Stretches in which a CPU lost records.
    pub gaps: Vec<Gap>,
    /// Stretches of which a stamp is wrong: nothing that is drawn there can be right.
    pub broken: Vec<Span>,
    /// What limit its threads would have needed over the whole window; absent = nothing ran, or nothing was observed.
    pub need: Option<Need>,
    /// What was derived of it, as the report has it.
    pub line: LimitLine,
}

/// One level of the cgroup tree.
#[derive(Clone, Debug)]
pub struct LevelPicture {
    /// Container or pod; absent = a group above.
    pub name: Option<LevelName>,
    /// kernfs id.
    pub cgroup: CgroupId,
    /// Its periods inside the window, in order; none of a group above, of which only edges are known.
    pub periods: Vec<LevelledPeriod>,
    /// When it was out of quota on which CPU, in order.
    pub out: Vec<Out>,
    /// How many of the threads under it ran at once, where any did, in order.
    running: Steps,
}

impl LevelPicture {
    /// When it was out of quota on any CPU, in order.
    #[must_use]
    pub fn out_anywhere(&self) -> Vec<Span> {
        Spans::union(self.out.iter().map(|out| out.span)).iter().collect()
    }

    /// Stretches of a window in which threads under it ran, with their number, in order.
    pub fn running(&self, window: Span) -> impl Iterator<Item = (Span, u32)> + '_ {
        self.running.within(window)
    }
}

/// One answered request.
#[derive(Clone, Debug)]
pub struct RequestPicture {
    /// As the report has it.
    pub line: RequestLine,
    /// Course of the critical path, from first start to last finish, without holes.
    pub course: Vec<Stretch>,
    /// Periods of the container that it crossed, in order; none without a limit.
    pub crossed: Vec<Crossed>,
    /// What limit would have kept the whole container from being throttled while the request ran, given what it used in the
    /// period before; absent = nothing was observed.
    pub need: Option<Need>,
}

impl LimitPicture {
    /// Draws a limit from its raw files. Pure, and the same on any machine.
    #[must_use]
    pub fn draw(head: &Head, raw: &RawLimit, events: Vec<Event>) -> Self {
        let setting = raw.setting(&head.environment);
        Self::of(head, raw, &Timeline::build(events, &setting), &setting)
    }

    /// Draws a limit from its timeline.
    #[must_use]
    pub fn of(head: &Head, raw: &RawLimit, timeline: &Timeline, setting: &Setting) -> Self {
        let begin = &raw.begin;
        let counted = bracket(raw, timeline);
        let (lines, line) = lines(head, raw, timeline, setting);
        let finished = lines.iter().filter_map(|line| match line {
            RunLine::Request(request) => Some(request.finished_ns),
            RunLine::FailedRequest { .. } | RunLine::Limit(_) => None,
        });
        let last = finished.max().unwrap_or(counted.end);
        let window = Span::new(counted.start, counted.end.max(last));
        let leaf = begin.levels.first().map_or(CgroupId(0), |level| level.cgroup_id);
        let attribution = Attribution::new(timeline, setting, &leaf);
        let scene = Scene {
            timeline,
            setting,
            leaf,
            attribution: &attribution,
            activity: &Activity::of(timeline, setting, leaf),
            period: DurationNs::from_micros(begin.bandwidth.period_us),
            cpus: head.environment.cpus,
        };
        let levels: Vec<LevelPicture> = setting
            .path(&leaf)
            .iter()
            .map(|&cgroup| {
                let name = begin.levels.iter().find(|level| level.cgroup_id == cgroup).map(|level| level.level);
                let inside = |period: &LevelledPeriod| {
                    period.period.end_ns > counted.start && period.period.end_ns <= counted.end
                };
                let periods = levelled::periods(begin, timeline, setting, cgroup);
                LevelPicture {
                    name,
                    cgroup,
                    periods: periods.into_iter().filter(|period| name.is_some() && inside(period)).collect(),
                    out: lanes::out(timeline, cgroup, window),
                    running: lanes::running(timeline, setting, cgroup),
                }
            })
            .filter(|level| level.name.is_some() || !level.out.is_empty())
            .collect();
        let (mut requests, mut failed) = (vec![], vec![]);
        for line in lines {
            match line {
                RunLine::Request(request) => requests.push(scene.request(*request, levels.first())),
                RunLine::FailedRequest { request, error, .. } => failed.push((request, error)),
                RunLine::Limit(_) => {}
            }
        }
        requests.sort_by_key(|request| request.line.request);
        Self {
            limit: begin.limit,
            bandwidth: begin.bandwidth,
            cpus: head.environment.cpus,
            clock: begin.clock,
            window,
            path: setting.path(&leaf).to_vec(),
            seen: timeline.span,
            cut_off: match raw.kept {
                Kept::Until { until, .. } => Some(until),
                Kept::All | Kept::None => None,
            },
            threads: lanes::threads(&scene, window),
            cpu_lanes: lanes::cpus(&scene, window),
            gaps: timeline.gaps.iter().filter(|gap| !gap.span.clip(window).is_empty()).copied().collect(),
            broken: timeline.broken.iter().map(|broken| broken.span).collect(),
            need: scene.need(window, scene.activity.stopped()),
            levels,
            requests,
            failed,
            line,
        }
    }

    /// Its lines as the report has them, without those of periods.
    #[must_use]
    pub fn derived(&self) -> Derived {
        let limit = self.limit;
        let answered = self.requests.iter().map(|request| RunLine::Request(Box::new(request.line.clone())));
        let failed = self.failed.iter().map(|(request, error)| RunLine::FailedRequest {
            limit,
            request: *request,
            error: error.clone(),
        });
        let lines = answered.chain(failed).chain([RunLine::Limit(Box::new(self.line.clone()))]).collect();
        Derived { lines, periods: vec![] }
    }

    /// The request with a number, if it was answered.
    #[must_use]
    pub fn request(&self, number: u64) -> Option<&RequestPicture> {
        self.requests.iter().find(|request| request.line.request == number)
    }

    /// The request with the longest wall time.
    #[must_use]
    pub fn slowest(&self) -> Option<&RequestPicture> {
        // The first of those that took equally long.
        self.requests.iter().rev().max_by_key(|request| request.line.share.wall_ns)
    }

    /// Names of levels that were out of quota, leaf first; `None` is a group above.
    pub fn names(&self, levels: Levels) -> impl Iterator<Item = Option<LevelName>> + '_ {
        let out = self.path.iter().enumerate().filter(move |(distance, _)| levels.contains(*distance));
        out.map(|(_, cgroup)| self.levels.iter().find(|level| level.cgroup == *cgroup).and_then(|level| level.name))
    }

    /// The throttles that held a request's critical path: place of the level in `levels`, and of the throttle in its `out`.
    #[must_use]
    pub fn held_by(&self, request: &RequestPicture) -> BTreeSet<(usize, usize)> {
        let mut throttles = BTreeSet::new();
        for stretch in &request.course {
            let Doing::Throttled { cpu: held_on, levels, .. } = stretch.doing else { continue };
            for (index, level) in self.levels.iter().enumerate() {
                let distance = self.path.iter().position(|cgroup| *cgroup == level.cgroup);
                if !distance.is_some_and(|distance| levels.contains(distance)) {
                    continue;
                }
                let before_end = level.out.partition_point(|out| out.span.start < stretch.span.end);
                // Of one CPU they do not overlap: the last that began is the one, on whichever place it is.
                let place = level.out[..before_end].iter().rposition(|out| out.cpu == held_on);
                throttles.extend(place.map(|place| (index, place)));
            }
        }
        throttles
    }

    /// The leaf: what the requests ran in.
    #[must_use]
    pub fn leaf(&self) -> Option<&LevelPicture> {
        self.levels.first()
    }
}

/// What all parts of a picture are drawn from.
struct Scene<'a> {
    timeline: &'a Timeline,
    setting: &'a Setting,
    leaf: CgroupId,
    attribution: &'a Attribution<'a>,
    activity: &'a Activity,
    period: DurationNs,
    cpus: u32,
}

impl Scene<'_> {
    fn request(&self, line: RequestLine, leaf: Option<&LevelPicture>) -> RequestPicture {
        let window = Span::new(line.started_ns, line.finished_ns);
        let course = self.attribution.course(line.share.critical_tid, window);
        // What was used in the period before it counts as well: it came out of the same quota.
        let before = MonoNs(window.start.0.saturating_sub(self.period.0));
        RequestPicture {
            crossed: leaf.map_or_else(Vec::new, |leaf| crossed::periods(&line, self.period, &course, leaf)),
            need: self.need(Span::new(before, window.end), self.activity.stopped()),
            course,
            line,
        }
    }

    fn need(&self, window: Span, stopped: &Spans) -> Option<Need> {
        let threads = self.timeline.threads.values();
        let under = |group| self.setting.path(&group).contains(&self.leaf);
        Need::of(threads.filter(|line| line.was_in(under)), window, stopped, self.period, self.cpus)
    }
}
