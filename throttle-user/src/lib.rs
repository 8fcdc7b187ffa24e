//! Where did the wall time go? An observer of CFS bandwidth throttling, and the benchmark that proves what it says.
//!
//! Data flows one way: kernel tracepoint -> wire record -> [`event`] -> [`timeline`] -> [`attribution`] -> [`run`] -> [`report`].
//! Modules stand here in that order; ARCHITECTURE.md has the table of who may import whom, and a test enforces it.
#![forbid(unsafe_code)]

pub mod cli;
pub mod client;
pub mod request;
pub mod time;
pub mod workload;
