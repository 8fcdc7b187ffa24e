//! What is true of one limited group over a stretch of time: counters, time lost, and whose time it was.
//!
//! Comes from an observed [`Timeline`] or from a simulated [`Chain`]; pollers and alarms are held against it.

use crate::event::CgroupId;
use crate::model::chain::{Chain, LevelCounters, Piece};
use crate::model::counter::Counter;
use crate::time::{DurationNs, MonoNs};
use crate::timeline::boundary::Boundary;
use crate::timeline::interval::{Span, Spans, Steps};
use crate::timeline::thread::State;
use crate::timeline::{Setting, Timeline};

/// A request or a spike, and when a limit held it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// From its start to its end.
    pub span: Span,
    /// When it was held, in order.
    pub held: Vec<Span>,
}

/// A job that lost less than this share of its wall time, one part in so many, is not called harmed.
const HARMED_FROM: u64 = 10;

impl Job {
    /// Time it was held.
    #[must_use]
    pub fn lost(&self) -> DurationNs {
        self.held.iter().map(|span| span.length()).sum()
    }

    /// Whether limits took a tenth of its wall time or more.
    #[must_use]
    pub fn harmed(&self) -> bool {
        let lost = self.lost();
        lost > DurationNs::ZERO && lost.0.saturating_mul(HARMED_FROM) >= self.span.length().0
    }
}

/// One group and its limited levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// What it is about.
    pub span: Span,
    /// What the kernel counts of each limited level, leaf first.
    pub levels: Vec<LevelCounters>,
    /// CPU time used, ns.
    pub used_ns: Counter,
    /// When some thread was held by a limit.
    pub held: Spans,
    /// When some thread ran, waited for a CPU or was held.
    pub active: Spans,
    /// Requests or spikes, in order of their starts.
    pub jobs: Vec<Job>,
    /// Whether all of it was seen. False: records were lost, so that the truth may be more than stands here.
    pub whole: bool,
}

impl History {
    /// Of a simulated thread, every piece of its work a job; the chain's beginning lies at `base`.
    #[must_use]
    pub fn simulated(chain: &Chain, pieces: &[Piece], base: MonoNs) -> Self {
        let span = |from: DurationNs, to: DurationNs| Span::new(base + from, base + to);
        let jobs: Vec<Job> = pieces
            .iter()
            .map(|piece| Job {
                span: span(piece.start, piece.end),
                held: piece.waits.iter().map(|wait| span(wait.start, wait.end)).collect(),
            })
            .collect();
        let held = Spans::union(jobs.iter().flat_map(|job| job.held.iter().copied()));
        let active = Spans::union(jobs.iter().map(|job| job.span));
        Self {
            span: span(DurationNs::ZERO, chain.now()),
            levels: chain.counters(base),
            used_ns: Counter::of_spans(&active.minus(&held)),
            held,
            active,
            jobs,
            whole: true,
        }
    }

    /// Of an observed group: `levels` are its limited levels, leaf first, `jobs` what a client or a generator knows of.
    #[must_use]
    pub fn observed(
        timeline: &Timeline,
        setting: &Setting,
        leaf: CgroupId,
        levels: &[CgroupId],
        span: Span,
        mut jobs: Vec<Job>,
    ) -> Self {
        let under = |group: CgroupId| setting.path(&group).contains(&leaf);
        let (mut running, mut held, mut active, mut unknown) = (vec![], vec![], vec![], false);
        for segment in timeline.threads.values().flat_map(|line| line.inside(under)) {
            let part = segment.span.clip(span);
            match segment.state {
                State::Running { .. } => running.push(part),
                State::Throttled { .. } => held.push(part),
                State::Unknown => unknown |= !part.is_empty(),
                State::Waiting { .. } | State::Blocked => {}
            }
            if !matches!(segment.state, State::Blocked | State::Unknown) {
                active.push(part);
            }
        }
        jobs.sort_by_key(|job| job.span.start);
        Self {
            span,
            levels: levels.iter().map(|&level| counters(timeline, level)).collect(),
            used_ns: Counter::of_steps(Steps::depth(running).within(span)),
            held: Spans::union(held),
            active: Spans::union(active),
            jobs,
            whole: !unknown
                && timeline.lost.within(span).next().is_none()
                && timeline.unseen.within(span).next().is_none()
                && timeline.broken.is_empty(),
        }
    }

