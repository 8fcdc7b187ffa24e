//! The sweep's table: the same cells for the terminal and for Markdown.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::{
    run::{
        agree::Agreement,
        summary::{LimitSummary, RunSummary},
    },
    time::DurationNs,
};

/// Column heads, in the order of [`cells`].
const HEADS: [&str; 17] = [
    "limit",
    "n",
    "p50 ms",
    "p99 ms",
    "max ms",
    "p99 / work",
    "pod CPU, cores",
    "CPU / limit",
    "throttled ms per request",
    "of it own level",
    "of it ancestor only",
    "kernel's container-only ms",
    "throttled / counted periods",
    "run-queue wait ms",
    "node idle while throttled",
    "model p50 ms (inside)",
    "kernel agrees",
];

/// The table for a terminal of any width.
#[must_use]
pub fn text(summary: &RunSummary) -> String {
    let mut table = build(summary);
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    format!("{table}\n{}", notes(summary))
}

/// The table in Markdown.
#[must_use]
pub fn markdown(summary: &RunSummary) -> String {
    let mut table = build(summary);
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    format!("{table}\n\n{}", notes(summary))
}

fn build(summary: &RunSummary) -> Table {
    let mut table = Table::new();
    table.set_header(HEADS);
    for limit in &summary.limits {
        table.add_row(cells(limit));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// One row. "-" = does not apply (no limit, nothing answered); "not measured" = it does and is not known.
fn cells(limit: &LimitSummary) -> [String; HEADS.len()] {
    let few = if limit.n < 100 { "*" } else { "" };
    [
        limit.limit.to_string(),
        if limit.failed == 0 { limit.n.to_string() } else { format!("{} ({} failed)", limit.n, limit.failed) },
        ms(limit.p50_ns),
        limit.p99_ns.map_or_else(dash, |p99| format!("{:.1}{few}", p99.as_millis_f64())),
        ms(limit.max_ns),
        limit.p99_over_work.map_or_else(dash, |ratio| format!("{ratio:.2}")),
        limit.pod_cpus.map_or_else(dash, |cpus| format!("{cpus:.3}")),
        limit.pod_cpus_over_limit.map_or_else(dash, |ratio| format!("{ratio:.2}")),
        ms(limit.throttled_wall_ns),
        ms(limit.throttled_own_ns),
        ms(limit.throttled_ancestor_ns),
        ms(limit.kernel_container_only_ns),
        limit.throttled_periods.zip(limit.counted_periods).map_or_else(dash, |(throttled, counted)| {
            format!("{throttled} / {counted}{}", percent(throttled, counted))
        }),
        ms(limit.runqueue_ns),
        limit.node_idle_share.map_or_else(dash, |share| format!("{:.0} %", share * 100.0)),
        limit
            .model
            .as_ref()
            .map_or_else(dash, |model| format!("{:.1} ({}/{})", model.p50_ns.as_millis_f64(), model.inside, limit.n)),
        match &limit.agreement {
            Agreement::Agrees => "agrees".to_owned(),
            Agreement::Differs { because } => format!("differs ({})", because.len()),
            Agreement::NotCompared { .. } => "not compared".to_owned(),
        },
    ]
}

/// What the table cannot say in a cell: marks explained, disagreements in words.
fn notes(summary: &RunSummary) -> String {
    let mut notes = String::new();
    if summary.limits.iter().any(|limit| limit.n < 100 && limit.n > 0) {
        notes.push_str("* under 100 requests the 99th percentile (nearest rank) is the maximum.\n");
    }
    let untraced: u64 = summary.limits.iter().map(|limit| limit.untraced_events).sum();
    if untraced > 0 {
        notes.push_str(&format!(
            "This kernel did not fire {untraced} tracepoints that must have fired; they were reconstructed from the scheduler's own notes.\n"
        ));
    }
    for limit in &summary.limits {
        match &limit.agreement {
            Agreement::Agrees => {}
            Agreement::Differs { because } => {
                for because in because {
                    notes.push_str(&format!("{}: {because}\n", limit.limit));
                }
            }
            Agreement::NotCompared { because } => {
                notes.push_str(&format!("{}: not compared with the kernel's counters: {because}\n", limit.limit));
            }
        }
    }
    notes
}

fn ms(length: Option<DurationNs>) -> String {
    length.map_or_else(dash, |length| format!("{:.1}", length.as_millis_f64()))
}

fn percent(part: u64, whole: u64) -> String {
    (part * 100).checked_div(whole).map_or_else(String::new, |percent| format!(" ({percent} %)"))
}

fn dash() -> String {
    "-".to_owned()
}
