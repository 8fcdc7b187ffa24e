//! The tables of `report.md`, cell by cell, against `summary.json`.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::finding::Checker;
use super::run::Run;

/// Checks both tables.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn check(run: &Run) -> Result<Checker> {
    let path = run.folder.join("report.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut checker = Checker::of(&path);
    let tables = tables(&text);
    checker.same("tables", tables.len(), 2);
    for (table, of) in tables.iter().zip([cells as fn(&Value) -> Vec<String>, interval_cells]) {
        let rows = run.summary["limits"].as_array().map_or(&[][..], Vec::as_slice);
        checker.same("rows of a table", table.len().saturating_sub(1), rows.len());
        let heads = table.first().cloned().unwrap_or_default();
        for (stored, row) in table.iter().skip(1).zip(rows) {
            let computed = of(row);
            checker.same(format!("cells of limit {}", row["limit"]), stored.len(), computed.len());
            for ((stored, computed), head) in stored.iter().zip(computed).zip(&heads) {
                checker.same(format!("limit {} {head}", row["limit"]), stored, computed);
            }
        }
    }
    Ok(checker)
}

/// Every Markdown table of a text: rows of trimmed cells, the line below the head left out.
pub(crate) fn tables(text: &str) -> Vec<Vec<Vec<String>>> {
    let mut tables: Vec<Vec<Vec<String>>> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let Some(cells) = line.trim().strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            inside = false;
            continue;
        };
        if !inside {
            tables.push(Vec::new());
            inside = true;
        }
        let cells: Vec<String> = cells.split('|').map(|cell| cell.trim().to_owned()).collect();
        if !cells
            .iter()
            .all(|cell| cell.chars().all(|char| "-: ".contains(char)) && cell.contains('-') && cell.len() > 1)
        {
            tables.last_mut().into_iter().for_each(|table| table.push(cells.clone()));
        }
    }
    tables
}

fn ms(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns / 1e6))
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn cells(row: &Value) -> Vec<String> {
    let two = |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    // A summary of an earlier version does not say how many were planned.
    let of = match &row["planned"] {
        planned if planned.is_null() || *planned == row["n"] => String::new(),
        planned => format!("/{planned}"),
    };
    let n = match row["failed"].as_u64() {
        Some(0) => format!("{}{of}", row["n"]),
        _ => format!("{}{of} ({} failed)", row["n"], row["failed"]),
    };
    let model = match &row["model"] {
        Value::Null => "-".to_owned(),
        model => format!("{} ({}/{})", ms(&model["p50_ns"]), model["inside"], row["n"]),
    };
    let periods = match (row["throttled_periods"].as_u64(), row["counted_periods"].as_u64()) {
        (Some(throttled), Some(counted)) => {
            let percent = match (throttled * 1_000 + counted / 2).checked_div(counted) {
                None => String::new(),
                Some(permille) if permille < 100 && throttled > 0 => format!(" {}.{}%", permille / 10, permille % 10),
                Some(_) => format!(" {}%", (throttled * 100 + counted / 2) / counted),
            };
            format!("{throttled}/{counted}{percent}")
        }
        _ => "-".to_owned(),
    };
    let container = &row["kernel_container_only_ns"];
    vec![
        text(&row["limit"]),
        n,
        ms(&row["p50_ns"]),
        ms(&row["p99_ns"]),
        ms(&row["max_ns"]),
        two(&row["tail_over_work"]),
        model,
        row["pod_cpus"].as_f64().map_or_else(|| "-".to_owned(), |cpus| format!("{cpus:.3}")),
        two(&row["pod_cpus_over_limit"]),
        ms(&row["runqueue_ns"]),
        ms(&row["throttled_wall_ns"]),
        ms(&row["throttled_own_ns"]),
        ms(&row["throttled_ancestor_ns"]),
        if container.is_null() { "not read".to_owned() } else { ms(container) },
        periods,
        row["node_idle_share"].as_f64().map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0)),
        text(&row["agreement"]["verdict"]).replace('_', " "),
    ]
}

fn interval_cells(row: &Value) -> Vec<String> {
    let with = |value: &Value, interval: &Value| {
        let end = |end: &Value, without: &str| if end.is_null() { without.to_owned() } else { ms(end) };
        match interval {
            Value::Null => ms(value),
            interval => format!(
                "{} ({} to {})",
                ms(value),
                end(&interval["lower"], "below all"),
                end(&interval["upper"], "above all")
            ),
        }
    };
    vec![
        text(&row["limit"]),
        row["n"].to_string(),
        with(&row["p50_ns"], &row["p50_interval"]),
        with(&row["p99_ns"], &row["p99_interval"]),
        ms(&row["max_ns"]),
    ]
}
