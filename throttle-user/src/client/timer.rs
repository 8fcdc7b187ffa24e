//! Waiting for an instant of `CLOCK_MONOTONIC` without holding the runtime up.
//!
//! Owns one timerfd. Tokio's own timer works in whole milliseconds (`tokio::time::sleep`: "operates at millisecond
//! granularity"), which would make up to a millisecond of every send late; a timerfd takes the absolute instant as it
//! is.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::time::{MonoNs, now};

/// A reusable timer. Waiting is cancel-safe: arming anew forgets the instant before.
#[derive(Debug)]
pub(super) struct Timer {
    fd: AsyncFd<Readable>,
}

/// A timerfd as tokio wants it.
#[derive(Debug)]
struct Readable(TimerFd);

impl AsRawFd for Readable {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Timer {
    /// Makes a timer; needs a tokio runtime with IO enabled.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = Readable(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?);
        #[expect(
            deprecated,
            reason = "its successor is unsafe and asks that the descriptor be valid and stay the same while registered: \
                      `Readable` owns its timerfd and never replaces it, and this crate forbids unsafe code"
        )]
        let fd = AsyncFd::with_interest(timer, Interest::READABLE)?;
        Ok(Self { fd })
    }

    /// Returns at `instant`, at once when it has passed.
    pub(super) async fn until(&mut self, instant: MonoNs) -> io::Result<()> {
        let at = TimeSpec::from_duration(Duration::from_nanos(instant.0));
        self.fd.get_ref().0.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        while now() < instant {
            let mut ready = self.fd.readable().await?;
            // Readiness may be that of an earlier instant: only the clock decides.
            if now() < instant {
                ready.clear_ready();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::DurationNs;

    #[tokio::test]
    async fn it_returns_not_before_the_instant_and_can_be_used_again() {
        let mut timer = Timer::new().expect("a timer");
        for _ in 0..20 {
            let instant = now() + DurationNs::from_micros(700);
            timer.until(instant).await.expect("waits");
            assert!(now() >= instant);
        }
    }

    #[tokio::test]
    async fn a_wait_given_up_does_not_disturb_the_next() {
        let mut timer = Timer::new().expect("a timer");
        tokio::select! {
            biased;
            _ = timer.until(now() + DurationNs::from_millis(600_000)) => unreachable!("ten minutes"),
            () = tokio::task::yield_now() => {}
        }
        let instant = now() + DurationNs::from_micros(500);
        timer.until(instant).await.expect("waits");
        assert!(now() >= instant);
    }

    #[tokio::test]
    async fn an_instant_in_the_past_does_not_wait() {
        Timer::new().expect("a timer").until(MonoNs(0)).await.expect("returns");
    }
}
