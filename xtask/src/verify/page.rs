//! The README of each arm and of `results/`: prose from `text/`, every figure from the runs.
//!
//! In the prose `{arm/setting limit: figure}` stands for a figure of a row, `{P2.tail}` for a prediction's, `{verdict P2.tail}` for what
//! became of it, `{table …}` for a table.

use std::fmt::Write as _;

use serde_json::Value;

use super::prediction::under;
use super::quantile::interval;
use super::row::Row;
use super::summary::ratio;
use super::{Arm, Book};

/// The published study's table: limit, p50 and p99 in ms, CPU / limit, throttled ms per request, throttled periods in per cent.
const PUBLISHED: [(&str, u64, u64, f64, u64, u64); 5] = [
    ("100m", 502, 584, 0.82, 337, 69),
    ("200m", 221, 282, 0.68, 116, 52),
    ("400m", 90, 120, 0.50, 29, 33),
    ("800m", 60, 60, 0.28, 0, 0),
    ("1600m", 60, 60, 0.14, 0, 0),
];

/// Prose of an arm: what it found and what limits it. Empty for an arm without any.
fn prose(arm: &str) -> &'static str {
    match arm {
        "published" => include_str!("text/published.md"),
        "grid" => include_str!("text/grid.md"),
        "gap" => include_str!("text/gap.md"),
        "phase" => include_str!("text/phase.md"),
        "offgrid" => include_str!("text/offgrid.md"),
        "fanout" => include_str!("text/fanout.md"),
        "period" => include_str!("text/period.md"),
        "burst" => include_str!("text/burst.md"),
        "contended" => include_str!("text/contended.md"),
        "guest-6.1" => include_str!("text/guest-6.1.md"),
        "guest-6.12" => include_str!("text/guest-6.12.md"),
        _ => "",
    }
}

/// The README of an arm.
pub(crate) fn arm(book: &Book, arm: &Arm) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_arm(&mut text, book, arm);
    text
}

fn write_arm(text: &mut String, book: &Book, arm: &Arm) -> std::fmt::Result {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    writeln!(text, "# {}\n\n{}\n", arm.name, word(&arm.study["question"]))?;
    if let Some((_, run)) = arm.settings.first() {
        let machine = &run.head["environment"];
        writeln!(
            text,
            "Kernel {}, {} CPUs ({}), HZ {}, cgroup {}, program at commit {}. Files: [what they are](../../README.md#the-sweep).\n",
            word(&machine["kernel"]),
            machine["cpus"],
            machine["cpu_model"].as_str().unwrap_or("model not readable"),
            machine["hz"],
            word(&machine["cgroup_version"]),
            machine["git_commit"].as_str().unwrap_or("unknown"),
        )?;
    }
    writeln!(text, "```sh\n{}\n```\n", word(&arm.study["command"]))?;
    writeln!(text, "## Figures\n")?;
    let rows: Vec<&Row> = book.study.rows.iter().filter(|row| row.arm == arm.name).collect();
    rows_table(text, &rows)?;
    let predictions: Vec<_> =
        book.prereg.predictions.iter().filter(|p| p.figure.contains(&format!("`{}", arm.name))).collect();
    if !predictions.is_empty() {
        writeln!(text, "\n## Predictions\n\n[As written before](../PREREG.md).\n")?;
        verdicts(text, book, &predictions)?;
    }
    let prose = fill(book, prose(&arm.name));
    if !prose.is_empty() {
        writeln!(text, "\n{}", prose.trim_end())?;
    }
    writeln!(text, "\n## Attempts\n")?;
    writeln!(text, "| setting | command | attempts | refused because |\n|---|---|---|---|")?;
    for setting in arm.study["settings"].as_array().into_iter().flatten() {
        let attempts = setting["attempts"].as_array().map_or(&[][..], Vec::as_slice);
        let refused: Vec<String> =
            attempts.iter().flat_map(|attempt| attempt["refused"].as_array().into_iter().flatten()).map(word).collect();
        let refused = if refused.is_empty() { "-".to_owned() } else { refused.join("; ").replace('|', "/") };
        writeln!(
            text,
            "| {} | `{}` | {} | {refused} |",
            word(&setting["name"]),
            word(&setting["command"]),
            attempts.len()
        )?;
    }
    Ok(())
}

