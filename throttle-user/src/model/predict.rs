//! Does the model explain what was measured? A bracket and a central value for each request, and the quantiles of a set.
//!
//! The bracket comes from what is not known and holds without exception inside the model (see `envelope`). The central
//! value and the predicted quantiles come from simulating the unknown amounts spread evenly over their ranges; near a
//! multiple of the quota they jump by whole periods, which is why the bracket, not the central value, gives the verdict.

use serde::{Deserialize, Serialize};

use crate::model::bandwidth::Bandwidth;
use crate::model::envelope::{Slack, Window, earliest_finish, latest_finish};
use crate::model::nested::{Charging, DEFAULT_SLICE, KEPT_LOCALLY, Level, Tick, simulate};
use crate::stats::{Quantile, Summary};
use crate::time::DurationNs;

/// One measured request of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// CPU time the thread used for it.
    pub cpu: DurationNs,
    /// Wall time it took.
    pub wall: DurationNs,
    /// The part of the wall time in which it was neither throttled nor using CPU by its own clock: run-queue wait, blocked,
    /// interrupts, stolen time. That is wall - CPU - throttled; zero if not measured.
    pub waited: DurationNs,
    /// The levels above the thread that have a limit, in any order; none means unlimited.
    pub levels: Vec<LevelAtStart>,
}

/// A limited level as it was when the request started; its group had been idle for a period, or with a burst for two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelAtStart {
    /// Its quota, period and burst.
    pub bandwidth: Bandwidth,
    /// From the start to its next refill ([`Bandwidth::to_refill`]); `None` if no boundary was seen.
    pub to_refill: Option<DurationNs>,
}

/// Largest value of each amount the observer does not see; the least is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknowns {
    /// Left in the CPU's local pool of each level at the start.
    pub leftover: DurationNs,
    /// What a local pool takes at once.
    pub slice: DurationNs,
    /// 1 s / HZ: how late a level is found empty.
    pub tick: DurationNs,
    /// Used of each level's pool since its last refill before the start, by whatever ran in the group.
    pub spent: DurationNs,
    /// How long after its nominal instant a refill takes effect.
    pub refill_late: DurationNs,
    /// How far the measured CPU time may be off in either direction (clock reads).
    pub meter: DurationNs,
}

impl Unknowns {
    /// The kernel's defaults at `hz` ticks a second: 1 ms of leftover, slices of 5 ms, nothing spent before the start, and
    /// 0.1 ms each for late refills and the meter.
    #[must_use]
    pub fn at_hz(hz: u32) -> Self {
        Self {
            leftover: KEPT_LOCALLY,
            slice: DEFAULT_SLICE,
            tick: DurationNs(1_000_000_000 / u64::from(hz.max(1))),
            spent: DurationNs::ZERO,
            refill_late: DurationNs::from_micros(100),
            meter: DurationNs::from_micros(100),
        }
    }
}

/// What the model says about one request, with what it `waited` cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// No smaller wall time is possible.
    pub lowest: DurationNs,
    /// Median over the unknown amounts.
    pub central: DurationNs,
    /// No larger wall time is possible.
    pub highest: DurationNs,
    /// Where the measured wall time, less what it waited, lies.
    pub verdict: Verdict,
}

/// A measurement against its bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "by_ns")]
pub enum Verdict {
    /// Within the bracket, ends included.
    Inside,
    /// Shorter than the model allows, by so much.
    Below(DurationNs),
    /// Longer than the model allows, by so much.
    Above(DurationNs),
}

/// A set of requests beside its prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Wall times predicted, over all requests and the unknown amounts; `n` counts [`POINTS`] for each request.
    pub predicted: Summary<DurationNs>,
    /// Wall times measured, less what each waited.
    pub measured: Summary<DurationNs>,
    /// Requests inside their bracket.
    pub inside: u64,
    /// One prediction a request, in the order given.
    pub predictions: Vec<Prediction>,
}

/// Combinations of the unknown amounts simulated for each request.
pub const POINTS: u32 = 128;

/// The prediction for one request.
#[must_use]
pub fn predict(request: &Measured, unknowns: &Unknowns) -> Prediction {
    judge(request, unknowns, &outcomes(request, unknowns))
}

/// Predictions for a set of requests and their quantiles beside the measured ones; `None` for an empty set.
#[must_use]
pub fn compare(requests: &[Measured], unknowns: &Unknowns) -> Option<Comparison> {
    let mut predictions = Vec::with_capacity(requests.len());
    let mut predicted = Vec::new();
    for request in requests {
        let walls = outcomes(request, unknowns);
        predictions.push(judge(request, unknowns, &walls));
        predicted.extend(walls);
    }
    let measured: Vec<DurationNs> = requests.iter().map(net_wall).collect();
    let inside = predictions.iter().filter(|prediction| prediction.verdict == Verdict::Inside).count() as u64;
    Some(Comparison { predicted: Summary::of(&predicted)?, measured: Summary::of(&measured)?, inside, predictions })
}

