//! Statistics of raw samples: quantiles and how far they can be trusted.
//!
//! Knows no units and no other module: it works on anything ordered, and on anything that is a count underneath where a
//! mean is wanted.

pub mod interval;
pub mod quantile;

pub use interval::{QuantileInterval, quantile_interval};
pub use quantile::{Quantile, Summary};
