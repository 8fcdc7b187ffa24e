//! The timeline against the truth of a simulated kernel: whole, reordered, with a lost record, with a tracepoint that did not
//! fire. And what must hold of any records whatever.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{
    Setting, Timeline,
    boundary::{Boundary, rolls, throttled_rolls},
    interval::Span,
    level::{EndedBy, HierarchyThrottle, Throttle},
    period::{Activity, PeriodRecord, records},
    simulated::{self, CALL, CALLBACK, CONTAINER, POD, Plan, Rules, SIDECAR, Simulated, TIMER_LATENCY, plans},
    thread::{Segment, State, ThreadLine},
};
use crate::{
    event::{CgroupId, Event, Left, Release, What},
    time::{DurationNs, MonoNs},
};

/// Neighbours of the same state made one.
fn merged(segments: &[Segment]) -> Vec<Segment> {
    let mut merged: Vec<Segment> = vec![];
    for &segment in segments {
        match merged.last_mut() {
            Some(last) if last.state == segment.state && last.span.end == segment.span.start => {
                last.span.end = segment.span.end;
            }
            _ => merged.push(segment),
        }
    }
    merged
}

fn lines(timeline: &Timeline) -> BTreeMap<u32, Vec<Segment>> {
    timeline.threads.iter().map(|(&thread, line)| (thread, merged(&line.segments))).collect()
}

/// Time in which a line says something else than the truth, unknown excepted. A thread whose end was not seen sleeps for ever.
fn wrong(line: &ThreadLine, truth: &[Segment]) -> DurationNs {
    let end = truth.last().map_or(MonoNs(0), |last| last.span.end);
    let dead = |segment: &&Segment| segment.state == State::Blocked && segment.span.start >= end;
    let known = line.segments.iter().filter(|segment| segment.state != State::Unknown && !dead(segment));
    known
        .map(|segment| {
            let right: DurationNs = truth
                .iter()
                .filter(|true_one| true_one.state == segment.state)
                .map(|true_one| true_one.span.clip(segment.span).length())
                .sum();
            segment.span.length() - right
        })
        .sum()
}

/// Events as a run stores them, a line each.
pub(crate) fn shown(events: &[Event]) -> String {
    events.iter().map(|event| serde_json::to_string(event).expect("an event is JSON") + "\n").collect()
}

fn compared(boundary: &Boundary) -> simulated::Roll {
    simulated::Roll {
        due: boundary.due,
        entry: boundary.entry,
        exit: boundary.exit,
        periods: boundary.periods,
        throttled_cpus: boundary.throttled_cpus,
    }
}

fn period_records(simulated: &Simulated, timeline: &Timeline) -> Vec<PeriodRecord> {
    [CONTAINER, POD].into_iter().flat_map(|level| records(timeline, &simulated.setting, level)).collect()
}

/// The events without the one at `index`, its sequence number missing.
fn without(simulated: &Simulated, index: usize) -> Vec<Event> {
    let mut events = simulated.events.clone();
    events.remove(index);
    events
}

/// What a probe records that follows no thread: the edges.
pub(crate) fn edges(simulated: &Simulated, rules: Rules) -> (Vec<Event>, Setting) {
    let mut open: BTreeSet<(CgroupId, u32)> = BTreeSet::new();
    let mut is_edge = |event: &Event| match &event.what {
        What::Period(_) | What::Slack(_) | What::Queue(_) => true,
        What::Wakeup { task, target_cpu, .. } => {
            let first = task.hierarchy && rules != Rules::Task;
            if first {
                open.insert((task.cgroup, *target_cpu));
            }
            first
        }
        What::Switch { prev, left, next, .. } => {
            let opens = prev.filter(|prev| prev.hierarchy || *left == Some(Left::Throttled));
            opens.map(|prev| open.insert((prev.cgroup, event.cpu)));
            let closes = next.is_some_and(|next| !next.hierarchy && open.remove(&(next.cgroup, event.cpu)));
            opens.is_some() || closes
        }
        What::Migrate { .. } | What::Exit { .. } | What::Attach { .. } => false,
    };
    let dropped: Vec<usize> =
        simulated.events.iter().enumerate().filter(|(_, event)| !is_edge(event)).map(|(index, _)| index).collect();
    let setting = Setting { followed: BTreeSet::new(), ..unaware(simulated) };
    (untraced(simulated, &dropped), setting)
}

