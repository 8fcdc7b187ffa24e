//! The kernel side's other half: facts, offsets, loading, attaching, reading. The only folder that imports aya.

pub mod btf;
pub mod decode;
pub mod loss;
pub mod observer;
pub mod prerequisites;

pub use btf::{BtfError, Era, KernelLayout};
pub use loss::Losses;
pub use observer::{Detail, Observer, ObserverPlan, ProbeError};
