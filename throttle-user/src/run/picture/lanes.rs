//! Lanes: what each thread and each CPU did, and when each level was out of quota.

use std::collections::BTreeMap;

use super::{Doing, Scene, Span, Stretch};
use crate::{
    event::CgroupId,
    time::DurationNs,
    timeline::{
        Setting, Timeline,
        interval::{Spans, Steps},
        thread::State,
    },
};

/// One thread of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLane {
    /// Thread id.
    pub tid: u32,
    /// What it did over the window, without holes.
    pub course: Vec<Stretch>,
}

/// What a CPU did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuDoing {
    /// Ran a thread that is followed.
    Thread {
        /// The thread.
        tid: u32,
    },
    /// Idle.
    Idle,
    /// Ran something else.
    Other,
    /// Not known: records were lost, or its idle time was not measured.
    Unknown,
}

/// One CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuLane {
    /// Its number.
    pub cpu: u32,
    /// What it did over the window, without holes.
    pub course: Vec<(Span, CpuDoing)>,
}

/// A stretch in which a level was out of quota on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Out {
    /// The CPU.
    pub cpu: u32,
    /// When, inside the window.
    pub span: Span,
    /// False: records were lost while it lasted.
    pub complete: bool,
}

/// When a level was out of quota, in order.
pub(super) fn out(timeline: &Timeline, cgroup: CgroupId, window: Span) -> Vec<Out> {
    let own = timeline.throttles.iter().filter(|throttle| throttle.cgroup == cgroup);
    let clipped = own.map(|throttle| Out {
        cpu: throttle.cpu,
        span: throttle.span(timeline.end()).clip(window),
        complete: throttle.complete,
    });
    let mut out: Vec<Out> = clipped.filter(|out| !out.span.is_empty()).collect();
    out.sort_by_key(|out| (out.span.start, out.cpu));
    out
}

/// How many threads under a cgroup ran at once.
pub(super) fn running(timeline: &Timeline, setting: &Setting, cgroup: CgroupId) -> Steps {
    let under = |leaf: CgroupId| setting.path(&leaf).contains(&cgroup);
    let segments = timeline.threads.values().flat_map(|line| line.inside(under));
    Steps::depth(segments.filter(|segment| matches!(segment.state, State::Running { .. })).map(|segment| segment.span))
}

/// Threads that were in the container, those held longest first, then those that ran longest.
pub(super) fn threads(scene: &Scene<'_>, window: Span) -> Vec<ThreadLane> {
    let inside = |group| scene.setting.path(&group).contains(&scene.leaf);
    let lines = scene.timeline.threads.iter().filter(|(_, line)| line.was_in(inside));
    let mut lanes: Vec<(ThreadLane, DurationNs, DurationNs)> = lines
        .map(|(&tid, _)| {
            let course = scene.attribution.course(tid, window);
            let time = |wanted: fn(&Doing) -> bool| {
                course.iter().filter(|stretch| wanted(&stretch.doing)).map(|stretch| stretch.span.length()).sum()
            };
            let held = time(|doing| matches!(doing, Doing::Throttled { .. }));
            let ran = time(|doing| matches!(doing, Doing::OnCpu { .. }));
            (ThreadLane { tid, course }, held, ran)
        })
        .collect();
    lanes.sort_by_key(|(lane, held, ran)| (std::cmp::Reverse((*held, *ran)), lane.tid));
    lanes.into_iter().map(|(lane, ..)| lane).collect()
}

