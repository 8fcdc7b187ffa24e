//! `throttle load`: send requests by a schedule and say what was waited.
//!
//! Owns the flags, the files it writes, and how the run's end becomes an exit code. The text of the summary is in
//! [`summary`].

mod summary;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use self::summary::Summary;
use super::args;
use super::exit::{Exit, Failure, OrExit as _, Verdict, print, tell};
use crate::client::{
    ClientError, End, IntervalLog, LatencyRecord, LoadPlan, LoadReport, Pace, Spacing, Target, drive, write_hgrm,
};
use crate::request::{FanOut, Outcome, RequestSpan, WorkSpec};
use crate::time::{ClockAnchor, DurationNs, now};

/// Length of an interval of the `.hlog`.
const INTERVAL: DurationNs = DurationNs::from_millis(1_000);
/// Requests sent when neither --requests nor --duration is given.
const REQUESTS: u64 = 40;

/// Send requests to a `throttle serve` and report wall time, service time and latency.
///
/// By default a closed loop: one stream, 200 ms after each answer. --rate or --interval make it an open loop:
/// requests fall due by the clock, and latency counts from the due time.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// Where to send, as printed by `throttle serve`: http://HOST:PORT.
    #[arg(value_parser = Target::parse)]
    url: Target,
    /// Stop after so many requests over all streams [default: 40, unless --duration is given].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Stop sending after this long.
    #[arg(long, value_name = "TIME", value_parser = args::some_duration)]
    duration: Option<DurationNs>,
    /// Closed loop: from an answer to the stream's next request.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = args::duration)]
    gap: DurationNs,
    /// Closed loop: streams at once, one connection each.
    #[arg(long, value_name = "N", default_value = "1")]
    streams: NonZeroU32,
    /// Open loop: requests a second, such as 5 or 2.5.
    #[arg(long, value_name = "RATE", value_parser = args::rate, conflicts_with_all = ["interval", "gap", "streams"])]
    rate: Option<Spacing>,
    /// Open loop: one request every TIME.
    #[arg(long, value_name = "TIME", value_parser = args::some_duration, conflicts_with_all = ["gap", "streams"])]
    interval: Option<DurationNs>,
    /// Open loop: most connections at once; with all busy, requests are sent late and the lateness is reported.
    #[arg(long, value_name = "N", default_value = "64")]
    connections: NonZeroU32,
    /// CPU time of each request [default: the server's].
    #[arg(long, value_name = "TIME", value_parser = args::some_duration)]
    work: Option<DurationNs>,
    /// Worker threads of each request [default: the server's].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroU32>,
    /// How the threads share the work: split or whole [default: the server's].
    #[arg(long, value_name = "MODE")]
    mode: Option<FanOut>,
    /// Longest wait for a connection, and for an answer.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = args::some_duration)]
    timeout: DurationNs,
    /// Write the latency distribution as HdrHistogram text, in milliseconds.
    #[arg(long, value_name = "FILE")]
    hgrm: Option<PathBuf>,
    /// Write an interval log of compressed HdrHistograms, in nanoseconds: latency untagged, `service` and `wall`
    /// tagged.
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Print JSON lines instead of the table: each request as it ends, then a summary.
    #[arg(long)]
    json: bool,
    /// No progress bar, and no word on single requests that fail.
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the verb.
pub(super) fn run(args: &LoadArgs) -> Verdict {
    let plan = args.plan();
    let mut sink = Sink::open(args, &plan)?;
    // The streams get a thread of their own, so that printing a row never delays a stamp.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().or_exit(Exit::CannotRun)?;
    let ended = runtime.block_on(drive_until_interrupted(&plan, &args.url, &mut sink))?;
    // Ends the streams of an interrupted run without waiting for a name lookup that may be under way.
    runtime.shutdown_background();
    sink.conclude(args, &plan, ended)
}

impl LoadArgs {
    fn plan(&self) -> LoadPlan {
        let spacing = self.rate.or_else(|| self.interval.and_then(Spacing::every));
        let pace = match spacing {
            Some(spacing) => Pace::Open { spacing },
            None => Pace::Closed { streams: self.streams, gap: self.gap, spread: DurationNs::ZERO },
        };
        let requests = self.requests.or(self.duration.is_none().then_some(REQUESTS));
        LoadPlan {
            pace,
            end: End { requests, duration: self.duration },
            work: WorkSpec { work_ns: self.work, threads: self.threads.map(NonZeroU32::get), fan_out: self.mode },
            timeout: self.timeout,
            connections: self.connections,
        }
    }
}

/// How the sending ended.
enum Ended {
    /// By plan, or because the sink broke.
    Complete(LoadReport),
    Interrupted,
    Broken(ClientError),
}

async fn drive_until_interrupted(plan: &LoadPlan, target: &Target, sink: &mut Sink) -> Result<Ended, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).or_exit(Exit::CannotRun)?;
    let mut terminate = signal(SignalKind::terminate()).or_exit(Exit::CannotRun)?;
    let driven = tokio::select! {
        driven = drive(plan, target, |span| sink.take(&span)) => driven,
        _ = interrupt.recv() => return Ok(Ended::Interrupted),
        _ = terminate.recv() => return Ok(Ended::Interrupted),
    };
    Ok(driven.map_or_else(Ended::Broken, Ended::Complete))
}

