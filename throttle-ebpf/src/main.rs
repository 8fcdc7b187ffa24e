//! The eBPF object: BTF tracepoints only, no helper on the way past an unlimited group.
//!
//! `kernel` and `emit` hold all unsafe code; the other files say what is recorded when. How throttling looks at each hook is
//! described in ARCHITECTURE.md.
#![no_std]
#![no_main]
#![expect(clippy::needless_pass_by_value, reason = "aya's program macros call with the context by value")]

mod attach;
mod csd;
mod emit;
mod kernel;
mod maps;
mod own;
mod queues;
mod switch;
mod timer;
mod wake;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// SAFETY: the loader reads the licence from the section of this name; nothing else links against the symbol.
#[unsafe(no_mangle)]
// SAFETY: the section holds this one NUL-terminated string, which is what the loader expects there.
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
