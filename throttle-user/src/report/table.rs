//! The sweep's table: the same cells for the terminal, in two parts that fit 80 columns, and for Markdown in one.

use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};

use crate::{
    run::{
        agree::Agreement,
        record::Ending,
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
        cell: |row| {
            let of = if row.n == row.planned { String::new() } else { format!("/{}", row.planned) };
            let failed = if row.failed == 0 { String::new() } else { format!(" ({} failed)", row.failed) };
            format!("{}{of}{failed}", row.n)
        },
    },
    Column { head: "p50 ms", short: "p50\nms", cell: |row| ms(row.p50_ns) },
    Column { head: "p99 ms", short: "p99\nms", cell: |row| ms(row.p99_ns) },
    Column { head: "max ms", short: "max\nms", cell: |row| ms(row.max_ns) },
    Column {
        head: "tail / work",
        short: "tail/\nwork",
        cell: |row| row.tail_over_work.map_or_else(dash, |ratio| format!("{ratio:.2}")),
    },
    Column {
        head: "model p50 ms (inside)",
        short: "model p50\n(inside)",
        cell: |row| {
            row.model
                .as_ref()
                .map_or_else(dash, |model| format!("{} ({}/{})", tenths(model.p50_ns), model.inside, row.n))
        },
    },
    Column {
        head: "pod CPU, cores",
        short: "CPU\ncores",
        cell: |row| seen(row, row.pod_cpus, |cpus| format!("{cpus:.3}")),
    },
    Column {
        head: "CPU / limit",
        short: "CPU /\nlimit",
        cell: |row| seen(row, row.pod_cpus_over_limit, |ratio| format!("{ratio:.2}")),
    },
    Column { head: "run-queue wait ms", short: "run-q\nms", cell: |row| seen(row, row.runqueue_ns, tenths) },
];

