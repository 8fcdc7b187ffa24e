//! What must hold of CPUs and periods whatever was lost: a CPU runs one thread at a time, and no part of a period is longer than it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    Timeline,
    interval::Span,
    period::{PeriodRecord, records},
    properties::an_event,
    simulated::{self, CONTAINER, CPUS, POD, Rules, Simulated, plans},
    thread::State,
};
use crate::{event::Event, time::DurationNs};

/// The events without those whose place is chosen, their sequence numbers missing.
fn without(simulated: &Simulated, lost: &[prop::sample::Index]) -> Vec<Event> {
    let mut events = simulated.events.clone();
    for index in lost {
        if events.len() > 1 {
            events.remove(index.index(events.len()));
        }
    }
    events
}

fn one_thread_at_a_time(timeline: &Timeline) -> Result<(), TestCaseError> {
    let mut ran: BTreeMap<u32, Vec<(Span, u32)>> = BTreeMap::new();
    for (&thread, line) in &timeline.threads {
        for segment in &line.segments {
            if let State::Running { cpu } = segment.state {
                ran.entry(cpu).or_default().push((segment.span, thread));
            }
        }
    }
    for (cpu, spans) in &mut ran {
        spans.sort_by_key(|(span, _)| span.start);
        for pair in spans.windows(2) {
            prop_assert!(pair[0].0.end <= pair[1].0.start, "CPU {cpu}: {pair:?}");
        }
    }
    Ok(())
}

/// `used`: also the CPU time used, which is no more than all CPUs have where one thread runs at a time.
fn no_longer_than_itself(period: &PeriodRecord, used: bool) -> Result<(), TestCaseError> {
    let length = period.end_ns.since(period.start_ns);
    let mut held: BTreeMap<u32, DurationNs> = BTreeMap::new();
    for throttle in &period.throttles {
        *held.entry(throttle.cpu).or_default() += throttle.end_ns.since(throttle.start_ns);
    }
    prop_assert!(held.values().all(|&held| held <= length), "{period:?}");
    let walls = [Some(period.throttled_wall_ns), period.held_wall_ns, period.fully_held_ns];
    prop_assert!(walls.iter().all(|&wall| wall.is_some_and(|wall| wall <= length)), "{period:?}");
    prop_assert!(period.fully_held_ns <= period.held_wall_ns, "{period:?}");
    prop_assert!(!used || period.used_ns.is_some_and(|used| used.0 <= length.0 * u64::from(CPUS)), "{period:?}");
    Ok(())
}

proptest! {
    #![proptest_config(simulated::config())]

    #[test]
    fn whatever_is_lost_a_cpu_runs_one_thread_at_a_time_and_no_part_of_a_period_is_longer_than_it(
        plan in plans(true), lost in prop::collection::vec(any::<prop::sample::Index>(), 0..6)
    ) {
        let simulated = Simulated::of(&plan);
        let timeline = Timeline::build(without(&simulated, &lost), &simulated.setting);
        one_thread_at_a_time(&timeline)?;
        for period in [CONTAINER, POD].iter().flat_map(|&level| records(&timeline, &simulated.setting, level)) {
            no_longer_than_itself(&period, true)?;
        }
    }

    #[test]
    fn of_any_records_at_all_no_part_of_a_period_is_longer_than_it(
        events in prop::collection::vec(an_event(), 0..60),
        rules in prop::sample::select(&[Rules::Direct, Rules::AsyncQueued, Rules::Task][..])
    ) {
        let setting = simulated::setting(rules);
        let timeline = Timeline::build(events, &setting);
        for period in [CONTAINER, POD].iter().flat_map(|&level| records(&timeline, &setting, level)) {
            no_longer_than_itself(&period, false)?;
        }
    }
}
