//! One limit of a sweep: groups, server, observer, requests, counters.

use std::ops::ControlFlow;

use anyhow::{Result, anyhow};
use tokio::task::block_in_place;

use super::{background::Background, progress::Progress, server::BurnServer};
use crate::{
    cgroup::{Bandwidth, CpuLimit, Hierarchy, Quota, Scratch, ScratchPlan},
    cli::{
        exit::tell,
        interrupt::Interrupt,
        recording::{Keeping, Recorded, Recording, Scope, read_levels, wait_until_quiet},
    },
    client::{ClientError, End, LoadPlan, Pace, drive},
    event::Event,
    probe::KernelLayout,
    request::{Outcome, RequestSpan, WorkSpec},
    run::{
        Kept, Lines, RunDir, SweepPlan,
        derive::RawLimit,
        environment::stolen,
        record::{Ending, LimitBegin, LimitEnd, RawLine},
    },
    time::{ClockAnchor, DurationNs},
};

/// What every arm of a sweep shares.
pub(super) struct Bench<'a> {
    pub(super) hierarchy: &'a Hierarchy,
    pub(super) kernel: &'a KernelLayout,
    pub(super) plan: &'a SweepPlan,
    pub(super) parent: Option<std::path::PathBuf>,
    pub(super) dir: &'a RunDir,
    pub(super) interrupt: &'a Interrupt,
    pub(super) probe_log: bool,
    pub(super) cpus: u32,
}

/// Runs one limit; `None` if the user interrupted before it began. An error means that nothing was recorded of it; what breaks
/// later is in the ending.
pub(super) async fn run(
    bench: &Bench<'_>,
    limit: CpuLimit,
    bandwidth: Bandwidth,
    record: &mut Lines,
    progress: &Progress,
) -> Result<Option<(RawLimit, Vec<Event>)>> {
    let plan = ScratchPlan {
        nesting: bench.plan.nesting,
        bandwidth: Bandwidth { quota: Quota::Unlimited, burst_us: 0, ..bandwidth },
        parent: bench.parent.clone(),
    };
    let mut scratch = Scratch::create(bench.hierarchy, &plan)?;
    scratch.join_driver()?;
    // The server calibrates before its limit is set.
    let mut server = tokio::select! {
        server = BurnServer::start(scratch.container().path(), bench.plan.workers()) => server?,
        () = bench.interrupt.asked() => return Ok(None),
    };
    scratch.set_bandwidth(&bandwidth)?;
    let scope = Scope::of(bench.hierarchy, &scratch)?;
    let unlimited = bandwidth.quota == Quota::Unlimited;
    // A limit's requests are counted, and its events with them: there is no end to guard against.
    let keeping = Keeping { most: usize::MAX, writer: Some(bench.dir.events(limit)?), on_task: Box::new(|_| {}) };
    let recording = block_in_place(|| {
        Recording::start(&scope, bench.hierarchy, bench.kernel, unlimited, bench.probe_log, keeping)
    })?;
    warm_up(bench, &server, &recording, &scope).await?;
    let background = match bench.plan.background {
        None => None,
        Some(times) => Some(Background::start(&scratch, times, bench.cpus).await?),
    };

    let quiet = block_in_place(|| wait_until_quiet(&scratch, || bench.interrupt.is_asked()))?;
    if bench.interrupt.is_asked() {
        if let Some(background) = background {
            background.stop(Ending::Interrupted).await;
        }
        end(server, &scratch).await;
        return Ok(None);
    }
    let begin = LimitBegin {
        limit,
        bandwidth,
        levels: read_levels(&scratch)?,
        paths: scope.paths,
        quiet,
        stolen_ns: stolen(),
        clock: ClockAnchor::take(),
    };
    record.write(&RawLine::LimitBegin(begin.clone()))?;
    let mut spans = Vec::new();
    let ending = requests(bench, limit, &server, &recording, record, &mut spans, progress).await;
    let ending = match background {
        None => ending,
        Some(background) => background.stop(ending).await,
    };
    let (ending, losses, events, after) = conclude(bench, ending, &mut server, &scratch, recording)?;
    let clock = ClockAnchor::take();
    let ending = ending.unless_slept(&begin.clock, &clock);
    let (levels, quiet) = after.map_or((None, false), |(levels, quiet)| (Some(levels), quiet));
    let mut ended = LimitEnd { limit, levels, quiet, stolen_ns: stolen(), losses, clock, ending };
    // If the disk is full the raw lines before this one are there all the same; the caller still gets the arm.
    if let Err(error) = record.write(&RawLine::LimitEnd(ended.clone())) {
        break_off(&mut ended.ending, error.to_string());
    }
    end(server, &scratch).await;
    let removal = block_in_place(|| scratch.remove());
    if !removal.is_complete() {
        tell(format_args!("throttle: {removal}"));
    }
    Ok(Some((RawLimit { begin, spans, end: Some(ended), kept: Kept::All }, events)))
}

