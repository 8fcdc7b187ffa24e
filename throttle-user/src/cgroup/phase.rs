//! Where a group's period grid lies, learnt from its counters alone.
//!
//! `nr_periods` grows in the period timer's callback (`kernel/sched/fair.c`, `do_sched_cfs_period_timer`), at a point of a
//! grid that is fixed for the life of the group: two readings between which it grew hold that point between them. No
//! privilege is needed. The timer runs only while the group is active, so what learns must run in the group, or something
//! else must.

use std::thread::sleep;
use std::time::Duration;

use super::bandwidth::Bandwidth;
use super::counters::Counters;
use super::group::{Group, GroupError};
use crate::time::{self, DurationNs, MonoNs};

/// A group's period grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// A point of it: the instant by which the timer had run, its latency of tens of microseconds included.
    pub boundary: MonoNs,
    /// Distance of points.
    pub period: DurationNs,
    /// How far apart the readings were that hold it.
    pub within: DurationNs,
}

/// What could be learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The grid.
    Phase(Phase),
    /// The group has no limit, so no periods.
    NoLimit,
    /// `nr_periods` did not grow while it was watched.
    NoPeriods,
}

/// Periods looked at closely.
const ROUNDS: u32 = 6;
/// How often `nr_periods` is read until it is known roughly when it grows.
const COARSE: Duration = Duration::from_millis(1);
/// How long before the boundary is due the close look begins.
const BEFORE: DurationNs = DurationNs::from_micros(300);
/// Periods, of at most a second each, after which nothing is expected any more.
const PATIENCE: u64 = 25;

/// Two readings between which `nr_periods` grew: from before the first to after the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bracket {
    from: MonoNs,
    to: MonoNs,
}

/// Watches a group for some periods. The calling thread sleeps in between; if it is in the group, its own work keeps the timer
/// running.
///
/// # Errors
/// [`GroupError`].
pub fn learn(group: &Group) -> Result<Learned, GroupError> {
    let Some(bandwidth) = Bandwidth::read(group)?.filter(|bandwidth| bandwidth.quota.us().is_some()) else {
        return Ok(Learned::NoLimit);
    };
    let period = DurationNs::from_micros(bandwidth.period_us);
    let deadline = time::now() + DurationNs(PATIENCE * period.0);
    let mut brackets = Vec::new();
    let Some(rough) = growth(group, deadline, || sleep(COARSE))? else { return Ok(Learned::NoPeriods) };
    brackets.push(rough);
    for _ in 0..ROUNDS {
        let Some(best) = tightest(&brackets, period) else { break };
        let due = next_after(best.boundary, period, time::now() + BEFORE);
        let begin = MonoNs(due.0.saturating_sub(best.within.0 + BEFORE.0));
        sleep(Duration::from_nanos(begin.since(time::now()).0));
        // The timer rests in some periods: then the look ends with this one.
        if let Some(bracket) = growth(group, due + best.within + BEFORE, || {})? {
            brackets.push(bracket);
        }
    }
    Ok(tightest(&brackets, period).map_or(Learned::NoPeriods, Learned::Phase))
}

/// Reads until `nr_periods` grows, at most until `deadline`.
fn growth(group: &Group, deadline: MonoNs, between: impl Fn()) -> Result<Option<Bracket>, GroupError> {
    let mut last: Option<(MonoNs, Option<u64>)> = None;
    loop {
        let reading = Counters::read(group)?;
        let count = reading.figures.nr_periods();
        if let Some((from, before)) = last
            && count > before
        {
            return Ok(Some(Bracket { from, to: reading.read_until_ns }));
        }
        if reading.read_until_ns >= deadline {
            return Ok(None);
        }
        last = Some((reading.read_from_ns, count));
        between();
    }
}

/// The narrowest of several brackets; of those as narrow, the one whose end lies earliest in the period, for latencies only add.
fn tightest(brackets: &[Bracket], period: DurationNs) -> Option<Phase> {
    let first = brackets.first()?;
    let length = |bracket: &Bracket| bracket.to.since(bracket.from);
    let narrowest = brackets.iter().map(length).min()?;
    let narrow = brackets.iter().filter(|bracket| length(bracket).0 <= narrowest.0.saturating_mul(2));
    // Offsets from the middle of the period that follows the first bracket, so that jitter around its end does not wrap.
    let middle = first.to + DurationNs(period.0 / 2);
    let offset = |bracket: &Bracket| match bracket.to >= middle {
        true => bracket.to.since(middle).0 % period.0,
        false => (period.0 - middle.since(bracket.to).0 % period.0) % period.0,
    };
    let best = narrow.min_by_key(|bracket| offset(bracket))?;
    Some(Phase { boundary: best.to, period, within: length(best) })
}

