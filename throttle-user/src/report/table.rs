//! The sweep's table: the same cells for the terminal, in two parts that fit 80 columns, and for Markdown in one.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};

use crate::{
    run::{
        agree::Agreement,
        summary::{LimitSummary, RunSummary},
    },
    stats::QuantileInterval,
    time::DurationNs,
};

/// A column: its head in Markdown, its short head on a terminal, its cell.
struct Column {
    head: &'static str,
    short: &'static str,
    cell: fn(&LimitSummary) -> String,
}

const LIMIT: Column = Column { head: "limit", short: "limit", cell: |row| row.limit.to_string() };

/// What a request saw and the pod used.
const LATENCY: [Column; 9] = [
    Column {
        head: "n",
        short: "n",
        cell: |row| if row.failed == 0 { row.n.to_string() } else { format!("{} ({} failed)", row.n, row.failed) },
    },
    Column { head: "p50 ms", short: "p50\nms", cell: |row| ms(row.p50_ns) },
    Column { head: "p99 ms", short: "p99\nms", cell: |row| ms(row.p99_ns) },
    Column { head: "max ms", short: "max\nms", cell: |row| ms(row.max_ns) },
    Column {
        head: "tail / work",
        short: "tail /\nwork",
        cell: |row| row.tail_over_work.map_or_else(dash, |ratio| format!("{ratio:.2}")),
    },
    Column {
        head: "model p50 ms (inside)",
        short: "model p50\n(inside)",
        cell: |row| {
            row.model
                .as_ref()
                .map_or_else(dash, |model| format!("{:.1} ({}/{})", model.p50_ns.as_millis_f64(), model.inside, row.n))
        },
    },
    Column {
        head: "pod CPU, cores",
        short: "CPU\ncores",
        cell: |row| row.pod_cpus.map_or_else(dash, |cpus| format!("{cpus:.3}")),
    },
    Column {
        head: "CPU / limit",
        short: "CPU /\nlimit",
        cell: |row| row.pod_cpus_over_limit.map_or_else(dash, |ratio| format!("{ratio:.2}")),
    },
    Column { head: "run-queue wait ms", short: "run-q\nms", cell: |row| ms(row.runqueue_ns) },
];

/// Where it went, and whether the kernel's counters agree.
const THROTTLING: [Column; 7] = [
    Column { head: "throttled ms per request", short: "throttled\nms/req", cell: |row| ms(row.throttled_wall_ns) },
    Column { head: "of it own level", short: "own\nlevel", cell: |row| ms(row.throttled_own_ns) },
    Column { head: "of it ancestor only", short: "ancestor\nonly", cell: |row| ms(row.throttled_ancestor_ns) },
    Column {
        head: "kernel's container-only ms",
        short: "kernel's\ncontainer",
        cell: |row| row.kernel_container_only_ns.map_or_else(|| "not read".to_owned(), |length| ms(Some(length))),
    },
    Column {
        head: "throttled / counted periods",
        short: "throttled /\nperiods",
        cell: |row| {
            row.throttled_periods.zip(row.counted_periods).map_or_else(dash, |(throttled, counted)| {
                let percent = (throttled * 100).checked_div(counted);
                let percent = percent.map_or_else(String::new, |percent| format!(" {percent}%"));
                format!("{throttled}/{counted}{percent}")
            })
        },
    },
    Column {
        head: "node idle while throttled",
        short: "node\nidle",
        cell: |row| row.node_idle_share.map_or_else(dash, |share| format!("{:.0}%", share * 100.0)),
    },
    Column {
        head: "kernel agrees",
        short: "kernel",
        cell: |row| match &row.agreement {
            Agreement::Agrees => "agrees".to_owned(),
            Agreement::Differs { .. } => "differs".to_owned(),
            Agreement::NotCompared { .. } => "not compared".to_owned(),
        },
    },
];

/// The table for a terminal.
#[must_use]
pub fn text(summary: &RunSummary) -> String {
    let part = |columns: &[Column]| {
        let mut table = build(summary, columns, |column| column.short);
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        for between_rows in [TableComponent::HorizontalLines, TableComponent::MiddleIntersections] {
            table.remove_style(between_rows);
        }
        table.column_iter_mut().for_each(|column| {
            column.set_padding((0, 1));
        });
        table.to_string()
    };
    format!("{}\n{}\n{}", part(&LATENCY), part(&THROTTLING), notes(summary))
}

/// The table in Markdown.
#[must_use]
pub fn markdown(summary: &RunSummary) -> String {
    let columns: Vec<Column> = LATENCY.into_iter().chain(THROTTLING).collect();
    let mut table = build(summary, &columns, |column| column.head);
    format!("{}\n\n{}", table.load_preset(presets::ASCII_MARKDOWN), notes(summary))
}

