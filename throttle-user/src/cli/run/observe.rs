//! The order of steps: groups, observer, the child in its group, quiet, counters, the command, counters, removal.

use std::{ffi::OsString, sync::mpsc::Receiver, time::Duration};

use anyhow::Context;
use tokio::task::block_in_place;

use super::{
    child::{self, Waiting},
    names::{Names, name_of, sightings},
    signals::{Signals, pass_on},
};
use crate::{
    cgroup::{CpuLimit, Hierarchy, Quota, Scratch, ScratchError, ScratchPlan},
    cli::{
        exit::{Exit, Failure, OrExit, tell},
        recording::{Keeping, Recorded, Recording, Scope, read_levels, wait_until_quiet},
    },
    event::Event,
    probe::KernelLayout,
    run::{
        command::{CommandStatus, RawCommand},
        derive::RawLimit,
        environment::{Environment, stolen},
        record::{Ending, LimitBegin, LimitEnd},
    },
    time::{ClockAnchor, MonoNs, now},
};

/// What is run, and on what.
pub(in crate::cli) struct Stage<'a> {
    pub(in crate::cli) hierarchy: &'a Hierarchy,
    pub(in crate::cli) kernel: &'a KernelLayout,
    pub(in crate::cli) plan: &'a ScratchPlan,
    pub(in crate::cli) limit: CpuLimit,
    pub(in crate::cli) command: &'a [OsString],
    pub(in crate::cli) probe_log: bool,
    /// Most events kept.
    pub(in crate::cli) most_events: usize,
}

/// Everything that is ready before the command starts.
struct Ready {
    // Dropped in this order: the child ends, and the groups are empty.
    waiting: Waiting,
    recording: Recording,
    begin: LimitBegin,
    limits_above: Vec<String>,
    seen: Receiver<u32>,
    scratch: Scratch,
}

/// Runs the command; a failure before it starts has its own exit code, one after is [`Exit::BrokeOff`].
pub(in crate::cli) async fn run(
    stage: &Stage<'_>,
    signals: &mut Signals,
    environment: Environment,
) -> Result<(RawCommand, Vec<Event>), Failure> {
    let ready = ready(stage, signals).await;
    // A Ctrl-C may also have ended the child that waits: that is not what went wrong.
    signals.none_yet()?;
    let Ready { waiting, recording, begin, limits_above, seen, scratch } = ready?;
    let names = Names::watch(scratch.container(), seen).or_exit(Exit::CannotRun)?;
    let ran = command(waiting, signals).await?;
    let killed = block_in_place(|| scratch.end_container());
    let (end, recorded) = end(stage.limit, &scratch, &begin, recording)?;
    let mut names = block_in_place(|| names.join());
    if let Some(name) = ran.name {
        names.entry(ran.pid).or_insert(name);
    }
    let removal = block_in_place(|| scratch.remove());
    if !removal.is_complete() {
        tell(format_args!("throttle: {removal}"));
    }
    let raw = RawCommand {
        command: stage.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        pid: ran.pid,
        nesting: stage.plan.nesting,
        limits_above,
        environment,
        limit: RawLimit { begin, spans: vec![], end: Some(end), kept: recorded.kept },
        started_ns: ran.started_ns,
        ended_ns: ran.ended_ns,
        status: ran.status,
        names,
        killed: killed.len() as u64,
    };
    Ok((raw, recorded.events))
}

