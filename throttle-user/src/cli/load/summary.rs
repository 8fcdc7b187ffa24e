//! What a load run came to, as a table and as JSON.
//!
//! Owns the wording and the JSON shape (schema 1). No percentile is shown that the number of answers does not
//! support: the maximum stands in its place, marked.

use std::fmt;

use serde::Serialize;

use crate::client::{LatencyRecord, Lengths, LoadPlan, LoadReport, Pace, Quantile, Target};
use crate::time::DurationNs;

/// Percentiles shown, in thousandths, with their names.
const QUANTILES: [(u32, &str); 3] = [(500, "p50"), (900, "p90"), (990, "p99")];
const CLOSED_LOOP: &str = "closed loop: latency excludes the wait a fixed schedule would have seen";

/// The JSON summary. Lengths are nanoseconds; a percentile that the answers do not support is null.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    schema: u32,
    target: String,
    #[serde(rename = "loop")]
    kind: &'static str,
    /// What a reader of `latency` must know of a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    requests: u64,
    answered: u64,
    failed: u64,
    /// First send, or due time, to last answer; null for an interrupted run.
    elapsed_ns: Option<DurationNs>,
    wall: Row,
    service: Row,
    latency: Row,
    /// Due to sent; left out of a closed loop, where nothing is due before it is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Row>,
}

/// One kind of length.
#[derive(Debug, Serialize)]
struct Row {
    p50_ns: Option<DurationNs>,
    p90_ns: Option<DurationNs>,
    p99_ns: Option<DurationNs>,
    max_ns: Option<DurationNs>,
}

impl Summary {
    /// Sums a run up; without a report it was interrupted.
    pub(super) fn new(target: &Target, plan: &LoadPlan, record: &LatencyRecord, report: Option<&LoadReport>) -> Self {
        let (kind, note, late) = match plan.pace {
            Pace::Closed { .. } => ("closed", Some(CLOSED_LOOP), None),
            Pace::Open { .. } => ("open", None, Some(Row::new(&record.late))),
        };
        let answered = record.wall.count();
        Self {
            schema: 1,
            target: target.to_string(),
            kind,
            note,
            requests: answered + record.failed,
            answered,
            failed: record.failed,
            elapsed_ns: report.map(|report| report.finished_ns.since(report.started_ns)),
            wall: Row::new(&record.wall),
            service: Row::new(&record.service),
            latency: Row::new(&record.latency),
            late,
        }
    }
}

impl Row {
    fn new(lengths: &Lengths) -> Self {
        let [p50_ns, p90_ns, p99_ns] = QUANTILES.map(|(permille, _)| match lengths.quantile(permille) {
            Quantile::Value(value) => Some(value),
            Quantile::TooFew { .. } => None,
        });
        Self { p50_ns, p90_ns, p99_ns, max_ns: lengths.max() }
    }

    /// Percentiles and maximum in ms, the maximum marked where it stands for a percentile.
    fn cells(&self) -> [String; 4] {
        let max = self.max_ns.map_or_else(|| "-".to_owned(), millis);
        let marked = || if self.max_ns.is_some() { format!("{max}*") } else { max.clone() };
        let [p50, p90, p99] =
            [self.p50_ns, self.p90_ns, self.p99_ns].map(|value| value.map_or_else(marked, |ns| millis(ns) + " "));
        [p50, p90, p99, max]
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} loop: {} answered, {} failed", self.target, self.kind, self.answered, self.failed)?;
        match self.elapsed_ns {
            Some(elapsed) => writeln!(f, ", in {:.1} s", elapsed.as_millis_f64() / 1e3)?,
            None => writeln!(f, ", interrupted")?,
        }
        let [p50, p90, p99] = QUANTILES.map(|(_, name)| format!("{name} "));
        writeln!(f, "{:8}{p50:>12}{p90:>12}{p99:>12}{:>11}", "ms", "max")?;
        let mut rows = vec![
            ("wall", &self.wall, "the server's work, first start to last finish"),
            ("service", &self.service, "sent to received"),
            ("latency", &self.latency, "due to received"),
        ];
        if let Some(late) = &self.late {
            rows.push(("late", late, "due to sent: the client's own delay"));
        }
        for (name, row, meaning) in rows {
            let [p50, p90, p99, max] = row.cells();
            writeln!(f, "{name:8}{p50:>12}{p90:>12}{p99:>12}{max:>11}   {meaning}")?;
        }
        if self.answered > 0 && self.wall.p99_ns.is_none() {
            writeln!(f, "* {} answers are too few for this percentile: the maximum stands for it", self.answered)?;
        }
        self.note.map_or(Ok(()), |note| writeln!(f, "{note}"))
    }
}

