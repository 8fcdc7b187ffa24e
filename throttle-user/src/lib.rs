//! Where did the wall time go? An observer of CFS bandwidth throttling, and the benchmark that proves what it says.
//!
//! Data flows one way: kernel tracepoint -> wire record -> [`event`] -> [`timeline`] -> [`attribution`] -> [`run`] -> [`report`].
//! ARCHITECTURE.md has the table of who may import whom, and a test enforces it.
#![forbid(unsafe_code)]

pub mod attribution;
pub mod cgroup;
pub mod check;
pub mod cli;
pub mod client;
pub mod event;
pub mod exporter;
pub mod kubernetes;
pub mod model;
pub mod node;
pub mod probe;
pub mod report;
pub mod request;
pub mod run;
pub mod stats;
pub mod time;
pub mod timeline;
pub mod workload;
