//! Signals while a command runs: the command gets them, and the report is made all the same.

use std::sync::{Arc, OnceLock};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
};

use crate::cli::exit::{Exit, Failure};

/// Those that would end this process, or that a command may use for its own purposes.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// Signals caught from now on; none of them ends this process any more.
pub(in crate::cli) struct Signals {
    caught: UnboundedReceiver<Signal>,
    first: Arc<OnceLock<Signal>>,
}

impl Signals {
    /// Catches all but those that this process was started to ignore (as `nohup` does), which the command then ignores too.
    /// Needs a tokio runtime.
    pub(in crate::cli) fn listen() -> std::io::Result<Self> {
        let ignored = ignored();
        let (sender, caught) = unbounded_channel();
        let first = Arc::new(OnceLock::new());
        for kind in PASSED_ON.into_iter().filter(|&kind| !in_mask(ignored, kind)) {
            let mut signals = signal(SignalKind::from_raw(kind as i32))?;
            let (sender, first) = (sender.clone(), Arc::clone(&first));
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    first.get_or_init(|| kind);
                    if sender.send(kind).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { caught, first })
    }

    /// The next one; never, if none is caught.
    pub(super) async fn next(&mut self) -> Signal {
        match self.caught.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The first one, if any has come.
    pub(in crate::cli) fn first(&self) -> Option<Signal> {
        self.first.get().copied()
    }

    /// Fails once a signal has come: for the time before the command is there to have it.
    pub(in crate::cli) fn none_yet(&self) -> Result<(), Failure> {
        match self.first() {
            None => Ok(()),
            Some(signal) => Err(Failure::Told {
                exit: Exit::Interrupted,
                error: anyhow::anyhow!(
                    "interrupted by {signal} before the command was started; nothing is left behind"
                ),
            }),
        }
    }
}

/// Passes a signal on to the command, unless the terminal has sent it to both.
pub(super) fn pass_on(signal: Signal, pid: u32) {
    if from_terminal(signal, in_foreground()) {
        return;
    }
    if let Ok(pid) = i32::try_from(pid) {
        // It may have ended meanwhile; its status is on the way.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Ctrl-C and Ctrl-\ go to the whole process group in the terminal's foreground, the command included.
fn from_terminal(signal: Signal, in_foreground: bool) -> bool {
    in_foreground && matches!(signal, Signal::SIGINT | Signal::SIGQUIT)
}

/// Whether this process group is in the foreground of its terminal.
fn in_foreground() -> bool {
    let stat = procfs::process::Process::myself().and_then(|me| me.stat());
    stat.is_ok_and(|stat| stat.tpgid == stat.pgrp)
}

/// Mask of the signals that this process ignores; none, if it cannot be read.
fn ignored() -> u64 {
    procfs::process::Process::myself().and_then(|me| me.status()).map_or(0, |status| status.sigign)
}

fn in_mask(mask: u64, signal: Signal) -> bool {
    u32::try_from(signal as i32 - 1).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_terminal_sends_to_all_is_not_sent_again() {
        assert!(from_terminal(Signal::SIGINT, true) && from_terminal(Signal::SIGQUIT, true));
        assert!(!from_terminal(Signal::SIGINT, false));
        assert!(!from_terminal(Signal::SIGTERM, true));
    }

    #[test]
    fn bit_zero_of_a_mask_is_signal_one() {
        assert!(in_mask(1, Signal::SIGHUP) && !in_mask(1, Signal::SIGINT));
        assert!(in_mask(1 << 14, Signal::SIGTERM));
    }
}
