//! `throttle spin`: what `throttle check` observes. A part of it.

use crate::{
    cli::exit::{Exit, Verdict},
    time::{DurationNs, now},
};

/// The verb's name.
pub(in crate::cli) const SPIN: &str = "spin";
/// Two periods of the limit it runs under, so that at least one throttle begins and ends. Wall time: in CPU time it would take
/// a hundred times as long.
const FOR: DurationNs = DurationNs::from_millis(200);

/// Runs the verb: keeps a CPU busy until the time is over.
pub(in crate::cli) fn run() -> Verdict {
    let end = now() + FOR;
    while now() < end {
        std::hint::spin_loop();
    }
    Ok(Exit::Done)
}
