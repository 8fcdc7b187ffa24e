//! The lines of a raw record of spikes, sorted by group and step and held against the plan.

use super::{Learnt, Reading, SpikesHead, SpikesLine, Step};
use crate::{
    cgroup::Nesting,
    request::SpikeSpan,
    run::{
        ledger::{Kept, Wrong},
        record::{Ending, LimitBegin, LimitEnd},
    },
};

/// Everything raw about the steps in one group.
#[derive(Clone, Debug)]
pub struct RawGroup {
    /// Which.
    pub nesting: Nesting,
    /// Its beginning.
    pub begin: LimitBegin,
    /// Its steps in order.
    pub steps: Vec<RawStep>,
    /// Its end; `None` = the run was killed.
    pub end: Option<LimitEnd>,
    /// How many of its events are at hand.
    pub kept: Kept,
}

/// Everything raw about one step.
#[derive(Clone, Debug)]
pub struct RawStep {
    /// Its number in the group.
    pub number: u32,
    /// What was to be done.
    pub step: Step,
    /// Before it.
    pub before: Reading,
    /// Its spikes in order.
    pub spikes: Vec<SpikeSpan>,
    /// Where the generator found the container's boundary.
    pub learnt: Option<Learnt>,
    /// After it, and how it ended; `None` = the run was killed.
    pub after: Option<(Reading, Ending)>,
}

/// Sorts the lines of a record. The line at index 0 is line 1.
///
/// # Errors
/// [`Wrong`] for the first line that does not fit the plan or the lines before it.
pub fn groups(head: &SpikesHead, lines: Vec<SpikesLine>) -> Result<Vec<RawGroup>, Wrong> {
    head.plan.bandwidth().map_err(|error| Wrong { line: None, what: error.to_string() })?;
    let steps = head.plan.steps();
    let mut groups: Vec<RawGroup> = Vec::new();
    for (line, number) in lines.into_iter().zip(1..) {
        take(head, &steps, &mut groups, line).map_err(|what| Wrong { line: Some(number), what })?;
    }
    Ok(groups)
}

fn take(head: &SpikesHead, steps: &[Step], groups: &mut Vec<RawGroup>, line: SpikesLine) -> Result<(), String> {
    match line {
        SpikesLine::GroupBegin { nesting, begin } => {
            if groups.last().is_some_and(|group| group.end.is_none()) {
                return Err("a group begins before the one before has ended".to_owned());
            }
            if head.plan.groups.get(groups.len()) != Some(&nesting) {
                return Err(format!("group {nesting:?} begins where the plan has another"));
            }
            groups.push(RawGroup { nesting, begin, steps: vec![], end: None, kept: Kept::All });
            Ok(())
        }
        SpikesLine::StepBegin { step, reading } => {
            let group = open(groups)?;
            if group.steps.last().is_some_and(|before| before.after.is_none()) {
                return Err(format!("step {step} begins before the one before has ended"));
            }
            let planned = usize::try_from(step).ok().filter(|&step| step == group.steps.len());
            let planned = planned.and_then(|step| steps.get(step));
            let planned = planned.ok_or_else(|| format!("step {step} is not the next one of the plan"))?;
            group.steps.push(RawStep {
                number: step,
                step: *planned,
                before: reading,
                spikes: vec![],
                learnt: None,
                after: None,
            });
            Ok(())
        }
        SpikesLine::Spike { step, span } => {
            let threads = head.plan.threads as usize;
            let raw = running(groups, step)?;
            if span.spike != raw.spikes.len() as u64 {
                return Err(format!("spike {} of step {step} is not the next one", span.spike));
            }
            let (begun, length) = (raw.before.clock.monotonic_ns, span.until_ns.since(span.due_ns));
            if span.due_ns.0 < begun || length != raw.step.length_ns || span.workers.len() != threads {
                return Err(format!("spike {} is none of step {step} of the plan", span.spike));
            }
            if span
                .workers
                .iter()
                .any(|worker| worker.started_ns < span.due_ns || worker.finished_ns < worker.started_ns)
            {
                return Err(format!("spike {} of step {step} has stamps out of order", span.spike));
            }
            raw.spikes.push(span);
            Ok(())
        }
        SpikesLine::StepEnd { step, reading, learnt, ending } => {
            let raw = running(groups, step)?;
            if reading.clock.monotonic_ns < raw.before.clock.monotonic_ns {
                return Err(format!("step {step} ends before it began"));
            }
            raw.learnt = learnt;
            raw.after = Some((reading, ending));
            Ok(())
        }
        SpikesLine::GroupEnd { nesting, end } => {
            let group = open(groups)?;
            if group.nesting != nesting {
                return Err(format!("group {nesting:?} ends where {:?} runs", group.nesting));
            }
            group.end = Some(end);
            Ok(())
        }
    }
}

fn open(groups: &mut [RawGroup]) -> Result<&mut RawGroup, String> {
    groups.last_mut().filter(|group| group.end.is_none()).ok_or_else(|| "no group is open here".to_owned())
}

fn running(groups: &mut [RawGroup], step: u32) -> Result<&mut RawStep, String> {
    let last = open(groups)?.steps.last_mut();
    last.filter(|raw| raw.number == step && raw.after.is_none()).ok_or_else(|| format!("step {step} does not run here"))
}
