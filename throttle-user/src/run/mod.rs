//! One run of the study: its plan, the machine it ran on, what was recorded, and what follows from it.
//!
//! A run is a folder. Raw files are written as things happen and never again:
//!
//! ```text
//! run.json                        plan, environment, requirements met and missed
//! raw/record.jsonl                limits begun and ended, counters, every request as client and server saw it
//! raw/events-<limit>.jsonl.gz     every record of the probe
//! ```
//!
//! The rest is derived from them by pure code, at the end of each limit and again by `throttle report`:
//!
//! ```text
//! runs.jsonl                      a line a request with its breakdown, a line a limit with counters and comparison
//! periods.jsonl                   a line a CFS period of each limited level
//! summary.json                    the table's figures
//! report.md                       the table and what it means
//! ```
//!
//! A run of spikes ([`spikes`]) keeps a folder as well. A single command under a limit ([`command`]) is recorded with the same types,
//! and keeps none.

pub mod agree;
pub mod command;
mod compare;
pub mod derive;
pub mod environment;
pub mod history;
mod kernel_fs;
pub mod ledger;
mod lines;
pub mod modelled;
pub mod need;
mod packed;
pub mod plan;
pub mod record;
pub mod spikes;
pub mod store;
pub mod summary;

pub use ledger::Kept;
pub use lines::{EventWriter, Lines};
pub use plan::SweepPlan;
pub use record::{Head, RawLine};
pub use store::{RunDir, RunHead, StoreError};

/// Version of every file of a run folder. Changes when a reader of the former would misread the latter.
pub const SCHEMA: u32 = 1;
