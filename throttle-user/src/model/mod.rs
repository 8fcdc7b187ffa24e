//! What CFS bandwidth control does to a piece of work: predictions to hold the observation against.
//!
//! `closed_form` is the exact skeleton for one thread and one quota, `nested` the kernel's accounting step by step for a
//! chain of quotas, `chain` the same over any length of time with the kernel's counters, `envelope` the hard bounds over
//! everything that is not known, `predict` the verdict on measured requests, `what_if` the limit that would have been enough.
//!
//! And what others would have made of it: `history` is what is true of a group, `poller` what reached Prometheus, `prometheus`
//! its arithmetic, `sight` how far that is from the truth, `alarm` when alarms would have fired. Everything takes values and
//! returns values.

pub mod alarm;
pub mod bandwidth;
pub mod chain;
pub mod closed_form;
pub mod counter;
pub mod envelope;
pub mod history;
pub mod nested;
pub mod poller;
pub mod predict;
pub mod prometheus;
mod queue;
pub mod sight;
pub mod what_if;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod properties;

use crate::time::DurationNs;

/// Nanoseconds as the models count them, with room for debt; lengths beyond 73 years are cut to that.
fn signed(length: DurationNs) -> i64 {
    const MOST: u64 = 1 << 61;
    length.0.min(MOST).cast_signed()
}
