//! What an agent on the node and Prometheus would have seen of a group: readings at their own times, scrapes at theirs.
//!
//! The kubelet reads a container's counters on a timer of its own ("housekeeping") and hands the last reading to whoever
//! scrapes. cAdvisor waits at least the interval and at most twice that, evenly spread (manager/container.go, `jitter`
//! with a factor of 1.0); while nothing changes it doubles the interval up to a maximum (`nextHousekeepingInterval`). The
//! kubelet sets 10 s and at most 15 s (pkg/kubelet/cadvisor/cadvisor_linux.go).

use serde::{Deserialize, Serialize};

use crate::model::counter::Counter;
use crate::model::history::History;
use crate::model::prometheus::Sample;
use crate::time::{DurationNs, MonoNs};
use crate::timeline::interval::Span;

/// Which time stamp Prometheus gives a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stamps {
    /// That of the reading, which cAdvisor exposes (`honor_timestamps: true`, the default of Prometheus). A reading scraped twice
    /// is one sample.
    Reading,
    /// That of the scrape (`honor_timestamps: false`).
    Scrape,
}

/// An agent that reads on its own timer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Housekeeping {
    /// Shortest time between two readings.
    pub every_ns: DurationNs,
    /// What the interval grows to while nothing changes.
    pub most_ns: DurationNs,
    /// Each wait is longer by a random part of the interval, up to this many times it.
    pub jitter: f64,
    /// What becomes of the reading's own stamp.
    pub stamps: Stamps,
}

impl Housekeeping {
    /// The kubelet's.
    pub const KUBELET: Self = Self {
        every_ns: DurationNs::from_millis(10_000),
        most_ns: DurationNs::from_millis(15_000),
        jitter: 1.0,
        stamps: Stamps::Reading,
    };
}

/// Who looks, and when.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Poller {
    /// `None` = what is scraped reads the counters as it is asked, as an exporter on the node does.
    pub housekeeping: Option<Housekeeping>,
    /// From one scrape to the next.
    pub scrape_ns: DurationNs,
    /// From the beginning of the history to the first scrape. Prometheus spreads its targets over the interval.
    pub offset_ns: DurationNs,
    /// Decides the random parts: the same seed, the same readings.
    pub seed: u64,
}

/// The readings that reached Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// Time stamp in ms, instant of the reading, instant of the scrape that brought it; in order.
    readings: Vec<Reading>,
}

/// A reading that was scraped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Time stamp it is stored with, ms of `CLOCK_MONOTONIC`.
    pub at_ms: i64,
    /// When the counters were read.
    pub read: MonoNs,
    /// When Prometheus had it.
    pub scraped: MonoNs,
}

impl Poller {
    /// The readings of `history` that Prometheus gets.
    #[must_use]
    pub fn poll(&self, history: &History) -> Polled {
        let scrapes = instants(history.span, self.offset_ns, self.scrape_ns);
        let readings = match &self.housekeeping {
            None => scrapes.map(|at| Reading { at_ms: millis(at), read: at, scraped: at }).collect(),
            Some(housekeeping) => {
                let reads = self.reads(housekeeping, history);
                let mut readings: Vec<Reading> = Vec::new();
                for scraped in scrapes {
                    let Some(&read) = reads[..reads.partition_point(|&read| read <= scraped)].last() else { continue };
                    let at_ms = match housekeeping.stamps {
                        Stamps::Reading => millis(read),
                        Stamps::Scrape => millis(scraped),
                    };
                    if readings.last().is_none_or(|last| last.at_ms < at_ms) {
                        readings.push(Reading { at_ms, read, scraped });
                    }
                }
                readings
            }
        };
        Polled { readings }
    }

    /// When the agent reads. The first time lies anywhere in the first interval: the group was there before.
    fn reads(&self, housekeeping: &Housekeeping, history: &History) -> Vec<MonoNs> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let shortest = housekeeping.every_ns.0.max(1);
        let mut interval = shortest;
        let mut reads = Vec::new();
        let mut at = history.span.start + DurationNs(random.u64(0..shortest));
        while at <= history.span.end {
            if let Some(&before) = reads.last() {
                let unchanged = history.used_ns.growth(Span::new(before, at)) == 0;
                interval = if unchanged {
                    interval.saturating_mul(2).min(housekeeping.most_ns.0.max(shortest))
                } else {
                    shortest
                };
            }
            reads.push(at);
            at = at + DurationNs(interval) + DurationNs(part(interval, random.f64() * housekeeping.jitter));
        }
        reads
    }
}

impl Polled {
    /// The readings, in order.
    #[must_use]
    pub fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// How many of them Prometheus has at an instant: a reading's own stamp lies before the scrape that brings it.
    #[must_use]
    pub fn known(&self, at: MonoNs) -> usize {
        self.readings.partition_point(|reading| reading.scraped <= at)
    }

