//! The kernel side's other half: facts, offsets, loading, attaching, reading. The only folder that imports aya.

pub mod btf;
pub mod decode;
mod loss;
pub mod observer;
pub mod prerequisites;

pub use btf::{BtfError, KernelLayout};
pub use observer::{Detail, Observer, ObserverPlan, ProbeError};
