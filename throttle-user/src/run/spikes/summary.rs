//! What a run of spikes comes to: its steps, and what is missing of the plan.

use serde::{Deserialize, Serialize};

use super::{
    SpikesHead, SpikesPlan,
    derive::{DerivedGroup, DerivedLine, StepLine},
};
use crate::run::{agree::Agreement, record::Ending};

/// `summary.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpikesSummary {
    /// [`crate::run::SCHEMA`]
    pub schema: u32,
    /// What was to be done.
    pub plan: SpikesPlan,
    /// Every step that was begun, in order.
    pub steps: Vec<StepLine>,
    /// Steps of the plan that were not begun.
    pub not_begun: u64,
}

/// Largest part of the CPU time expected that may be missing unexplained.
const UNEXPLAINED: f64 = 0.01;

impl StepLine {
    /// Expected less consumed that no share explains, over expected; 0 without spikes.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for display and a verdict of one per cent")]
    pub fn unexplained(&self) -> f64 {
        if self.expected_ns.0 == 0 { 0.0 } else { self.unexplained_ns as f64 / self.expected_ns.0 as f64 }
    }

    /// Whether it was done whole, the kernel's counters agree and what is missing of the CPU time is explained.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.ending == Ending::Complete
            && self.spikes == self.planned
            && self.agreement == Agreement::Agrees
            && self.unexplained().abs() <= UNEXPLAINED
    }
}

impl SpikesSummary {
    /// Whether the whole plan was done and every step is right.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.not_begun == 0 && self.steps.iter().all(StepLine::is_right)
    }
}

/// Sums up a run's groups.
#[must_use]
pub fn summarise<'a>(head: &SpikesHead, groups: impl IntoIterator<Item = &'a DerivedGroup>) -> SpikesSummary {
    let steps: Vec<StepLine> = groups
        .into_iter()
        .flat_map(|group| &group.lines)
        .filter_map(|line| match line {
            DerivedLine::Step(step) => Some((**step).clone()),
            DerivedLine::Spike(_) => None,
        })
        .collect();
    let planned = head.plan.groups.len().saturating_mul(head.plan.steps().len());
    SpikesSummary {
        schema: crate::run::SCHEMA,
        plan: head.plan.clone(),
        not_begun: planned.saturating_sub(steps.len()) as u64,
        steps,
    }
}
