//! How far what a poller shows is from what happened.

use serde::{Deserialize, Serialize};

use crate::model::history::{History, Job};
use crate::model::poller::{Poller, instants, millis};
use crate::model::prometheus::{Edition, LOOKBACK, increase, instant, rate};
use crate::stats::Summary;
use crate::time::{DurationNs, MonoNs};
use crate::timeline::interval::Span;

/// What Prometheus would have shown of a history beside what is true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sight {
    /// Samples it had of each counter.
    pub samples: u64,
    /// CPUs used on average.
    pub mean_cores: f64,
    /// That as Prometheus has it, from the first to the last sample; `None` = fewer than two.
    pub mean_cores_shown: Option<f64>,
    /// Most CPUs used over any stretch of [`PEAK_OVER`].
    pub peak_cores: f64,
    /// Largest `rate(usage[window])` at any evaluation; `None` = there never was one.
    pub peak_cores_shown: Option<f64>,
    /// Largest distance of `increase(throttled_periods[window])` from the periods throttled in that window, over all evaluations.
    pub worst_increase_error: Option<f64>,
    /// Jobs that a limit held.
    pub held: u64,
    /// Of these, such as the container's counter counted a throttled period for.
    pub counted: u64,
    /// Of these, such as Prometheus showed within the history.
    pub shown: u64,
    /// From the period that was counted to the evaluation that showed it.
    pub delay: Option<Summary<DurationNs>>,
}

/// Peaks are of a CFS period: no shorter one can exceed a limit.
pub const PEAK_OVER: DurationNs = DurationNs::from_millis(100);
/// A throttle that is over is counted by the timer run that ended it, or by one this much later.
const COUNTED_WITHIN: DurationNs = DurationNs::from_millis(1);

/// How a dashboard asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// Window of `rate` and `increase`. Grafana takes four scrape intervals.
    pub window_ns: DurationNs,
    /// From one evaluation to the next.
    pub every_ns: DurationNs,
    /// Whose arithmetic.
    pub edition: Edition,
}

/// Looks at a history through a poller; the counters are those of `level`, 0 the container.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures for display; counts and ns stay far below 2^53")]
pub fn sight(history: &History, level: usize, poller: &Poller, query: &Query) -> Sight {
    let polled = poller.poll(history);
    let usage = polled.samples(&history.used_ns, 1e9);
    let throttled = history.levels.get(level).map(|level| &level.throttled);
    let shown_throttled = throttled.map(|counter| polled.samples(counter, 1.0)).unwrap_or_default();
    let Query { window_ns, every_ns, edition } = *query;
    // What a dashboard shows as it happens: of what was scraped by then.
    let known = |at: MonoNs| polled.known(at).min(shown_throttled.len());
    let evaluations: Vec<MonoNs> = instants(history.span, every_ns, every_ns).collect();
    let errors = evaluations.iter().filter_map(|&at| {
        let window = Span::new(MonoNs(at.0.saturating_sub(window_ns.0)).max(history.span.start), at);
        Some(
            (increase(&shown_throttled[..known(at)], millis(at), window_ns, edition)?
                - throttled?.growth(window) as f64)
                .abs(),
        )
    });
    let held: Vec<&Job> = history.jobs.iter().filter(|job| job.lost() > DurationNs::ZERO).collect();
    let counted: Vec<MonoNs> = held
        .iter()
        .filter_map(|job| {
            job.held.iter().find_map(|span| throttled?.first_growth(Span::new(span.start, span.end + COUNTED_WITHIN)))
        })
        .collect();
    let delays: Vec<DurationNs> = counted
        .iter()
        .filter_map(|&at| {
            let stands = throttled?.at(at) as f64;
            let first = evaluations.partition_point(|&evaluation| evaluation < at);
            let shows = |when: MonoNs| {
                instant(&shown_throttled[..known(when)], millis(when), LOOKBACK, edition)
                    .is_some_and(|value| value >= stands)
            };
            Some(evaluations[first..].iter().find(|&&when| shows(when))?.since(at))
        })
        .collect();
    let (first, last) = (usage.first(), usage.last());
    let mean_shown = first.zip(last).and_then(|(first, last)| {
        let seconds = (last.at_ms - first.at_ms) as f64 / 1e3;
        (seconds > 0.0).then_some((last.value? - first.value?) / seconds)
    });
    Sight {
        samples: polled.readings().len() as u64,
        mean_cores: history.used_ns.growth(history.span) as f64 / (history.span.length().0.max(1) as f64),
        mean_cores_shown: mean_shown,
        peak_cores: history.used_ns.largest_growth(PEAK_OVER) as f64 / PEAK_OVER.0 as f64,
        peak_cores_shown: evaluations
            .iter()
            .filter_map(|&at| rate(&usage[..polled.known(at)], millis(at), window_ns, edition))
            .max_by(f64::total_cmp),
        worst_increase_error: errors.max_by(f64::total_cmp),
        held: held.len() as u64,
        counted: counted.len() as u64,
        shown: delays.len() as u64,
        delay: Summary::of(&delays),
    }
}
