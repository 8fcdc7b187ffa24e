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
use procfs::Current;

pub(super) use observe::{Stage, run as observe};
pub(super) use signals::Signals;

use super::{
    ability::Ability,
    exit::{Exit, Failure, OrExit, Verdict, print, tell},
    limited::{LimitedArgs, not_observed},
};
use crate::{
    cgroup::{Bandwidth, CpuLimit, Hierarchy, ScratchPlan, remove_stale},
    event::Event,
    report::command::{Shown, text},
    run::{
        command::{CommandRun, RawCommand, derive},
        environment::Environment,
    },
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
    #[command(flatten)]
    limited: LimitedArgs,
    /// Write everything as JSON to this file; - is stdout, after the command's own output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Threads in the report.
    #[arg(long, default_value = "10", value_name = "N")]
    threads_shown: usize,
    /// Periods in the report.
    #[arg(long, default_value = "40", value_name = "N")]
    periods_shown: usize,
    /// Most events kept, for memory is not without end; what comes after is counted and not explained. An event takes some 300
    /// bytes until the report is made [default: as many as fit in a quarter of the free memory, at most 20 million].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_events: Option<u32>,
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
        nesting: args.limited.nesting(),
        bandwidth: bandwidth(args).or_exit(Exit::BadInput)?,
        parent: args.limited.parent.clone(),
    };
    let json = args.json.as_deref().map(Json::open).transpose().or_exit(Exit::BadInput)?;
    if args.probe_log {
        super::probe_log();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().or_exit(Exit::CannotRun)?;
    let (raw, events) = runtime.block_on(async {
        // Before anything that takes time or leaves something behind.
        let mut signals = Signals::listen().or_exit(Exit::CannotRun)?;
        observed(args, &plan, &mut signals).await
    })?;
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

async fn observed(
    args: &RunArgs,
    plan: &ScratchPlan,
    signals: &mut Signals,
) -> Result<(RawCommand, Vec<Event>), Failure> {
    let hierarchy = Hierarchy::find().or_exit(Exit::CannotRun)?;
    not_observed(&hierarchy)?;
    let ability = Ability::find(&hierarchy).or_exit(Exit::CannotRun)?;
    for lost in ability.lost().filter(|_| !args.quiet) {
        tell(format_args!("throttle: {lost}"));
    }
    let environment = Environment::gather(&hierarchy, &ability.kernel.facts);
    for stale in remove_stale(&hierarchy).or_exit(Exit::CannotRun)? {
        tell(format_args!("throttle: left behind by process {}: {}", stale.owner.pid, stale.removal));
    }
    let stage = Stage {
        hierarchy: &hierarchy,
        kernel: &ability.kernel,
        plan,
        limit: args.limit,
        command: &args.command,
        probe_log: args.probe_log,
        most_events: args.max_events.map_or_else(most_events, |most| usize::try_from(most).unwrap_or(usize::MAX)),
    };
    signals.none_yet()?;
    observe(&stage, signals, environment).await
}

/// As many events as fit in a quarter of the free memory with what is derived from them.
fn most_events() -> usize {
    const MOST: u64 = 20_000_000;
    const BYTES_EACH: u64 = 300;
    let free = procfs::Meminfo::current().ok().and_then(|memory| memory.mem_available);
    let fitting = free.map_or(MOST, |bytes| (bytes / 4 / BYTES_EACH).min(MOST));
    usize::try_from(fitting).unwrap_or(usize::MAX)
}

fn bandwidth(args: &RunArgs) -> anyhow::Result<Bandwidth> {
    Ok(args.limit.bandwidth(args.limited.period_us()?, args.limited.burst_us()?)?)
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
