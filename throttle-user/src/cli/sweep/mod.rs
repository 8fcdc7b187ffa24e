//! `throttle sweep`: the study over CPU limits on this machine's own cgroups.

mod arm;
mod background;
mod progress;
mod server;

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;

use super::{
    args,
    exit::{Exit, Failure, OrExit, Verdict, print, tell},
    interrupt::Interrupt,
    report::write_derived,
};
use crate::{
    cgroup::{CpuLimit, Hierarchy, Nesting, ScratchError, Version, remove_stale},
    probe::prerequisites,
    report::table,
    request::FanOut,
    run::{
        Head, RunDir, SCHEMA, SweepPlan,
        agree::Agreement,
        derive::{Derived, derive},
        environment::Environment,
        record::Ending,
        summary::summarise,
    },
    time::{ClockAnchor, DurationNs},
    workload::{WORK_MAX, WORK_MIN},
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
    /// Limit pod and container, as the kubelet does (the default).
    #[arg(long, conflicts_with = "flat")]
    nested: bool,
    /// Limit the container alone.
    #[arg(long)]
    flat: bool,
    /// CFS period, 1 ms to 1 s.
    #[arg(long, default_value = "100ms", value_parser = args::some_duration, value_name = "TIME")]
    period: DurationNs,
    /// CFS burst of the limited arms.
    #[arg(long, default_value = "0", value_parser = args::duration, value_name = "TIME")]
    burst: DurationNs,
    /// Keep all CPUs busy from a group beside the limited ones, with TIMES their weight.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=100))]
    background: Option<u32>,
    /// Folder of the run [default: results/<date>-<kernel>-sweep].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Cgroup to work in, absolute or relative to the cpu controller's mount [default: near this process].
    #[arg(long, value_name = "CGROUP")]
    parent: Option<PathBuf>,
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
    let hierarchy = Hierarchy::find().or_exit(Exit::CannotRun)?;
    let kernel = prerequisites::kernel_layout(hierarchy.version).or_exit(Exit::CannotRun)?;
    let environment = Environment::gather(&hierarchy, &kernel.facts);
    let out = args.out.clone().unwrap_or_else(|| default_out(&environment));
    let head = Head { schema: SCHEMA, plan, requirements: environment.requirements(), environment };
    let dir = RunDir::create(&out, &head).or_exit(Exit::BadInput)?;
    for stale in remove_stale(&hierarchy).or_exit(Exit::CannotRun)? {
        tell(format_args!("throttle: left behind by process {}: {}", stale.owner.pid, stale.removal));
    }
    if !args.quiet {
        for missed in head.requirements.iter().filter(|requirement| !requirement.met) {
            tell(format_args!("throttle: requirement missed: {} (found: {})", missed.name, missed.found));
        }
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().or_exit(Exit::CannotRun)?;
    let bench = Bench { args, hierarchy: &hierarchy, kernel: &kernel, head: &head, dir: &dir, arms: &arms };
    let (derived, broke) = runtime.block_on(sweep(&bench))?;
    conclude(args, &head, &dir, &derived, broke)
}

struct Bench<'a> {
    args: &'a SweepArgs,
    hierarchy: &'a Hierarchy,
    kernel: &'a crate::probe::KernelLayout,
    head: &'a Head,
    dir: &'a RunDir,
    arms: &'a [(CpuLimit, crate::cgroup::Bandwidth)],
}

