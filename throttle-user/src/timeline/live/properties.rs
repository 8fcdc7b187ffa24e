//! A live timeline says what a whole recording says, however the events come in.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Finished, Live, LivePeriod, Patience};
use crate::{
    event::{CgroupId, Event},
    time::{DurationNs, MonoNs},
    timeline::{
        Setting, Timeline,
        boundary::Boundary,
        level::Throttle,
        period::{PeriodRecord, records},
        properties::{edges, shown},
        simulated::{self, CONTAINER, POD, Plan, SIDECAR, Simulated, plans},
    },
};

/// As long as the simulated timers come late, and in the same proportion as the real ones.
const PATIENCE: Patience = Patience {
    call: DurationNs::from_millis(50),
    lag: DurationNs::from_millis(200),
    keep: DurationNs::from_millis(400),
};

/// How events come: so many at a time, each CPU's own in order, those of different CPUs up to so much apart.
#[derive(Clone, Debug)]
struct Delivery {
    chunks: Vec<usize>,
    apart: DurationNs,
}

fn deliveries() -> impl Strategy<Value = Delivery> {
    (prop::collection::vec(1usize..200, 1..8), 0u64..5_000_000)
        .prop_map(|(chunks, apart)| Delivery { chunks, apart: DurationNs(apart) })
}

/// Long enough for much to be handed out, and forgotten, on the way.
fn long(plan: Plan) -> Plan {
    Plan { length: plan.length * 8, ..plan }
}

fn delivered(events: &[Event], setting: &Setting, delivery: &Delivery) -> (Vec<LivePeriod>, Vec<Throttle>, usize) {
    // The second CPU's events come later than the first one's.
    let mut events = events.to_vec();
    events.sort_by_key(|event| (event.at + DurationNs(delivery.apart.0 * u64::from(event.cpu)), event.cpu, event.seq));
    let mut live = Live::with(Setting { tried: BTreeMap::new(), ..setting.clone() }, PATIENCE);
    let (mut periods, mut throttles) = (vec![], vec![]);
    let mut take = |finished: Finished| {
        periods.extend(finished.periods);
        throttles.extend(finished.throttles);
        periods.len()
    };
    let mut early = 0;
    let mut rest = events.as_slice();
    for &chunk in delivery.chunks.iter().cycle() {
        let (head, tail) = rest.split_at(chunk.min(rest.len()));
        head.iter().for_each(|event| live.push(event.clone()));
        rest = tail;
        // What is still to come lies no further back than CPUs are apart.
        let Some(next) = rest.first() else { break };
        early = take(live.advance(MonoNs(next.at.0.saturating_sub(delivery.apart.0 + 1))));
    }
    let counts = live.counts();
    assert_eq!((counts.late, counts.contradicted), (0, 0), "{counts:?}");
    take(live.finish(&setting.tried, setting.watched_until));
    throttles.sort_by_key(|throttle| (throttle.marked, throttle.cgroup, throttle.cpu, throttle.end));
    (periods, throttles, early)
}

fn of_whole(events: &[Event], setting: &Setting) -> (Vec<PeriodRecord>, Vec<Boundary>, Vec<Throttle>) {
    let timeline = Timeline::build(events.to_vec(), setting);
    let counted =
        |level: CgroupId| timeline.boundaries_of(level).iter().filter(|it| it.quota.is_some() && it.periods > 0);
    let boundaries = [CONTAINER, POD].into_iter().flat_map(counted).cloned().collect();
    let periods = [CONTAINER, POD].into_iter().flat_map(|level| records(&timeline, setting, level)).collect();
    let mut closed: Vec<Throttle> = timeline.throttles.into_iter().filter(|throttle| throttle.end.is_some()).collect();
    closed.sort_by_key(|throttle| (throttle.marked, throttle.cgroup, throttle.cpu, throttle.end));
    (periods, boundaries, closed)
}

/// In the order of a whole recording.
fn by_level(periods: Vec<LivePeriod>) -> Vec<LivePeriod> {
    let (container, pod) = periods.into_iter().partition::<Vec<_>, _>(|period| period.record.cgroup == CONTAINER);
    container.into_iter().chain(pod).collect()
}

/// Whether a CPU was idle before its first idle switch is only known once that comes: until then it is not measured.
fn hindsight(live: &PeriodRecord, whole: &PeriodRecord) -> PeriodRecord {
    PeriodRecord { denied_idle_ns: live.denied_idle_ns.or(whole.denied_idle_ns), ..live.clone() }
}

fn compare(events: &[Event], setting: &Setting, delivery: &Delivery) -> Result<(), TestCaseError> {
    let (periods, throttles, _) = delivered(events, setting, delivery);
    let (records, boundaries, closed) = of_whole(events, setting);
    let periods = by_level(periods);
    let live: Vec<_> = periods.iter().zip(&records).map(|(period, whole)| hindsight(&period.record, whole)).collect();
    prop_assert_eq!(&live, &records, "{}", shown(events));
    let live: Vec<_> = periods.iter().map(|period| &period.boundary).collect();
    prop_assert_eq!(live, boundaries.iter().collect::<Vec<_>>(), "{}", shown(events));
    prop_assert_eq!(throttles, closed, "{}", shown(events));
    Ok(())
}

