//! A run of spikes as a table, for the terminal and for Markdown, and as a report.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};

use crate::{
    cgroup::LevelName,
    run::{
        agree::Agreement,
        record::Ending,
        spikes::{
            SpikesHead,
            derive::{StepLine, level_names},
            group_name,
            summary::SpikesSummary,
        },
    },
    time::DurationNs,
};

/// A column: its head in Markdown, its short head on a terminal, its cell.
struct Column {
    head: &'static str,
    short: &'static str,
    cell: fn(&StepLine) -> String,
}

const COLUMNS: [Column; 14] = [
    Column { head: "group", short: "group", cell: |row| group_name(row.nesting).to_owned() },
    Column { head: "spike ms", short: "spike\nms", cell: |row| whole(row.step.length_ns) },
    Column { head: "per s", short: "per\ns", cell: |row| row.step.per_second.to_string() },
    Column {
        head: "boundary at ms",
        short: "bound-\nary",
        cell: |row| row.step.boundary_ns.map_or_else(|| "free".to_owned(), whole),
    },
    Column {
        head: "spikes",
        short: "n",
        cell: |row| {
            if row.spikes == row.planned { row.spikes.to_string() } else { format!("{}/{}", row.spikes, row.planned) }
        },
    },
    Column { head: "CPU expected ms", short: "CPU ms\nexpected", cell: |row| tenths(row.expected_ns) },
    Column { head: "CPU got ms", short: "got", cell: |row| tenths(row.consumed_ns) },
    Column {
        head: "unexplained",
        short: "unex-\nplained",
        cell: |row| seen(row, format!("{:.2}%", 100.0 * row.unexplained())),
    },
    Column {
        head: "held (only by pod)",
        short: "held\n(by pod)",
        cell: |row| {
            let only = if row.held_by_ancestor_only == 0 {
                String::new()
            } else {
                format!(" ({})", row.held_by_ancestor_only)
            };
            seen(row, format!("{}/{}{only}", row.held, row.spikes))
        },
    },
    Column {
        head: "of it counted by container",
        short: "counted\ncontainer",
        cell: |row| seen(row, row.counted.first().map_or_else(dash, |counted| rate(*counted, row.held))),
    },
    Column {
        head: "of it counted by pod",
        short: "pod",
        cell: |row| seen(row, row.counted.get(1).map_or_else(dash, |counted| rate(*counted, row.held))),
    },
    Column { head: "why others escaped", short: "escaped", cell: escapes },
    Column {
        head: "as the model says",
        short: "as\nmodel",
        cell: |row| row.as_predicted.map_or_else(dash, |right| format!("{right}/{}", row.spikes)),
    },
    Column {
        head: "a poller's peak CPUs (true)",
        short: "poller's\npeak (true)",
        cell: |row| match &row.shown {
            None => "?".to_owned(),
            Some(sight) => {
                let shown = sight.peak_cores_shown.map_or_else(dash, |cores| format!("{cores:.3}"));
                format!("{shown} ({:.2})", sight.peak_cores)
            }
        },
    },
];

/// The table for a terminal, and what a reader must know.
#[must_use]
pub fn text(summary: &SpikesSummary) -> String {
    let mut table = build(summary, |column| column.short);
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    for between_rows in [TableComponent::HorizontalLines, TableComponent::MiddleIntersections] {
        table.remove_style(between_rows);
    }
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 1));
    });
    let notes: String = notes(summary).iter().map(|note| format!("{note}\n")).collect();
    if summary.steps.is_empty() { notes } else { format!("{table}\n{notes}") }
}

