//! Hard bounds on the wall time of one thread under a chain of quotas, over everything that is not known.
//!
//! Two idealised threads, one never behind the real one and one never ahead of it, with the CPU time granted so far as
//! the only state of a level. The real thread runs only while its use is below the grant plus one tick of debt, and always
//! runs while it is below the grant; what a refill makes of the grant is bounded in `Account::refill`. So at every
//! instant `latest done <= real done <= earliest done`, whatever the leftovers, the tick and the exact refill instants.

use crate::model::bandwidth::Bandwidth;
use crate::model::signed;
use crate::time::DurationNs;

/// A level, and the stretches in which its refills lie: each somewhere in the `width` before `latest` and a number of
/// whole periods, though not before the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its quota, period and burst.
    pub bandwidth: Bandwidth,
    /// From the start to the latest instant of the first refill.
    pub latest: DurationNs,
    /// How much earlier than its latest instant each refill may come.
    pub width: DurationNs,
}

/// Largest value of each amount that is not known; the least is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    /// CPU time held in a local pool at the start.
    pub leftover: DurationNs,
    /// CPU time held in a local pool at a refill.
    pub slice: DurationNs,
    /// CPU time used but not yet charged.
    pub tick: DurationNs,
    /// CPU time missing from each global pool at the start.
    pub spent: DurationNs,
}

/// The wall time that work finishing as early as can be takes.
#[must_use]
pub fn earliest_finish(work: DurationNs, levels: &[Window], slack: &Slack) -> DurationNs {
    finish(work, levels, slack, Side::Earliest)
}

/// The wall time that work finishing as late as can be takes.
#[must_use]
pub fn latest_finish(work: DurationNs, levels: &[Window], slack: &Slack) -> DurationNs {
    finish(work, levels, slack, Side::Latest)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Earliest,
    Latest,
}

/// Grants of one level so far, in ns of CPU since the start.
struct Account {
    quota: i64,
    period: i64,
    burst: i64,
    width: i64,
    granted: i64,
    /// Of the next refill; below zero it counts as at the start.
    refill_at: i64,
}

impl Account {
    fn new(level: &Window, slack: &Slack, side: Side) -> Self {
        let (quota, burst) = (signed(level.bandwidth.quota()), signed(level.bandwidth.burst()));
        let full = quota + burst;
        let (latest, width) = (signed(level.latest), signed(level.width));
        let (granted, first) = match side {
            Side::Earliest => (full + signed(slack.leftover), latest - width),
            Side::Latest => ((full - signed(slack.spent)).max(0), latest),
        };
        Self { quota, period: signed(level.bandwidth.period()), burst, width, granted, refill_at: first }
    }

    /// A refill: one quota more, but the global pool never above quota + burst, and in the local pool somewhere between
    /// a tick of use not yet charged and a slice.
    ///
    /// Earliest: the real refill comes up to `width` later, when up to `width` more is done. Latest: it came up to `width`
    /// before, and the real thread, if it ran on beyond this one's stop, has done at least the difference more. If a
    /// refill woke it after that stop, what it has not been charged for is no more than what it is ahead.
    fn refill(&mut self, done: i64, stopped_for: i64, slack: &Slack, side: Side) {
        let local = match side {
            Side::Earliest => signed(slack.slice) + self.width,
            Side::Latest => -(signed(slack.tick) + self.width - stopped_for).max(0),
        };
        self.granted = (self.granted + self.quota).min(done + self.quota + self.burst + local);
        self.refill_at += self.period;
    }
}

