//! One thread under a chain of quotas over any length of time, simulated step by step as the kernel accounts it.
//!
//! Every level is charged the same CPU time, from a local pool that takes slices of the global one. A charge happens at
//! the tick, so a level is found empty late and the excess is debt. All levels found empty at that charge are out; the
//! thread goes on at the last of their refills (`kernel/sched/fair.c`: `account_cfs_rq_runtime`, `throttle_cfs_rq`,
//! `distribute_cfs_runtime`, `return_cfs_rq_runtime`). Between pieces of work the thread sleeps: what is left locally goes
//! back but for 1 ms, and the timers stop. Same inputs, same result. No other thread takes part.

use crate::model::counter::Counter;
use crate::model::nested::{Charging, Level, Out, Tick, Wait};
use crate::model::queue::Queue;
use crate::model::signed;
use crate::time::{DurationNs, MonoNs};

/// A thread, asleep between calls, and its chain of limited levels.
#[derive(Clone, Debug)]
pub struct Chain {
    queues: Vec<Queue>,
    slice: Option<i64>,
    tick: Option<Tick>,
    now: i64,
    /// Per level, when time lost to it was added, and how much so far.
    lost: Vec<Vec<(i64, i64)>>,
}

/// What became of one stretch of work. Times count from the chain's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// When the thread woke.
    pub start: DurationNs,
    /// When it went to sleep again.
    pub end: DurationNs,
    /// CPU time it used.
    pub used: DurationNs,
    /// Every time it was throttled, in order.
    pub waits: Vec<Wait>,
}

/// What the kernel counts of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelCounters {
    /// `nr_periods`: runs of the period timer, the idle one before it stops included.
    pub periods: Counter,
    /// `nr_throttled`: of those, with the level out of quota.
    pub throttled: Counter,
    /// `throttled_time` in ns of this level's own throttles, added as each ends.
    pub throttled_ns: Counter,
}

/// When a stretch of work is over.
#[derive(Clone, Copy)]
enum Until {
    Used(i64),
    Instant(i64),
}

impl Chain {
    /// A thread asleep, at instant 0.
    #[must_use]
    pub fn new(levels: &[Level], charging: &Charging) -> Self {
        Self {
            queues: levels.iter().map(Queue::new).collect(),
            slice: charging.slice.map(|slice| signed(slice).max(1)),
            tick: charging.tick.filter(|tick| tick.length > DurationNs::ZERO),
            now: 0,
            lost: vec![Vec::new(); levels.len()],
        }
    }

    /// The instant it has come to.
    #[must_use]
    pub fn now(&self) -> DurationNs {
        unsigned(self.now)
    }

    /// Sleeps until an instant; not at all if that has passed.
    pub fn sleep_until(&mut self, at: DurationNs) {
        let at = signed(at);
        while let Some(due) = self.next_refill().filter(|&due| due <= at) {
            self.refill(due);
        }
        self.now = self.now.max(at);
    }

    /// Uses so much CPU time, however long it takes.
    pub fn work(&mut self, work: DurationNs) -> Piece {
        self.run(Until::Used(signed(work)))
    }

    /// Runs until an instant, whatever it gets. A thread that is throttled then learns of it when it runs again.
    pub fn burn_until(&mut self, end: DurationNs) -> Piece {
        self.run(Until::Instant(signed(end)))
    }

    /// Per level, as given: the growth of its `nr_throttled`.
    #[must_use]
    pub fn throttled_periods(&self) -> Vec<u64> {
        let count = |queue: &Queue| queue.expiries.iter().filter(|expiry| expiry.throttled).count() as u64;
        self.queues.iter().map(count).collect()
    }

    /// What the kernel counted so far of each level, as given, with the chain's beginning at `base`.
    #[must_use]
    pub fn counters(&self, base: MonoNs) -> Vec<LevelCounters> {
        let at = |instant: i64| base + unsigned(instant);
        let ones = |queue: &Queue, all: bool| {
            let counted = queue.expiries.iter().filter(|expiry| all || expiry.throttled);
            Counter::steps(counted.zip(1..).map(|(expiry, count)| (at(expiry.at), count)))
        };
        self.queues
            .iter()
            .zip(&self.lost)
            .map(|(queue, lost)| LevelCounters {
                periods: ones(queue, true),
                throttled: ones(queue, false),
                throttled_ns: Counter::steps(lost.iter().map(|&(when, so_far)| (at(when), unsigned(so_far).0))),
            })
            .collect()
    }