/// One line a row.
fn rows_table(text: &mut String, rows: &[&Row]) -> std::fmt::Result {
    writeln!(
        text,
        "| setting | limit | n | p50 ms (95 %) | p99 or max ms | / work | CPU / limit | throttled periods | throttled ms | run-queue ms | container's counter | node idle |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    for row in rows {
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.setting,
            row.limit,
            row.n(),
            figure(row, "p50 interval"),
            figure(row, "tail"),
            figure(row, "tail/work"),
            figure(row, "of limit"),
            figure(row, "throttled periods"),
            figure(row, "throttled"),
            figure(row, "run-queue"),
            figure(row, "container's"),
            figure(row, "node idle"),
        )?;
    }
    writeln!(
        text,
        "\nTail: p99, of fewer than 100 requests max. Throttled and run-queue wait: mean a request. Container's counter: its growth over time \
         held by any level, CPU-summed; 1 would be all of it."
    )
}

/// A figure of a row as text.
fn figure(row: &Row, name: &str) -> String {
    let ms = |ns: u64| format!("{:.1}", ratio(ns, 1_000_000));
    let dash = || "-".to_owned();
    let two = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.2}"));
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let per_request = |sum: u64| sum.checked_div(row.n()).map_or_else(dash, ms);
    let walls = row.walls();
    let tail = || if row.n() >= 100 { row.p99() } else { walls.last().copied() };
    match name {
        "n" => row.n().to_string(),
        "p50" => row.median().map_or_else(dash, ms),
        "p50 interval" => {
            let interval = interval(&walls, 50);
            let end = |end: Option<u64>| end.map_or_else(|| "?".to_owned(), ms);
            match (row.median(), interval) {
                (Some(median), Some(interval)) => {
                    format!("{} ({} to {})", ms(median), end(interval.lower), end(interval.upper))
                }
                _ => dash(),
            }
        }
        "p99" => row.p99().filter(|_| row.n() >= 100).map_or_else(dash, ms),
        "max" => walls.last().map_or_else(dash, |max| ms(*max)),
        "min" => walls.first().map_or_else(dash, |min| ms(*min)),
        "mean" => per_request(walls.iter().sum()),
        "cpu" => per_request(row.sum(|request| request.cpu)),
        "tail" => match tail() {
            None => dash(),
            Some(tail) if row.n() >= 100 => ms(tail),
            Some(tail) => format!("max {}", ms(tail)),
        },
        "tail/work" => two(tail().map(|tail| ratio(tail, row.work))),
        "p50/work" => two(row.median().map(|median| ratio(median, row.work))),
        "of limit" => two(row.of_limit()),
        "throttled periods" => percent(row.throttled_periods()),
        "throttled" => per_request(row.sum(|request| request.throttled)),
        "run-queue" => per_request(row.sum(|request| request.runqueue)),
        "container's" => two(under(row).map(|under| 1.0 - under)),
        "container ms" => row.container.throttled.map_or_else(|| "not read".to_owned(), per_request),
        "union ms" => row.container.any_level.map_or_else(|| "not counted".to_owned(), per_request),
        "node idle" => row.node_idle.map_or_else(dash, percent),
        "misses" => row.misses().map_or_else(dash, percent),
        "lock" => two(row.lock()),
        "distance" => two(row.distance()),
        "model p50" => row.model.map_or_else(dash, |(p50, _)| ms(p50)),
        "inside" => row.model.map_or_else(dash, |(_, inside)| format!("{inside}/{}", row.n())),
        _ => format!("(no figure {name:?})"),
    }
}

/// The table of verdicts.
fn verdicts(text: &mut String, book: &Book, predictions: &[&super::prereg::Prediction]) -> std::fmt::Result {
    writeln!(text, "| id | figure | found | threshold | verdict | expected |\n|---|---|---|---|---|---|")?;
    for prediction in predictions {
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            prediction.id,
            prediction.figure,
            found(book, &prediction.id),
            prediction.threshold,
            verdict(book, &prediction.id),
            prediction.expected
        )?;
    }
    Ok(())
}

fn found(book: &Book, id: &str) -> String {
    book.study.figure(id).map_or_else(|| "not run".to_owned(), |figure| format!("{figure:.3}"))
}

fn verdict(book: &Book, id: &str) -> &'static str {
    let prediction = book.prereg.predictions.iter().find(|prediction| prediction.id == id);
    match (prediction, book.study.figure(id)) {
        (Some(prediction), Some(figure)) if prediction.threshold.holds(figure) => "holds",
        (Some(_), Some(_)) => "**falsified**",
        _ => "not judged",
    }
}

/// Puts figures into prose.
fn fill(book: &Book, prose: &str) -> String {
    let mut text = String::new();
    let mut rest = prose;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let Some((key, after)) = after.split_once('}') else { break };
        text.push_str(&value(book, key));
        rest = after;
    }
    text.push_str(rest);
    text
}