/// Every CPU of the machine, and those of the recording with a higher number.
pub(super) fn cpus(scene: &Scene<'_>, window: Span) -> Vec<CpuLane> {
    let timeline = scene.timeline;
    let mut parts: BTreeMap<u32, Vec<(Span, CpuDoing)>> = (0..scene.cpus).map(|cpu| (cpu, vec![])).collect();
    for (&tid, line) in &timeline.threads {
        for (cpu, span) in line.running() {
            parts.entry(cpu).or_default().push((span, CpuDoing::Thread { tid }));
        }
    }
    for (&cpu, idle) in &timeline.idle {
        parts.entry(cpu).or_default().extend(idle.iter().map(|span| (span, CpuDoing::Idle)));
    }
    let seen = timeline.span.unwrap_or(Span::new(window.start, window.start));
    let lane = |(cpu, parts): (u32, Vec<(Span, CpuDoing)>)| {
        let lost = Spans::union(timeline.gaps.iter().filter(|gap| gap.cpu == cpu).map(|gap| gap.span));
        // Without any idle switch it is not known whether it was ever idle.
        let between = if timeline.idle.contains_key(&cpu) { CpuDoing::Other } else { CpuDoing::Unknown };
        CpuLane { cpu, course: fill(parts, window, |span| rest(span, seen, &lost, between)) }
    };
    parts.into_iter().map(lane).collect()
}

/// Orders parts, cuts what overlaps (a thread's records win over the idle task's), and fills what is between.
fn fill(
    mut parts: Vec<(Span, CpuDoing)>,
    window: Span,
    rest: impl Fn(Span) -> Vec<(Span, CpuDoing)>,
) -> Vec<(Span, CpuDoing)> {
    parts.sort_by_key(|(span, doing)| (span.start, *doing == CpuDoing::Idle));
    let mut course = Vec::with_capacity(parts.len());
    let mut reached = window.start;
    for (span, doing) in parts {
        let span = Span::new(span.start.max(reached), span.end.min(window.end));
        if span.is_empty() {
            continue;
        }
        course.extend(rest(Span::new(reached, span.start)));
        reached = span.end;
        course.push((span, doing));
    }
    course.extend(rest(Span::new(reached, window.end)));
    course
}

/// A stretch with neither a followed thread nor the idle task: something else, as far as every record of it is there.
fn rest(span: Span, seen: Span, lost: &Spans, between: CpuDoing) -> Vec<(Span, CpuDoing)> {
    let whole = Spans::union([span]);
    let known = Spans::union([span.clip(seen)]).minus(lost);
    let mut parts: Vec<(Span, CpuDoing)> = known.iter().map(|span| (span, between)).collect();
    parts.extend(whole.minus(&known).iter().map(|span| (span, CpuDoing::Unknown)));
    parts.sort_by_key(|(span, _)| span.start);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MonoNs;

    fn span(from: u64, to: u64) -> Span {
        Span::new(MonoNs(from), MonoNs(to))
    }

    #[test]
    fn a_lane_has_no_hole_and_shows_lost_records_as_unknown() {
        let thread = CpuDoing::Thread { tid: 7 };
        let lost = Spans::union([span(60, 70)]);
        let parts = vec![(span(30, 40), CpuDoing::Idle), (span(10, 20), thread), (span(35, 45), thread)];
        let course = fill(parts, span(0, 100), |part| rest(part, span(5, 90), &lost, CpuDoing::Other));
        assert_eq!(
            course,
            [
                (span(0, 5), CpuDoing::Unknown),
                (span(5, 10), CpuDoing::Other),
                (span(10, 20), thread),
                (span(20, 30), CpuDoing::Other),
                (span(30, 40), CpuDoing::Idle),
                (span(40, 45), thread),
                (span(45, 60), CpuDoing::Other),
                (span(60, 70), CpuDoing::Unknown),
                (span(70, 90), CpuDoing::Other),
                (span(90, 100), CpuDoing::Unknown),
            ]
        );
    }

    #[test]
    fn a_cpu_that_showed_no_idle_switch_is_not_known_between_its_threads() {
        let course = fill(vec![(span(10, 20), CpuDoing::Thread { tid: 7 })], span(0, 30), |part| {
            rest(part, span(0, 30), &Spans::default(), CpuDoing::Unknown)
        });
        let doing: Vec<CpuDoing> = course.iter().map(|(_, doing)| *doing).collect();
        assert_eq!(doing, [CpuDoing::Unknown, CpuDoing::Thread { tid: 7 }, CpuDoing::Unknown]);
    }
}
