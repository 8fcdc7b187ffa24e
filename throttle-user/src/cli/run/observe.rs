//! The order of steps: groups, observer, the child in its group, quiet, counters, the command, counters, removal.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use anyhow::{Context, anyhow};
use tokio::task::block_in_place;

use super::{
    child::{self, Waiting},
    names::Names,
    signals::{Signals, pass_on},
};
use crate::{
    cgroup::{CpuLimit, Hierarchy, Quota, Scratch, ScratchPlan},
    cli::{
        exit::{Exit, Failure, OrExit, tell},
        recording::{Recording, Scope, read_levels, wait_until_quiet},
    },
    event::{CgroupId, Event},
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
pub(super) struct Stage<'a> {
    pub(super) hierarchy: &'a Hierarchy,
    pub(super) kernel: &'a KernelLayout,
    pub(super) plan: &'a ScratchPlan,
    pub(super) limit: CpuLimit,
    pub(super) command: &'a [OsString],
    pub(super) probe_log: bool,
}

/// Runs the command; a failure before it starts has its own exit code, one after is [`Exit::BrokeOff`].
pub(super) async fn run(stage: &Stage<'_>, environment: Environment) -> Result<(RawCommand, Vec<Event>), Failure> {
    let mut signals = Signals::listen().or_exit(Exit::CannotRun)?;
    let mut scratch = Scratch::create(stage.hierarchy, stage.plan).or_exit(Exit::CannotRun)?;
    scratch.join_driver().or_exit(Exit::CannotRun)?;
    let limits_above = scratch.limits_above().or_exit(Exit::CannotRun)?;
    let scope = Scope::of(stage.hierarchy, &scratch).or_exit(Exit::CannotRun)?;
    let unlimited = stage.plan.bandwidth.quota == Quota::Unlimited;
    let recording = block_in_place(|| Recording::start(&scope, stage.kernel, unlimited, stage.probe_log, None))
        .or_exit(Exit::CannotRun)?;
    let waiting =
        block_in_place(|| Waiting::start(scratch.container().path(), stage.command)).or_exit(Exit::CannotRun)?;
    let leaf = scope.leaf().context("the scratch tree has no container").or_exit(Exit::CannotRun)?;
    seen(&recording, leaf).await.or_exit(Exit::CannotRun)?;
    let quiet = block_in_place(|| wait_until_quiet(&scratch)).or_exit(Exit::CannotRun)?;
    let begin = LimitBegin {
        limit: stage.limit,
        bandwidth: stage.plan.bandwidth,
        levels: read_levels(&scratch).or_exit(Exit::CannotRun)?,
        paths: scope.paths,
        quiet,
        stolen_ns: stolen(),
        clock: ClockAnchor::take(),
    };
    if let Some(signal) = signals.pending() {
        let error = anyhow!("interrupted by {signal} before the command was started");
        return Err(Failure::Told { exit: Exit::Interrupted, error });
    }
    let ran = command(waiting, &scratch, &mut signals).await?;
    let killed = block_in_place(|| scratch.end_container());
    let end = end(stage.limit, &scratch, &begin, recording)?;
    let removal = block_in_place(|| scratch.remove());
    if !removal.is_complete() {
        tell(format_args!("throttle: {removal}"));
    }
    let raw = RawCommand {
        command: stage.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        pid: ran.pid,
        nesting: stage.plan.nesting,
        limits_above: limits_above.iter().map(|node| node.group.path().display().to_string()).collect(),
        environment,
        limit: RawLimit { begin, spans: vec![], end: Some(end.0) },
        started_ns: ran.started_ns,
        ended_ns: ran.ended_ns,
        status: ran.status,
        names: ran.names,
        killed: killed.len() as u64,
    };
    Ok((raw, end.1))
}

/// The child blocks as soon as it is in the group: a probe that works has seen it.
async fn seen(recording: &Recording, leaf: CgroupId) -> anyhow::Result<()> {
    for _ in 0..50 {
        if recording.saw_task_of(leaf) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(anyhow!(
        "the probe saw no task of cgroup {} although one ran there: this kernel's BTF does not describe the running kernel, or \
         another cpu controller is in charge; nothing it says can be trusted",
        leaf.0
    ))
}

/// What is known when the command has ended.
struct Ran {
    pid: u32,
    started_ns: MonoNs,
    ended_ns: MonoNs,
    status: CommandStatus,
    names: BTreeMap<u32, String>,
}

/// Lets the child become the command, and waits for its end; signals on the way are the command's.
async fn command(waiting: Waiting, scratch: &Scratch, signals: &mut Signals) -> Result<Ran, Failure> {
    let names = Names::watch(scratch.container()).or_exit(Exit::CannotRun)?;
    let pid = waiting.pid();
    let started_ns = now();
    let mut child = block_in_place(|| waiting.go()).or_exit(Exit::BadInput)?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            signal = signals.next() => pass_on(signal, pid),
        }
    };
    let ended_ns = now();
    let names = block_in_place(|| names.stop());
    let status = status.context("cannot learn how the command ended").or_exit(Exit::BrokeOff)?;
    Ok(Ran { pid, started_ns, ended_ns, status: child::status(status), names })
}

/// Waits for quiet, reads the counters, stops the observer.
fn end(
    limit: CpuLimit,
    scratch: &Scratch,
    begin: &LimitBegin,
    recording: Recording,
) -> Result<(LimitEnd, Vec<Event>), Failure> {
    let after = block_in_place(|| wait_until_quiet(scratch)).and_then(|quiet| Ok((Some(read_levels(scratch)?), quiet)));
    let (events, losses, _) = block_in_place(|| recording.stop())
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
    Ok((LimitEnd { limit, levels, quiet, stolen_ns: stolen(), losses, clock, ending }, events))
}
