//! The load client: sends requests by a schedule and stamps each from due time to answer.
//!
//! Owns schedules (pure), the sender, and the latency record. Imports only [`crate::request`] and [`crate::time`]; it
//! never sees the observer. It must run outside the limited cgroup: a throttled client measures itself.

mod connection;
mod drive;
mod hlog;
mod latency;
mod pacing;
mod schedule;
mod target;
mod timer;

pub use drive::{ClientError, LoadPlan, LoadReport, drive};
pub use hlog::IntervalLog;
pub use latency::{LatencyRecord, Lengths, Quantile, write_hgrm};
pub use schedule::{End, Pace, Spacing};
pub use target::{Target, TargetError};
