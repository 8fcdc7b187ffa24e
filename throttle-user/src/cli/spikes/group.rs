//! All steps in one tree of groups: groups, observer, steps, counters.

use anyhow::Result;
use indicatif::ProgressBar;
use tokio::task::block_in_place;

use super::generator::{self, Job, Told};
use crate::{
    cgroup::{Bandwidth, GroupError, Hierarchy, Nesting, Scratch, ScratchPlan},
    cli::{
        exit::tell,
        interrupt::Interrupt,
        recording::{Keeping, Recorded, Recording, Scope, read_levels, wait_until_quiet},
    },
    event::Event,
    probe::KernelLayout,
    run::{
        Kept, Lines, RunDir,
        environment::stolen,
        record::{Ending, LimitBegin, LimitEnd},
        spikes::{
            Reading, SpikesHead, SpikesLine, Step, group_name,
            ledger::{RawGroup, RawStep},
        },
    },
    time::{ClockAnchor, DurationNs},
};

/// What all groups of a run share.
pub(super) struct Bench<'a> {
    pub(super) hierarchy: &'a Hierarchy,
    pub(super) kernel: &'a KernelLayout,
    pub(super) head: &'a SpikesHead,
    pub(super) bandwidth: Bandwidth,
    pub(super) parent: Option<std::path::PathBuf>,
    pub(super) dir: &'a RunDir,
    pub(super) interrupt: &'a Interrupt,
    pub(super) probe_log: bool,
    pub(super) progress: &'a ProgressBar,
}

/// Spikes too short to be held, by which the observer learns the kernel's timers and shows that it sees the group.
const WARM_UP: Step = Step { length_ns: DurationNs::from_millis(1), per_second: 10, boundary_ns: None };
const WARM_UP_FOR: DurationNs = DurationNs::from_millis(300);

/// Runs the steps; `None` if the user interrupted before the first. An error means that nothing was recorded of the group; what
/// breaks later is in the ending of its last step.
pub(super) async fn run(
    bench: &Bench<'_>,
    nesting: Nesting,
    record: &mut Lines,
) -> Result<Option<(RawGroup, Vec<Event>)>> {
    let plan = ScratchPlan { nesting, bandwidth: bench.bandwidth, parent: bench.parent.clone() };
    let mut scratch = Scratch::create(bench.hierarchy, &plan)?;
    scratch.join_driver()?;
    let scope = Scope::of(bench.hierarchy, &scratch)?;
    let keeping =
        Keeping { most: usize::MAX, writer: Some(bench.dir.events(group_name(nesting))?), on_task: Box::new(|_| {}) };
    let recording =
        block_in_place(|| Recording::start(&scope, bench.hierarchy, bench.kernel, false, bench.probe_log, keeping))?;
    warm_up(bench, &scratch, &recording, &scope).await?;
    let quiet = block_in_place(|| wait_until_quiet(&scratch, || bench.interrupt.is_asked()))?;
    if bench.interrupt.is_asked() {
        return Ok(None);
    }
    let begin = LimitBegin {
        limit: bench.head.plan.limit,
        bandwidth: bench.bandwidth,
        levels: read_levels(&scratch)?,
        paths: scope.paths.clone(),
        quiet,
        stolen_ns: stolen(),
        clock: ClockAnchor::take(),
    };
    record.write(&SpikesLine::GroupBegin { nesting, begin: begin.clone() })?;
    let mut raw = RawGroup { nesting, begin, steps: vec![], end: None, kept: Kept::All };
    let mut ending = Ending::Complete;
    for (step, number) in bench.head.plan.steps().into_iter().zip(0..) {
        bench.progress.set_message(format!(
            "{}: {} ms x {}/s",
            group_name(nesting),
            step.length_ns.as_millis_f64(),
            step.per_second
        ));
        let ran = one(
            bench,
            &scratch,
            &recording,
            record,
            RawStep { number, step, before: reading(bench, &scratch), spikes: vec![], learnt: None, after: None },
        );
        let (done, how) = ran.await;
        raw.steps.push(done);
        ending = how;
        if ending != Ending::Complete {
            break;
        }
        bench.progress.inc(1);
    }
    let Recorded { events, losses, failed, .. } = block_in_place(|| recording.stop())?;
    if let (Some(error), Ending::Complete) = (failed, &ending) {
        ending = Ending::Broken { cause: error.to_string() };
    }
    let last = reading(bench, &scratch);
    let end = LimitEnd {
        limit: raw.begin.limit,
        levels: last.levels,
        quiet: last.quiet,
        stolen_ns: last.stolen_ns,
        losses,
        clock: last.clock,
        ending,
    };
    // If the disk is full the raw lines before this one are there all the same; the caller still gets the group.
    if let Err(error) = record.write(&SpikesLine::GroupEnd { nesting, end: end.clone() }) {
        tell(format_args!("throttle: {error}"));
    }
    raw.end = Some(end);
    let removal = block_in_place(|| scratch.remove());
    if !removal.is_complete() {
        tell(format_args!("throttle: {removal}"));
    }
    Ok(Some((raw, events)))
}

