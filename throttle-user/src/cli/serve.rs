//! `throttle serve`: the burn server as a process.
//!
//! Owns the order of start-up: calibrate, join the cgroup, only then start threads, bind, announce, serve.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::args;
use super::exit::{Exit, Failure, OrExit as _, Verdict, print, tell};
use crate::request::FanOut;
use crate::time::DurationNs;
use crate::workload::{BurnDefaults, Burner, Server, ServerError, ServerOptions, WORK_MAX, WORK_MIN, WORKERS_MAX};

/// Serve requests that burn a stated amount of CPU time each.
///
/// GET /burn?work_ms=60&threads=1&mode=split burns, and answers with monotonic stamps, thread ids and CPU time used;
/// GET /healthz and GET /info say that and how it runs. The first line on stdout is `listening http://ADDRESS:PORT`.
/// SIGTERM or SIGINT answers what was accepted and ends with 0: connections without a request at work have 2 s. A second
/// one ends at once. A request has no body, and a head of at most some 400 KiB.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address and port to listen on; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Worker threads, started once. A fixed number, not derived from the CPUs: the kernel's answer to how many there
    /// are depends on the limit under study.
    #[arg(long, default_value = "4", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    workers: u32,
    /// CPU time of a request that does not say.
    #[arg(long, default_value = "60ms", value_parser = work, value_name = "TIME")]
    work: DurationNs,
    /// Threads of a request that does not say.
    #[arg(long, default_value = "1", value_name = "N")]
    threads: NonZeroU32,
    /// How several threads share the work of a request that does not say: split or whole.
    #[arg(long, default_value = "split", value_name = "MODE")]
    mode: FanOut,
    /// End as well when standard input is closed: for a parent that may die without a word.
    #[arg(long)]
    while_stdin_open: bool,
    /// Cgroup directory to join before any thread is started, such as /sys/fs/cgroup/cpu/NAME.
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
}

/// Runs the verb.
pub(super) fn run(args: &ServeArgs) -> Verdict {
    let burner = Burner::calibrate();
    super::join(args.cgroup.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().or_exit(Exit::CannotRun)?;
    runtime.block_on(serve(args, burner))
}

async fn serve(args: &ServeArgs, burner: Burner) -> Verdict {
    let defaults = BurnDefaults { work_ns: args.work, threads: args.threads.get(), fan_out: args.mode };
    let options = ServerOptions { listen: args.listen, workers: args.workers, defaults };
    let stop = StopSignals::new().or_exit(Exit::CannotRun)?;
    let server = Server::bind(&options, burner).await.map_err(|error| {
        let exit = match error {
            ServerError::Bind { .. } | ServerError::Defaults { .. } => Exit::BadInput,
            ServerError::Pool(_) | ServerError::Serve { .. } => Exit::CannotRun,
        };
        Failure::Told { exit, error: error.into() }
    })?;
    print(format_args!("listening http://{}\n", server.address()))?;
    server.serve(shutdown(stop, args.while_stdin_open)).await.or_exit(Exit::BrokeOff)?;
    Ok(Exit::Done)
}

/// Resolves at the first signal; the second ends the process.
async fn shutdown(mut stop: StopSignals, while_stdin_open: bool) {
    if while_stdin_open {
        // A blocked read on a thread of its own: it causes no wakeup while nothing happens.
        let (closed, wait) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = closed.send(());
        });
        tokio::select! {
            () = stop.next() => {}
            _ = wait => return,
        }
    } else {
        stop.next().await;
    }
    tell(format_args!("throttle serve: stopping; a second signal does not wait for requests"));
    tokio::spawn(async move {
        stop.next().await;
        std::process::exit(i32::from(Exit::Interrupted.code()));
    });
}

/// SIGTERM and SIGINT, either of which asks for an end.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// A CPU time within what `/burn` takes.
fn work(text: &str) -> Result<DurationNs, String> {
    let work = args::duration(text).map_err(|error| error.to_string())?;
    if (WORK_MIN..=WORK_MAX).contains(&work) {
        Ok(work)
    } else {
        Err(format!(
            "CPU time of a request must be from {} to {} ms",
            WORK_MIN.as_millis_f64(),
            WORK_MAX.as_millis_f64()
        ))
    }
}