/// What a probe records that watches the container alone.
fn of_container(simulated: &Simulated) -> (Vec<Event>, Setting) {
    let watched = |cgroup: CgroupId| cgroup != SIDECAR;
    let mut seen = simulated.clone();
    let mut dropped = vec![];
    for (index, event) in seen.events.iter_mut().enumerate() {
        let keeps = match &mut event.what {
            What::Switch { prev, left, ran, next, from_idle, to_idle, .. } => {
                if prev.is_some_and(|prev| !watched(prev.cgroup)) {
                    (*prev, *left, *ran) = (None, None, None);
                }
                *next = next.filter(|next| watched(next.cgroup));
                prev.is_some() || next.is_some() || *from_idle || *to_idle
            }
            What::Wakeup { task, .. } => watched(task.cgroup),
            What::Migrate { cgroup, .. } | What::Exit { cgroup, .. } => watched(*cgroup),
            What::Attach { .. } | What::Period(_) | What::Slack(_) | What::Queue(_) => true,
        };
        if !keeps {
            dropped.push(index);
        }
    }
    let followed = seen.setting.followed.iter().copied().filter(|&cgroup| watched(cgroup)).collect();
    let setting = Setting { followed, ..unaware(&seen) };
    (untraced(&seen, &dropped), setting)
}

/// The events without those `indices`, as if their tracepoint had not fired: no sequence number is missing.
fn untraced(simulated: &Simulated, indices: &[usize]) -> Vec<Event> {
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    let mut events = vec![];
    for (index, event) in simulated.events.iter().enumerate() {
        if !indices.contains(&index) {
            let seq = next.entry(event.cpu).or_default();
            events.push(Event { seq: *seq, ..event.clone() });
            *seq += 1;
        }
    }
    events
}

/// The setting where no count of the records tells more than their numbers.
fn unaware(simulated: &Simulated) -> Setting {
    Setting { tried: BTreeMap::new(), ..simulated.setting.clone() }
}

/// The index of an event, and of the queue records that belong to it.
fn with_queues(events: &[Event], index: usize) -> Vec<usize> {
    let run = &events[index];
    let queues = (index + 1..events.len())
        .take_while(|&next| events[next].at == run.at && events[next].cpu == run.cpu)
        .filter(|&next| matches!(events[next].what, What::Queue(_)));
    std::iter::once(index).chain(queues).collect()
}

/// A kind of tracepoint that some kernels do not fire every time.
#[derive(Clone, Copy, Debug)]
enum Skipped {
    SwitchIn,
    Period,
    Call,
}

impl Skipped {
    fn is(self, event: &Event) -> bool {
        match (&event.what, self) {
            (What::Switch { prev: None, next: Some(_), .. }, Self::SwitchIn) | (What::Period(_), Self::Period) => true,
            (What::Queue(queue), Self::Call) => queue.release == Release::Csd,
            _ => false,
        }
    }
}

fn skips() -> impl Strategy<Value = Skipped> {
    prop::sample::select(&[Skipped::SwitchIn, Skipped::Period, Skipped::Call][..])
}

fn check_throttles(timeline: &Timeline, truth: &[Throttle], lost: &Event) -> Result<(), TestCaseError> {
    for throttle in timeline.throttles.iter().filter(|throttle| throttle.complete) {
        prop_assert!(truth.contains(throttle), "{throttle:?} is complete and not true, lost {lost:?}: {truth:?}");
    }
    Ok(())
}

fn overlaps(spans: impl Iterator<Item = Span>) -> bool {
    let mut spans: Vec<_> = spans.filter(|span| !span.is_empty()).collect();
    spans.sort();
    spans.windows(2).any(|pair| pair[1].start < pair[0].end)
}