    /// The samples of one counter, a reading each, divided by `unit`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "as Prometheus stores it")]
    pub fn samples(&self, counter: &Counter, unit: f64) -> Vec<Sample> {
        let sample =
            |reading: &Reading| Sample { at_ms: reading.at_ms, value: Some(counter.at(reading.read) as f64 / unit) };
        self.readings.iter().map(sample).collect()
    }
}

/// Instants each `every` in a span, from `offset` on.
pub(super) fn instants(span: Span, offset: DurationNs, every: DurationNs) -> impl Iterator<Item = MonoNs> {
    let every = DurationNs(every.0.max(1));
    std::iter::successors(Some(span.start + offset), move |&at| Some(at + every)).take_while(move |&at| at <= span.end)
}

/// A stamp in the unit of Prometheus.
pub(super) fn millis(at: MonoNs) -> i64 {
    i64::try_from(at.0 / 1_000_000).unwrap_or(i64::MAX)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a random part"
)]
fn part(whole: u64, share: f64) -> u64 {
    (whole as f64 * share.max(0.0)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::timeline::interval::Spans;

    fn history(seconds: u64, busy: bool) -> History {
        let start = MonoNs(77_123_456_789);
        let span = Span::new(start, start + DurationNs(seconds * 1_000_000_000));
        let active = Spans::union(busy.then_some(span));
        History {
            span,
            levels: vec![],
            used_ns: Counter::of_spans(&active),
            held: Spans::default(),
            active,
            jobs: vec![],
            whole: true,
        }
    }

    fn poller(stamps: Stamps, scrape_s: u64, seed: u64) -> Poller {
        Poller {
            housekeeping: Some(Housekeeping { stamps, ..Housekeeping::KUBELET }),
            scrape_ns: DurationNs(scrape_s * 1_000_000_000),
            offset_ns: DurationNs(3_000_000_000),
            seed,
        }
    }

    #[test]
    fn an_idle_group_is_read_less_often() {
        let reads = |busy| poller(Stamps::Reading, 1, 7).poll(&history(3_600, busy)).readings().len();
        // 10 to 20 s while busy, 15 to 30 s while idle: 240 and 160 in an hour on average.
        assert!((200..300).contains(&reads(true)), "{}", reads(true));
        assert!((130..200).contains(&reads(false)), "{}", reads(false));
    }

    proptest! {
        #[test]
        fn readings_are_one_to_two_intervals_apart_and_never_of_the_future(
            seed in any::<u64>(), scrape_s in 1_u64..60, exposed in any::<bool>(),
        ) {
            let (history, stamps) = (history(1_800, true), if exposed { Stamps::Reading } else { Stamps::Scrape });
            let poller = poller(stamps, scrape_s, seed);
            let reads = poller.reads(&Housekeeping { stamps, ..Housekeeping::KUBELET }, &history);
            for pair in reads.windows(2) {
                let apart = pair[1].since(pair[0]).0;
                prop_assert!((10_000_000_000..20_000_000_000).contains(&apart), "{}", apart);
            }
            let polled = poller.poll(&history);
            for reading in polled.readings() {
                prop_assert!(reading.read <= reading.scraped);
                prop_assert!(reads.contains(&reading.read));
                let newer = reads.iter().any(|&read| read > reading.read && read <= reading.scraped);
                prop_assert!(!newer, "the last reading is what is scraped");
            }
            prop_assert!(polled.readings().windows(2).all(|pair| pair[0].at_ms < pair[1].at_ms));
            // Stamped by the scrape there is a sample each scrape, a reading several times if need be.
            let scrapes = (1_800 - 3) / scrape_s + 1;
            let unread = scrapes.min(7_u64.div_ceil(scrape_s));
            if exposed {
                prop_assert!(polled.readings().windows(2).all(|pair| pair[0].read < pair[1].read));
            } else {
                prop_assert!(polled.readings().len() as u64 + unread >= scrapes);
            }
            prop_assert_eq!(&polled, &poller.poll(&history), "the same seed, the same readings");
        }

        #[test]
        fn an_exporter_that_reads_when_asked_is_as_fresh_as_the_scrape(scrape_s in 1_u64..90, offset_s in 0_u64..90) {
            let history = history(900, true);
            let poller = Poller {
                housekeeping: None, scrape_ns: DurationNs(scrape_s * 1_000_000_000), offset_ns: DurationNs(offset_s * 1_000_000_000), seed: 0,
            };
            let polled = poller.poll(&history);
            prop_assert_eq!(polled.readings().len() as u64, (900 - offset_s) / scrape_s + 1);
            for (reading, sample) in polled.readings().iter().zip(polled.samples(&history.used_ns, 1e9)) {
                let truth = reading.scraped.since(history.span.start).as_millis_f64() / 1e3;
                prop_assert!((sample.value.expect("a value") - truth).abs() < 1e-6);
            }
        }
    }
}