impl Phase {
    /// The first instant at or after `at` that lies `offset` after a point of the grid.
    #[must_use]
    pub fn first_at(&self, offset: DurationNs, at: MonoNs) -> MonoNs {
        next_after(self.boundary + offset, self.period, at)
    }

    /// From an instant to the next point of the grid; a whole period on a point itself.
    #[must_use]
    pub fn to_next(&self, at: MonoNs) -> DurationNs {
        next_after(self.boundary, self.period, at + DurationNs(1)).since(at)
    }
}

/// The first of `point` and all instants whole periods away from it that is not before `at`.
fn next_after(point: MonoNs, period: DurationNs, at: MonoNs) -> MonoNs {
    let period = period.0.max(1);
    if at >= point {
        MonoNs(at.0 + (period - (at.0 - point.0) % period) % period)
    } else {
        MonoNs(at.0 + (point.0 - at.0) % period)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: DurationNs = DurationNs::from_millis(100);

    #[test]
    fn the_earliest_of_the_narrow_brackets_is_taken() {
        let us = 1_000;
        let bracket = |period: u64, from_us: u64, to_us: u64| Bracket {
            from: MonoNs(period * PERIOD.0 + from_us * us),
            to: MonoNs(period * PERIOD.0 + to_us * us),
        };
        // The boundary is at 40 ms; the second look was late by 70 us, the third by 20.
        let brackets = [bracket(3, 39_300, 40_400), bracket(4, 40_040, 40_070), bracket(5, 39_990, 40_020)];
        let phase = tightest(&brackets, PERIOD).expect("brackets");
        assert_eq!((phase.boundary, phase.within), (MonoNs(5 * PERIOD.0 + 40_020 * us), DurationNs::from_micros(30)));
        assert_eq!(tightest(&[], PERIOD), None);
    }

    #[test]
    fn instants_are_put_at_a_phase() {
        let phase = Phase { boundary: MonoNs(1_040_000_000), period: PERIOD, within: DurationNs(0) };
        let ms = DurationNs::from_millis;
        assert_eq!(phase.first_at(ms(0), MonoNs(1_040_000_000)), MonoNs(1_040_000_000));
        assert_eq!(phase.first_at(ms(30), MonoNs(1_080_000_000)), MonoNs(1_170_000_000));
        assert_eq!(phase.first_at(ms(30), MonoNs(300_000_000)), MonoNs(370_000_000));
        assert_eq!(phase.to_next(MonoNs(1_050_000_000)), ms(90));
        assert_eq!(phase.to_next(MonoNs(1_040_000_000)), ms(100));
    }

    proptest! {
        #[test]
        fn an_instant_at_a_phase_is_the_first_one(
            boundary in 0_u64..1 << 40, period in 1_u64..1 << 30, offset in 0_u64..1 << 30, at in 0_u64..1 << 40,
        ) {
            let phase = Phase { boundary: MonoNs(boundary), period: DurationNs(period), within: DurationNs(0) };
            let first = phase.first_at(DurationNs(offset), MonoNs(at)).0;
            prop_assert!(first >= at && first - at < period);
            prop_assert_eq!((i128::from(first) - i128::from(boundary) - i128::from(offset)).rem_euclid(i128::from(period)), 0);
        }

        #[test]
        fn brackets_around_one_grid_find_it(
            boundary in 0_u64..100_000_000, late in prop::collection::vec((1_u64..50_000, 5_000_u64..60_000), 1..8),
        ) {
            let brackets: Vec<Bracket> = late.iter().zip(10_u64..).map(|(&(after, width), number)| {
                let to = boundary + number * PERIOD.0 + after;
                Bracket { from: MonoNs(to - width), to: MonoNs(to) }
            }).collect();
            let phase = tightest(&brackets, PERIOD).expect("brackets");
            let off = (phase.boundary.0 - boundary) % PERIOD.0;
            prop_assert!(off < 50_000, "{} ns off", off);
        }
    }
}