/// What must hold of any timeline.
fn sound(timeline: &Timeline, events: &[Event]) -> Result<(), TestCaseError> {
    let end = timeline.end();
    for throttle in &timeline.throttles {
        let of = |other: &&Throttle| (other.cgroup, other.cpu) == (throttle.cgroup, throttle.cpu);
        let spans = timeline.throttles.iter().filter(of).map(|other| other.span(end));
        prop_assert!(!overlaps(spans), "throttles of {:?} on CPU {} overlap", throttle.cgroup, throttle.cpu);
        prop_assert!(throttle.start.is_none_or(|start| start >= throttle.marked));
        prop_assert!(throttle.end.is_none_or(|end| end >= throttle.marked));
        prop_assert_eq!(throttle.end.is_some(), throttle.ended_by.is_some());
    }
    for throttle in &timeline.hierarchy {
        let of = |other: &&HierarchyThrottle| (other.cgroup, other.cpu) == (throttle.cgroup, throttle.cpu);
        prop_assert!(!overlaps(timeline.hierarchy.iter().filter(of).map(|other| other.span(end))));
    }
    for (thread, line) in &timeline.threads {
        for pair in line.segments.windows(2) {
            prop_assert_eq!(pair[0].span.end, pair[1].span.start, "a hole or an overlap in thread {}", thread);
        }
        prop_assert!(line.segments.iter().all(|segment| !segment.span.is_empty()));
        prop_assert!(line.segments.last().is_none_or(|last| last.span.end <= end));
    }
    for (cpu, idle) in &timeline.idle {
        prop_assert!(idle.total() <= timeline.span.map_or(DurationNs::ZERO, Span::length), "CPU {} idle too long", cpu);
    }
    prop_assert!(events.is_empty() == timeline.span.is_none());
    Ok(())
}

/// Any record, sensible or not.
pub(crate) fn an_event() -> impl Strategy<Value = Event> {
    use crate::event::{KernelCounters, Left, Levels, OnCpu, QueueState, TimerRun};
    let group = prop::sample::select(&[CONTAINER, SIDECAR, POD][..]);
    let task = (100u32..103, group.clone(), 0u16..4, 0u16..4, 0u16..4).prop_map(
        |(thread, cgroup, levels, counting, counting_local)| OnCpu {
            thread,
            cgroup,
            levels: Levels(levels),
            counting: Levels(counting),
            counting_local: Levels(counting_local),
            hierarchy: levels != 0,
            exempt: false,
        },
    );
    let left = prop::sample::select(&[Left::Blocked, Left::Preempted, Left::Throttled][..]);
    let release = prop::sample::select(&[Release::Period, Release::Slack, Release::Csd][..]);
    let ran = prop::option::of((0u64..3_000).prop_map(DurationNs));
    let uncharged = prop::option::of((0u64..3_000).prop_map(DurationNs));
    let switch = (
        prop::option::of((task.clone(), left, ran)),
        prop::option::of(task.clone()),
        uncharged,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(prev, next, uncharged, from_idle, to_idle)| What::Switch {
            prev: prev.map(|(task, _, _)| task),
            left: prev.map(|(_, left, _)| left),
            ran: prev.and_then(|(_, _, ran)| ran),
            uncharged,
            next,
            from_idle,
            to_idle,
        });
    let run = (group.clone(), 0u64..2_000, 0u64..3, 0u64..500, 0u32..3, any::<bool>(), any::<bool>()).prop_map(
        |(cgroup, expires, periods, period, throttled_cpus, truncated, active)| TimerRun {
            cgroup,
            entry: MonoNs(expires + 1),
            expires: MonoNs(expires),
            next_expires: MonoNs(expires + periods * period),
            quota: (period % 5 != 0).then_some(DurationNs(period / 2)),
            period: DurationNs(period),
            burst: DurationNs::ZERO,
            runtime_before: DurationNs::ZERO,
            runtime_after: DurationNs(period / 2),
            throttled_cpus,
            truncated,
            active,
            kernel: KernelCounters { nr_periods: 0, nr_throttled: 0, throttled_time: DurationNs::ZERO },
        },
    );
    let queue = (group.clone(), 0u32..2, 0u64..2_000, any::<bool>(), 0u32..3, -5i64..5, release).prop_map(
        |(cgroup, cpu, entry, throttled, throttle_count, runtime_remaining, release)| {
            What::Queue(QueueState {
                cgroup,
                cpu,
                entry: MonoNs(entry),
                throttled,
                throttle_count,
                runtime_remaining,
                release,
            })
        },
    );
    let what = prop_oneof![
        4 => switch,
        2 => (task, 0u32..2, any::<bool>()).prop_map(|(task, target_cpu, new)| What::Wakeup { task, target_cpu, new }),
        1 => (100u32..103, group.clone(), 0u32..2)
            .prop_map(|(thread, cgroup, dest_cpu)| What::Migrate { thread, cgroup, dest_cpu }),
        1 => (100u32..103, group.clone()).prop_map(|(thread, cgroup)| What::Exit { thread, cgroup }),
        1 => (100u32..103, prop_oneof![3 => group, 1 => Just(CgroupId(7))], any::<bool>())
            .prop_map(|(thread, cgroup, blocked)| What::Attach { thread, cgroup, blocked }),
        1 => run.clone().prop_map(What::Period),
        1 => run.prop_map(What::Slack),
        2 => queue,
    ];
    (0u64..2_000, 0u32..2, 0u32..50, what).prop_map(|(at, cpu, seq, what)| Event { at: MonoNs(at), cpu, seq, what })
}

