//! The wire contract between the probe and userspace.
#![no_std]
