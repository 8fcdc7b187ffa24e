//! `throttle report DIR`: everything after the raw files, derived again.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::exit::{Exit, OrExit, Verdict, print};
use crate::{
    cgroup::Nesting,
    report::{figures, markdown, spike_map, spikes as spikes_report, table},
    run::{
        Head, RunDir, StoreError,
        derive::{Derived, RawLimit, derive},
        spikes::{self, SpikesHead, derive::DerivedGroup, ledger::RawGroup, summary::SpikesSummary},
        summary::{RunSummary, summarise},
    },
};

/// Lines a request and a limit.
pub(super) const RUNS: &str = "runs.jsonl";
/// Lines a spike and a step.
pub(super) const SPIKES: &str = "spikes.jsonl";
/// Lines a period.
pub(super) const PERIODS: &str = "periods.jsonl";
const SUMMARY: &str = "summary.json";
const REPORT: &str = "report.md";

/// Derive a run's lines, summary and report again from its raw files, and print the table.
///
/// Needs no root and no particular kernel. Also makes the derived files of a run that was killed. A record that was changed
/// after the run is refused.
///
/// Exit code: 0 the whole plan was done and all is right; 1 not all of it (the lines below the table say what); 2 no
/// run, or its files were changed; 4 the table is right, but the derived files cannot be written.
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
    if RunDir::kind(&args.dir).or_exit(Exit::BadInput)? == spikes::KIND {
        return run_of_spikes(args);
    }
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
    Ok(if summary.is_right() { Exit::Done } else { Exit::NotRight })
}

fn run_of_spikes(args: &ReportArgs) -> Verdict {
    let (dir, head) = RunDir::open::<SpikesHead>(&args.dir).or_exit(Exit::BadInput)?;
    let of_group = |mut raw: RawGroup| {
        let (events, kept) = dir.read_events(spikes::group_name(raw.nesting))?;
        raw.kept = kept;
        Ok((raw.nesting, spikes::derive::derive(&head, &raw, events)))
    };
    let groups =
        dir.read_spikes(&head).and_then(|groups| groups.into_iter().map(of_group).collect::<Result<Vec<_>, _>>());
    let groups = groups.or_exit(Exit::BadInput)?;
    let summary = spikes::summary::summarise(&head, groups.iter().map(|(_, group)| group));
    if args.json {
        let text = serde_json::to_string_pretty(&summary).context("the summary as JSON").or_exit(Exit::BrokeOff)?;
        print(format_args!("{text}\n"))?;
    } else {
        print(format_args!("{}", spikes_report::text(&summary)))?;
    }
    write_spikes(&head, &dir, &summary, &groups).or_exit(Exit::BrokeOff)?;
    Ok(if summary.is_right() { Exit::Done } else { Exit::NotRight })
}

/// Writes everything derived of a run of spikes.
pub(super) fn write_spikes(
    head: &SpikesHead,
    dir: &RunDir,
    summary: &SpikesSummary,
    groups: &[(Nesting, DerivedGroup)],
) -> anyhow::Result<()> {
    dir.write_lines(SPIKES, groups.iter().flat_map(|(_, group)| &group.lines))?;
    dir.write_lines(PERIODS, groups.iter().flat_map(|(_, group)| &group.periods))?;
    dir.write_json(SUMMARY, summary)?;
    dir.write(REPORT, &spikes_report::markdown(head, summary))?;
    for figure in spike_map::all(groups)? {
        dir.write_figure(figure.name, &figure.svg)?;
    }
    Ok(())
}

/// Derives every limit of a run from its raw files.
fn rederive(dir: &RunDir, head: &Head) -> Result<Vec<Derived>, StoreError> {
    let of_limit = |mut raw: RawLimit| {
        let (events, kept) = dir.read_events(raw.begin.limit)?;
        raw.kept = kept;
        Ok(derive(head, &raw, events))
    };
    dir.read_record(head)?.into_iter().map(of_limit).collect()
}

/// Each file at once, so that the former ones stay where the new ones have no room.
fn write_lines(dir: &RunDir, derived: &[Derived]) -> Result<(), StoreError> {
    dir.write_lines(RUNS, derived.iter().flat_map(|derived| &derived.lines))?;
    dir.write_lines(PERIODS, derived.iter().flat_map(|derived| &derived.periods))
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