fn finish(work: DurationNs, levels: &[Window], slack: &Slack, side: Side) -> DurationNs {
    let debt = if side == Side::Earliest { signed(slack.tick) } else { 0 };
    let mut accounts: Vec<Account> = levels.iter().map(|level| Account::new(level, slack, side)).collect();
    let work = signed(work);
    let (mut now, mut done) = (0, 0);
    let mut stopped: Option<i64> = None;
    loop {
        let next = accounts.iter().map(|account| account.refill_at.max(now)).min().unwrap_or(i64::MAX);
        let budget = accounts.iter().map(|account| account.granted + debt - done).min().unwrap_or(i64::MAX);
        let run = budget.max(0).min(work - done).min(next - now);
        done += run;
        if done == work {
            return DurationNs(u64::try_from(now + run).unwrap_or(0));
        }
        stopped = match stopped {
            Some(since) if run == 0 => Some(since),
            _ => Some(now + run),
        };
        now = next;
        let stopped_for = stopped.map_or(0, |since| now - since);
        for account in accounts.iter_mut().filter(|account| account.refill_at <= now) {
            account.refill(done, stopped_for, slack, side);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Slack =
        Slack { leftover: DurationNs::ZERO, slice: DurationNs::ZERO, tick: DurationNs::ZERO, spent: DurationNs::ZERO };

    fn level(quota_ms: u64, latest_ms: u64, width_ms: u64) -> Window {
        let ms = DurationNs::from_millis;
        let bandwidth = Bandwidth::new(ms(quota_ms), ms(100)).expect("valid");
        Window { bandwidth, latest: ms(latest_ms), width: ms(width_ms) }
    }

    #[test]
    fn with_nothing_unknown_both_ends_are_the_closed_form() {
        let levels = [level(10, 30, 0)];
        let work = DurationNs::from_millis(60);
        // The quota lasts 10 ms, the refill is at 30, four whole periods follow, then 10 ms: 440.
        assert_eq!(earliest_finish(work, &levels, &NOTHING), DurationNs::from_millis(440));
        assert_eq!(latest_finish(work, &levels, &NOTHING), DurationNs::from_millis(440));
    }

    #[test]
    fn a_millisecond_of_leftover_saves_a_period_at_the_edge() {
        let levels = [level(10, 30, 0)];
        let work = DurationNs::from_millis(61);
        let slack = Slack { leftover: DurationNs::from_millis(1), ..NOTHING };
        assert_eq!(earliest_finish(work, &levels, &slack), DurationNs::from_millis(440));
        assert_eq!(latest_finish(work, &levels, &slack), DurationNs::from_millis(531));
    }

    #[test]
    fn an_unknown_refill_moves_the_ends_apart_by_its_width() {
        let levels = [level(10, 40, 10)];
        let work = DurationNs::from_millis(60);
        assert_eq!(earliest_finish(work, &levels, &NOTHING), DurationNs::from_millis(440));
        assert_eq!(latest_finish(work, &levels, &NOTHING), DurationNs::from_millis(450));
    }

    #[test]
    fn only_the_first_refill_is_kept_from_coming_before_the_start() {
        // The first refill may come 10 ms early but not before the start; the second comes at 95 ms, not at 100.
        let levels = [level(10, 5, 10)];
        let work = DurationNs::from_millis(20);
        assert_eq!(earliest_finish(work, &levels, &NOTHING), DurationNs::from_millis(20));
        assert_eq!(earliest_finish(DurationNs::from_millis(25), &levels, &NOTHING), DurationNs::from_millis(100));
    }

    #[test]
    fn a_burst_saved_before_the_start_is_there_at_the_start() {
        let plain = level(10, 30, 0);
        let ms = DurationNs::from_millis;
        let levels = [Window { bandwidth: plain.bandwidth.with_burst(ms(5)).expect("at most the quota"), ..plain }];
        // 15 ms at once, 10 from the refill at 30 on.
        assert_eq!(earliest_finish(ms(25), &levels, &NOTHING), ms(40));
        assert_eq!(latest_finish(ms(25), &levels, &NOTHING), ms(40));
    }

    #[test]
    fn no_levels_mean_no_limit() {
        let work = DurationNs::from_millis(60);
        assert_eq!((earliest_finish(work, &[], &NOTHING), latest_finish(work, &[], &NOTHING)), (work, work));
    }
}
