//! What goes on on this node: its limited cgroups, what was counted of each, and the periods that ended last.
//!
//! Owns the state that the daemon keeps, with bounds on all of it. Pure: takes changes of the tree and finished periods, and reads
//! no file and no clock. In reading order:
//!
//! - [`totals`]: counters of one cgroup since the observation began
//! - [`census`]: the cgroups, each with its limit, its totals and, once it is gone, its time of grace
//! - [`recent`]: the last periods of all cgroups, as many as fit
//! - [`rates`]: what limits did over the last seconds

pub mod census;
pub mod rates;
pub mod recent;
pub mod totals;

pub use census::{Bounds, Census, Member, Refused};
pub use rates::{Rates, Wanted, rates};
pub use recent::Recent;
pub use totals::{Histogram, Totals};
