//! A run of spikes: steps of a fixed load in groups of one limit, what was recorded of them, and what follows.
//!
//! A folder as that of a sweep (see [`super`]), with other lines:
//!
//! ```text
//! run.json                        kind "spikes", plan, environment, requirements met and missed
//! raw/record.jsonl                groups and steps begun and ended, counters, every spike as its generator saw it
//! raw/events-<nesting>.jsonl.gz   every record of the probe
//! spikes.jsonl                    derived: a line a spike, a line a step
//! periods.jsonl, summary.json, report.md, figures/
//! ```

pub mod derive;
pub mod escape;
pub mod ledger;
mod predict;
pub mod summary;

pub use predict::Predicted;

use serde::{Deserialize, Serialize};

use super::{
    environment::{Environment, Requirement},
    record::{Ending, LevelReading, LimitBegin, LimitEnd},
};
use crate::{
    cgroup::{Bandwidth, CpuLimit, LimitError, Nesting},
    request::SpikeSpan,
    time::{ClockAnchor, DurationNs, MonoNs},
};

/// What `run.json` calls such a run.
pub const KIND: &str = "spikes";

const SECOND_NS: u64 = 1_000_000_000;

/// What is to be done: every step in each group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpikesPlan {
    /// The limit of each limited level.
    pub limit: CpuLimit,
    /// CFS period, us.
    pub period_us: u64,
    /// Which groups, in this order.
    pub groups: Vec<Nesting>,
    /// Lengths of a spike.
    pub lengths_ns: Vec<DurationNs>,
    /// Spikes a second.
    pub per_second: Vec<u32>,
    /// Where the container's boundary is put: so long after a spike's due time. Empty = spikes begin at slots of the wall clock, and it
    /// lies where it lies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boundaries_ns: Vec<DurationNs>,
    /// How long each step spikes.
    pub step_ns: DurationNs,
    /// Threads that spike together.
    pub threads: u32,
}

/// One step of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Length of a spike.
    pub length_ns: DurationNs,
    /// Spikes a second.
    pub per_second: u32,
    /// Where the boundary was put; absent = not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundary_ns: Option<DurationNs>,
}

/// A plan that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The limit is refused.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// There is no limit.
    #[error("spikes are held against a limit; give one with --limit, such as 250m")]
    Unlimited,
    /// Nothing to do.
    #[error("{what} is empty or 0: there is nothing to measure")]
    Nothing {
        /// The flag.
        what: &'static str,
    },
    /// A step that is no whole number of seconds.
    #[error("--step of {} ms is no whole number of seconds, which the spikes are counted by", step.as_millis_f64())]
    Step {
        /// The length asked for.
        step: DurationNs,
    },
    /// A boundary beyond the period.
    #[error("a boundary {} ms after the due time is outside the period of {} ms", boundary.as_millis_f64(), period.as_millis_f64())]
    Boundary {
        /// Where it was wanted.
        boundary: DurationNs,
        /// The period.
        period: DurationNs,
    },
}

impl SpikesPlan {
    /// Checks the plan, but for what the generator itself checks, and gives the limit its bandwidth.
    ///
    /// # Errors
    /// [`PlanError`] names the value and the remedy.
    pub fn bandwidth(&self) -> Result<Bandwidth, PlanError> {
        for (what, nothing) in [
            ("--groups", self.groups.is_empty()),
            ("--lengths", self.lengths_ns.is_empty()),
            ("--per-second", self.per_second.is_empty()),
            ("--step", self.step_ns == DurationNs::ZERO),
            ("--threads", self.threads == 0),
        ] {
            if nothing {
                return Err(PlanError::Nothing { what });
            }
        }
        if self.limit == CpuLimit::Unlimited {
            return Err(PlanError::Unlimited);
        }
        if !self.step_ns.0.is_multiple_of(SECOND_NS) {
            return Err(PlanError::Step { step: self.step_ns });
        }
        let period = DurationNs::from_micros(self.period_us);
        if let Some(&boundary) = self.boundaries_ns.iter().find(|&&boundary| boundary >= period) {
            return Err(PlanError::Boundary { boundary, period });
        }
        Ok(self.limit.bandwidth(self.period_us, 0)?)
    }

    /// Spikes of a step.
    #[must_use]
    pub fn spikes(&self, step: Step) -> u64 {
        (self.step_ns.0 / SECOND_NS).saturating_mul(u64::from(step.per_second))
    }