/// Runs the arms until one breaks or the user interrupts; what was derived is returned in every case.
async fn sweep(bench: &Bench<'_>) -> Result<(Vec<Derived>, Option<Failure>), Failure> {
    let interrupt = Interrupt::listen().or_exit(Exit::CannotRun)?;
    let mut record = bench.dir.record().or_exit(Exit::BadInput)?;
    let mut runs = bench.dir.derived(super::report::RUNS).or_exit(Exit::BadInput)?;
    let mut periods = bench.dir.derived(super::report::PERIODS).or_exit(Exit::BadInput)?;
    let progress = progress::Progress::new(&bench.head.plan, bench.args.quiet || bench.args.json);
    let shared = arm::Bench {
        hierarchy: bench.hierarchy,
        kernel: bench.kernel,
        plan: &bench.head.plan,
        parent: bench.args.parent.clone(),
        dir: bench.dir,
        interrupt: &interrupt,
        probe_log: bench.args.probe_log,
        cpus: bench.head.environment.cpus,
    };
    let mut done = Vec::new();
    let mut broke = None;
    for &(limit, bandwidth) in bench.arms {
        progress.limit(limit);
        let (raw, events) = match arm::run(&shared, limit, bandwidth, &mut record, &progress).await {
            Ok(ran) => ran,
            Err(error) => {
                let exit = match error.downcast_ref::<ScratchError>() {
                    Some(ScratchError::Place(_)) => Exit::BadInput,
                    _ if done.is_empty() => Exit::CannotRun,
                    _ => Exit::BrokeOff,
                };
                broke = Some(Failure::Told { exit, error: error.context(format!("limit {limit}")) });
                break;
            }
        };
        let ending = raw.end.as_ref().map(|end| end.ending.clone());
        let derived = derive(bench.head, &raw, events);
        let written = derived
            .lines
            .iter()
            .try_for_each(|line| runs.write(line))
            .and_then(|()| derived.periods.iter().try_for_each(|line| periods.write(line)));
        done.push(derived);
        if let Err(error) = written {
            broke = Some(Failure::Told { exit: Exit::BrokeOff, error: error.into() });
            break;
        }
        match ending {
            Some(Ending::Broken { cause }) => {
                let error = anyhow!("limit {limit} broke off: {cause}");
                broke = Some(Failure::Told { exit: Exit::BrokeOff, error });
                break;
            }
            Some(Ending::Interrupted) => break,
            Some(Ending::Complete) | None => {}
        }
        if interrupt.is_asked() {
            break;
        }
    }
    progress.done();
    if interrupt.is_asked() && broke.is_none() {
        broke = Some(Failure::Told {
            exit: Exit::Interrupted,
            error: anyhow!("interrupted; what was measured is in {}", bench.dir.path().display()),
        });
    }
    Ok((done, broke))
}

/// Writes summary and report, prints the table, and says how it ended.
fn conclude(args: &SweepArgs, head: &Head, dir: &RunDir, derived: &[Derived], broke: Option<Failure>) -> Verdict {
    if derived.is_empty()
        && let Some(failure) = broke
    {
        // Nothing was measured: the same command can be given again with the same folder.
        dir.clone().discard();
        return Err(failure);
    }
    let summary = summarise(head, derived);
    let written = write_derived(head, dir, &summary, derived);
    if args.json {
        let text = serde_json::to_string_pretty(&summary).context("the summary as JSON").or_exit(Exit::BrokeOff)?;
        print(format_args!("{text}\n"))?;
    } else if !summary.limits.is_empty() {
        print(format_args!("{}", table::text(&summary)))?;
    }
    if !args.quiet {
        tell(format_args!("run folder: {}", dir.path().display()));
    }
    if let Some(failure) = broke {
        return Err(failure);
    }
    written.or_exit(Exit::BrokeOff)?;
    let right = summary.limits.iter().all(|limit| limit.agreement == Agreement::Agrees && limit.failed == 0);
    Ok(if right { Exit::Done } else { Exit::NotRight })
}

fn plan(args: &SweepArgs) -> anyhow::Result<SweepPlan> {
    anyhow::ensure!(
        (WORK_MIN..=WORK_MAX).contains(&args.work),
        "--work {} ms is outside {} to {} ms",
        args.work.as_millis_f64(),
        WORK_MIN.as_millis_f64(),
        WORK_MAX.as_millis_f64()
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
        nesting: if args.flat { Nesting::Flat } else { Nesting::Nested },
        period_us: args::whole_us("--period", args.period)?,
        burst_us: args::whole_us("--burst", args.burst)?,
        background: args.background,
    })
}

/// `results/<date>-<kernel>-sweep`, with a number when that is taken.
fn default_out(environment: &Environment) -> PathBuf {
    let seconds = i64::try_from(ClockAnchor::take().realtime_ns / 1_000_000_000).unwrap_or(0);
    let date = jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| "undated".to_owned(), |now| now.strftime("%Y-%m-%d").to_string());
    let version = match environment.cgroup_version {
        Version::V1 => "v1",
        Version::V2 => "v2",
    };
    let base = format!("{date}-{}-{version}-sweep", environment.kernel);
    let results = Path::new("results");
    let numbered = (2..).map(|number| results.join(format!("{base}-{number}")));
    std::iter::once(results.join(&base))
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| results.join(base))
}