    /// The same again and again, so many times in a row: what would have been had the load gone on.
    #[must_use]
    pub fn repeated(&self, times: u64) -> Self {
        let length = self.span.length().0;
        let rounds = |spans: &[Span]| -> Vec<Span> {
            let shifted = (0..times).map(|time| DurationNs(time.saturating_mul(length)));
            shifted.flat_map(|by| spans.iter().map(move |span| Span::new(span.start + by, span.end + by))).collect()
        };
        let all = |spans: &Spans| Spans::union(rounds(&spans.within(self.span).collect::<Vec<_>>()));
        let again = |counter: &Counter| counter.repeated(self.span, times);
        let jobs = (0..times).map(|time| DurationNs(time.saturating_mul(length))).flat_map(|by| {
            let shift = move |span: &Span| Span::new(span.start + by, span.end + by);
            self.jobs.iter().map(move |job| Job { span: shift(&job.span), held: job.held.iter().map(shift).collect() })
        });
        Self {
            span: Span::new(self.span.start, self.span.start + DurationNs(length.saturating_mul(times))),
            levels: self
                .levels
                .iter()
                .map(|level| LevelCounters {
                    periods: again(&level.periods),
                    throttled: again(&level.throttled),
                    throttled_ns: again(&level.throttled_ns),
                })
                .collect(),
            used_ns: again(&self.used_ns),
            held: all(&self.held),
            active: all(&self.active),
            jobs: jobs.collect(),
            whole: self.whole,
        }
    }
}

/// What the kernel counted of a level, by its boundaries and throttles.
fn counters(timeline: &Timeline, level: CgroupId) -> LevelCounters {
    let count = |counted: fn(&Boundary) -> bool| {
        let boundaries = timeline.boundaries_of(level).iter();
        let counted = boundaries.filter(move |boundary| boundary.quota.is_some() && counted(boundary));
        Counter::steps(counted.scan(0_u64, |sum, boundary| {
            *sum = sum.saturating_add(boundary.periods);
            Some((boundary.exit, *sum))
        }))
    };
    let mut ended: Vec<(MonoNs, u64)> = timeline
        .throttles
        .iter()
        .filter(|throttle| throttle.cgroup == level)
        .filter_map(|throttle| Some((throttle.end?, throttle.counted().0)))
        .collect();
    ended.sort_unstable();
    LevelCounters {
        periods: count(|_| true),
        throttled: count(Boundary::throttled),
        throttled_ns: Counter::steps(ended.into_iter().scan(0_u64, |sum, (end, lost)| {
            *sum = sum.saturating_add(lost);
            Some((end, *sum))
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::bandwidth::Bandwidth;
    use crate::model::nested::{Charging, Level};

    const fn ms(length: u64) -> DurationNs {
        DurationNs::from_millis(length)
    }

    /// 60 ms of work at 400m, 30 ms before a refill, where nothing is lost, and 45 ms before one.
    fn history() -> History {
        let level = Level::full(Bandwidth::new(ms(40), ms(100)).expect("valid"), ms(30));
        let mut chain = Chain::new(&[level], &Charging::EXACT);
        let mut pieces = Vec::new();
        for start in [0, 985] {
            chain.sleep_until(ms(start));
            pieces.push(chain.work(ms(60)));
        }
        chain.sleep_until(ms(2_000));
        History::simulated(&chain, &pieces, MonoNs(5_000_000_000))
    }

    #[test]
    fn a_simulated_thread_leaves_counters_and_jobs() {
        let history = history();
        let [first, second] = &history.jobs[..] else { panic!("two pieces: {:?}", history.jobs) };
        assert_eq!((first.lost(), first.harmed()), (ms(0), false));
        // From 985 the pool lasts to 1025; the refill is at 1030, and 20 ms are left to do.
        assert_eq!((second.lost(), second.harmed()), (ms(5), false), "{second:?}");
        let end = history.span.end;
        assert_eq!(history.used_ns.at(end), 120_000_000);
        // Runs at 30, 130 (idle) and 230 (stops); at 1030 (throttled), 1130 and 1230.
        let level = &history.levels[0];
        assert_eq!((level.periods.at(end), level.throttled.at(end), level.throttled_ns.at(end)), (6, 1, 5_000_000));
        assert_eq!(level.throttled.first_growth(history.span), Some(history.span.start + ms(1_030)));
    }

    #[test]
    fn a_repetition_is_as_long_and_as_bad_each_time() {
        let history = history();
        let thrice = history.repeated(3);
        assert_eq!(thrice.span.length(), ms(6_000));
        assert_eq!((thrice.jobs.len(), thrice.held.total()), (6, ms(15)));
        assert_eq!(thrice.levels[0].periods.at(thrice.span.end), 18);
        assert_eq!(thrice.used_ns.at(thrice.span.end), 360_000_000);
        assert_eq!(history.repeated(1).jobs, history.jobs);
    }
}
