//! `throttle observe`: the node daemon.
//!
//! Four threads: one reads the ring buffer, one makes the timeline, one watches the tree of cgroups, and the main one answers requests
//! and looks after the others.

pub(super) mod analysis;
mod figures;
mod names;
mod rights;
pub(super) mod tree;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    args,
    exit::{Exit, Failure, OrExit as _, Verdict, print, tell},
};
use crate::{
    cgroup::{Hierarchy, Watch},
    exporter::{Exporter, Listening, routes::router},
    node::{Bounds, Census, Recent},
    probe::{Detail, KernelLayout, Observer, ObserverPlan, observer::count_cost, prerequisites},
    run::environment::{counts_from, cpus_online},
    time::{DurationNs, now},
};
use analysis::Analysis;
use tree::TreeThread;

/// Observe every CPU limit on this node, and tell over HTTP.
///
/// Records the periods and throttles of all limited cgroups, whoever made them, and follows groups as they come and go and as their
/// limits change. /metrics has counters and histograms (OpenMetrics, or Prometheus text), /api/v1/cgroups the same as JSON,
/// /api/v1/periods?pod=NAME each period as a line of JSON as it ends, some two periods later; /healthz and /readyz say whether what
/// is told can be relied on. The first line on stdout is `listening http://ADDRESS:PORT`.
///
/// Needs CAP_BPF and CAP_PERFMON, BTF, and the cpu controller's mount to read; once the probe is attached it gives up all of its
/// capabilities. `throttle check` says what can be observed. SIGTERM or SIGINT ends it, exit code 0.
#[derive(Debug, Args)]
pub(super) struct ObserveArgs {
    /// Address and port to listen on; anyone who can reach it can read it. Port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:9753", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Follow also the threads of this cgroup and of those below it, by its path below the mount: what ran, what was held, how much of
    /// the node was idle meanwhile. Costs a record a switch, and one each time any CPU gets idle. May be given several times.
    #[arg(long, value_name = "PATH")]
    tasks: Vec<String>,
    /// Cgroups that are counted at most; periods of more are counted as refused.
    #[arg(long, default_value = "5000", value_name = "N")]
    max_cgroups: usize,
    /// How long a cgroup that is gone keeps its name and its counters.
    #[arg(long, default_value = "2m", value_parser = args::some_duration, value_name = "TIME")]
    grace: DurationNs,
    /// Memory for the last periods, MiB.
    #[arg(long, default_value = "8", value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    recent: u32,
    /// Size of the ring buffer between kernel and program, MiB; a power of two.
    #[arg(long, default_value = "4", value_name = "MIB", value_parser = ring)]
    ring: u32,
    /// Where names of pods come from: api, paths, or auto: the API server inside a cluster, else paths alone.
    #[arg(long, default_value = "auto", value_name = "SOURCE", value_enum)]
    names: names::Source,
    /// Name of this node, to be told of its pods alone; in a pod it comes from `spec.nodeName`.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: Option<String>,
    /// Let the kernel count what the eBPF programs cost, of all programs on the node; costs two readings of the clock each time one
    /// runs. Takes CAP_SYS_ADMIN at start.
    #[arg(long)]
    probe_cost: bool,
    /// Show the probe's own diagnostics on stderr.
    #[arg(long)]
    probe_log: bool,
}