/// Ends the server, without the limit that would make it slow.
async fn end(server: BurnServer, scratch: &Scratch) {
    // A refusal only makes the wait longer.
    let _ = scratch.set_bandwidth(&Bandwidth::UNLIMITED);
    server.stop().await;
}

/// Something broke; what broke before it, or that the user wanted an end, stands first.
fn break_off(ending: &mut Ending, cause: String) {
    match ending {
        Ending::Complete => *ending = Ending::Broken { cause },
        Ending::Interrupted => tell(format_args!("throttle: {cause}")),
        Ending::Broken { cause: first } if first.contains(&cause) => {}
        Ending::Broken { cause: first } => *first = format!("{first}; {cause}"),
    }
}

/// One request under the observer: it learns the kernel's timers from it, and shows that it sees the group's tasks.
async fn warm_up(bench: &Bench<'_>, server: &BurnServer, recording: &Recording, scope: &Scope) -> Result<()> {
    let plan = LoadPlan { end: End { requests: Some(1), duration: None }, ..load(bench.plan) };
    let warm = async {
        let mut failure = None;
        drive(&plan, &server.target, |span| {
            if let Outcome::Failed { error } = span.outcome {
                failure = Some(error);
            }
            ControlFlow::Continue(())
        })
        .await?;
        failure.map_or(Ok(()), |error| Err(anyhow!(error).context("the server did not answer the first request")))
    };
    tokio::select! {
        result = warm => result?,
        () = bench.interrupt.asked() => return Ok(()),
    }
    recording.sees(scope, "a request was served there", || false).await
}

fn load(plan: &SweepPlan) -> LoadPlan {
    LoadPlan {
        pace: Pace::Closed {
            streams: std::num::NonZeroU32::new(plan.streams).unwrap_or(std::num::NonZeroU32::MIN),
            gap: plan.gap_ns,
            spread: plan.spread_ns,
        },
        end: End { requests: Some(plan.requests), duration: None },
        work: WorkSpec { work_ns: Some(plan.work_ns), threads: Some(plan.threads), fan_out: Some(plan.mode) },
        timeout: DurationNs::from_millis(600_000),
        ..LoadPlan::default()
    }
}

/// Sends the requests; every one is written as it comes.
async fn requests(
    bench: &Bench<'_>,
    limit: CpuLimit,
    server: &BurnServer,
    recording: &Recording,
    record: &mut Lines,
    spans: &mut Vec<RequestSpan>,
    progress: &Progress,
) -> Ending {
    let mut broken = None;
    let plan = load(bench.plan);
    let driven = drive(&plan, &server.target, |span| {
        let line = RawLine::Request { limit, span: span.clone() };
        progress.answered(&span);
        spans.push(span);
        match record.write(&line).and_then(|()| recording.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                broken = Some(error.to_string());
                ControlFlow::Break(())
            }
        }
    });
    let result: Result<_, ClientError> = tokio::select! {
        result = driven => result,
        () = bench.interrupt.asked() => return Ending::Interrupted,
    };
    match (broken, result) {
        (Some(cause), _) => Ending::Broken { cause },
        (None, Err(error)) => Ending::Broken { cause: error.to_string() },
        (None, Ok(_)) => Ending::Complete,
    }
}

type Concluded = (Ending, crate::event::Losses, Vec<Event>, Option<(Vec<crate::run::record::LevelReading>, bool)>);

/// Waits for quiet, reads the counters, stops the observer; what fails here becomes part of the ending.
fn conclude(
    bench: &Bench<'_>,
    mut ending: Ending,
    server: &mut BurnServer,
    scratch: &Scratch,
    recording: Recording,
) -> Result<Concluded> {
    if let Some(status) = server.ended()
        && let Ending::Broken { cause } = &mut ending
    {
        *cause = format!("{cause}; the server process ended ({status})");
    }
    let rest = || wait_until_quiet(scratch, || bench.interrupt.is_overdue());
    let after = block_in_place(rest).and_then(|quiet| Ok((read_levels(scratch)?, quiet)));
    let Recorded { events, losses, failed, .. } = block_in_place(|| recording.stop())?;
    if let Some(error) = failed {
        break_off(&mut ending, error.to_string());
    }
    let after = match after {
        Ok(after) => Some(after),
        Err(error) => {
            let cause = format!("{error}; something else removed the run's cgroup while it was in use");
            break_off(&mut ending, cause);
            None
        }
    };
    Ok((ending, losses, events, after))
}
