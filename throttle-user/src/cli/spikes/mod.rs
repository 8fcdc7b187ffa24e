//! `throttle spikes`: steps of spikes under one limit on this machine's own cgroups.

mod generator;
mod group;

use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, ValueEnum};

use super::{
    ability::Ability,
    args,
    exit::{Exit, Failure, OrExit, Verdict},
    folder::{self, Conclusion, Told, default_out, exit_of, unwritable},
    interrupt::Interrupt,
    limited::not_observed,
    progress,
    report::write_spikes,
};
use crate::{
    cgroup::{Bandwidth, CpuLimit, Hierarchy, Nesting},
    report::spikes,
    run::{
        RunDir, SCHEMA,
        environment::Environment,
        record::Ending,
        spikes::{
            KIND, SpikesHead, SpikesPlan,
            derive::{DerivedGroup, derive},
            summary::summarise,
        },
    },
    time::DurationNs,
    workload::SpikePlan,
};

/// Spike in steps under one limit and say which spikes were cut, which counters show it, and why the others were not.
///
/// For each kind of group (flat: the container limited; nested: pod and container): fresh cgroups, an eBPF observer, and one step
/// after the other in them: a length of spike at so many a second (`throttle spike` in the container). Each step is bracketed by the
/// kernel's counters, each spike held against events, counters and the model. Ends with a table and a run folder that `throttle
/// report` can derive again. The published form is `--step 5m`.
///
/// With --boundaries the container's period boundary is put at each of these places in a spike, and the folder has a picture of
/// length against place.
#[derive(Debug, Args)]
pub(super) struct SpikesArgs {
    /// CPU limit of each limited group.
    #[arg(long, default_value = "250m", value_name = "LIMIT")]
    limit: CpuLimit,
    /// Lengths of a spike, 1 to 100 ms, a step each.
    #[arg(long, value_delimiter = ',', default_value = "10ms,20ms,30ms,40ms,50ms,60ms,70ms,80ms", value_parser = args::duration, value_name = "TIMES")]
    lengths: Vec<DurationNs>,
    /// Spikes a second, 1 to 10, a step each.
    #[arg(long, value_delimiter = ',', default_value = "1,2,5,10", value_name = "NUMBERS")]
    per_second: Vec<u32>,
    /// Put the container's boundary so long after the beginning of each spike, a step each [default: slots of the wall clock, and the
    /// boundary where it lies].
    #[arg(long, value_delimiter = ',', value_parser = args::duration, value_name = "TIMES")]
    boundaries: Vec<DurationNs>,
    /// Length of a step, whole seconds.
    #[arg(long, default_value = "5s", value_parser = args::duration, value_name = "TIME")]
    step: DurationNs,
    /// Threads that spike together.
    #[arg(long, default_value = "1", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Kinds of groups.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "flat,nested", value_name = "KINDS")]
    groups: Vec<Kind>,
    /// CFS period, 1 ms to 1 s.
    #[arg(long, default_value = "100ms", value_parser = args::some_duration, value_name = "TIME")]
    period: DurationNs,
    /// Cgroup to work in, absolute or relative to the cpu controller's mount [default: near this process].
    #[arg(long, value_name = "CGROUP")]
    parent: Option<PathBuf>,
    /// Folder of the run [default: results/<date>-<kernel>-<v1 or v2>-spikes].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the summary as JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// No progress on stderr.
    #[arg(long)]
    quiet: bool,
    /// Show the probe's own diagnostics on stderr.
    #[arg(long)]
    probe_log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The container alone.
    Flat,
    /// Pod and container.
    Nested,
}