/// One step, written as it comes; how it ended is how all ends.
async fn one(
    bench: &Bench<'_>,
    scratch: &Scratch,
    recording: &Recording,
    record: &mut Lines,
    mut raw: RawStep,
) -> (RawStep, Ending) {
    let broken = |cause: String| Ending::Broken { cause };
    if let Err(error) = record.write(&SpikesLine::StepBegin { step: raw.number, reading: raw.before.clone() }) {
        return (raw, broken(error.to_string()));
    }
    let plan = &bench.head.plan;
    let job = Job {
        cgroup: scratch.container().path(),
        step: raw.step,
        duration: plan.step_ns,
        period: DurationNs::from_micros(plan.period_us),
        threads: plan.threads,
    };
    let (told, mut ending) = match generator::run(&job, bench.interrupt).await {
        Ok(told) if told.interrupted => (told, Ending::Interrupted),
        Ok(told) => (told, Ending::Complete),
        Err(error) => (Told::default(), broken(format!("{error:#}"))),
    };
    let after = reading(bench, scratch);
    if after.levels.is_none() && ending == Ending::Complete {
        ending = broken("something else removed the run's cgroup while it was in use".to_owned());
    }
    ending = ending.unless_slept(&raw.before.clock, &after.clock);
    let spikes = told.spikes.iter().cloned().map(|span| SpikesLine::Spike { step: raw.number, span });
    let end =
        SpikesLine::StepEnd { step: raw.number, reading: after.clone(), learnt: told.learnt, ending: ending.clone() };
    let written = spikes.chain([end]).try_for_each(|line| record.write(&line)).and_then(|()| recording.flush());
    raw.spikes = told.spikes;
    raw.learnt = told.learnt;
    raw.after = Some((after, ending.clone()));
    match written {
        Ok(()) => (raw, ending),
        Err(error) => (raw, broken(error.to_string())),
    }
}

/// Waits for quiet and reads; without levels where the groups are gone.
fn reading(bench: &Bench<'_>, scratch: &Scratch) -> Reading {
    let read = || -> Result<_, GroupError> {
        let quiet = wait_until_quiet(scratch, || bench.interrupt.is_overdue())?;
        Ok((read_levels(scratch)?, quiet))
    };
    let (levels, quiet) = match block_in_place(read) {
        Ok((levels, quiet)) => (Some(levels), quiet),
        Err(error) => {
            tell(format_args!("throttle: {error}"));
            (None, false)
        }
    };
    Reading { levels, quiet, stolen_ns: stolen(), clock: ClockAnchor::take() }
}

async fn warm_up(bench: &Bench<'_>, scratch: &Scratch, recording: &Recording, scope: &Scope) -> Result<()> {
    let job = Job {
        cgroup: scratch.container().path(),
        step: WARM_UP,
        duration: WARM_UP_FOR,
        period: DurationNs::from_micros(bench.head.plan.period_us),
        threads: 1,
    };
    generator::run(&job, bench.interrupt).await?;
    recording.sees(scope, "one ran there", || bench.interrupt.is_asked()).await
}