proptest! {
    #![proptest_config(simulated::config())]

    #[test]
    fn the_truth_is_found_again_exactly(plan in plans(true)) {
        let simulated = Simulated::of(&plan);
        let timeline = Timeline::build(simulated.events.clone(), &simulated.setting);
        sound(&timeline, &simulated.events)?;
        prop_assert_eq!(&timeline.gaps, &vec![]);
        let inferred: Vec<_> = timeline.boundaries.values().flatten().filter(|boundary| boundary.inferred).collect();
        prop_assert_eq!(timeline.untraced, 0, "{:?}\n{}", inferred, shown(&simulated.events));
        let truth = &simulated.truth;
        for (thread, line) in lines(&timeline) {
            prop_assert_eq!(&line, &merged(&truth.threads[&thread]), "thread {}", thread);
        }
        prop_assert_eq!(&timeline.throttles, &truth.throttles);
        if matches!(plan.rules, Rules::AsyncQueued | Rules::Task) {
            prop_assert_eq!(&timeline.hierarchy, &truth.hierarchy);
        }
        let seen: BTreeMap<_, Vec<_>> =
            timeline.boundaries.iter().map(|(&level, all)| (level, all.iter().map(compared).collect())).collect();
        prop_assert_eq!(&seen, &truth.rolls);
        for (cpu, idle) in &timeline.idle {
            prop_assert_eq!(idle, &truth.idle[cpu], "idle CPU {}", cpu);
        }
    }

    #[test]
    fn a_thread_moved_between_groups_is_followed_exactly(plan in plans(true)) {
        let simulated = Simulated::of(&Plan { regroup: true, ..plan });
        let timeline = Timeline::build(simulated.events.clone(), &simulated.setting);
        sound(&timeline, &simulated.events)?;
        prop_assert_eq!(timeline.untraced, 0, "{}", shown(&simulated.events));
        let truth = &simulated.truth;
        for (thread, line) in lines(&timeline) {
            // Of one that shows itself first by its move it is not known what it does.
            let about = |event: &&Event| match &event.what {
                What::Switch { prev, next, .. } => [prev, next].into_iter().flatten().any(|side| side.thread == thread),
                What::Wakeup { task, .. } => task.thread == thread,
                What::Migrate { thread: tid, .. } | What::Exit { thread: tid, .. } | What::Attach { thread: tid, .. } => *tid == thread,
                What::Period(_) | What::Slack(_) | What::Queue(_) => false,
            };
            let first = simulated.events.iter().find(about);
            if first.is_some_and(|event| matches!(event.what, What::Attach { .. })) {
                prop_assert_eq!(wrong(&timeline.threads[&thread], &truth.threads[&thread]), DurationNs::ZERO, "thread {}", thread);
            } else {
                prop_assert_eq!(&line, &merged(&truth.threads[&thread]), "thread {}\n{}", thread, shown(&simulated.events));
            }
        }
        prop_assert_eq!(&timeline.throttles, &truth.throttles);
        let used = |group| Activity::of(&timeline, &simulated.setting, group).used(timeline.span.unwrap_or(Span::new(MonoNs(0), MonoNs(0))));
        prop_assert_eq!(used(CONTAINER) + used(SIDECAR), used(POD));
    }

    #[test]
    fn nothing_is_claimed_of_a_thread_while_it_is_in_a_group_that_is_not_watched(plan in plans(true)) {
        let limits = plan.limits.iter().filter(|(level, _)| **level == CONTAINER).map(|(&level, &limit)| (level, limit));
        let simulated = Simulated::of(&Plan { regroup: true, limits: limits.collect(), ..plan });
        let (events, setting) = of_container(&simulated);
        let timeline = Timeline::build(events.clone(), &setting);
        sound(&timeline, &events)?;
        prop_assert_eq!(timeline.untraced, 0, "{}", shown(&events));
        for (thread, line) in &timeline.threads {
            prop_assert_eq!(wrong(line, &simulated.truth.threads[thread]), DurationNs::ZERO, "thread {}\n{:?}\n{:?}\n{}", thread, line, simulated.truth.threads[thread], shown(&events));
            for (cgroup, away) in line.stays().filter(|(cgroup, _)| *cgroup == SIDECAR) {
                prop_assert!(line.within(away).all(|segment| segment.state == State::Unknown), "thread {} in {:?}: {:?}", thread, cgroup, line);
            }
        }
        let moves = events.iter().filter(|event| matches!(event.what, What::Attach { cgroup: SIDECAR, .. })).count();
        prop_assert!(timeline.departures(&setting).len() <= moves);
    }

    #[test]
    fn edges_alone_give_the_rolls_and_follow_no_thread(plan in plans(true)) {
        let simulated = Simulated::of(&plan);
        let (events, setting) = edges(&simulated, plan.rules);
        let timeline = Timeline::build(events.clone(), &setting);
        sound(&timeline, &events)?;
        prop_assert!(timeline.threads.is_empty());
        prop_assert_eq!(timeline.untraced, 0, "{}", shown(&events));
        let seen: BTreeMap<_, Vec<_>> =
            timeline.boundaries.iter().map(|(&level, all)| (level, all.iter().map(compared).collect())).collect();
        prop_assert_eq!(&seen, &simulated.truth.rolls);
        if plan.rules == Rules::Task {
            let counted = |throttles: &[Throttle]| {
                let counted = throttles.iter().filter(|throttle| throttle.counted() > DurationNs::ZERO);
                counted.map(|throttle| (throttle.start, throttle.cgroup, throttle.cpu, throttle.end)).collect::<BTreeSet<_>>()
            };
            prop_assert_eq!(counted(&timeline.throttles), counted(&simulated.truth.throttles), "{}", shown(&events));
        }
    }

    #[test]
    fn throttled_time_of_a_cpu_never_exceeds_the_period(plan in plans(true)) {
        let simulated = Simulated::of(&plan);
        let timeline = Timeline::build(simulated.events.clone(), &simulated.setting);
        for period in period_records(&simulated, &timeline) {
            let length = period.end_ns.since(period.start_ns);
            prop_assert_eq!(length, DurationNs(period.period_ns.0 * period.periods));
            for cpu in 0..simulated::CPUS {
                let of = period.throttles.iter().filter(|throttle| throttle.cpu == cpu);
                let sum: DurationNs = of.map(|throttle| throttle.end_ns.since(throttle.start_ns)).sum();
                prop_assert!(sum <= length, "{period:?}");
            }
            let walls = [Some(period.throttled_wall_ns), period.held_wall_ns, period.fully_held_ns];
            prop_assert!(walls.iter().all(|&wall| wall.is_some_and(|wall| wall <= length)), "{period:?}");
            let most = DurationNs(length.0 * u64::from(simulated::CPUS));
            prop_assert!(period.used_ns.is_some_and(|used| used <= most), "{period:?}");
            prop_assert!(period.fully_held_ns <= period.held_wall_ns, "{period:?}");
        }
    }

    #[test]
    fn the_order_of_the_input_changes_nothing(
        (events, shuffled, setting) in plans(true)
            .prop_map(|plan| Simulated::of(&plan))
            .prop_flat_map(|simulated| (Just(simulated.events.clone()), Just(simulated.events).prop_shuffle(), Just(simulated.setting)))
    ) {
        let (there, again) = (Timeline::build(events, &setting), Timeline::build(shuffled, &setting));
        prop_assert_eq!(format!("{there:?}"), format!("{again:?}"));
    }

    #[test]
    fn a_lost_record_leaves_a_gap_and_no_wrong_number(plan in plans(true), lost in any::<prop::sample::Index>()) {
        let simulated = Simulated::of(&plan);
        prop_assume!(simulated.events.len() > 2);
        let whole = Timeline::build(simulated.events.clone(), &simulated.setting);
        let index = lost.index(simulated.events.len());
        let events = without(&simulated, index);
        let timeline = Timeline::build(events.clone(), &simulated.setting);
        sound(&timeline, &events)?;
        let gone = &simulated.events[index];
        prop_assert_eq!(timeline.gaps.iter().map(|gap| (gap.cpu, gap.lost)).collect::<Vec<_>>(), vec![(gone.cpu, 1)]);
        for (thread, line) in &timeline.threads {
            let truth = &simulated.truth.threads[thread];
            prop_assert_eq!(wrong(line, truth), DurationNs::ZERO, "thread {} lost {:?}\n{:?}\n{:?}\n{}", thread, gone, line, truth, shown(&events));
        }
        check_throttles(&timeline, &simulated.truth.throttles, gone)?;
        if matches!(plan.rules, Rules::AsyncQueued | Rules::Task) {
            for throttle in timeline.hierarchy.iter().filter(|throttle| throttle.complete) {
                prop_assert!(simulated.truth.hierarchy.contains(throttle), "{throttle:?} lost {gone:?}\n{:?}\n{}", simulated.truth.hierarchy, shown(&events));
            }
        }
        let of_whole = period_records(&simulated, &whole);
        for period in period_records(&simulated, &timeline).iter().filter(|period| period.complete) {
            let alike = of_whole.iter().find(|other| (other.cgroup, other.end_ns) == (period.cgroup, period.end_ns));
            let denied_idle_ns = alike.and_then(|other| other.denied_idle_ns).filter(|_| period.denied_idle_ns.is_some());
            let expected = alike.map(|other| PeriodRecord { index: period.index, denied_idle_ns, ..other.clone() });
            prop_assert_eq!(Some(period), expected.as_ref(), "lost {:?}\n{:?}\n{}", gone, timeline.idle, shown(&events));
        }
    }

    #[test]
    fn what_was_not_traced_shifts_numbers_by_a_callback_or_leaves_them_unknown(
        plan in plans(false), kind in skips(), which in any::<prop::sample::Index>()
    ) {
        let simulated = Simulated::of(&plan);
        let of_kind: Vec<usize> = (0..simulated.events.len()).filter(|&index| kind.is(&simulated.events[index])).collect();
        prop_assume!(!of_kind.is_empty());
        let indices = with_queues(&simulated.events, of_kind[which.index(of_kind.len())]);
        let gone = &simulated.events[indices[0]];
        if let What::Switch { next: Some(next), .. } = &gone.what {
            // Nothing can show that a thread got a CPU that it is not seen to leave again.
            prop_assume!(simulated.events[indices[0] + 1..].iter().any(|event| matches!(&event.what, What::Switch { prev: Some(prev), .. } if prev.thread == next.thread)));
        }
        let events = untraced(&simulated, &indices);
        prop_assume!(events.len() > 1);
        let timeline = Timeline::build(events.clone(), &unaware(&simulated));
        sound(&timeline, &events)?;
        prop_assert_eq!(&timeline.gaps, &vec![]);
        // One release is missing: it is put at the boundary or at the grant instead.
        let slop = TIMER_LATENCY + CALLBACK + CALL + DurationNs::from_micros(200);
        // A throttle that only a later event shows over ended at or before it, so its threads may have waited instead.
        let late = timeline.throttles.iter().any(|throttle| throttle.ended_by == Some(EndedBy::Later));
        // A thread moved before anything showed its release may have waited for its CPU until then.
        let moved = |thread: u32| {
            let later = simulated.events[indices[0] + 1..].iter().find_map(|event| match &event.what {
                What::Migrate { thread: moved, .. } if *moved == thread => Some(true),
                What::Switch { prev, next, .. } if [prev, next].into_iter().flatten().any(|side| side.thread == thread) => Some(false),
                _ => None,
            });
            later == Some(true)
        };
        // Until an event shows a throttle over, it lasts.
        let open = |throttles: &[Throttle]| {
            let open = throttles.iter().filter(|throttle| throttle.end.is_none());
            open.map(|throttle| (throttle.cgroup, throttle.cpu)).collect::<BTreeSet<_>>()
        };
        // A release and a new throttle with nothing shown between them are one throttle to us.
        let known = !late
            && open(&timeline.throttles) == open(&simulated.truth.throttles)
            && timeline.throttles.len() == simulated.truth.throttles.len();
        for (thread, line) in timeline.threads.iter().filter(|(thread, _)| known && !moved(**thread)) {
            let off = wrong(line, &simulated.truth.threads[thread]);
            prop_assert!(off <= slop, "thread {} is off by {:?}, without {:?}\n{:?}\n{:?}\n{}", thread, off, gone, line.segments, simulated.truth.threads[thread], shown(&events));
        }
        for level in [CONTAINER, POD] {
            let of = |throttles: &[Throttle]| throttles.iter().filter(|throttle| throttle.cgroup == level).cloned().collect::<Vec<_>>();
            let (ours, truth) = (of(&timeline.throttles), of(&simulated.truth.throttles));
            let counted = |throttles: &[Throttle]| throttles.iter().map(Throttle::counted).sum::<DurationNs>();
            if known {
                let off = counted(&ours).0.abs_diff(counted(&truth).0);
                prop_assert!(off <= 2 * slop.0, "{:?} is off by {}, without {:?}\n{:?}\n{:?}\n{}", level, off, gone, ours, truth, shown(&events));
            }
        }
    }

    #[test]
    fn a_period_timer_run_that_was_not_traced_is_counted_all_the_same(plan in plans(false), which in any::<prop::sample::Index>()) {
        let simulated = Simulated::of(&plan);
        let periods: Vec<usize> = (0..simulated.events.len()).filter(|&index| Skipped::Period.is(&simulated.events[index])).collect();
        prop_assume!(periods.len() > 2);
        // Neither the first, which nothing precedes, nor the last, which nothing need follow.
        let index = periods[1 + which.index(periods.len() - 2)];
        let What::Period(gone) = &simulated.events[index].what else { unreachable!() };
        let seen = |at: &dyn Fn(MonoNs) -> bool| periods.iter().any(|&other| {
            matches!(&simulated.events[other].what, What::Period(run) if run.cgroup == gone.cgroup && at(run.expires))
        });
        prop_assume!(seen(&|due| due < gone.expires) && seen(&|due| due > gone.expires));
        let before = periods.iter().rev().filter_map(|&other| match &simulated.events[other].what {
            What::Period(run) if run.cgroup == gone.cgroup && run.expires < gone.expires => Some(run),
            _ => None,
        }).next().expect("there is one");
        // The first run after a rest is told only by what was used before it.
        prop_assume!(before.active);
        let events = untraced(&simulated, &with_queues(&simulated.events, index));
        let timeline = Timeline::build(events, &unaware(&simulated));
        // What is throttled between the point of the grid and the timer's run counts, and cannot be told from what comes after it.
        let meanwhile = Span::new(gone.expires, simulated.events[index].at + DurationNs(1));
        prop_assume!(!simulated.truth.throttles.iter().any(|throttle| throttle.cgroup == gone.cgroup && meanwhile.contains(throttle.marked)));
        let (ours, truth) = (timeline.boundaries_of(gone.cgroup), &simulated.truth.rolls[&gone.cgroup]);
        let whole: u64 = truth.iter().map(|roll| roll.periods).sum();
        prop_assert_eq!(rolls(ours), whole, "without {:?}\n{:?}\n{:?}\n{}", gone, ours.iter().filter(|boundary| boundary.inferred).collect::<Vec<_>>(), timeline.throttles, shown(&simulated.events));
        let throttled: u64 = truth.iter().filter(|roll| roll.throttled_cpus > 0).map(|roll| roll.periods).sum();
        prop_assert_eq!(throttled_rolls(ours), throttled, "without {:?}\n{:#?}", gone, timeline.throttles);
        prop_assert_eq!(timeline.untraced, 1);
    }

    #[test]
    fn any_records_at_all_make_a_sound_timeline(events in prop::collection::vec(an_event(), 0..60), rules in prop::sample::select(&[Rules::Direct, Rules::AsyncQueued, Rules::Task][..])) {
        let setting = simulated::setting(rules);
        let timeline = Timeline::build(events.clone(), &setting);
        sound(&timeline, &events)?;
        for level in [CONTAINER, POD] {
            for period in records(&timeline, &setting, level) {
                prop_assert!(period.fully_held_ns <= period.held_wall_ns);
            }
        }
    }
}
