//! Alarms replayed over a history: when they would have fired, and what happened to requests meanwhile.
//!
//! Owns conditions and the `for` clause, which follows `AlertingRule.Eval` in rules/alerting.go of Prometheus: an alert is active
//! from the first evaluation at which its condition holds, fires once it has been so for the hold time, and is forgotten at the
//! first evaluation at which it does not, or at which there is no value.

use serde::{Deserialize, Serialize};

use crate::model::counter::Counter;
use crate::model::history::History;
use crate::model::poller::{Polled, Poller, instants, millis};
use crate::model::prometheus::{self, Edition, Sample};
use crate::time::{DurationNs, MonoNs};
use crate::timeline::interval::{Span, Spans};

/// What makes an alarm active.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "condition")]
pub enum Condition {
    /// Throttled periods over counted periods of the container, above a threshold in each of several windows one after the other:
    /// `increase(throttled_periods[w]) / increase(periods[w]) > threshold`. Periods in which the group was idle are not counted.
    Periods {
        /// Length of a window.
        window_ns: DurationNs,
        /// How many, each ending where the next begins; the last ends at the evaluation.
        windows: u32,
        /// Share of periods.
        threshold: f64,
    },
    /// Time lost: that in which some thread was held, over that in which some thread was active, above `share`, and over all time,
    /// above `amount`. The first says how slow work became, the second how much of it there was.
    TimeLost {
        /// Length of the window.
        window_ns: DurationNs,
        /// Of the active time.
        share: f64,
        /// Of all time.
        amount: f64,
    },
}

/// An alarm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// What must hold.
    #[serde(flatten)]
    pub condition: Condition,
    /// For how long (`for`).
    pub hold_ns: DurationNs,
    /// From one evaluation to the next.
    pub every_ns: DurationNs,
}

const MINUTE: DurationNs = DurationNs::from_millis(60_000);
/// kube-prometheus evaluates its rules twice a minute.
const EVERY: DurationNs = DurationNs::from_millis(30_000);

impl Rule {
    /// `CPUThrottlingHigh` of kubernetes-mixin (alerts/resource_alerts.libsonnet): a quarter of the periods over 5 minutes, for 15.
    #[must_use]
    pub fn cpu_throttling_high() -> Self {
        Self::periods("CPUThrottlingHigh", DurationNs(5 * MINUTE.0), 1, 0.25, DurationNs(15 * MINUTE.0))
    }

    /// Its older form: a quarter of the periods in each of three windows of 5 minutes.
    #[must_use]
    pub fn three_windows() -> Self {
        Self::periods("three windows", DurationNs(5 * MINUTE.0), 3, 0.25, DurationNs::ZERO)
    }

    /// An alarm on time lost: over 5 minutes more than a quarter of the active time and a hundredth of all time, for 2 minutes.
    #[must_use]
    pub fn time_lost() -> Self {
        Self {
            name: "time lost".to_owned(),
            condition: Condition::TimeLost { window_ns: DurationNs(5 * MINUTE.0), share: 0.25, amount: 0.01 },
            hold_ns: DurationNs(2 * MINUTE.0),
            every_ns: EVERY,
        }
    }

    /// Every combination of windows, thresholds and hold times of an alarm on periods.
    #[must_use]
    pub fn grid(windows: &[DurationNs], thresholds: &[f64], holds: &[DurationNs]) -> Vec<Self> {
        let mut rules = Vec::new();
        for &window in windows {
            for &threshold in thresholds {
                for &hold in holds {
                    rules.push(Self::periods("periods", window, 1, threshold, hold));
                }
            }
        }
        rules
    }

    fn periods(name: &str, window_ns: DurationNs, windows: u32, threshold: f64, hold_ns: DurationNs) -> Self {
        let condition = Condition::Periods { window_ns, windows, threshold };
        Self { name: name.to_owned(), condition, hold_ns, every_ns: EVERY }
    }
}

/// Through what an alarm sees the history.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "eye")]
pub enum Eye {
    /// Every counter at every instant.
    Exact,
    /// Through samples.
    Prometheus {
        /// Who brings the kernel's counters.
        agent: Poller,
        /// Who brings time lost and active time.
        exporter: Poller,
        /// Whose arithmetic.
        edition: Edition,
    },
}

/// What an alarm would have done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// The alarm.
    pub rule: Rule,
    /// How often it was evaluated.
    pub evaluations: u64,
    /// Of these, how often its condition held.
    pub active: u64,
    /// Largest share of periods, or of active time, at any evaluation; `None` = there never was one.
    pub highest: Option<f64>,
    /// From the evaluation at which it fired to the one that ended it, or to the history's end.
    pub firings: Vec<Span>,
    /// Jobs that were harmed.
    pub harmed: u64,
    /// Of these, how many ended while it fired.
    pub harmed_while_firing: u64,
    /// Jobs not harmed that ended while it fired.
    pub unharmed_while_firing: u64,
    /// Time in which some thread was held.
    pub lost_ns: DurationNs,
    /// Of that, while it fired.
    pub lost_while_firing_ns: DurationNs,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// When.
    pub at_ns: MonoNs,
    /// Share of periods (of several windows the least), or of active time; `None` = no value, or none of anything (0 / 0).
    pub value: Option<f64>,
    /// Whether the condition held.
    pub active: bool,
    /// Whether it fired.
    pub firing: bool,
}

/// Evaluates an alarm over a history; `level` is the one whose periods are counted, 0 the container.
#[must_use]
pub fn evaluate(history: &History, level: usize, rule: &Rule, eye: &Eye) -> Vec<Evaluation> {
    let series = Series::new(history, level, eye);
    let mut since: Option<MonoNs> = None;
    instants(history.span, rule.every_ns, rule.every_ns)
        .map(|at| {
            let (value, active) = series.holds(&rule.condition, at);
            since = if active { since.or(Some(at)) } else { None };
            let firing = since.is_some_and(|since| at.since(since) >= rule.hold_ns);
            Evaluation { at_ns: at, value, active, firing }
        })
        .collect()
}