/// `report.md`
#[must_use]
pub fn markdown(head: &SpikesHead, summary: &SpikesSummary) -> String {
    let (plan, machine) = (&head.plan, &head.environment);
    let mut text =
        String::from("# Spikes under a CPU limit: what they got, and what counters and pollers show of it\n\n");
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "Spikes on {} thread(s) at {}, {} s a step; period {} ms. A spike is bounded by time: one that is held uses less CPU. Kernel {}, \
         {} CPUs, HZ {}.\n",
        plan.threads,
        plan.limit,
        plan.step_ns.0 / 1_000_000_000,
        DurationNs::from_micros(plan.period_us).as_millis_f64(),
        machine.kernel,
        machine.cpus,
        machine.hz.map_or_else(|| "?".to_owned(), |hz| hz.to_string()),
    );
    let mut table = build(summary, |column| column.head);
    table.load_preset(presets::ASCII_MARKDOWN);
    let _ = writeln!(text, "{table}\n");
    for note in notes(summary) {
        let _ = writeln!(text, "- {note}");
    }
    let _ = writeln!(
        text,
        "\n**held**: spikes of which a limit held a thread before their end, by the events; in brackets, only an ancestor's. **counted**: \
         of these, for which the level's `nr_throttled` grew. **why others escaped**: spikes that wanted more than a quota and were not \
         held. **unexplained**: CPU time expected less got, beyond what was throttled, waited and late. **a poller's peak**: the largest \
         `rate(usage[2m])` that the kubelet (10 s, up to twice that) and a scrape each 30 s would have shown in a quarter of an hour of \
         this; in brackets the largest use over 100 ms."
    );
    text
}

fn build(summary: &SpikesSummary, head: fn(&Column) -> &'static str) -> Table {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(COLUMNS.iter().map(head));
    for row in &summary.steps {
        table.add_row(COLUMNS.iter().map(|column| (column.cell)(row)));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if index > 0 && COLUMNS[index].head != "why others escaped" {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn notes(summary: &SpikesSummary) -> Vec<String> {
    let mut notes = Vec::new();
    let named = |row: &StepLine| {
        let boundary = row.step.boundary_ns.map_or_else(String::new, |at| format!(", boundary at {} ms", whole(at)));
        format!("{} {} ms x {}/s{boundary}", group_name(row.nesting), whole(row.step.length_ns), row.step.per_second)
    };
    for row in &summary.steps {
        match &row.agreement {
            Agreement::Agrees => {}
            Agreement::Differs { because } => notes.push(format!("{}: differs: {}", named(row), because.join("; "))),
            Agreement::NotCompared { because } => notes.push(format!("{}: not compared: {because}", named(row))),
        }
        match &row.ending {
            Ending::Complete => {}
            Ending::Interrupted => notes.push(format!("{}: interrupted", named(row))),
            Ending::Broken { cause } => notes.push(format!("{}: broke off: {cause}", named(row))),
        }
    }
    if summary.steps.iter().any(|row| !row.escapes.is_empty()) {
        notes.push(
            "escaped, though they wanted more than a quota: split: the boundary left at most a quota on either side; split + slice: with what \
             a CPU held at the boundary; leftover: with what a CPU had from before or was charged for late"
                .to_owned(),
        );
    }
    let off = summary.steps.iter().filter_map(|row| row.learnt_off_ns).map(i64::unsigned_abs).max();
    if let Some(off) = off {
        notes.push(format!(
            "boundaries learnt from cpu.stat lay at most {:.3} ms from the timer's own",
            DurationNs(off).as_millis_f64()
        ));
    }
    if summary.not_begun > 0 {
        notes.push(format!("{} steps of the plan were not begun", summary.not_begun));
    }
    if summary.steps.iter().all(|row| row.agreement == Agreement::Agrees) && !summary.steps.is_empty() {
        let levels = summary.plan.groups.iter().flat_map(|&group| level_names(group));
        let pods = levels.filter(|&&level| level == LevelName::Pod).count();
        let where_ = if pods > 0 { "of container and pod" } else { "of the container" };
        notes.push(format!("the kernel's counters {where_} agree with the events in every step"));
    }
    notes
}

fn escapes(row: &StepLine) -> String {
    if row.levels.iter().any(|level| level.observed.is_none()) {
        return "?".to_owned();
    }
    let parts: Vec<String> = row.escapes.iter().map(|(why, count)| format!("{count} {}", why.word())).collect();
    if parts.is_empty() { dash() } else { parts.join(", ") }
}

fn seen(row: &StepLine, text: String) -> String {
    if row.levels.iter().all(|level| level.observed.is_some()) { text } else { "?".to_owned() }
}

fn rate(part: u64, whole: u64) -> String {
    if whole == 0 { dash() } else { format!("{part}/{whole}") }
}

fn dash() -> String {
    "-".to_owned()
}

fn whole(length: DurationNs) -> String {
    format!("{}", length.as_millis_f64())
}

fn tenths(length: DurationNs) -> String {
    format!("{:.1}", length.as_millis_f64())
}
