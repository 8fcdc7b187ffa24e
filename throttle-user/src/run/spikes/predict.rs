//! What the model says a step's spikes should have got, from their start times, the levels' period grids and the tick.

use serde::{Deserialize, Serialize};

use crate::{
    model::{
        bandwidth::Bandwidth,
        chain::Chain,
        nested::{Charging, DEFAULT_SLICE, Level, Tick},
    },
    request::SpikeSpan,
    time::{DurationNs, MonoNs},
};

/// The model on one spike: over everything that is not observed, a tick's phase above all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// Least CPU time it could have got.
    pub least_ns: DurationNs,
    /// Most.
    pub most_ns: DurationNs,
    /// Of 24 courses, each with another phase of the tick, in how many it was held.
    pub held_in: u32,
}

/// Courses simulated: as many phases of the tick, evenly spread.
const COURSES: u32 = 24;

impl Predicted {
    /// Whether it is held whatever is not observed.
    #[must_use]
    pub fn is_always(&self) -> bool {
        self.held_in == COURSES
    }
}

/// A limited level and the next boundary after the simulation's beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelGrid {
    pub(super) bandwidth: Bandwidth,
    pub(super) boundary: MonoNs,
}

/// Simulates all spikes of a step, one thread's, from `base` on, when the group rested. Each starts when it really did.
pub(super) fn predict(base: MonoNs, levels: &[LevelGrid], hz: u32, spikes: &[SpikeSpan]) -> Vec<Predicted> {
    let tick = DurationNs(1_000_000_000 / u64::from(hz.max(1)));
    let levels: Vec<Level> = levels
        .iter()
        .map(|level| Level::full(level.bandwidth, level.bandwidth.to_refill(level.boundary, base)))
        .collect();
    let mut predicted: Vec<Option<Predicted>> = vec![None; spikes.len()];
    for course in 0..COURSES {
        let to_first = DurationNs(1 + tick.0 * u64::from(course) / u64::from(COURSES));
        let charging = Charging { slice: Some(DEFAULT_SLICE), tick: Some(Tick { length: tick, to_first }) };
        let mut chain = Chain::new(&levels, &charging);
        for (spike, predicted) in spikes.iter().zip(&mut predicted) {
            chain.sleep_until((spike.due_ns + spike.late()).since(base));
            let piece = chain.burn_until(spike.until_ns.since(base));
            let held = u32::from(!piece.waits.is_empty());
            *predicted = Some(match *predicted {
                None => Predicted { least_ns: piece.used, most_ns: piece.used, held_in: held },
                Some(so_far) => Predicted {
                    least_ns: so_far.least_ns.min(piece.used),
                    most_ns: so_far.most_ns.max(piece.used),
                    held_in: so_far.held_in + held,
                },
            });
        }
    }
    predicted.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::WorkerSpan;

    const fn ms(length: u64) -> DurationNs {
        DurationNs::from_millis(length)
    }

    /// A spike each second whose boundary comes `boundary_ms` after its due time, under 25 ms each 100 ms.
    fn cell(length_ms: u64, boundary_ms: u64) -> Predicted {
        let base = MonoNs(50_000_000_000);
        let spike = |number: u64| {
            let due_ns = base + ms(1_000 * (number + 1));
            let worker = WorkerSpan { tid: 1, started_ns: due_ns, finished_ns: due_ns, cpu_time_ns: ms(0) };
            SpikeSpan { spike: number, due_ns, until_ns: due_ns + ms(length_ms), workers: vec![worker] }
        };
        let spikes: Vec<SpikeSpan> = (0..4).map(spike).collect();
        let bandwidth = Bandwidth::new(ms(25), ms(100)).expect("valid");
        let level = LevelGrid { bandwidth, boundary: base + ms(boundary_ms) };
        let predicted = predict(base, &[level], 250, &spikes);
        predicted[3]
    }

    #[test]
    fn the_published_pattern_follows_from_the_phase() {
        // Cut in every course, or in none, as measured on 6.1 (four of four, none of four).
        let cut = |length_ms, boundary_ms| cell(length_ms, boundary_ms).held_in;
        for boundary_ms in [70, 40] {
            assert_eq!([30, 40, 50, 60].map(|length_ms| cut(length_ms, boundary_ms)), [COURSES; 4], "{boundary_ms}");
        }
        for boundary_ms in [25, 20, 15, 10] {
            assert_eq!(cut(30, boundary_ms), 0, "{boundary_ms}");
            assert_eq!(cut(60, boundary_ms), COURSES, "{boundary_ms}");
        }
        assert_eq!([25, 20, 15].map(|boundary_ms| cut(40, boundary_ms)), [0, 0, 0]);
        assert_eq!([5].map(|boundary_ms| cut(40, boundary_ms)), [COURSES]);
        assert_eq!([10, 5].map(|boundary_ms| cut(50, boundary_ms)), [COURSES, COURSES]);
    }

    #[test]
    fn what_a_cut_spike_gets_is_a_quota_and_what_the_tick_adds() {
        let cell = cell(60, 70);
        assert!(cell.least_ns >= ms(25) && cell.most_ns <= ms(30), "{cell:?}");
        let split = self::cell(60, 40);
        assert!(split.least_ns >= ms(45) && split.most_ns <= ms(50), "25 ms and the last 20: {split:?}");
        assert_eq!(self::cell(20, 70).least_ns, ms(20));
    }
}
