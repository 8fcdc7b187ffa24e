//! What a run of spikes came to, as text and as JSON (schema 1).

use std::fmt;

use serde::Serialize;

use crate::request::SpikeSpan;
use crate::stats;
use crate::time::{ClockAnchor, DurationNs, MonoNs};
use crate::workload::SpikePlan;

/// A spike is called short if each of its threads, late starts aside, used this much less CPU time than it would have: more than
/// interrupts and clock readings take.
const SHORT_BY: DurationNs = DurationNs::from_millis(1);

/// Where the boundary of the group's period lies in each spike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "known")]
pub(super) enum Boundary {
    /// From the group's counters.
    Learnt {
        /// From a spike's due time to the next boundary.
        after_ns: DurationNs,
        /// A boundary, `CLOCK_MONOTONIC`.
        point_ns: MonoNs,
        /// How far apart the readings were that held it.
        within_ns: DurationNs,
    },
    /// By the user's word.
    Given {
        /// From a spike's due time to the next boundary.
        after_ns: DurationNs,
        /// A boundary, `CLOCK_MONOTONIC`.
        point_ns: MonoNs,
    },
    /// Not.
    Unknown {
        /// Why.
        because: String,
    },
}

/// The JSON summary.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    schema: u32,
    length_ns: DurationNs,
    per_second: u32,
    threads: u32,
    /// When slot 0 began.
    origin_ns: MonoNs,
    /// The same by the wall clock as it was before the first spike.
    origin_realtime_ns: u64,
    /// By how much the wall clock moved against the monotonic one since, within the readings' error: slots that began at its whole
    /// seconds have moved by that.
    clock_moved_ns: i64,
    planned: u64,
    spikes: u64,
    expected_ns: DurationNs,
    consumed_ns: DurationNs,
    /// Due time to the start of the latest thread; null without spikes.
    late: Option<stats::Summary<DurationNs>>,
    /// Spikes whose threads used 1 ms less than expected or more, late starts aside.
    short: u64,
    /// Spikes whose end was noticed 1 ms late or more.
    overran: u64,
    boundary: Boundary,
}

impl Summary {
    pub(super) fn new(
        plan: &SpikePlan,
        origin: MonoNs,
        clock: &ClockAnchor,
        clock_after: &ClockAnchor,
        boundary: Boundary,
        spans: &[SpikeSpan],
    ) -> Self {
        let ahead = |anchor: &ClockAnchor| i128::from(anchor.realtime_ns) - i128::from(anchor.monotonic_ns);
        let moved = ahead(clock_after) - ahead(clock);
        let error = i128::from(clock.error_ns) + i128::from(clock_after.error_ns);
        let late: Vec<DurationNs> = spans.iter().map(SpikeSpan::late).collect();
        Self {
            schema: 1,
            length_ns: plan.length,
            per_second: plan.per_second,
            threads: plan.threads,
            origin_ns: origin,
            origin_realtime_ns: clock.realtime_ns(origin),
            clock_moved_ns: if moved.abs() <= error { 0 } else { i64::try_from(moved).unwrap_or(i64::MAX) },
            planned: plan.spikes(),
            spikes: spans.len() as u64,
            expected_ns: spans.iter().map(SpikeSpan::expected).sum(),
            consumed_ns: spans.iter().map(SpikeSpan::consumed).sum(),
            late: stats::Summary::of(&late),
            short: spans.iter().filter(|span| is_short(span)).count() as u64,
            overran: spans.iter().filter(|span| span.overrun() >= SHORT_BY).count() as u64,
            boundary,
        }
    }
}

fn is_short(span: &SpikeSpan) -> bool {
    let could = span.expected().saturating_sub(span.lost_to_late_starts());
    let threads = span.workers.len() as u64;
    could.saturating_sub(span.consumed()).0 >= SHORT_BY.0.saturating_mul(threads)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |length: DurationNs| length.as_millis_f64();
        write!(f, "{} spikes of {} ms, {} a second", self.spikes, ms(self.length_ns), self.per_second)?;
        if self.threads > 1 {
            write!(f, ", on {} threads", self.threads)?;
        }
        if self.spikes < self.planned {
            write!(f, ", of {} planned", self.planned)?;
        }
        writeln!(f)?;
        let (expected, consumed) = (ms(self.expected_ns), ms(self.consumed_ns));
        write!(f, "CPU time      expected {expected:.1} ms, used {consumed:.1} ms")?;
        if expected > 0.0 {
            write!(f, " ({:.1} %)", 100.0 * consumed / expected)?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "short         {} spikes got at least 1 ms less for each thread than their time allowed",
            self.short
        )?;
        writeln!(f, "overran       {} spikes noticed their end at least 1 ms late", self.overran)?;
        match &self.late {
            None => writeln!(f, "late starts   -")?,
            Some(late) => writeln!(f, "late starts   p50 {:.3} ms, max {:.3} ms", ms(late.p50), ms(late.max))?,
        }
        if self.clock_moved_ns != 0 {
            writeln!(f, "wall clock    moved by {:.3} ms meanwhile", moved_ms(self.clock_moved_ns))?;
        }
        match &self.boundary {
            Boundary::Learnt { after_ns, within_ns, .. } => writeln!(
                f,
                "boundary      {:.3} ms after each spike's due time, learnt from cpu.stat within {:.3} ms",
                ms(*after_ns),
                ms(*within_ns)
            ),
            Boundary::Given { after_ns, .. } => {
                writeln!(f, "boundary      {:.3} ms after each spike's due time, as given", ms(*after_ns))
            }
            Boundary::Unknown { because } => writeln!(f, "boundary      not known: {because}"),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
fn moved_ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::WorkerSpan;

    fn span(spike: u64, late_us: u64, cpu_us: u64) -> SpikeSpan {
        let due_ns = MonoNs(1_000_000_000 * spike);
        let started_ns = due_ns + DurationNs::from_micros(late_us);
        let until_ns = due_ns + DurationNs::from_millis(50);
        let cpu_time_ns = DurationNs::from_micros(cpu_us);
        SpikeSpan {
            spike,
            due_ns,
            until_ns,
            workers: vec![WorkerSpan { tid: 7, started_ns, finished_ns: until_ns, cpu_time_ns }],
        }
    }

    #[test]
    fn a_spike_is_short_if_its_time_does_not_explain_what_it_used() {
        let plan = SpikePlan {
            length: DurationNs::from_millis(50),
            per_second: 1,
            duration: DurationNs::from_millis(4_000),
            threads: 1,
        };
        // Whole, late, cut.
        let spans = [span(0, 20, 49_900), span(1, 9_000, 40_900), span(2, 20, 26_000)];
        let clock = ClockAnchor::take();
        let boundary = Boundary::Unknown { because: "no limit".to_owned() };
        let summary = Summary::new(&plan, MonoNs(0), &clock, &clock, boundary, &spans);
        assert_eq!((summary.short, summary.spikes, summary.planned, summary.overran), (1, 3, 4, 0));
        assert_eq!(summary.expected_ns, DurationNs::from_millis(150));
        assert_eq!(summary.consumed_ns, DurationNs::from_micros(116_800));
        let text = summary.to_string();
        assert!(text.contains("3 spikes of 50 ms, 1 a second, of 4 planned"), "{text}");
        assert!(text.contains("expected 150.0 ms, used 116.8 ms (77.9 %)"), "{text}");
        assert!(text.contains("not known: no limit"), "{text}");
        let json = serde_json::to_value(&summary).expect("JSON");
        assert_eq!(json["boundary"]["known"], "unknown", "{json}");
        assert_eq!(json["late"]["max"], 9_000_000, "{json}");
    }
}