/// Groups, observer, the child in its group, quiet, counters.
async fn ready(stage: &Stage<'_>, signals: &Signals) -> Result<Ready, Failure> {
    let mut scratch = Scratch::create(stage.hierarchy, stage.plan).map_err(|error| {
        let exit = if matches!(error, ScratchError::Place(_)) { Exit::BadInput } else { Exit::CannotRun };
        Failure::Told { exit, error: error.into() }
    })?;
    scratch.join_driver().or_exit(Exit::CannotRun)?;
    let limits_above = scratch.limits_above().or_exit(Exit::CannotRun)?;
    let limits_above = limits_above.iter().map(|node| node.group.path().display().to_string()).collect();
    let scope = Scope::of(stage.hierarchy, &scratch).or_exit(Exit::CannotRun)?;
    let unlimited = stage.plan.bandwidth.quota == Quota::Unlimited;
    let (sightings, seen) = sightings();
    let keeping = Keeping { most: stage.most_events, writer: None, on_task: Box::new(move |tid| sightings.tell(tid)) };
    let recording =
        block_in_place(|| Recording::start(&scope, stage.hierarchy, stage.kernel, unlimited, stage.probe_log, keeping))
            .or_exit(Exit::CannotRun)?;
    signals.none_yet()?;
    let waiting =
        block_in_place(|| Waiting::start(scratch.container().path(), stage.command)).or_exit(Exit::CannotRun)?;
    // The child blocks as soon as it is in the group: a probe that works has seen it.
    recording.sees(&scope, "one ran there", || false).await.or_exit(Exit::CannotRun)?;
    let quiet = block_in_place(|| wait_until_quiet(&scratch, || signals.first().is_some())).or_exit(Exit::CannotRun)?;
    let begin = LimitBegin {
        limit: stage.limit,
        bandwidth: stage.plan.bandwidth,
        levels: read_levels(&scratch).or_exit(Exit::CannotRun)?,
        paths: scope.paths,
        quiet,
        stolen_ns: stolen(),
        clock: ClockAnchor::take(),
    };
    Ok(Ready { waiting, recording, begin, limits_above, seen, scratch })
}

/// What is known when the command has ended.
struct Ran {
    pid: u32,
    started_ns: MonoNs,
    ended_ns: MonoNs,
    status: CommandStatus,
    /// Name of its main process as it began.
    name: Option<String>,
}

/// Lets the child become the command, and waits for its end; signals on the way are the command's.
async fn command(waiting: Waiting, signals: &mut Signals) -> Result<Ran, Failure> {
    let pid = waiting.pid();
    let started_ns = now();
    let mut child = match block_in_place(|| waiting.go()) {
        Ok(child) => child,
        Err(error) => {
            signals.none_yet()?;
            return Err(error).or_exit(Exit::BadInput);
        }
    };
    let name = first_name(pid).await;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            signal = signals.next() => pass_on(signal, pid),
        }
    };
    let ended_ns = now();
    let status = status.context("cannot learn how the command ended").or_exit(Exit::BrokeOff)?;
    Ok(Ran { pid, started_ns, ended_ns, status: child::status(status), name })
}

/// The command's name as it begins. If it has ended already, its name is there until it is waited for.
async fn first_name(pid: u32) -> Option<String> {
    for _ in 0..20 {
        if let Some(name) = name_of(pid) {
            return Some(name);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    None
}

/// Waits for quiet, reads the counters, stops the observer.
fn end(
    limit: CpuLimit,
    scratch: &Scratch,
    begin: &LimitBegin,
    recording: Recording,
) -> Result<(LimitEnd, Recorded), Failure> {
    let after = block_in_place(|| wait_until_quiet(scratch, || false))
        .and_then(|quiet| Ok((Some(read_levels(scratch)?), quiet)));
    let recorded = block_in_place(|| recording.stop())
        .context("the command ran, but what was observed of it is lost")
        .or_exit(Exit::BrokeOff)?;
    let clock = ClockAnchor::take();
    let (ending, (levels, quiet)) = match after {
        Ok(after) => (Ending::Complete, after),
        Err(error) => {
            let cause = format!("{error}; something else removed the run's cgroup while it was in use");
            (Ending::Broken { cause }, (None, false))
        }
    };
    let ending = ending.unless_slept(&begin.clock, &clock);
    let losses = recorded.losses.clone();
    Ok((LimitEnd { limit, levels, quiet, stolen_ns: stolen(), losses, clock, ending }, recorded))
}
