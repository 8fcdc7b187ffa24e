//! What holds between the models: the simulation against the closed form, the bounds against the simulation, and the
//! simulation against figures obtained elsewhere.

use proptest::prelude::*;

use crate::model::bandwidth::Bandwidth;
use crate::model::closed_form::OneThread;
use crate::model::nested::{Charging, DEFAULT_SLICE, Level, Tick, simulate};
use crate::model::predict::{LevelAtStart, Measured, Unknowns, Verdict, predict};
use crate::time::DurationNs;

const US: u64 = 1_000;

fn bandwidth(quota_us: u64, period_us: u64) -> Bandwidth {
    Bandwidth::new(DurationNs(quota_us * US), DurationNs(period_us * US)).expect("valid")
}

/// A level's amounts that the observer does not see, as shares of their ranges in 1/1000.
#[derive(Clone, Debug)]
struct Hidden {
    leftover: u64,
    spent: u64,
    refill_late: u64,
    waited_before_refill: u64,
}

#[derive(Clone, Debug)]
struct Case {
    work: DurationNs,
    levels: Vec<(Bandwidth, u64, Hidden)>,
    tick_at: u64,
    phase_known: Vec<bool>,
}

fn a_level() -> impl Strategy<Value = (Bandwidth, u64, Hidden)> {
    let period_us = prop_oneof![3 => Just(100_000u64), 1 => 10_000..200_000u64];
    let burst = prop_oneof![3 => Just(0u64), 1 => 0..=100u64];
    let share = 0u64..=1_000;
    let hidden =
        (share.clone(), share.clone(), share.clone(), share).prop_map(|(leftover, spent, refill_late, before)| {
            Hidden { leftover, spent, refill_late, waited_before_refill: before }
        });
    (1_000u64..130_000, period_us, burst, 0u64..1_000, hidden).prop_map(
        |(quota_us, period_us, burst_percent, phase, hidden)| {
            let level = bandwidth(quota_us, period_us);
            let burst = DurationNs(level.quota().0 * burst_percent / 100);
            let phase_ns = (level.period().0 * phase / 1_000).max(1);
            (level.with_burst(burst).expect("at most the quota"), phase_ns, hidden)
        },
    )
}