proptest! {
    #![proptest_config(simulated::config())]

    #[test]
    fn with_threads_followed_it_says_what_a_whole_recording_says(plan in plans(true), delivery in deliveries()) {
        let simulated = Simulated::of(&long(plan));
        compare(&simulated.events, &simulated.setting, &delivery)?;
    }

    #[test]
    fn with_edges_alone_it_says_what_a_whole_recording_says(plan in plans(true), delivery in deliveries()) {
        let plan = long(plan);
        let simulated = Simulated::of(&plan);
        let (events, setting) = edges(&simulated, plan.rules);
        compare(&events, &setting, &delivery)?;
    }

    #[test]
    fn whatever_is_lost_a_period_that_both_call_whole_has_the_same_figures(
        plan in plans(false), delivery in deliveries(), lost in prop::collection::vec(any::<prop::sample::Index>(), 1..4)
    ) {
        let simulated = Simulated::of(&long(plan));
        let mut events = simulated.events.clone();
        for index in lost {
            if events.len() > 1 {
                events.remove(index.index(events.len()));
            }
        }
        let (periods, _, _) = delivered(&events, &simulated.setting, &delivery);
        let (records, _, _) = of_whole(&events, &simulated.setting);
        let whole: BTreeMap<_, _> = records
            .iter()
            .filter(|record| record.complete)
            .map(|record| ((record.cgroup, record.end_ns), PeriodRecord { index: 0, ..record.clone() }))
            .collect();
        for period in periods.iter().filter(|period| period.record.complete) {
            if let Some(record) = whole.get(&(period.record.cgroup, period.record.end_ns)) {
                let live = hindsight(&PeriodRecord { index: 0, ..period.record.clone() }, record);
                prop_assert_eq!(&live, record, "{}", shown(&events));
            }
        }
    }

    /// The pool is drawn on in slices of up to 5 ms a CPU, and what is drawn before a boundary may be used after it.
    #[test]
    fn what_left_the_pool_is_what_was_used_but_for_slices(plan in plans(false), delivery in deliveries()) {
        let simulated = Simulated::of(&long(plan));
        let (periods, _, _) = delivered(&simulated.events, &simulated.setting, &delivery);
        for level in [CONTAINER, POD] {
            let of_level: Vec<_> = periods.iter().filter(|period| period.record.cgroup == level).collect();
            let all_known = of_level.iter().skip(1).all(|period| period.drawn_ns.is_some());
            prop_assert!(all_known, "{:#?}", of_level);
            let Some((first, rest)) = of_level.split_first() else { continue };
            // Between the first and the last boundary, in whole; what was used while the timer stood still was kept locally.
            let drawn: i64 = rest.iter().filter_map(|period| period.drawn_ns).sum();
            let used: u64 = rest.iter().filter_map(|period| period.record.used_ns).map(|used| used.0).sum();
            let slack = 6_000_000 * i64::from(simulated::CPUS) * 2 + stopped(first, rest);
            let used = i64::try_from(used).expect("a short run");
            prop_assert!((drawn - used).abs() <= slack, "drawn {} used {} {:#?}", drawn, used, of_level);
        }
    }
}

/// What each CPU may use of its own rest whenever the timer stood still.
fn stopped(first: &LivePeriod, rest: &[&LivePeriod]) -> i64 {
    let mut before = first.record.end_ns;
    let mut pauses = 0;
    for period in rest {
        pauses += i64::from(period.record.start_ns > before);
        before = period.record.end_ns;
    }
    pauses * 1_000_000 * i64::from(simulated::CPUS)
}

#[test]
fn periods_are_handed_out_on_the_way_and_memory_does_not_grow() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let (mut early, mut all, mut denied) = (0, 0, 0);
    for _ in 0..20 {
        let plan = long(plans(false).new_tree(&mut runner).expect("a plan").current());
        let simulated = Simulated::of(&plan);
        let delivery = Delivery { chunks: vec![20], apart: DurationNs(0) };
        let (periods, _, on_the_way) = delivered(&simulated.events, &simulated.setting, &delivery);
        early += on_the_way;
        all += periods.len();
        denied += periods.iter().filter(|period| period.record.denied_idle_ns.is_some()).count();
    }
    assert!(all > 100 && early * 2 > all && denied * 2 > all, "{early} and {denied} of {all}");
}

#[test]
fn a_group_that_is_gone_is_forgotten_and_one_that_nobody_told_of_too() {
    let plan = {
        use proptest::{strategy::ValueTree, test_runner::TestRunner};
        let mut runner = TestRunner::deterministic();
        let limited = plans(false).prop_filter("both limited", |plan| plan.limits.len() == 2);
        long(limited.new_tree(&mut runner).expect("a plan").current())
    };
    let simulated = Simulated::of(&plan);
    let mut live = Live::new(simulated.setting.counts_from, simulated::CPUS, PATIENCE);
    live.add(vec![CONTAINER, POD], false);
    live.add(vec![SIDECAR, POD], false);
    simulated.events.iter().for_each(|event| live.push(event.clone()));
    let last = simulated.events.last().expect("events").at;
    live.advance(last);
    assert_eq!(live.load(), (0, 2));
    assert!(live.groups.contains_key(&CONTAINER) && live.groups.contains_key(&POD), "{:?}", live.groups);
    live.remove(CONTAINER);
    live.remove(SIDECAR);
    for step in 1..10 {
        live.advance(last + DurationNs(step * PATIENCE.lag.0));
    }
    assert_eq!(live.load(), (0, 0));
    assert!(live.groups.is_empty() && live.ended.is_empty() && live.leaving.is_empty(), "{:?}", live.groups);
    let known: BTreeSet<CgroupId> = live.setting.paths.keys().copied().collect();
    assert!(known.is_empty());
}
