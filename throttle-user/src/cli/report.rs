//! `throttle report DIR`: everything after the raw files, derived again.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::exit::{Exit, OrExit, Verdict, print};
use crate::{
    report::{figures, markdown, table},
    run::{
        Head, RunDir, StoreError,
        derive::{Derived, derive, limits},
        summary::{RunSummary, summarise},
    },
};

/// Lines a request and a limit.
pub(super) const RUNS: &str = "runs.jsonl";
/// Lines a period.
pub(super) const PERIODS: &str = "periods.jsonl";
const SUMMARY: &str = "summary.json";
const REPORT: &str = "report.md";

/// Derive a run's lines, summary and report again from its raw files, and print the table.
///
/// Needs no root and no particular kernel. Also makes the derived files of a run that was killed.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Folder of the run.
    dir: PathBuf,
    /// Print the summary as JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(super) fn run(args: &ReportArgs) -> Verdict {
    let (dir, head) = RunDir::open(&args.dir).or_exit(Exit::BadInput)?;
    let derived = rederive(&dir, &head).or_exit(Exit::BadInput)?;
    let summary = summarise(&head, &derived);
    if args.json {
        let text = serde_json::to_string_pretty(&summary).context("the summary as JSON").or_exit(Exit::BrokeOff)?;
        print(format_args!("{text}\n"))?;
    } else {
        print(format_args!("{}", table::text(&summary)))?;
    }
    write_lines(&dir, &derived).or_exit(Exit::BrokeOff)?;
    write_derived(&head, &dir, &summary, &derived).or_exit(Exit::BrokeOff)?;
    Ok(Exit::Done)
}

/// Derives every limit of a run from its raw files.
fn rederive(dir: &RunDir, head: &Head) -> Result<Vec<Derived>, StoreError> {
    limits(dir.read_record()?).iter().map(|raw| Ok(derive(head, raw, dir.read_events(raw.begin.limit)?))).collect()
}

fn write_lines(dir: &RunDir, derived: &[Derived]) -> Result<(), StoreError> {
    let (mut runs, mut periods) = (dir.derived(RUNS)?, dir.derived(PERIODS)?);
    for derived in derived {
        derived.lines.iter().try_for_each(|line| runs.write(line))?;
        derived.periods.iter().try_for_each(|line| periods.write(line))?;
    }
    Ok(())
}

/// Writes `summary.json`, `report.md` and the figures.
pub(super) fn write_derived(
    head: &Head,
    dir: &RunDir,
    summary: &RunSummary,
    derived: &[Derived],
) -> anyhow::Result<()> {
    dir.write_json(SUMMARY, summary)?;
    dir.write(REPORT, &markdown::render(head, summary))?;
    for figure in figures::all(summary, derived)? {
        dir.write_figure(figure.name, &figure.svg)?;
    }
    Ok(())
}
