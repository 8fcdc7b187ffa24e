//! What the daemon tells, without a kernel: a state made by hand, asked over HTTP.

mod made;
mod metrics;
mod rules;
mod streams;