fn value(book: &Book, key: &str) -> String {
    if let Some(id) = key.strip_prefix("verdict ") {
        return verdict(book, id).to_owned();
    }
    if let Some(table) = key.strip_prefix("table ") {
        return table_of(book, table);
    }
    if let Some(arm) = key.strip_prefix("folder ") {
        let folder = book.arms.iter().find(|found| found.name == arm).and_then(|arm| arm.folder.file_name());
        return folder.map_or_else(|| "(not run)".to_owned(), |name| name.to_string_lossy().into_owned());
    }
    let Some((row, name)) = key.split_once(": ") else { return found(book, key) };
    let row = book.study.rows.iter().find(|found| found.name() == row);
    row.map_or_else(|| "(not run)".to_owned(), |row| figure(row, name))
}

fn table_of(book: &Book, name: &str) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match name {
        "published" => published(&mut text, book),
        "verdicts" => verdicts(&mut text, book, &book.prereg.predictions.iter().collect::<Vec<_>>()),
        "arms" => arms(&mut text, book),
        "under" => under_reports(&mut text, book),
        _ => write!(text, "(no table {name:?})"),
    };
    text.trim_end().to_owned()
}

/// The published table beside ours.
fn published(text: &mut String, book: &Book) -> std::fmt::Result {
    writeln!(
        text,
        "| limit | p50 ms: published | n = 40 | n = 400 | p99 ms: published | n = 40, max | n = 400 | CPU / limit: published | n = 400 | throttled ms a request: published (container's) | container's | all levels | throttled periods: published | n = 400 |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    let of = |arm: &str, limit: &str, name: &str| {
        let row = book.study.rows.iter().find(|row| row.arm == arm && row.limit == limit);
        row.map_or_else(|| "not run".to_owned(), |row| figure(row, name))
    };
    let line = |limit: &str, theirs: [String; 5]| {
        let [p50, p99, used, throttled, periods] = theirs;
        let cells = [
            limit.to_owned(),
            p50,
            of("published", limit, "p50"),
            of("grid", limit, "p50"),
            p99,
            of("published", limit, "max"),
            of("grid", limit, "p99"),
            used,
            of("grid", limit, "of limit"),
            throttled,
            of("grid", limit, "container ms"),
            of("grid", limit, "throttled"),
            periods,
            of("grid", limit, "throttled periods"),
        ];
        format!("| {} |", cells.join(" | "))
    };
    for (limit, p50, p99, used, throttled, periods) in PUBLISHED {
        let theirs =
            [p50.to_string(), p99.to_string(), format!("{used:.2}"), throttled.to_string(), format!("{periods} %")];
        writeln!(text, "{}", line(limit, theirs))?;
    }
    let absent = || "not run".to_owned();
    writeln!(text, "{}", line("unlimited", [absent(), absent(), absent(), absent(), absent()]))
}

/// Folders with their questions.
fn arms(text: &mut String, book: &Book) -> std::fmt::Result {
    writeln!(text, "| arm | question | rows | requests |\n|---|---|---|---|")?;
    for arm in &book.arms {
        let rows: Vec<&Row> = book.study.rows.iter().filter(|row| row.arm == arm.name).collect();
        let requests: u64 = rows.iter().map(|row| row.n()).sum();
        let folder = arm.folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let question = arm.study["question"].as_str().unwrap_or_default();
        writeln!(text, "| [{}]({folder}/README.md) | {question} | {} | {requests} |", arm.name, rows.len())?;
    }
    Ok(())
}

/// Container's counter beside pod's and the union, row by row.
fn under_reports(text: &mut String, book: &Book) -> std::fmt::Result {
    writeln!(
        text,
        "| row | all levels ms | container's ms | of it | pod's ms | container's + pod's, of it |\n|---|---|---|---|---|---|"
    )?;
    for row in book.study.nested() {
        let pod = row.pod.as_ref().and_then(|pod| pod.throttled);
        let each = |sum: Option<u64>| {
            sum.and_then(|sum| sum.checked_div(row.n()))
                .map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ratio(ns, 1_000_000)))
        };
        let both = row.container.throttled.zip(pod).zip(row.container.any_level.filter(|&union| union > 0));
        let both = both.map_or_else(
            || "-".to_owned(),
            |((container, pod), union)| format!("{:.2}", ratio(container + pod, union)),
        );
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {both} |",
            row.name(),
            figure(row, "union ms"),
            figure(row, "container ms"),
            figure(row, "container's"),
            each(pod)
        )?;
    }
    Ok(())
}

/// The README of `results/`.
pub(crate) fn results(book: &Book) -> String {
    fill(book, include_str!("text/README.md"))
}
