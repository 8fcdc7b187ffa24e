//! `throttle run`: one command under a limit, observed.

mod child;
mod names;
mod observe;
mod signals;

use std::{
    ffi::OsString,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;

use super::{
    args,
    exit::{Exit, Failure, OrExit, Verdict, print, tell},
};
use crate::{
    cgroup::{Bandwidth, CpuLimit, Hierarchy, Nesting, ScratchPlan, remove_stale},
    probe::prerequisites,
    report::command::{Shown, text},
    run::{
        command::{CommandRun, derive},
        environment::Environment,
    },
    time::DurationNs,
};

/// Run a command under a CPU limit and say where its threads' time went, period by period.
///
/// The command runs in cgroups of its own from its first instruction on, with standard input, output, environment and folder
/// as they are. It is let go when the observer is up and the period timers rest (four periods, about half a second). The
/// observation ends with its main process: what it left running is killed, and said. The report goes to stderr, so that
/// pipes on the command's stdout work.
///
/// Exit code: the command's own, or 128 + N if signal N killed it, also when the report says that something is not right.
/// Before the command starts: 2 bad usage, or the command cannot be started; 3 this machine cannot do it; 130 interrupted.
/// 4 the command ran, but its report could not be made.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// CPU limit: 200m, 0.5, 2, or unlimited (observes only).
    #[arg(long, value_name = "LIMIT")]
    limit: CpuLimit,
    /// Limit pod and container, as the kubelet does (the default).
    #[arg(long, conflicts_with = "flat")]
    nested: bool,
    /// Limit the container alone.
    #[arg(long)]
    flat: bool,
    /// CFS period, 1 ms to 1 s.
    #[arg(long, default_value = "100ms", value_parser = args::some_duration, value_name = "TIME")]
    period: DurationNs,
    /// CFS burst.
    #[arg(long, default_value = "0", value_parser = args::duration, value_name = "TIME")]
    burst: DurationNs,
    /// Cgroup to work in, absolute or relative to the cpu controller's mount [default: near this process].
    #[arg(long, value_name = "CGROUP")]
    parent: Option<PathBuf>,
    /// Write everything as JSON to this file; - is stdout, after the command's own output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Threads in the report.
    #[arg(long, default_value = "10", value_name = "N")]
    threads_shown: usize,
    /// Periods in the report.
    #[arg(long, default_value = "40", value_name = "N")]
    periods_shown: usize,
    /// No report on stderr.
    #[arg(long)]
    quiet: bool,
    /// Show the probe's own diagnostics on stderr.
    #[arg(long)]
    probe_log: bool,
    /// Program and arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub(super) fn run(args: &RunArgs) -> Verdict {
    let plan = ScratchPlan {
        nesting: if args.flat { Nesting::Flat } else { Nesting::Nested },
        bandwidth: bandwidth(args).or_exit(Exit::BadInput)?,
        parent: args.parent.clone(),
    };
    let json = args.json.as_deref().map(Json::open).transpose().or_exit(Exit::BadInput)?;
    if args.probe_log {
        super::probe_log();
    }
    let hierarchy = Hierarchy::find().or_exit(Exit::CannotRun)?;
    let kernel = prerequisites::kernel_layout(hierarchy.version).or_exit(Exit::CannotRun)?;
    let environment = Environment::gather(&hierarchy, &kernel.facts);
    for stale in remove_stale(&hierarchy).or_exit(Exit::CannotRun)? {
        tell(format_args!("throttle: left behind by process {}: {}", stale.owner.pid, stale.removal));
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().or_exit(Exit::CannotRun)?;
    let stage = observe::Stage {
        hierarchy: &hierarchy,
        kernel: &kernel,
        plan: &plan,
        limit: args.limit,
        command: &args.command,
        probe_log: args.probe_log,
    };
    let (raw, events) = runtime.block_on(observe::run(&stage, environment))?;
    let status = raw.status;
    let run = derive(raw, events);
    if !args.quiet {
        let shown = Shown { threads: args.threads_shown, periods: args.periods_shown };
        tell(format_args!("\n{}", text(&run, shown).trim_end()));
    }
    if let Some(json) = json {
        json.write(&run)?;
    }
    Ok(Exit::Command(status.exit_code()))
}

fn bandwidth(args: &RunArgs) -> anyhow::Result<Bandwidth> {
    let (period_us, burst_us) = (args::whole_us("--period", args.period)?, args::whole_us("--burst", args.burst)?);
    Ok(args.limit.bandwidth(period_us, burst_us)?)
}

/// Where the JSON goes; opened before the command runs, so that a bad name costs nothing.
enum Json {
    Stdout,
    File { path: PathBuf, file: File },
}

impl Json {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file =
            File::create(path).with_context(|| format!("cannot write {}; name another --json file", path.display()))?;
        Ok(Self::File { path: path.to_owned(), file })
    }

    fn write(self, run: &CommandRun) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(run).context("the report as JSON").or_exit(Exit::BrokeOff)?;
        match self {
            Self::Stdout => print(format_args!("{text}\n")),
            Self::File { path, mut file } => {
                let written = writeln!(file, "{text}");
                written.with_context(|| format!("cannot write {}", path.display())).or_exit(Exit::BrokeOff)
            }
        }
    }
}
