//! A load and what each alarm would have made of it, as text.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};

use crate::{
    model::{
        alarm::{Condition, Replay, Rule},
        history::History,
    },
    time::DurationNs,
};

/// Heading and table.
pub(super) fn text(name: &str, recorded: Option<DurationNs>, history: &History, replays: &[Replay]) -> String {
    let mut text = heading(name, recorded, history);
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    for between_rows in [TableComponent::HorizontalLines, TableComponent::MiddleIntersections] {
        table.remove_style(between_rows);
    }
    table.set_header([
        "alarm",
        "first fires\nafter",
        "fires\nof time",
        "highest",
        "harmed,\nfiring",
        "harmed,\nsilent",
        "lost s,\nfiring",
        "lost s,\nsilent",
    ]);
    for replay in replays {
        table.add_row(row(history, replay));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{table}");
    text
}

fn heading(name: &str, recorded: Option<DurationNs>, history: &History) -> String {
    let span = history.span.length();
    let repeated =
        recorded.map_or_else(|| "simulated".to_owned(), |length| format!("{} s recorded, repeated", tenths(length)));
    let harmed = history.jobs.iter().filter(|job| job.harmed()).count();
    let (lost, active) = (history.held.total_within(history.span), history.active.total_within(history.span));
    format!(
        "{name}\n{repeated} for {}; {} of {} harmed; lost: {} of the active time, {} of all time; {} CPUs on average\n",
        minutes(span),
        harmed,
        history.jobs.len(),
        percent(lost, active),
        percent(lost, span),
        cores(history),
    )
}

fn row(history: &History, replay: &Replay) -> Vec<String> {
    let Replay { rule, firings, highest, harmed, harmed_while_firing, lost_ns, lost_while_firing_ns, .. } = replay;
    let firing: DurationNs = firings.iter().map(|span| span.length()).sum();
    vec![
        described(rule),
        firings.first().map_or_else(|| "never".to_owned(), |first| minutes(first.start.since(history.span.start))),
        percent(firing, history.span.length()),
        highest.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
        harmed_while_firing.to_string(),
        (harmed - harmed_while_firing).to_string(),
        tenths(*lost_while_firing_ns),
        tenths(lost_ns.saturating_sub(*lost_while_firing_ns)),
    ]
}

/// An alarm in a line.
fn described(rule: &Rule) -> String {
    let hold = if rule.hold_ns == DurationNs::ZERO { String::new() } else { format!(" for {}", minutes(rule.hold_ns)) };
    let condition = match rule.condition {
        Condition::Periods { window_ns, windows, threshold } => {
            let count = if windows == 1 { String::new() } else { format!("{windows} x ") };
            format!("> {} % of periods in {count}{}", threshold * 100.0, minutes(window_ns))
        }
        Condition::TimeLost { window_ns, share, amount } => {
            format!("> {} % of active and {} % of all time in {}", share * 100.0, amount * 100.0, minutes(window_ns))
        }
    };
    format!("{}: {condition}{hold}", rule.name)
}

fn minutes(length: DurationNs) -> String {
    let seconds = length.0 / 1_000_000_000;
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

fn tenths(length: DurationNs) -> String {
    format!("{:.1}", length.as_millis_f64() / 1e3)
}

fn percent(part: DurationNs, whole: DurationNs) -> String {
    if whole == DurationNs::ZERO {
        return "-".to_owned();
    }
    format!("{:.1} %", 100.0 * part.as_millis_f64() / whole.as_millis_f64())
}

fn cores(history: &History) -> String {
    let used = DurationNs(history.used_ns.growth(history.span));
    let cores = used.as_millis_f64() / history.span.length().as_millis_f64().max(1e-6);
    if cores >= 0.001 { format!("{cores:.3}") } else { format!("{:.1} millionths of the", cores * 1e6) }
}
