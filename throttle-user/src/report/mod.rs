//! What people read: a file a format, from stored or derived types of `run`.

pub mod command;
pub mod figures;
pub mod markdown;
mod periods;
pub mod spike_map;
pub mod spikes;
pub mod table;
