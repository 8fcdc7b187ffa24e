//! What the daemon tells over HTTP: metrics, health, the cgroups, and periods as they end.
//!
//! Owns the shared state behind the routes, and the bounds on who may ask how much. Read-only: no request changes anything. In
//! reading order:
//!
//! - [`state`]: what threads put in and requests take out
//! - [`metrics`]: the state as OpenMetrics or Prometheus text
//! - [`rows`]: the state as JSON
//! - [`routes`]: paths, parameters, answers
//! - [`serve`]: connections, their number and their time

pub mod metrics;
pub mod routes;
pub mod rows;
pub mod serve;
pub mod state;

pub use serve::{ListenError, Listening};
pub use state::{Exporter, NamesFrom, OwnFigures, ProcessFigures, ProgramFigures, State};