fn a_case() -> impl Strategy<Value = Case> {
    (
        1_000u64..150_000,
        prop::collection::vec(a_level(), 0..4),
        0u64..1_000,
        prop::collection::vec(prop::bool::weighted(0.8), 4),
        any::<bool>(),
    )
        .prop_map(|(work_us, mut levels, tick_at, phase_known, same_quota)| {
            // Pod and container have the same quota as a rule; chance alone would never produce it.
            if let (true, Some((first, ..))) = (same_quota, levels.first().cloned()) {
                for (level, phase, _) in &mut levels {
                    *level = first;
                    *phase = (*phase % first.period().0).max(1);
                }
            }
            Case { work: DurationNs(work_us * US), levels, tick_at, phase_known }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn one_level_without_tick_and_slice_is_the_closed_form(
        work_us in 1u64..300_000, quota_us in 1_000u64..120_000, period_us in 1_000u64..150_000, phase in 0.0f64..1.0,
    ) {
        let level = bandwidth(quota_us, period_us);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share of a period")]
        let to_refill = DurationNs(1 + (phase * (level.period().0 - 1) as f64) as u64);
        let work = DurationNs(work_us * US);
        let form = OneThread::new(work, &level).expect("no burst");
        let course = simulate(work, &[Level::full(level, to_refill)], &Charging::EXACT);
        prop_assert_eq!(course.wall, form.wall(to_refill));
        prop_assert_eq!(course.waits.len() as u64, form.waits(to_refill));
        prop_assert_eq!(course.throttled_periods, vec![form.waits(to_refill)]);
        prop_assert!(form.best() <= course.wall && course.wall <= form.worst());
    }

    #[test]
    fn more_work_never_takes_less_time_and_more_quota_never_takes_more(
        work_us in 1u64..200_000, more_work_us in 0u64..50_000, quota_us in 1_000u64..110_000,
        more_quota_us in 0u64..50_000, phase_us in 1u64..=100_000,
    ) {
        let to_refill = DurationNs(phase_us * US);
        let wall = |work_us: u64, quota_us: u64| {
            let (work, level) = (DurationNs(work_us * US), bandwidth(quota_us, 100_000));
            let wall = OneThread::new(work, &level).expect("no burst").wall(to_refill);
            (wall, simulate(work, &[Level::full(level, to_refill)], &Charging::EXACT).wall)
        };
        let (base, simulated) = wall(work_us, quota_us);
        prop_assert!(base >= DurationNs(work_us * US));
        let (longer, longer_simulated) = wall(work_us + more_work_us, quota_us);
        prop_assert!(longer >= base && longer_simulated >= simulated);
        let (shorter, shorter_simulated) = wall(work_us, quota_us + more_quota_us);
        prop_assert!(shorter <= base && shorter_simulated <= simulated);
    }

    #[test]
    fn the_bracket_holds_whatever_the_observer_does_not_see(
        case in a_case(), tick_us in prop_oneof![Just(1_000u64), Just(4_000), Just(10_000)], waited_us in 0u64..8_000,
    ) {
        let unknowns = Unknowns {
            tick: DurationNs(tick_us * US),
            spent: DurationNs::from_micros(700),
            meter: DurationNs::ZERO,
            ..Unknowns::at_hz(250)
        };
        let waited = DurationNs(waited_us * US);
        let part = |range: DurationNs, share: u64| DurationNs(range.0 * share / 1_000);
        let levels: Vec<Level> = case.levels.iter().map(|(bandwidth, phase, hidden)| {
            let nominal = DurationNs(*phase) + part(unknowns.refill_late, hidden.refill_late);
            Level {
                bandwidth: *bandwidth,
                // What the thread waited before a refill is cut out of its own time.
                to_refill: DurationNs(nominal.0.saturating_sub(part(waited, hidden.waited_before_refill).0)),
                pool: bandwidth.quota() + bandwidth.burst() - part(unknowns.spent, hidden.spent),
                leftover: part(unknowns.leftover, hidden.leftover),
            }
        }).collect();
        let tick = Tick { length: unknowns.tick, to_first: part(unknowns.tick, case.tick_at) };
        let course = simulate(case.work, &levels, &Charging { slice: Some(DEFAULT_SLICE), tick: Some(tick) });

        let throttled: u64 = course.waits.iter().map(|wait| (wait.end - wait.start).0).sum();
        prop_assert_eq!(course.wall.0, case.work.0 + throttled, "work and waits tile the wall time");
        prop_assert!(course.waits.iter().all(|wait| wait.out.iter().map(|out| out.refilled).max() == Some(wait.end)));

        let measured = Measured {
            cpu: case.work,
            wall: course.wall + waited,
            waited,
            levels: case.levels.iter().zip(&case.phase_known).map(|((bandwidth, phase, _), known)| LevelAtStart {
                bandwidth: *bandwidth,
                to_refill: known.then_some(DurationNs(*phase)),
            }).collect(),
        };
        let seen = predict(&measured, &unknowns);
        prop_assert_eq!(seen.verdict, Verdict::Inside, "{:?} for {:?}", seen, course);
    }
}

/// Wall times in ms over evenly spread phases of both levels and of the tick, sorted: HZ = 1000, slices of 5 ms, no leftovers,
/// as the reference simulation of two levels had it.
fn spread_walls(work_us: u64, quotas_us: &[u64]) -> Vec<f64> {
    const STARTS: u64 = 4_000;
    let mut walls: Vec<f64> = (0..STARTS)
        .map(|start| {
            let phase = |step: u64| DurationNs(1 + start * step % STARTS * (100_000_000 / STARTS));
            // Steps that share no factor with the number of starts visit every phase once, the levels out of step.
            let levels: Vec<Level> = quotas_us
                .iter()
                .zip([1, 1_237])
                .map(|(&quota_us, step)| Level::full(bandwidth(quota_us, 100_000), phase(step)))
                .collect();
            let tick = Tick { length: DurationNs::from_millis(1), to_first: DurationNs(start * 617 % 1_000 * US) };
            let charging = Charging { slice: Some(DEFAULT_SLICE), tick: Some(tick) };
            simulate(DurationNs(work_us * US), &levels, &charging).wall.as_millis_f64()
        })
        .collect();
    walls.sort_by(f64::total_cmp);
    walls
}

#[test]
fn a_second_level_with_its_own_phase_lifts_the_median_but_not_the_worst_case() {
    // Medians in ms published for 60 ms of work, one level and two of the same quota; rounded to 1 ms, 3000 random starts.
    for (quota_us, alone, nested) in [(10_000, 464.0, 486.0), (20_000, 184.0, 206.0), (40_000, 85.0, 105.0)] {
        let one = spread_walls(60_000, &[quota_us]);
        let two = spread_walls(60_000, &[quota_us, quota_us]);
        let (got_alone, got_nested) = (one[one.len() / 2], two[two.len() / 2]);
        assert!((got_alone - alone).abs() <= 3.0, "{quota_us} us alone: {got_alone}, published {alone}");
        assert!((got_nested - nested).abs() <= 3.0, "{quota_us} us nested: {got_nested}, published {nested}");
        let (worst_alone, worst_nested) = (one[one.len() - 1], two[two.len() - 1]);
        assert!((worst_nested - worst_alone).abs() <= 1.0, "{quota_us} us: worst {worst_alone}, nested {worst_nested}");
    }
}

#[test]
fn work_just_past_a_multiple_of_the_quota_gives_the_published_spread() {
    // 60.8 ms at HZ = 1000 in the reference simulation, leftovers evenly spread: p50 / p99 of 490 / 599 and 211 / 299 ms.
    for (quota_us, p50, p99) in [(10_000, 490.0, 599.0), (20_000, 211.0, 299.0)] {
        let levels = vec![LevelAtStart { bandwidth: bandwidth(quota_us, 100_000), to_refill: None }];
        let request =
            Measured { cpu: DurationNs(60_800 * US), wall: DurationNs::ZERO, waited: DurationNs::ZERO, levels };
        let seen =
            crate::model::predict::compare(&vec![request; 1], &Unknowns::at_hz(1000)).expect("a request").predicted;
        let (got50, got99) = (seen.p50.as_millis_f64(), seen.p99.expect("128 points").as_millis_f64());
        assert!((got50 - p50).abs() <= 12.0 && (got99 - p99).abs() <= 12.0, "{quota_us} us: {got50} / {got99}");
    }
}

#[test]
fn levels_in_phase_cost_nothing_more() {
    let level = bandwidth(10_000, 100_000);
    let start = Level::full(level, DurationNs::from_millis(37));
    let tick = Tick { length: DurationNs::from_millis(4), to_first: DurationNs::from_millis(3) };
    let charging = Charging { slice: Some(DEFAULT_SLICE), tick: Some(tick) };
    let (one, two) = (
        simulate(DurationNs::from_millis(60), &[start], &charging),
        simulate(DurationNs::from_millis(60), &[start, start], &charging),
    );
    assert_eq!(one.wall, two.wall);
    assert!(two.waits.iter().all(|wait| wait.out.len() == 2), "both levels are out in every wait");
    assert_eq!(two.throttled_periods[0], two.throttled_periods[1]);
}