    fn run(&mut self, until: Until) -> Piece {
        let start = self.now;
        let (mut used, mut charged) = (0, start);
        let mut waits = Vec::new();
        let (now, slice) = (self.now, self.slice);
        self.queues.iter_mut().for_each(|queue| queue.take(now, slice));
        while !matches!(until, Until::Used(work) if used >= work) {
            if self.queues.iter().any(|queue| queue.throttled) {
                waits.push(self.sit_out());
                charged = self.now;
                continue;
            }
            let end = match until {
                Until::Used(work) => self.now + work - used,
                Until::Instant(end) if self.now < end => end,
                Until::Instant(_) => break,
            };
            let refill = self.next_refill().unwrap_or(i64::MAX);
            let charge = match self.tick {
                Some(tick) => next_tick(&tick, self.now),
                None => {
                    let empty = self.queues.iter().map(|queue| charged + queue.until_empty(self.slice));
                    empty.min().unwrap_or(i64::MAX)
                }
            };
            let stop = end.min(refill).min(charge);
            used += stop - self.now;
            self.now = stop;
            // Drawing as used means drawing from the pool of before the refill.
            let charge_now = stop == charge || (self.slice.is_none() && self.tick.is_none());
            if charge_now {
                self.charge(stop - charged);
                charged = stop;
            }
            self.refill(stop);
            if charge_now {
                let slice = self.slice;
                self.queues.iter_mut().for_each(|queue| queue.take(stop, slice));
            }
        }
        self.leave(self.now - charged);
        Piece { start: unsigned(start), end: unsigned(self.now), used: unsigned(used), waits }
    }

    fn charge(&mut self, used: i64) {
        let drawn = self.slice.is_none();
        for queue in &mut self.queues {
            queue.local -= used;
            if drawn {
                queue.draw();
            }
        }
    }

    /// The thread blocks: what it used is charged, which may throttle an empty queue (`put_prev_entity`,
    /// `check_cfs_rq_runtime`), and what is left goes back.
    fn leave(&mut self, used: i64) {
        self.charge(used);
        let (now, slice) = (self.now, self.slice);
        for queue in &mut self.queues {
            queue.take(now, slice);
            if !queue.throttled {
                queue.give_back();
            }
        }
    }

    fn next_refill(&self) -> Option<i64> {
        self.queues.iter().filter_map(Queue::due).min()
    }

    /// Runs the timers that are due at an instant.
    fn refill(&mut self, now: i64) {
        self.queues.iter_mut().filter(|queue| queue.due() == Some(now)).for_each(|queue| queue.refill(now));
    }

    /// Lets refills pass until no level is throttled any more.
    fn sit_out(&mut self) -> Wait {
        let start = self.now;
        let out: Vec<usize> = (0..self.queues.len()).filter(|&level| self.queues[level].throttled).collect();
        self.queues.iter_mut().filter(|queue| !queue.throttled).for_each(Queue::give_back);
        while self.queues.iter().any(|queue| queue.throttled) {
            self.now = self.next_refill().unwrap_or(self.now);
            self.refill(self.now);
        }
        let out = out.into_iter().map(|level| {
            let refilled = self.queues[level].refilled;
            let so_far = self.lost[level].last().map_or(0, |&(_, so_far)| so_far);
            self.lost[level].push((refilled, so_far + refilled - start));
            Out { level, refilled: unsigned(refilled) }
        });
        let out = out.collect();
        Wait { start: unsigned(start), end: unsigned(self.now), out }
    }
}

/// The first tick after `now`.
fn next_tick(tick: &Tick, now: i64) -> i64 {
    let (length, first) = (signed(tick.length), signed(tick.to_first));
    if now < first { first } else { first + ((now - first) / length + 1) * length }
}

fn unsigned(ns: i64) -> DurationNs {
    DurationNs(u64::try_from(ns).unwrap_or(0))
}
