//! The wire contract between the probe and userspace: the records the probe writes, the constants it is configured with,
//! and nothing else. Both sides build from this file, so a layout cannot drift.
//!
//! Every record is `repr(C)`, a multiple of 8 bytes, made of sized integers with explicit padding: no `bool`, `enum` or
//! `Option`. The byte order is the machine's own. Sizes are asserted at compile time.
#![no_std]
#![forbid(unsafe_code)]

pub mod config;
pub mod record;