/// Replays an alarm over a history; `level` as in [`evaluate`].
#[must_use]
pub fn replay(history: &History, level: usize, rule: &Rule, eye: &Eye) -> Replay {
    let evaluations = evaluate(history, level, rule, eye);
    let firing =
        evaluations.iter().enumerate().filter(|(_, evaluation)| evaluation.firing).map(|(index, evaluation)| {
            Span::new(evaluation.at_ns, evaluations.get(index + 1).map_or(history.span.end, |next| next.at_ns))
        });
    let firings = Spans::union(firing);
    let during = |at: MonoNs| firings.iter().any(|span| span.start <= at && at <= span.end);
    let (mut harmed, mut harmed_while_firing, mut unharmed_while_firing) = (0, 0, 0);
    for job in &history.jobs {
        let (hurt, during) = (job.harmed(), during(job.span.end));
        harmed += u64::from(hurt);
        harmed_while_firing += u64::from(hurt && during);
        unharmed_while_firing += u64::from(!hurt && during);
    }
    Replay {
        rule: rule.clone(),
        evaluations: evaluations.len() as u64,
        active: evaluations.iter().filter(|evaluation| evaluation.active).count() as u64,
        highest: evaluations.iter().filter_map(|evaluation| evaluation.value).max_by(f64::total_cmp),
        harmed,
        harmed_while_firing,
        unharmed_while_firing,
        lost_ns: history.held.total_within(history.span),
        lost_while_firing_ns: firings.iter().map(|span| history.held.total_within(span)).sum(),
        firings: firings.iter().collect(),
    }
}

/// The four counters that conditions are made of.
struct Series {
    periods: Seen,
    throttled: Seen,
    held: Seen,
    active: Seen,
}

/// A counter as the alarm has it.
enum Seen {
    Exact { counter: Counter, unit: f64, known: Span },
    Sampled { samples: Vec<Sample>, polled: Polled, edition: Edition },
}

/// Times are in seconds, as Prometheus has them.
const SECOND_NS: f64 = 1e9;

impl Series {
    fn new(history: &History, level: usize, eye: &Eye) -> Self {
        let none = || Counter::steps([]);
        let (periods, throttled) = history
            .levels
            .get(level)
            .map_or_else(|| (none(), none()), |level| (level.periods.clone(), level.throttled.clone()));
        let (held, active) = (Counter::of_spans(&history.held), Counter::of_spans(&history.active));
        match eye {
            Eye::Exact => {
                let exact = |counter, unit| Seen::Exact { counter, unit, known: history.span };
                Self {
                    periods: exact(periods, 1.0),
                    throttled: exact(throttled, 1.0),
                    held: exact(held, SECOND_NS),
                    active: exact(active, SECOND_NS),
                }
            }
            Eye::Prometheus { agent, exporter, edition } => {
                let (agent, exporter) = (agent.poll(history), exporter.poll(history));
                let sampled = |polled: &Polled, counter: &Counter, unit| Seen::Sampled {
                    samples: polled.samples(counter, unit),
                    polled: polled.clone(),
                    edition: *edition,
                };
                Self {
                    periods: sampled(&agent, &periods, 1.0),
                    throttled: sampled(&agent, &throttled, 1.0),
                    held: sampled(&exporter, &held, SECOND_NS),
                    active: sampled(&exporter, &active, SECOND_NS),
                }
            }
        }
    }

    /// The value of a condition at an instant, and whether it holds.
    fn holds(&self, condition: &Condition, at: MonoNs) -> (Option<f64>, bool) {
        match *condition {
            Condition::Periods { window_ns, windows, threshold } => {
                let back = |count: u32| MonoNs(at.0.saturating_sub(window_ns.0.saturating_mul(u64::from(count))));
                let shares = (0..windows).map(|count| {
                    let end = back(count);
                    share(self.throttled.increase(at, end, window_ns)?, self.periods.increase(at, end, window_ns)?)
                });
                let least = shares.collect::<Option<Vec<f64>>>().and_then(|all| all.into_iter().min_by(f64::total_cmp));
                (least, least.is_some_and(|least| least > threshold))
            }
            Condition::TimeLost { window_ns, share: least_share, amount } => {
                let (held, active) = (self.held.increase(at, at, window_ns), self.active.increase(at, at, window_ns));
                let lost = held.zip(active).and_then(|(held, active)| share(held, active));
                let of_all = held.map(|held| held / (window_ns.as_millis_f64() / 1e3));
                let holds = lost.is_some_and(|lost| lost > least_share) && of_all.is_some_and(|all| all > amount);
                (lost, holds)
            }
        }
    }
}

impl Seen {
    /// Growth over the window that ends at an instant, as known at `now`: counts, or seconds.
    #[expect(clippy::cast_precision_loss, reason = "shares; counts and ns stay far below 2^53")]
    fn increase(&self, now: MonoNs, at: MonoNs, window: DurationNs) -> Option<f64> {
        match self {
            Self::Exact { counter, unit, known } => {
                let window = Span::new(MonoNs(at.0.saturating_sub(window.0)).max(known.start), at);
                (!window.is_empty()).then(|| counter.growth(window) as f64 / unit)
            }
            // A window that ended before knows what came since.
            Self::Sampled { samples, polled, edition } => {
                prometheus::increase(&samples[..polled.known(now)], millis(at), window, *edition)
            }
        }
    }
}

/// `None` for 0 / 0, which is no number, and above no threshold.
fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}