/// How often the reader looks: a ring of 4 MiB holds more than a million records a second that long.
const POLL: Duration = Duration::from_millis(20);
/// How often the main thread looks after the others.
const LOOK: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(super) fn run(args: &ObserveArgs) -> Verdict {
    let hierarchy = Hierarchy::find().or_exit(Exit::CannotRun)?;
    let kernel = prerequisites::kernel_layout(hierarchy.version).or_exit(Exit::CannotRun)?;
    if args.probe_log {
        super::probe_log();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().or_exit(Exit::CannotRun)?;
    runtime.block_on(observe(args, &hierarchy, &kernel))
}

async fn observe(args: &ObserveArgs, hierarchy: &Hierarchy, kernel: &KernelLayout) -> Verdict {
    let mut terminate = signal(SignalKind::terminate()).or_exit(Exit::CannotRun)?;
    let mut interrupt = signal(SignalKind::interrupt()).or_exit(Exit::CannotRun)?;
    let listening = Listening::on(args.listen).await.or_exit(Exit::BadInput)?;
    let census = Census::new(Bounds { counted: args.max_cgroups, grace: args.grace });
    let recent = Recent::new(usize::try_from(args.recent).unwrap_or(usize::MAX) << 20);
    let exporter = Arc::new(Exporter::new(census, recent));
    let (watch, there) = Watch::start(hierarchy).or_exit(Exit::CannotRun)?;
    let cpus = cpus_online();
    let analysis = Analysis::start(Arc::clone(&exporter), counts_from(&kernel.facts), cpus).or_exit(Exit::CannotRun)?;
    let plan = ObserverPlan {
        groups: vec![],
        unlisted: Detail::Edges,
        idle: !args.tasks.is_empty(),
        unlimited: false,
        ring_bytes: args.ring << 20,
        log: args.probe_log,
    };
    let sink = rights::without(analysis.sink());
    let observer = Observer::start_seen(&plan, kernel, hierarchy, POLL, sink).or_exit(Exit::CannotRun)?;
    let since = now();
    // As long as this lives.
    let cost = args.probe_cost.then(count_cost).transpose();
    let _cost = cost
        .context("the kernel does not count what eBPF programs cost: it takes CAP_SYS_ADMIN; leave --probe-cost out")
        .or_exit(Exit::CannotRun)?;
    let kept = rights::give_up(&observer).or_exit(Exit::CannotRun)?;
    // The other side has just been started.
    drop(analysis.sender().send(analysis::Told::Since(since)));
    for lack in observer.lacks().chain(kept.clone()) {
        tell(format_args!("throttle observe: {lack}"));
    }
    {
        let mut state = exporter.state();
        state.own.hooks = observer.hooks().to_vec();
        state.own.lacks = observer.unchecked().map(str::to_owned).into_iter().chain(kept).collect();
    }
    let observer = Arc::new(Mutex::new(Some(observer)));
    let told = tree::Told {
        exporter: Arc::clone(&exporter),
        observer: Arc::clone(&observer),
        analysis: analysis.sender(),
        tasks: args.tasks.iter().map(|path| path.trim_matches('/').to_owned()).collect(),
    };
    let mut tree = TreeThread::start(watch, &there, told).or_exit(Exit::CannotRun)?;
    exporter.state().own.since = Some(since);
    let limited = exporter.state().census.members().filter(|(_, member)| member.is_limited()).count();
    tell(format_args!("throttle observe: {limited} limited cgroups now, on {cpus} CPUs"));
    print(format_args!("listening http://{}\n", listening.address()))?;
    tokio::spawn(listening.serve(router(Arc::clone(&exporter))));
    tokio::spawn(names::follow(Arc::clone(&exporter), args.names, args.node.clone()));
    let mut look = tokio::time::interval(LOOK);
    let ended = loop {
        tokio::select! {
            _ = terminate.recv() => break Ok(Exit::Done),
            _ = interrupt.recv() => break Ok(Exit::Done),
            _ = look.tick() => {
                if let Err(error) = look_after(args, &exporter, &observer, &analysis, &mut tree) {
                    break Err(Failure::Told { exit: Exit::BrokeOff, error });
                }
            }
        }
    };
    tree.stop();
    let observer = observer.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(observer) = observer {
        // Whatever it says now, nobody would read it.
        drop(observer.stop());
    }
    ended
}

/// Takes down what the daemon costs and loses; an error ends it: a thread is gone.
fn look_after(
    args: &ObserveArgs,
    exporter: &Exporter,
    observer: &Mutex<Option<Observer>>,
    analysis: &Analysis,
    tree: &mut TreeThread,
) -> anyhow::Result<()> {
    if let Some(error) = tree.failed() {
        return Err(error.context("the cgroups are no longer watched"));
    }
    if !analysis.is_running() {
        return Err(anyhow!("the thread that makes the timeline ended; its last words are above"));
    }
    let observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(observer) = observer.as_ref() else { return Ok(()) };
    if !observer.is_reading() {
        return Err(anyhow!("the thread that reads the ring buffer ended; its last words are above"));
    }
    let losses = observer.losses().context("the probe's account of losses cannot be read")?;
    let programs = figures::programs(observer, args.probe_cost);
    let process = figures::process();
    let mut state = exporter.state();
    state.own.losses = Some(losses);
    state.own.programs = programs;
    state.own.process = process;
    state.census.forget(now());
    state.pods.forget(now(), args.grace);
    Ok(())
}

/// A power of two of MiB, up to a GiB.
fn ring(text: &str) -> Result<u32, String> {
    let mib: u32 = text.parse().map_err(|_| "want a whole number of MiB".to_owned())?;
    if mib.is_power_of_two() && mib <= 1024 { Ok(mib) } else { Err("want a power of two from 1 to 1024".to_owned()) }
}