fn millis(length: DurationNs) -> String {
    format!("{:.3}", length.as_millis_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Spacing;
    use crate::request::{Outcome, RequestSpan, ServerSpan};
    use crate::time::MonoNs;

    /// `answers` requests sent 1 ms late with walls of 1 ms, 2 ms, … and one more that failed.
    fn record(answers: u64) -> LatencyRecord {
        let mut record = LatencyRecord::default();
        for request in 0..answers {
            let finished_ns = MonoNs((request + 1) * 1_000_000);
            let server = ServerSpan {
                accepted_ns: MonoNs(0),
                started_ns: MonoNs(0),
                finished_ns,
                work_ns: DurationNs(1),
                workers: Vec::new(),
            };
            record.record(&span(Outcome::Ok { server }));
        }
        record.record(&span(Outcome::Failed { error: "gone".to_owned() }));
        record
    }

    fn span(outcome: Outcome) -> RequestSpan {
        let at = |ms: u64| MonoNs(ms * 1_000_000);
        RequestSpan { request: 0, stream: 0, due_ns: at(0), sent_ns: at(1), received_ns: at(5), outcome }
    }

    fn summary(plan: &LoadPlan, answers: u64) -> Summary {
        let target = Target::parse("http://127.0.0.1:9").expect("a target");
        let report = LoadReport { started_ns: MonoNs(0), finished_ns: MonoNs(2_500_000_000), requests: 0, failed: 0 };
        Summary::new(&target, plan, &record(answers), Some(&report))
    }

    #[test]
    fn a_closed_loop_says_what_its_latency_leaves_out() {
        let text = summary(&LoadPlan::default(), 200).to_string();
        assert!(text.starts_with("http://127.0.0.1:9/burn closed loop: 200 answered, 1 failed, in 2.5 s\n"), "{text}");
        assert!(text.ends_with("latency excludes the wait a fixed schedule would have seen\n"), "{text}");
        assert!(!text.contains('*') && !text.contains("late "), "{text}");
    }

    #[test]
    fn an_open_loop_shows_how_late_it_sent() {
        let spacing = Spacing::every(DurationNs::from_millis(5)).expect("an interval");
        let text = summary(&LoadPlan { pace: Pace::Open { spacing }, ..LoadPlan::default() }, 200).to_string();
        let late = text.lines().find(|line| line.starts_with("late ")).expect("a line for lateness");
        assert_eq!(late.split_whitespace().nth(4), Some("1.000"), "{text}");
        assert!(!text.contains("excludes"), "{text}");
    }

    #[test]
    fn with_few_answers_the_maximum_stands_marked_for_the_percentile() {
        let text = summary(&LoadPlan::default(), 40).to_string();
        let wall: Vec<&str> =
            text.lines().find(|line| line.starts_with("wall")).expect("a line").split_whitespace().collect();
        assert_eq!(wall[3..5], ["40.000*", "40.000"], "{text}");
        assert!(text.contains("* 40 answers are too few"), "{text}");
    }

    #[test]
    fn json_has_null_where_there_is_no_percentile() {
        let json = serde_json::to_value(summary(&LoadPlan::default(), 40)).expect("json");
        assert_eq!(json["schema"], 1);
        assert_eq!(json["wall"]["p99_ns"], serde_json::Value::Null);
        assert_eq!(json["wall"]["max_ns"], 40_000_000);
        assert_eq!((json["answered"].as_u64(), json["failed"].as_u64()), (Some(40), Some(1)));
    }

    #[test]
    fn nothing_answered_shows_dashes_and_no_zero() {
        let text = summary(&LoadPlan::default(), 0).to_string();
        let wall = text.lines().find(|line| line.starts_with("wall")).expect("a line");
        assert_eq!(wall.split_whitespace().collect::<Vec<_>>()[1..5], ["-", "-", "-", "-"], "{text}");
    }
}
