//! One thread as it is being followed: what it is doing now, and what it did before.

use super::{
    interval::Span,
    thread::{Segment, State, Stay},
};
use crate::{
    event::CgroupId,
    time::{DurationNs, MonoNs},
};

/// A thread that is being followed.
#[derive(Clone)]
pub(super) struct Open {
    /// Its cgroups; never empty, the last is where it is.
    pub(super) stays: Vec<Stay>,
    pub(super) since: MonoNs,
    pub(super) state: State,
    pub(super) exiting: bool,
    /// At its last event no limit could hold it.
    pub(super) exempt: bool,
    /// Another thread had this number before, or this one left and came back.
    pub(super) reused: bool,
    /// Since its last event records were lost, or its limit was lifted.
    pub(super) doubted: bool,
    pub(super) segments: Vec<Segment>,
    /// The CPU's account of uncharged time as the running stretch began.
    pub(super) uncharged: Option<DurationNs>,
}

/// The arrival the scheduler notes and the switch that is traced lie this close together.
const ARRIVAL_SLOP: DurationNs = DurationNs::from_micros(100);

impl Open {
    /// Its cgroup.
    pub(super) fn cgroup(&self) -> CgroupId {
        self.stays.last().map_or(CgroupId(0), |stay| stay.cgroup)
    }

    /// It was moved to another cgroup.
    pub(super) fn moves(&mut self, at: MonoNs, to: CgroupId) {
        if self.cgroup() != to {
            let since = self.stays.last().map_or(at, |last| last.since.max(at));
            self.stays.push(Stay { since, cgroup: to });
        }
    }

    /// Makes the thread run on `cpu` up to now, as it must have since it `arrived` there; returns whether that was news, that
    /// is, whether its switch-in was not traced. Some kernels do not fire every tracepoint.
    pub(super) fn was_running_until(&mut self, now: MonoNs, cpu: u32, arrived: Option<MonoNs>) -> bool {
        let known = matches!(self.state, State::Running { cpu: on } if on == cpu);
        // The two clocks are read at slightly different points of one switch.
        let arrived = arrived.map(|arrived| {
            let close = !known && arrived + ARRIVAL_SLOP >= self.since;
            if close { arrived.max(self.since) } else { arrived }
        });
        match arrived {
            // In line with the switch-in that was seen.
            Some(arrived) if known && arrived <= self.since + ARRIVAL_SLOP => {
                self.fit(now, cpu, arrived);
                false
            }
            None if known => false,
            // Runnable or held until it arrived: only the switch-in is missing.
            Some(arrived)
                if arrived >= self.since && matches!(self.state, State::Waiting { .. } | State::Throttled { .. }) =>
            {
                self.turn(arrived, State::Running { cpu });
                true
            }
            // More is missing: what it did before it arrived is not known.
            Some(arrived) if arrived >= self.since || self.state == State::Unknown => {
                if self.segments.is_empty() && !self.reused {
                    self.since = self.since.min(arrived);
                }
                self.state = State::Unknown;
                self.turn(arrived.max(self.since), State::Running { cpu });
                true
            }
            _ => {
                let begins_here = self.since == now;
                self.state = State::Unknown;
                !begins_here
            }
        }
    }

    /// Fits the running stretch to what the scheduler charges: it stops charging as it begins to switch and charges the next
    /// one from there, while the tracepoint comes after the pick, later when a balance, an interrupt or a hypervisor comes
    /// between. What lies between the end of the charge and the tracepoint counts as waiting.
    fn fit(&mut self, now: MonoNs, cpu: u32, arrived: MonoNs) {
        if arrived > self.since {
            let charged_until = MonoNs(now.0 - arrived.since(self.since).0);
            self.turn(charged_until, State::Waiting { cpu });
        } else if let Some(last) = self.segments.last_mut()
            && matches!(last.state, State::Waiting { .. })
            && last.span.end == self.since
            && last.span.start < arrived
            && arrived < self.since
        {
            last.span.end = arrived;
            self.since = arrived;
        }
    }

    /// It is in another state from `at` on.
    pub(super) fn turn(&mut self, at: MonoNs, state: State) {
        let span = Span::new(self.since, at);
        if !span.is_empty() {
            self.segments.push(Segment { span, state: self.state, uncharged: DurationNs::ZERO });
        }
        self.since = self.since.max(at);
        self.state = state;
    }
}
