//! Ctrl-C and its kin, for verbs that must clean up: the first signal asks, the second ends at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use super::exit::{Exit, tell};
use crate::time::{DurationNs, MonoNs, now};

/// Signals this close together are one wish.
const TOGETHER: DurationNs = DurationNs::from_millis(500);
/// How long after it what is measured may still come to rest.
const PATIENCE: DurationNs = DurationNs::from_millis(2_000);

/// Whether the user wants an end. Clones share the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt {
    asked: Arc<AtomicBool>,
    /// When the first signal came, `CLOCK_MONOTONIC` ns.
    first: Arc<AtomicU64>,
    wake: Arc<Notify>,
}

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP from now on. Needs a tokio runtime.
    pub(super) fn listen() -> std::io::Result<Self> {
        let interrupt = Self::default();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            let mut signals = signal(kind)?;
            let interrupt = interrupt.clone();
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    interrupt.ask();
                }
            });
        }
        Ok(interrupt)
    }

    fn ask(&self) {
        let came = now();
        // Before `asked`, so that whoever sees that it was asked sees when.
        let _ = self.first.compare_exchange(0, came.0, Ordering::AcqRel, Ordering::Acquire);
        if self.asked.swap(true, Ordering::AcqRel) {
            // timeout(1) signals a process and then its group: one wish, two signals.
            if came.since(MonoNs(self.first.load(Ordering::Acquire))) < TOGETHER {
                return;
            }
            tell(format_args!("throttle: ended at once; the next start removes the cgroups left behind"));
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
        tell(format_args!("throttle: interrupted: keeping what was measured and cleaning up (again: end at once)"));
        self.wake.notify_waiters();
    }

    /// Whether a signal came.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Whether a signal came so long ago that nothing is worth waiting for.
    pub(super) fn is_overdue(&self) -> bool {
        self.is_asked() && now().since(MonoNs(self.first.load(Ordering::Acquire))) > PATIENCE
    }

    /// Waits for a signal; returns at once if one came already.
    pub(super) async fn asked(&self) {
        let notified = self.wake.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        if !self.is_asked() {
            notified.await;
        }
    }
}