fn judge(request: &Measured, unknowns: &Unknowns, sorted_walls: &[DurationNs]) -> Prediction {
    let (lowest, highest) = bracket(request, unknowns);
    let central = Quantile::P50.of(sorted_walls).unwrap_or(request.cpu);
    let net = net_wall(request);
    let verdict = if net < lowest {
        Verdict::Below(lowest - net)
    } else if net > highest {
        Verdict::Above(net - highest)
    } else {
        Verdict::Inside
    };
    Prediction { lowest, central, highest, verdict }
}

fn net_wall(request: &Measured) -> DurationNs {
    DurationNs(request.wall.0.saturating_sub(request.waited.0))
}

/// Smallest and largest wall time. An unknown phase is covered by cells that tile the period.
fn bracket(request: &Measured, unknowns: &Unknowns) -> (DurationNs, DurationNs) {
    let slack =
        Slack { leftover: unknowns.leftover, slice: unknowns.slice, tick: unknowns.tick, spent: unknowns.spent };
    let least_work = DurationNs(request.cpu.0.saturating_sub(unknowns.meter.0));
    let most_work = request.cpu + unknowns.meter;
    let unknown_phases = request.levels.iter().filter(|level| level.to_refill.is_none()).count();
    // About a thousand cells in all, whatever the number of unknown phases; fewer cells only widen the bracket.
    let cells_each = match unknown_phases {
        0 => 1,
        1 => 256,
        2 => 32,
        3 => 10,
        _ => 1,
    };
    let cells: u64 =
        request.levels.iter().map(|level| if level.to_refill.is_none() { cells_each } else { 1 }).product();
    let (mut lowest, mut highest) = (DurationNs(u64::MAX), DurationNs::ZERO);
    for cell in 0..cells {
        let mut digits = cell;
        let mut windows = Vec::with_capacity(request.levels.len());
        for level in &request.levels {
            let (from, to) = match level.to_refill {
                Some(at) => (at, at),
                None => {
                    let (digit, period) = (digits % cells_each, level.bandwidth.period().0);
                    digits /= cells_each;
                    (DurationNs(period * digit / cells_each), DurationNs(period * (digit + 1) / cells_each))
                }
            };
            windows.push(Window {
                bandwidth: level.bandwidth,
                latest: to + unknowns.refill_late,
                // With its waits cut out of the request, a refill moves forward by whatever it waited before.
                width: to - from + unknowns.refill_late + request.waited,
            });
        }
        lowest = lowest.min(earliest_finish(least_work, &windows, &slack));
        highest = highest.max(latest_finish(most_work, &windows, &slack));
    }
    (lowest, highest)
}

/// Simulated wall times over the unknown amounts, sorted.
fn outcomes(request: &Measured, unknowns: &Unknowns) -> Vec<DurationNs> {
    let mut walls: Vec<DurationNs> = (1..=POINTS)
        .map(|point| {
            let mut bases = primes();
            let mut part_of = |range: DurationNs| spread(range, point, bases.next().unwrap_or(2));
            let tick = Tick { length: unknowns.tick, to_first: part_of(unknowns.tick) };
            let waited_before = part_of(request.waited);
            let levels: Vec<Level> = request
                .levels
                .iter()
                .map(|level| Level {
                    bandwidth: level.bandwidth,
                    to_refill: match level.to_refill {
                        // With its waits cut out, a refill moves forward, but not before the start.
                        Some(nominal) => DurationNs(nominal.0.saturating_sub(waited_before.0)),
                        None => part_of(level.bandwidth.period()),
                    },
                    pool: (level.bandwidth.quota() + level.bandwidth.burst()).saturating_sub(part_of(unknowns.spent)),
                    leftover: part_of(unknowns.leftover),
                })
                .collect();
            simulate(request.cpu, &levels, &Charging { slice: Some(unknowns.slice), tick: Some(tick) }).wall
        })
        .collect();
    walls.sort_unstable();
    walls
}

/// The `point`-th of a sequence that fills (0, range) evenly (van der Corput in `base`; one prime base for each amount
/// makes Halton's sequence in all of them together).
fn spread(range: DurationNs, point: u32, base: u32) -> DurationNs {
    let (mut rest, mut mirrored, mut whole) = (u128::from(point), 0u128, 1u128);
    let base = u128::from(base);
    while rest > 0 {
        mirrored = mirrored * base + rest % base;
        whole *= base;
        rest /= base;
    }
    DurationNs(u64::try_from(u128::from(range.0) * mirrored / whole).unwrap_or(range.0))
}

