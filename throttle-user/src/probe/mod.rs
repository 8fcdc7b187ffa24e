//! The kernel side's other half: facts, offsets, loading, attaching, reading. The only folder that imports aya.

pub mod btf;
pub mod decode;
mod error;
mod load;
mod loss;
pub mod observer;
mod own;
pub mod prerequisites;
pub mod rights;

pub use btf::{BtfError, KernelLayout};
pub use error::ProbeError;
pub use load::{Survey, survey};
pub use observer::{Detail, Observer, ObserverPlan};
