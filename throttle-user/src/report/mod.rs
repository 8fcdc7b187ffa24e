//! What people read: a file a format, from stored or derived types of `run`.

mod bar;
mod columns;
pub mod command;
pub mod figures;
pub mod html;
pub mod lanes;
pub mod markdown;
mod paint;
pub mod perfetto;
mod periods;
pub mod spike_map;
pub mod spikes;
mod strips;
pub mod table;
pub mod timeline;
pub mod top;
pub mod tui;
pub mod verdict;
