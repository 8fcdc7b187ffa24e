//! `throttle sweep`: the study over CPU limits on this machine's own cgroups.

mod arm;
mod background;
mod progress;
mod server;

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;

use super::{
    ability::Ability,
    args,
    exit::{Exit, Failure, OrExit, Verdict},
    folder::{self, Conclusion, Told, default_out, exit_of, unwritable},
    interrupt::Interrupt,
    limited::{LimitedArgs, not_observed},
    report::write_derived,
};
use crate::{
    cgroup::{CpuLimit, Hierarchy},
    report::table,
    request::FanOut,
    run::{
        Head, RunDir, SCHEMA, SweepPlan,
        derive::{Derived, derive},
        environment::Environment,
        record::Ending,
        summary::summarise,
    },
    time::DurationNs,
    workload::{WORK_MAX, WORK_MIN, WORKERS_MAX},
};

/// Sweep CPU limits with a request stream and say where every request's time went.
///
/// For each limit: fresh cgroups (pod and container limited as the kubelet does), a server in the container that burns CPU time
/// on request, a client and an eBPF observer outside the limit. Ends with a table and a run folder that `throttle report`
/// can derive again.
#[derive(Debug, Args)]
pub(super) struct SweepArgs {
    /// CPU limits, in this order: 100m, 0.5, 2, unlimited.
    #[arg(long, value_delimiter = ',', default_value = "100m,200m,400m,800m,1600m,unlimited", value_name = "LIMITS")]
    limits: Vec<CpuLimit>,
    /// Requests at each limit.
    #[arg(long, default_value = "40", value_name = "N")]
    requests: u64,
    /// CPU time a request burns.
    #[arg(long, default_value = "60ms", value_parser = args::duration, value_name = "TIME")]
    work: DurationNs,
    /// From an answer to the next request of the same stream (closed loop).
    #[arg(long, default_value = "200ms", value_parser = args::duration, value_name = "TIME")]
    gap: DurationNs,
    /// Lengthen each gap by a part of this that differs from request to request: with one period, starts cover the period evenly.
    #[arg(long, default_value = "0", value_parser = args::duration, value_name = "TIME")]
    spread: DurationNs,
    /// Worker threads a request is spread over.
    #[arg(long, default_value = "1", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// How several threads share the work: split (each a part) or whole (each all of it).
    #[arg(long, default_value = "split", value_name = "MODE")]
    mode: FanOut,
    /// Streams at once.
    #[arg(long, default_value = "1", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    streams: u32,
    #[command(flatten)]
    limited: LimitedArgs,
    /// Keep all CPUs busy from a group beside the limited ones, with TIMES their weight.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=100))]
    background: Option<u32>,
    /// Folder of the run [default: results/<date>-<kernel>-<v1 or v2>-sweep].
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

/// Runs the verb.
pub(super) fn run(args: &SweepArgs) -> Verdict {
    let plan = plan(args).or_exit(Exit::BadInput)?;
    let arms = plan.arms().or_exit(Exit::BadInput)?;
    if args.probe_log {
        super::probe_log();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().or_exit(Exit::CannotRun)?;
    runtime.block_on(async {
        // Before anything that takes time or leaves something behind.
        let interrupt = Interrupt::listen().or_exit(Exit::CannotRun)?;
        whole(args, plan, &arms, &interrupt).await
    })
}

async fn whole(
    args: &SweepArgs,
    plan: SweepPlan,
    arms: &[(CpuLimit, crate::cgroup::Bandwidth)],
    interrupt: &Interrupt,
) -> Verdict {
    let hierarchy = Hierarchy::find().or_exit(Exit::CannotRun)?;
    not_observed(&hierarchy)?;
    let Ability { kernel, hooks } = Ability::find(&hierarchy).or_exit(Exit::CannotRun)?;
    let environment = Environment::gather(&hierarchy, &kernel.facts);
    let out = args.out.clone().unwrap_or_else(|| default_out(&environment, "sweep"));
    let head = Head { schema: SCHEMA, plan, requirements: environment.requirements(&hooks), environment };
    let dir = RunDir::create(&out, &head).map_err(unwritable)?;
    folder::begin(&hierarchy, &head.requirements, told(args))?;
    let bench = Bench { args, hierarchy: &hierarchy, kernel: &kernel, head: &head, dir: &dir, arms, interrupt };
    let (derived, broke) = sweep(&bench).await?;
    conclude(args, &head, &dir, &derived, broke)
}

struct Bench<'a> {
    args: &'a SweepArgs,
    hierarchy: &'a Hierarchy,
    kernel: &'a crate::probe::KernelLayout,
    head: &'a Head,
    dir: &'a RunDir,
    arms: &'a [(CpuLimit, crate::cgroup::Bandwidth)],
    interrupt: &'a Interrupt,
}

/// Runs the arms until one breaks or the user interrupts; what was derived is returned in every case.
async fn sweep(bench: &Bench<'_>) -> Result<(Vec<Derived>, Option<Failure>), Failure> {
    let mut record = bench.dir.record().map_err(unwritable)?;
    let mut runs = bench.dir.derived(super::report::RUNS).map_err(unwritable)?;
    let mut periods = bench.dir.derived(super::report::PERIODS).map_err(unwritable)?;
    let progress = progress::Progress::new(&bench.head.plan, bench.args.quiet || bench.args.json);
    let shared = arm::Bench {
        hierarchy: bench.hierarchy,
        kernel: bench.kernel,
        plan: &bench.head.plan,
        parent: bench.args.limited.parent.clone(),
        dir: bench.dir,
        interrupt: bench.interrupt,
        probe_log: bench.args.probe_log,
        cpus: bench.head.environment.cpus,
    };
    let mut done = Vec::new();
    let mut broke = None;
    for &(limit, bandwidth) in bench.arms {
        if bench.interrupt.is_asked() {
            break;
        }
        progress.limit(limit);
        let (raw, events) = match arm::run(&shared, limit, bandwidth, &mut record, &progress).await {
            Ok(Some(ran)) => ran,
            Ok(None) => break,
            Err(error) => {
                let exit = exit_of(&error, done.is_empty());
                broke = Some(Failure::Told { exit, error: error.context(format!("limit {limit}")) });
                break;
            }
        };
        let broken = match raw.end.as_ref().map(|end| &end.ending) {
            Some(Ending::Broken { cause }) => Some(format!("limit {limit} broke off: {cause}")),
            Some(Ending::Interrupted | Ending::Complete) | None => None,
        };
        let derived = derive(bench.head, &raw, events);
        let written = derived
            .lines
            .iter()
            .try_for_each(|line| runs.write(line))
            .and_then(|()| derived.periods.iter().try_for_each(|line| periods.write(line)));
        done.push(derived);
        // What broke first stands first: it is about the raw files, from which the others can be made again.
        let causes: Vec<String> = broken.into_iter().chain(written.err().map(|error| error.to_string())).collect();
        if !causes.is_empty() {
            broke = Some(Failure::Told { exit: Exit::BrokeOff, error: anyhow!(causes.join("; ")) });
            break;
        }
    }
    progress.done();
    if bench.interrupt.is_asked() && broke.is_none() {
        broke = Some(folder::interrupted(bench.dir, done.is_empty()));
    }
    Ok((done, broke))
}

/// Writes summary and report, prints the table, and says how it ended.
fn conclude(args: &SweepArgs, head: &Head, dir: &RunDir, derived: &[Derived], broke: Option<Failure>) -> Verdict {
    if derived.is_empty()
        && let Some(failure) = broke
    {
        // Nothing was measured: the same command can be given again with the same folder.
        dir.discard(head);
        return Err(failure);
    }
    let summary = summarise(head, derived);
    let written = write_derived(head, dir, &summary, derived);
    let text = if summary.limits.is_empty() { String::new() } else { table::text(&summary) };
    folder::conclude(
        dir,
        told(args),
        Conclusion { summary: &summary, text, is_right: summary.is_right(), written, broke },
    )
}

const fn told(args: &SweepArgs) -> Told {
    Told { json: args.json, quiet: args.quiet }
}

fn plan(args: &SweepArgs) -> anyhow::Result<SweepPlan> {
    anyhow::ensure!(
        (WORK_MIN..=WORK_MAX).contains(&args.work),
        "--work {} ms is outside {} to {} ms",
        args.work.as_millis_f64(),
        WORK_MIN.as_millis_f64(),
        WORK_MAX.as_millis_f64()
    );
    let workers = u64::from(args.threads) * u64::from(args.streams);
    anyhow::ensure!(
        workers <= u64::from(WORKERS_MAX),
        "--threads {} times --streams {} makes {workers} worker threads, but a server has at most {WORKERS_MAX}: lower one",
        args.threads,
        args.streams
    );
    Ok(SweepPlan {
        limits: args.limits.clone(),
        requests: args.requests,
        work_ns: args.work,
        gap_ns: args.gap,
        spread_ns: args.spread,
        threads: args.threads,
        mode: args.mode,
        streams: args.streams,
        nesting: args.limited.nesting(),
        period_us: args.limited.period_us()?,
        burst_us: args.limited.burst_us()?,
        background: args.background,
    })
}