/// Runs the verb.
pub(super) fn run(args: &SpikesArgs) -> Verdict {
    let plan = plan(args).or_exit(Exit::BadInput)?;
    let bandwidth = plan.bandwidth().or_exit(Exit::BadInput)?;
    if args.probe_log {
        super::probe_log();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().or_exit(Exit::CannotRun)?;
    runtime.block_on(async {
        // Before anything that takes time or leaves something behind.
        let interrupt = Interrupt::listen().or_exit(Exit::CannotRun)?;
        whole(args, plan, bandwidth, &interrupt).await
    })
}

async fn whole(args: &SpikesArgs, plan: SpikesPlan, bandwidth: Bandwidth, interrupt: &Interrupt) -> Verdict {
    let hierarchy = Hierarchy::find().or_exit(Exit::CannotRun)?;
    not_observed(&hierarchy)?;
    let Ability { kernel, hooks } = Ability::find(&hierarchy).or_exit(Exit::CannotRun)?;
    let environment = Environment::gather(&hierarchy, &kernel.facts);
    let out = args.out.clone().unwrap_or_else(|| default_out(&environment, KIND));
    let head = SpikesHead {
        schema: SCHEMA,
        kind: KIND.to_owned(),
        plan,
        requirements: environment.requirements(&hooks),
        environment,
    };
    let dir = RunDir::create(&out, &head).map_err(unwritable)?;
    folder::begin(&hierarchy, &head.requirements, told(args))?;
    let steps = (head.plan.groups.len() * head.plan.steps().len()) as u64;
    let template = "{bar:30} {pos}/{len} steps, {eta} left, {msg}";
    let progress = progress::bar(args.quiet || args.json, Some(steps), template);
    let bench = group::Bench {
        hierarchy: &hierarchy,
        kernel: &kernel,
        head: &head,
        bandwidth,
        parent: args.parent.clone(),
        dir: &dir,
        interrupt,
        probe_log: args.probe_log,
        progress: &progress,
    };
    let (derived, broke) = groups(&bench).await?;
    progress.finish_and_clear();
    conclude(args, &head, &dir, &derived, broke)
}

/// Runs the groups until one breaks or the user interrupts; what was derived is returned in every case.
async fn groups(bench: &group::Bench<'_>) -> Result<(Vec<(Nesting, DerivedGroup)>, Option<Failure>), Failure> {
    let mut record = bench.dir.record().map_err(unwritable)?;
    let mut done = Vec::new();
    for &nesting in &bench.head.plan.groups {
        let (raw, events) = match group::run(bench, nesting, &mut record).await {
            Ok(Some(ran)) => ran,
            Ok(None) => break,
            Err(error) => {
                let exit = exit_of(&error, done.is_empty());
                return Ok((done, Some(Failure::Told { exit, error })));
            }
        };
        let broken = match raw.end.as_ref().map(|end| &end.ending) {
            Some(Ending::Broken { cause }) => Some(anyhow!("{cause}")),
            Some(Ending::Interrupted | Ending::Complete) | None => None,
        };
        done.push((nesting, derive(bench.head, &raw, events)));
        if let Some(error) = broken {
            return Ok((done, Some(Failure::Told { exit: Exit::BrokeOff, error })));
        }
        if bench.interrupt.is_asked() {
            break;
        }
    }
    let interrupted = bench.interrupt.is_asked().then(|| folder::interrupted(bench.dir, done.is_empty()));
    Ok((done, interrupted))
}

/// Writes what is derived, prints the table, and says how it ended.
fn conclude(
    args: &SpikesArgs,
    head: &SpikesHead,
    dir: &RunDir,
    derived: &[(Nesting, DerivedGroup)],
    broke: Option<Failure>,
) -> Verdict {
    if derived.is_empty()
        && let Some(failure) = broke
    {
        // Nothing was measured: the same command can be given again with the same folder.
        dir.discard(head);
        return Err(failure);
    }
    let summary = summarise(head, derived.iter().map(|(_, group)| group));
    let written = write_spikes(head, dir, &summary, derived);
    let text = spikes::text(&summary);
    folder::conclude(
        dir,
        told(args),
        Conclusion { summary: &summary, text, is_right: summary.is_right(), written, broke },
    )
}

const fn told(args: &SpikesArgs) -> Told {
    Told { json: args.json, quiet: args.quiet }
}

fn plan(args: &SpikesArgs) -> anyhow::Result<SpikesPlan> {
    let plan = SpikesPlan {
        limit: args.limit,
        period_us: args::whole_us("--period", args.period)?,
        groups: args
            .groups
            .iter()
            .map(|kind| match kind {
                Kind::Flat => Nesting::Flat,
                Kind::Nested => Nesting::Nested,
            })
            .collect(),
        lengths_ns: args.lengths.clone(),
        per_second: args.per_second.clone(),
        boundaries_ns: args.boundaries.clone(),
        step_ns: args.step,
        threads: args.threads,
    };
    for step in plan.steps() {
        SpikePlan {
            length: step.length_ns,
            per_second: step.per_second,
            duration: plan.step_ns,
            threads: plan.threads,
        }
        .checked()?;
    }
    Ok(plan)
}