/// Where it went, and whether the kernel's counters agree.
const THROTTLING: [Column; 7] = [
    Column {
        head: "throttled ms per request",
        short: "throttled\nms/req",
        cell: |row| seen(row, row.throttled_wall_ns, tenths),
    },
    Column { head: "of it own level", short: "own\nlevel", cell: |row| seen(row, row.throttled_own_ns, tenths) },
    Column {
        head: "of it ancestor only",
        short: "ancestor\nonly",
        cell: |row| seen(row, row.throttled_ancestor_ns, tenths),
    },
    Column {
        head: "kernel's container-only ms",
        short: "kernel's\ncontainer",
        cell: |row| row.kernel_container_only_ns.map_or_else(|| "not read".to_owned(), |length| ms(Some(length))),
    },
    Column {
        head: "throttled / counted periods",
        short: "throttled\n/ periods",
        cell: |row| {
            seen(row, row.throttled_periods.zip(row.counted_periods), |(throttled, counted)| {
                format!("{throttled}/{counted}{}", percent(throttled, counted))
            })
        },
    },
    Column {
        head: "node idle while throttled",
        short: "node\nidle",
        cell: |row| seen(row, row.node_idle_share, |share| format!("{:.0}%", share * 100.0)),
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
    if summary.limits.is_empty() {
        return lines(&notes(summary), "");
    }
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
    format!("{}\n{}\n{}", part(&LATENCY), part(&THROTTLING), lines(&notes(summary), ""))
}

/// The table in Markdown.
#[must_use]
pub fn markdown(summary: &RunSummary) -> String {
    if summary.limits.is_empty() {
        return lines(&notes(summary), "- ");
    }
    let columns: Vec<Column> = LATENCY.into_iter().chain(THROTTLING).collect();
    let mut table = build(summary, &columns, |column| column.head);
    format!("{}\n\n{}", table.load_preset(presets::ASCII_MARKDOWN), lines(&notes(summary), "- "))
}

/// Where the quantiles lie, in Markdown.
#[must_use]
pub fn intervals(summary: &RunSummary) -> String {
    if summary.limits.is_empty() {
        return String::new();
    }
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

fn lines(notes: &[String], mark: &str) -> String {
    notes.iter().map(|note| format!("{mark}{note}\n")).collect()
}

/// What the table cannot say in a cell: marks explained, what is missing, disagreements in words.
fn notes(summary: &RunSummary) -> Vec<String> {
    let mut notes = Vec::new();
    if summary.limits.iter().any(|limit| limit.n < 100 && limit.n > 0) {
        notes.push("Fewer than 100 requests have no 99th percentile: the tail is their maximum.".to_owned());
    }
    if summary.limits.iter().any(|limit| !limit.observed) {
        notes.push("? not measured: there are no events of it.".to_owned());
    }
    notes.extend(silent(summary));
    let untraced: u64 = summary.limits.iter().map(|limit| limit.untraced_events).sum();
    if untraced > 0 {
        let them = if untraced == 1 { "tracepoint" } else { "tracepoints" };
        notes.push(format!(
            "The kernel skipped {untraced} {them}; reconstructed from its scheduler's and timers' own notes."
        ));
    }
    for limit in &summary.limits {
        notes.extend(of_limit(limit).into_iter().map(|note| format!("{}: {note}", limit.limit)));
    }
    let not_run: Vec<String> = summary.not_run.iter().map(ToString::to_string).collect();
    match (summary.limits.is_empty(), not_run.is_empty()) {
        (true, _) => notes.push(format!(
            "Nothing was measured: the run ended before its first limit began. Planned: {}.",
            not_run.join(", ")
        )),
        (false, false) => notes.push(format!("Not run: {}.", not_run.join(", "))),
        (false, true) => {}
    }
    notes
}

/// Why the model is `-`, once for all limits that have the same reason.
fn silent(summary: &RunSummary) -> Vec<String> {
    let mut reasons: Vec<&str> = Vec::new();
    for because in summary.limits.iter().filter(|limit| limit.n > 0).filter_map(|limit| limit.no_model.as_deref()) {
        if !reasons.contains(&because) {
            reasons.push(because);
        }
    }
    reasons.into_iter().map(|because| format!("No model: {because}.")).collect()
}

fn of_limit(limit: &LimitSummary) -> Vec<String> {
    let mut notes = Vec::new();
    let requests = format!("after {} of {} requests", limit.n, limit.planned);
    match &limit.ending {
        Ending::Complete => {}
        Ending::Interrupted => notes.push(format!("interrupted {requests}")),
        Ending::Broken { cause } => notes.push(format!("broke off {requests}: {cause}")),
    }
    if let Some(because) = &limit.failed_because {
        notes.push(format!("{} of {} requests failed, the first because: {because}", limit.failed, limit.planned));
    }
    if let Some(share) = limit.unknown_share_p99.filter(|&share| limit.observed && share > UNKNOWN_WORTH_SAYING) {
        notes.push(format!("up to {:.1} % of a request's wall time is unknown (p99)", share * 100.0));
    }
    match &limit.agreement {
        Agreement::Agrees => {}
        Agreement::Differs { because } => notes.extend(because.iter().cloned()),
        Agreement::NotCompared { because } => {
            notes.push(format!("not compared with the kernel's counters: {because}"));
        }
    }
    notes
}

/// A figure that only events tell: `?` where there are none, `-` where it does not apply.
fn seen<T>(row: &LimitSummary, value: Option<T>, words: impl Fn(T) -> String) -> String {
    match value {
        Some(value) => words(value),
        None if row.observed || row.n == 0 => dash(),
        None => "?".to_owned(),
    }
}

/// With a decimal where a whole number would hide the difference from nothing.
fn percent(part: u64, whole: u64) -> String {
    match (part * 1_000 + whole / 2).checked_div(whole) {
        None => String::new(),
        Some(permille) if permille < 100 && part > 0 => format!(" {}.{}%", permille / 10, permille % 10),
        Some(_) => format!(" {}%", (part * 100 + whole / 2) / whole),
    }
}

/// "-" = does not apply: no limit, or nothing answered.
fn ms(length: Option<DurationNs>) -> String {
    length.map_or_else(dash, tenths)
}

fn tenths(length: DurationNs) -> String {
    format!("{:.1}", length.as_millis_f64())
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::CpuLimit,
        run::{SCHEMA, modelled::Predicted},
    };

    fn row(limit: CpuLimit) -> LimitSummary {
        LimitSummary {
            failed_because: None,
            limit,
            planned: 40,
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
            no_model: Some("it covers one stream".to_owned()),
            observed: true,
            lost_events: 0,
            untraced_events: 2,
            agreement: Agreement::Differs { because: vec!["pod periods: observed 3, kernel 4".to_owned()] },
            ending: Ending::Complete,
        }
    }

    fn summary(limits: Vec<LimitSummary>) -> RunSummary {
        RunSummary { schema: SCHEMA, quantile_definition: String::new(), limits, not_run: vec![] }
    }

    #[test]
    fn both_parts_fit_eighty_columns() {
        let text = text(&summary(vec![with_model(CpuLimit::Millicpu(100)), row(CpuLimit::Unlimited)]));
        for line in text.lines().filter(|line| !line.contains(": ") && !line.starts_with("The kernel")) {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
    }

    fn with_model(limit: CpuLimit) -> LimitSummary {
        let predicted = Predicted { p50_ns: DurationNs::from_micros(499_100), max_ns: DurationNs::ZERO, inside: 40 };
        LimitSummary { model: Some(predicted), no_model: None, ..row(limit) }
    }

    #[test]
    fn what_does_not_apply_and_what_was_not_read_are_not_zero() {
        let text = text(&summary(vec![row(CpuLimit::Unlimited)]));
        assert!(text.contains("not read") && text.contains("0.0") && text.contains(" - "), "{text}");
        assert!(text.contains("unlimited: pod periods: observed 3, kernel 4"), "{text}");
    }

    #[test]
    fn a_limit_without_events_shows_that_nothing_was_measured() {
        let mut blind = with_model(CpuLimit::Millicpu(100));
        blind.observed = false;
        (blind.throttled_wall_ns, blind.throttled_own_ns, blind.throttled_ancestor_ns) = (None, None, None);
        (blind.pod_cpus, blind.pod_cpus_over_limit, blind.runqueue_ns) = (None, None, None);
        (blind.throttled_periods, blind.counted_periods, blind.node_idle_share) = (None, None, None);
        let text = text(&summary(vec![blind]));
        let cells = text.lines().filter(|line| line.starts_with("100m")).flat_map(str::split_whitespace);
        assert_eq!(cells.filter(|cell| *cell == "?").count(), 8, "{text}");
        assert!(text.contains("? not measured") && !text.contains(" 0.0"), "{text}");
    }

    #[test]
    fn small_shares_of_throttled_periods_are_not_rounded_to_nothing() {
        let mut rare = row(CpuLimit::Millicpu(400));
        (rare.throttled_periods, rare.counted_periods) = (Some(1), Some(120));
        assert!(text(&summary(vec![rare])).contains("1/120 0.8%"));
    }

    #[test]
    fn what_is_missing_of_the_plan_is_said() {
        let mut cut = row(CpuLimit::Millicpu(100));
        (cut.n, cut.ending) = (7, Ending::Interrupted);
        let mut run = summary(vec![cut]);
        run.not_run = vec![CpuLimit::Millicpu(200), CpuLimit::Unlimited];
        let shown = text(&run);
        assert!(shown.contains(" 7/40 ") && shown.contains("100m: interrupted after 7 of 40 requests\n"), "{shown}");
        assert!(shown.contains("Not run: 200m, unlimited.\n"), "{shown}");
        assert!(markdown(&run).contains("\n- Not run: 200m, unlimited.\n"));
        run.limits.clear();
        assert_eq!(text(&run).lines().count(), 1);
        assert!(text(&run).starts_with("Nothing was measured: the run ended before its first limit began."));
    }

    #[test]
    fn failed_requests_are_said_with_their_cause() {
        let mut failing = row(CpuLimit::Millicpu(100));
        (failing.n, failing.failed) = (38, 2);
        failing.failed_because = Some("cannot connect to 127.0.0.1:1: connection refused".to_owned());
        let shown = text(&summary(vec![failing, row(CpuLimit::Millicpu(200))]));
        let said =
            "100m: 2 of 40 requests failed, the first because: cannot connect to 127.0.0.1:1: connection refused\n";
        assert!(shown.contains(said) && shown.matches("requests failed").count() == 1, "{shown}");
    }

    #[test]
    fn a_missing_model_says_why_once() {
        let text = text(&summary(vec![row(CpuLimit::Millicpu(100)), row(CpuLimit::Millicpu(200))]));
        assert_eq!(text.matches("No model: it covers one stream.").count(), 1, "{text}");
    }
}
