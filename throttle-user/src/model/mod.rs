//! What CFS bandwidth control does to a piece of work: predictions to hold the observation against.
//!
//! `closed_form` is the exact skeleton for one thread and one quota, `nested` the kernel's accounting step by step for a
//! chain of quotas, `envelope` the hard bounds over everything that is not known, `predict` the verdict on measured
//! requests, `what_if` the limit that would have been enough. Everything takes values and returns values.

pub mod bandwidth;
pub mod closed_form;
pub mod envelope;
pub mod nested;
pub mod predict;
pub mod what_if;

#[cfg(test)]
mod properties;

use crate::time::DurationNs;

/// Nanoseconds as the models count them, with room for debt; lengths beyond 73 years are cut to that.
fn signed(length: DurationNs) -> i64 {
    const MOST: u64 = 1 << 61;
    length.0.min(MOST).cast_signed()
}
