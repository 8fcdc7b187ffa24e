//! One level's accounts on one CPU: the pools, the refills, and the period timer that brings them.
//!
//! Times count in nanoseconds from the beginning of the simulation, CPU time in nanoseconds; both may be negative as debt.

use crate::model::nested::{KEPT_LOCALLY, Level};
use crate::model::signed;

/// A run of the level's period timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expiry {
    pub(super) at: i64,
    /// Whether the level was out of quota then: the kernel adds such a period to `nr_throttled`.
    pub(super) throttled: bool,
}

/// A level as the thread's CPU sees it.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    quota: i64,
    period: i64,
    burst: i64,
    pool: i64,
    pub(super) local: i64,
    next_refill: i64,
    /// `period_active`: an unused level's timer stops, and its grid stays.
    armed: bool,
    /// Nobody took runtime since the last refill.
    idle: bool,
    pub(super) throttled: bool,
    /// The refill that last ended a throttle.
    pub(super) refilled: i64,
    pub(super) expiries: Vec<Expiry>,
}

impl Queue {
    /// A level whose pool is not full was used since its last refill, so its timer runs.
    pub(super) fn new(level: &Level) -> Self {
        let (quota, burst) = (signed(level.bandwidth.quota()), signed(level.bandwidth.burst()));
        let pool = signed(level.pool);
        Self {
            quota,
            period: signed(level.bandwidth.period()),
            burst,
            pool,
            local: signed(level.leftover),
            next_refill: signed(level.to_refill),
            armed: pool < quota + burst,
            idle: false,
            throttled: false,
            refilled: 0,
            expiries: Vec::new(),
        }
    }

    /// When the timer is due; `None` while it rests.
    pub(super) fn due(&self) -> Option<i64> {
        self.armed.then_some(self.next_refill)
    }

    /// Run time until a charge would find this level empty.
    pub(super) fn until_empty(&self, slice: Option<i64>) -> i64 {
        if slice.is_some() { self.local } else { self.local + self.pool }
    }

    /// Without slices: what was used beyond the local pool comes from the global one.
    pub(super) fn draw(&mut self) {
        self.grant(-self.local);
    }

    /// Replenishes an empty local pool up to a slice, and throttles if that fails (`__assign_cfs_rq_runtime`).
    pub(super) fn take(&mut self, now: i64, slice: Option<i64>) {
        if self.local <= 0 {
            self.arm(now);
            self.grant(slice.unwrap_or(0) - self.local);
            self.throttled = self.until_empty(slice) <= 0;
        }
    }

    /// `start_cfs_bandwidth`: the first point of the level's grid after `now`.
    fn arm(&mut self, now: i64) {
        if !self.armed {
            self.armed = true;
            if self.next_refill <= now {
                self.next_refill += ((now - self.next_refill) / self.period + 1) * self.period;
            }
        }
    }

    /// The period timer (`do_sched_cfs_period_timer`): tops the pool up, and pays a throttled queue's debt plus 1 ns if that
    /// lasts. A level that nobody used is marked idle, and at the next run, which counts as a period too, the timer stops.
    pub(super) fn refill(&mut self, now: i64) {
        self.pool = (self.pool + self.quota).min(self.quota + self.burst);
        self.next_refill += self.period;
        self.expiries.push(Expiry { at: now, throttled: self.throttled });
        if self.throttled {
            self.grant(1 - self.local);
            self.throttled = self.local <= 0;
            self.refilled = now;
            self.idle = false;
        } else if self.idle {
            self.armed = false;
        } else {
            self.idle = true;
        }
    }

    /// The group leaves the CPU: all but 1 ms goes back to the pool. (A child of a throttled parent keeps its slice before
    /// 6.18, where the thread stays queued in it.)
    pub(super) fn give_back(&mut self) {
        let excess = (self.local - signed(KEPT_LOCALLY)).max(0);
        self.local -= excess;
        self.pool += excess;
    }

    fn grant(&mut self, wanted: i64) {
        let granted = wanted.min(self.pool).max(0);
        if granted > 0 {
            self.idle = false;
        }
        self.pool -= granted;
        self.local += granted;
    }
}
