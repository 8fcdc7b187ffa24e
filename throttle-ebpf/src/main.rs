//! The eBPF object.
#![no_std]
#![no_main]