fn primes() -> impl Iterator<Item = u32> {
    (2u32..).filter(|&n| (2..n).take_while(|d| d * d <= n).all(|d| n % d != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cpu_us: u64, wall_us: u64, levels: &[(u64, Option<u64>)]) -> Measured {
        let us = DurationNs::from_micros;
        let levels = levels
            .iter()
            .map(|&(quota_ms, phase_ms)| LevelAtStart {
                bandwidth: Bandwidth::new(DurationNs::from_millis(quota_ms), DurationNs::from_millis(100))
                    .expect("valid"),
                to_refill: phase_ms.map(DurationNs::from_millis),
            })
            .collect();
        Measured { cpu: us(cpu_us), wall: us(wall_us), waited: DurationNs::ZERO, levels }
    }

    #[test]
    fn without_a_limit_the_prediction_is_the_work() {
        let seen = predict(&request(60_000, 60_050, &[]), &Unknowns::at_hz(250));
        assert_eq!((seen.central, seen.verdict), (DurationNs::from_millis(60), Verdict::Inside));
        assert_eq!((seen.lowest, seen.highest), (DurationNs::from_micros(59_900), DurationNs::from_micros(60_100)));
    }

    #[test]
    fn off_the_edge_a_known_phase_pins_the_wall_time() {
        // 57 ms at 200m: two refills for any leftover and overrun. First refill at 35 ms: 35 + 100 + 17.
        let seen = predict(&request(57_000, 152_030, &[(20, Some(35))]), &Unknowns::at_hz(1000));
        assert_eq!(seen.verdict, Verdict::Inside);
        assert!(seen.highest - seen.lowest < DurationNs::from_millis(3), "{seen:?}");
    }

    #[test]
    fn a_request_longer_than_any_leftover_explains_is_called_out() {
        let above = predict(&request(57_000, 170_000, &[(20, Some(35))]), &Unknowns::at_hz(250));
        assert!(matches!(above.verdict, Verdict::Above(by) if by > DurationNs::from_millis(15)), "{above:?}");
        let below = predict(&request(57_000, 100_000, &[(20, Some(35))]), &Unknowns::at_hz(250));
        assert!(matches!(below.verdict, Verdict::Below(_)), "{below:?}");
    }

    #[test]
    fn what_the_request_waited_is_taken_off_before_the_verdict() {
        let mut measured = request(57_000, 163_000, &[(20, Some(35))]);
        assert!(matches!(predict(&measured, &Unknowns::at_hz(250)).verdict, Verdict::Above(_)));
        measured.waited = DurationNs::from_millis(11);
        assert_eq!(predict(&measured, &Unknowns::at_hz(250)).verdict, Verdict::Inside);
    }

    #[test]
    fn with_the_phase_unknown_the_bracket_is_the_whole_range() {
        // Closed form for 57 ms at 200m: 137..=217; slices, leftovers and ticks widen it by a few ms at the low end.
        let seen = predict(&request(57_000, 152_000, &[(20, None)]), &Unknowns::at_hz(1000));
        let ms = |length: DurationNs| length.as_millis_f64();
        assert!((130.0..=137.0).contains(&ms(seen.lowest)) && (217.0..=219.0).contains(&ms(seen.highest)), "{seen:?}");
        assert!((160.0..=190.0).contains(&ms(seen.central)), "{seen:?}");
    }

    #[test]
    fn pod_and_container_together_wait_for_the_later_refill() {
        let alone = predict(&request(57_000, 0, &[(20, Some(35))]), &Unknowns::at_hz(1000));
        let nested = predict(&request(57_000, 0, &[(20, Some(35)), (20, Some(60))]), &Unknowns::at_hz(1000));
        let later = nested.central - alone.central;
        assert!((later.as_millis_f64() - 25.0).abs() < 0.2, "{later:?}");
    }

    #[test]
    fn quantiles_of_a_set_stand_beside_the_measured_ones() {
        // With the refill at 21..=99 ms, after the quota of 20 ms, the wall time is 117 ms and the phase.
        let mut requests: Vec<Measured> =
            (21..=99).step_by(2).map(|phase| request(57_000, 117_050 + phase * 1_000, &[(20, Some(phase))])).collect();
        requests[0].wall = DurationNs::from_millis(300);
        let seen = compare(&requests, &Unknowns::at_hz(1000)).expect("requests");
        assert_eq!((seen.measured.n, seen.predicted.n), (40, 40 * u64::from(POINTS)));
        assert!(seen.predicted.p99.is_some() && seen.measured.p99.is_none());
        assert_eq!(seen.inside, 39);
        assert!(matches!(seen.predictions[0].verdict, Verdict::Above(_)));
        let (predicted, measured) = (seen.predicted.p50.as_millis_f64(), seen.measured.p50.as_millis_f64());
        assert!((predicted - measured).abs() < 3.0, "{predicted} {measured}");
        assert_eq!(compare(&[], &Unknowns::at_hz(1000)), None);
    }

    #[test]
    fn the_spread_points_are_distinct_and_fill_the_range() {
        let mut points: Vec<u64> = (1..=POINTS).map(|point| spread(DurationNs(1_000_000), point, 3).0).collect();
        points.sort_unstable();
        assert!(points.windows(2).all(|pair| pair[1] > pair[0] && pair[1] - pair[0] < 20_000));
        assert!(points[0] < 20_000 && points[points.len() - 1] > 980_000);
        assert_eq!(primes().take(6).collect::<Vec<_>>(), [2, 3, 5, 7, 11, 13]);
    }
}