    /// The steps of a group, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let boundaries: Vec<Option<DurationNs>> = match &self.boundaries_ns[..] {
            [] => vec![None],
            chosen => chosen.iter().copied().map(Some).collect(),
        };
        let mut steps = Vec::new();
        for &length_ns in &self.lengths_ns {
            for &per_second in &self.per_second {
                steps.extend(boundaries.iter().map(|&boundary_ns| Step { length_ns, per_second, boundary_ns }));
            }
        }
        steps
    }
}

/// What a group is called in files and tables.
#[must_use]
pub const fn group_name(nesting: Nesting) -> &'static str {
    match nesting {
        Nesting::Flat => "flat",
        Nesting::Nested => "nested",
    }
}

/// `run.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpikesHead {
    /// [`super::SCHEMA`]
    pub schema: u32,
    /// [`KIND`]
    pub kind: String,
    /// What was to be done.
    pub plan: SpikesPlan,
    /// Where.
    pub environment: Environment,
    /// What the machine met and missed.
    pub requirements: Vec<Requirement>,
}

/// Counters and clocks between two steps, when everything is quiet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Leaf first; absent when the groups were gone.
    pub levels: Option<Vec<LevelReading>>,
    /// Whether the period timers had stopped before.
    pub quiet: bool,
    /// CPU time the hypervisor took since boot; absent = not readable.
    pub stolen_ns: Option<DurationNs>,
    /// The clocks.
    pub clock: ClockAnchor,
}

/// A boundary of the container's period as the generator learnt it from its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learnt {
    /// The boundary.
    pub point_ns: MonoNs,
    /// How far apart the readings were that held it.
    pub within_ns: DurationNs,
}

/// A line of `raw/record.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum SpikesLine {
    /// Groups are made and observed.
    GroupBegin {
        /// Which.
        nesting: Nesting,
        /// As at the beginning of a sweep's limit.
        #[serde(flatten)]
        begin: LimitBegin,
    },
    /// A step begins.
    StepBegin {
        /// Its number in the group, from 0.
        step: u32,
        /// Before it.
        #[serde(flatten)]
        reading: Reading,
    },
    /// A spike, told when its step's spikes were over.
    Spike {
        /// Number of the step.
        step: u32,
        /// As the generator saw it.
        #[serde(flatten)]
        span: SpikeSpan,
    },
    /// A step ends.
    StepEnd {
        /// Its number.
        step: u32,
        /// After it.
        #[serde(flatten)]
        reading: Reading,
        /// What the generator learnt; absent = nothing.
        learnt: Option<Learnt>,
        /// How it ended.
        ending: Ending,
    },
    /// The groups are done with.
    GroupEnd {
        /// Which.
        nesting: Nesting,
        /// As at the end of a sweep's limit.
        #[serde(flatten)]
        end: LimitEnd,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(length: u64) -> DurationNs {
        DurationNs::from_millis(length)
    }

    pub(super) fn plan() -> SpikesPlan {
        SpikesPlan {
            limit: CpuLimit::Millicpu(250),
            period_us: 100_000,
            groups: vec![Nesting::Flat, Nesting::Nested],
            lengths_ns: vec![ms(30), ms(50)],
            per_second: vec![1, 10],
            boundaries_ns: vec![],
            step_ns: ms(2_000),
            threads: 1,
        }
    }

    #[test]
    fn steps_go_through_rates_and_boundaries_at_each_length() {
        let steps = plan().steps();
        let shape: Vec<_> = steps.iter().map(|step| (step.length_ns, step.per_second, step.boundary_ns)).collect();
        assert_eq!(shape, [(ms(30), 1, None), (ms(30), 10, None), (ms(50), 1, None), (ms(50), 10, None)]);
        let mapped = SpikesPlan { boundaries_ns: vec![ms(0), ms(20)], ..plan() }.steps();
        assert_eq!(mapped.len(), 8);
        assert_eq!((mapped[1].per_second, mapped[1].boundary_ns), (1, Some(ms(20))));
    }

    #[test]
    fn a_plan_that_measures_nothing_or_has_no_limit_is_refused() {
        assert_eq!(plan().bandwidth().expect("fine").quota.us(), Some(25_000));
        for (bad, word) in [
            (SpikesPlan { groups: vec![], ..plan() }, "--groups"),
            (SpikesPlan { lengths_ns: vec![], ..plan() }, "--lengths"),
            (SpikesPlan { step_ns: ms(0), ..plan() }, "--step"),
            (SpikesPlan { limit: CpuLimit::Unlimited, ..plan() }, "--limit"),
            (SpikesPlan { step_ns: ms(1_500), ..plan() }, "1500 ms"),
            (SpikesPlan { boundaries_ns: vec![ms(100)], ..plan() }, "outside the period"),
        ] {
            let said = bad.bandwidth().expect_err("refused").to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
