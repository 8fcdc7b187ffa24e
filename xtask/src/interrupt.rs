//! Ctrl-C while guests or kernel tests run: it reaches them as well, and we outlive them to clean up.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C is noted; before, it ends us at once.
///
/// # Errors
/// The signal handler cannot be installed.
pub(crate) fn listen() -> Result<()> {
    static LISTENING: Once = Once::new();
    let mut listening = Ok(());
    LISTENING.call_once(|| listening = ctrlc::set_handler(|| ASKED.store(true, Ordering::Relaxed)));
    Ok(listening?)
}

/// Whether Ctrl-C came.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