/// Where finished requests go.
struct Sink {
    record: LatencyRecord,
    json: bool,
    quiet: bool,
    hgrm: Option<BufWriter<File>>,
    hlog: Option<(PathBuf, IntervalLog<BufWriter<File>>)>,
    progress: ProgressBar,
    broken: Option<Failure>,
}

/// A line of the JSON output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Request(&'a RequestSpan),
    Summary(&'a Summary),
}

impl Sink {
    /// Opens the files first: a path that cannot be written is best known before the run.
    fn open(args: &LoadArgs, plan: &LoadPlan) -> Result<Self, Failure> {
        let hgrm = args.hgrm.as_deref().map(create).transpose()?;
        let hlog = match args.hlog.as_deref() {
            None => None,
            Some(path) => {
                let file = create(path)?;
                let log = IntervalLog::begin(file, &ClockAnchor::take(), now(), INTERVAL);
                let log = log.with_context(|| format!("cannot write {}", path.display())).or_exit(Exit::BadInput)?;
                Some((path.to_owned(), log))
            }
        };
        let progress = progress(args.quiet || !io::stderr().is_terminal(), plan.end.requests);
        let (record, json, quiet) = (LatencyRecord::default(), args.json, args.quiet);
        Ok(Self { record, json, quiet, hgrm, hlog, progress, broken: None })
    }

    /// Takes a finished request; breaks the run off when it cannot be kept.
    fn take(&mut self, span: &RequestSpan) -> ControlFlow<()> {
        self.record.record(span);
        self.progress.inc(1);
        match &span.outcome {
            Outcome::Failed { error } if !self.quiet => {
                self.progress.suspend(|| tell(format_args!("throttle load: request {} failed: {error}", span.request)));
            }
            Outcome::Failed { .. } => {}
            Outcome::Ok { server } => {
                self.progress.set_message(format!("last wall {:.1} ms", server.wall().as_millis_f64()));
            }
        }
        match self.keep(span) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.broken = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    fn keep(&mut self, span: &RequestSpan) -> Result<(), Failure> {
        if let Some((path, hlog)) = &mut self.hlog {
            hlog.record(span).with_context(|| format!("cannot write {}", path.display())).or_exit(Exit::BrokeOff)?;
        }
        if self.json { print_line(&Line::Request(span)) } else { Ok(()) }
    }

    /// Writes files and summary, whatever the run came to, and decides the exit code.
    fn conclude(mut self, args: &LoadArgs, plan: &LoadPlan, ended: Ended) -> Verdict {
        self.progress.finish_and_clear();
        if let Some(mut file) = self.hgrm.take() {
            let written = write_hgrm(&self.record.latency, &mut file).and_then(|()| file.flush());
            written.with_context(|| format!("cannot write {}", shown(args.hgrm.as_deref()))).or_exit(Exit::BrokeOff)?;
        }
        if let Some((path, log)) = self.hlog.take() {
            let written = log.finish(now());
            written.with_context(|| format!("cannot write {}", path.display())).or_exit(Exit::BrokeOff)?;
        }
        if let Some(failure) = self.broken {
            return Err(failure);
        }
        let report = match &ended {
            Ended::Complete(report) => Some(*report),
            Ended::Broken(error) => error.report().copied(),
            Ended::Interrupted => None,
        };
        if !matches!(ended, Ended::Broken(ClientError::Unreachable { .. })) {
            let summary = Summary::new(&args.url, plan, &self.record, report.as_ref());
            if self.json { print_line(&Line::Summary(&summary))? } else { print(format_args!("{summary}"))? }
        }
        match ended {
            Ended::Interrupted => Ok(Exit::Interrupted),
            Ended::Complete(_) if self.record.failed > 0 => Ok(Exit::NotRight),
            Ended::Complete(_) => Ok(Exit::Done),
            Ended::Broken(error) => {
                let exit = match error {
                    ClientError::Unreachable { .. } | ClientError::Refused { .. } => Exit::BadInput,
                    ClientError::ServerGone { .. } | ClientError::Timer { .. } => Exit::BrokeOff,
                };
                Err(Failure::Told { exit, error: error.into() })
            }
        }
    }
}

fn shown(path: Option<&Path>) -> impl std::fmt::Display {
    path.unwrap_or(Path::new("-")).display()
}

fn create(path: &Path) -> Result<BufWriter<File>, Failure> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()));
    file.map(BufWriter::new).or_exit(Exit::BadInput)
}

fn print_line(line: &Line<'_>) -> Result<(), Failure> {
    let text = serde_json::to_string(line).or_exit(Exit::BrokeOff)?;
    print(format_args!("{text}\n"))
}

/// A bar with time left where the number of requests is known, else a count.
fn progress(hidden: bool, requests: Option<u64>) -> ProgressBar {
    let template = match requests {
        Some(_) => "{bar:30} {pos}/{len} requests, {eta} left, {msg}",
        None => "{pos} requests in {elapsed}, {msg}",
    };
    super::progress::bar(hidden, requests, template)
}
