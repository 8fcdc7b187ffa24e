//! The observed side: a server that burns a stated amount of CPU time a request, and a generator of spikes.
//!
//! Owns the burning of CPU time, the worker threads, the spikes' schedule and the HTTP face. Knows nothing of the observer, and imports only
//! [`crate::request`] and [`crate::time`].

mod burn;
mod confine;
mod params;
mod pool;
mod server;
mod spike;

pub use burn::{Burner, Calibration};
pub use confine::{ConfineError, join_cgroup};
pub use params::{BurnDefaults, BurnParams, ParamError, WORK_MAX, WORK_MIN};
pub use pool::{Pool, PoolError};
pub use server::{Server, ServerError, ServerOptions, WORKERS_MAX};
pub use spike::{SLOT, SLOTS, SpikeError, SpikePlan};