/// Where the quantiles lie, in Markdown.
#[must_use]
pub fn intervals(summary: &RunSummary) -> String {
    let cell = |value: Option<DurationNs>, interval: Option<QuantileInterval<DurationNs>>| match (value, interval) {
        (Some(value), Some(interval)) => format!(
            "{:.1} ({} to {})",
            value.as_millis_f64(),
            interval.lower.map_or_else(|| "below all".to_owned(), |lower| format!("{:.1}", lower.as_millis_f64())),
            interval.upper.map_or_else(|| "above all".to_owned(), |upper| format!("{:.1}", upper.as_millis_f64()))
        ),
        (value, _) => ms(value),
    };
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled).set_header([
        "limit",
        "n",
        "p50 ms (95 % interval)",
        "p99 ms (95 % interval)",
        "max ms",
    ]);
    for row in &summary.limits {
        table.add_row([
            row.limit.to_string(),
            row.n.to_string(),
            cell(row.p50_ns, row.p50_interval),
            cell(row.p99_ns, row.p99_interval),
            ms(row.max_ns),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "{table}\n\nIntervals are between order statistics, by the binomial distribution, if requests are independent.\n\n"
    )
}

fn build(summary: &RunSummary, columns: &[Column], head: fn(&Column) -> &'static str) -> Table {
    let mut table = Table::new();
    let all = || std::iter::once(&LIMIT).chain(columns);
    table.set_content_arrangement(ContentArrangement::Disabled).set_header(all().map(head));
    for limit in &summary.limits {
        table.add_row(all().map(|column| (column.cell)(limit)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Above this share of the wall time, unknown is named below the table.
const UNKNOWN_WORTH_SAYING: f64 = 0.001;

/// What the table cannot say in a cell: marks explained, disagreements in words. A line each.
fn notes(summary: &RunSummary) -> String {
    let mut notes = String::new();
    if summary.limits.iter().any(|limit| limit.n < 100 && limit.n > 0) {
        notes.push_str("Fewer than 100 requests have no 99th percentile: the tail is their maximum.\n");
    }
    let untraced: u64 = summary.limits.iter().map(|limit| limit.untraced_events).sum();
    if untraced > 0 {
        // Writing to a String cannot fail.
        let _ = writeln!(
            notes,
            "The kernel skipped {untraced} tracepoints; reconstructed from its scheduler's and timers' own notes."
        );
    }
    for limit in &summary.limits {
        if let Some(share) = limit.unknown_share_p99.filter(|&share| share > UNKNOWN_WORTH_SAYING) {
            let _ = writeln!(
                notes,
                "{}: up to {:.1} % of a request's wall time is unknown (p99)",
                limit.limit,
                share * 100.0
            );
        }
        let _ = match &limit.agreement {
            Agreement::Agrees => Ok(()),
            Agreement::Differs { because } => {
                because.iter().try_for_each(|because| writeln!(notes, "{}: {because}", limit.limit))
            }
            Agreement::NotCompared { because } => {
                writeln!(notes, "{}: not compared with the kernel's counters: {because}", limit.limit)
            }
        };
    }
    notes
}

/// "-" = does not apply: no limit, or nothing answered.
fn ms(length: Option<DurationNs>) -> String {
    length.map_or_else(dash, |length| format!("{:.1}", length.as_millis_f64()))
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::CpuLimit,
        run::{SCHEMA, record::Ending},
    };

    fn row(limit: CpuLimit) -> LimitSummary {
        LimitSummary {
            limit,
            n: 40,
            failed: 0,
            p50_ns: Some(DurationNs::from_micros(499_700)),
            p99_ns: Some(DurationNs::from_micros(1_590_700)),
            p50_interval: None,
            p99_interval: None,
            max_ns: Some(DurationNs::from_micros(1_590_700)),
            mean_ns: None,
            cpu_time_ns: None,
            tail_over_work: Some(26.51),
            pod_cpus: Some(0.084),
            pod_cpus_over_limit: Some(0.84),
            throttled_wall_ns: Some(DurationNs::from_micros(1_454_400)),
            throttled_own_ns: Some(DurationNs::from_micros(1_375_200)),
            throttled_ancestor_ns: Some(DurationNs::from_micros(79_200)),
            kernel_container_only_ns: None,
            runqueue_ns: Some(DurationNs::ZERO),
            unknown_share_p99: Some(0.0),
            throttled_periods: Some(1_004),
            counted_periods: Some(1_243),
            node_idle_share: Some(0.97),
            model: None,
            lost_events: 0,
            untraced_events: 2,
            agreement: Agreement::Differs { because: vec!["pod periods: observed 3, kernel 4".to_owned()] },
            ending: Ending::Complete,
        }
    }

    fn summary(limits: Vec<LimitSummary>) -> RunSummary {
        RunSummary { schema: SCHEMA, quantile_definition: String::new(), limits }
    }

    #[test]
    fn both_parts_fit_eighty_columns() {
        let text = text(&summary(vec![row(CpuLimit::Millicpu(100)), row(CpuLimit::Unlimited)]));
        for line in text.lines().filter(|line| !line.contains(": ") && !line.starts_with("The kernel")) {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
    }

    #[test]
    fn what_does_not_apply_and_what_was_not_read_are_not_zero() {
        let text = text(&summary(vec![row(CpuLimit::Unlimited)]));
        assert!(text.contains("not read") && text.contains("0.0") && text.contains(" - "), "{text}");
        assert!(text.contains("unlimited: pod periods: observed 3, kernel 4"), "{text}");
    }
}
