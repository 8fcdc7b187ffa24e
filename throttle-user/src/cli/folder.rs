//! What verbs share that make a run's folder: where it goes, what is said at its beginning, and how it ends.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;

use super::exit::{Exit, Failure, OrExit, Verdict, is_out_of_files, print, tell};
use crate::{
    cgroup::{Hierarchy, ScratchError, Version, remove_stale},
    run::{
        RunDir, StoreError,
        environment::{Environment, Requirement},
    },
    time::ClockAnchor,
};

/// How a run tells what it found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// The summary as JSON instead of the table.
    pub(super) json: bool,
    /// Nothing but the result.
    pub(super) quiet: bool,
}

/// `results/<date>-<kernel>-<version>-<kind>`, with a number when that is taken.
pub(super) fn default_out(environment: &Environment, kind: &str) -> PathBuf {
    let seconds = i64::try_from(ClockAnchor::take().realtime_ns / 1_000_000_000).unwrap_or(0);
    let date = jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| "undated".to_owned(), |now| now.strftime("%Y-%m-%d").to_string());
    let version = match environment.cgroup_version {
        Version::V1 => "v1",
        Version::V2 => "v2",
    };
    let base = format!("{date}-{}-{version}-{kind}", environment.kernel);
    let results = Path::new("results");
    let numbered = (2..).map(|number| results.join(format!("{base}-{number}")));
    std::iter::once(results.join(&base))
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| results.join(base))
}

/// Removes what killed runs left behind, and says so; says what the machine lacks.
pub(super) fn begin(hierarchy: &Hierarchy, requirements: &[Requirement], told: Told) -> Result<(), Failure> {
    for stale in remove_stale(hierarchy).or_exit(Exit::CannotRun)? {
        tell(format_args!("throttle: left behind by process {}: {}", stale.owner.pid, stale.removal));
    }
    if !told.quiet {
        for missed in requirements.iter().filter(|requirement| !requirement.met) {
            tell(format_args!("throttle: requirement missed: {} (found: {})", missed.name, missed.found));
        }
    }
    Ok(())
}

/// A folder that cannot be written is bad input, unless it has no room, or this process may open no more files.
pub(super) fn unwritable(error: StoreError) -> Failure {
    Failure::Told { exit: of_store(&error), error: error.into() }
}

fn of_store(error: &StoreError) -> Exit {
    match error {
        error if error.is_full() => Exit::BrokeOff,
        StoreError::File { source, .. } if is_out_of_files(source) => Exit::CannotRun,
        _ => Exit::BadInput,
    }
}

/// What a part that could not begin means for the whole.
pub(super) fn exit_of(error: &anyhow::Error, is_first: bool) -> Exit {
    match (error.downcast_ref::<ScratchError>(), error.downcast_ref::<StoreError>()) {
        (Some(ScratchError::Place(_)), _) => Exit::BadInput,
        _ if !is_first => Exit::BrokeOff,
        (_, Some(error)) => of_store(error),
        _ => Exit::CannotRun,
    }
}

/// The user wanted an end.
pub(super) fn interrupted(dir: &RunDir, is_empty: bool) -> Failure {
    let error = if is_empty {
        anyhow!("interrupted before anything was measured; nothing is left behind")
    } else {
        anyhow!("interrupted; what was measured is in {}", dir.path().display())
    };
    Failure::Told { exit: Exit::Interrupted, error }
}

/// What a run came to.
pub(super) struct Conclusion<'a, S> {
    pub(super) summary: &'a S,
    /// The summary as a table; may be empty.
    pub(super) text: String,
    pub(super) is_right: bool,
    /// Whether the derived files could be written.
    pub(super) written: anyhow::Result<()>,
    /// What broke it.
    pub(super) broke: Option<Failure>,
}

/// Prints the summary, and says how it ended. What broke the run stands before what could not be written of it.
pub(super) fn conclude<S: Serialize>(dir: &RunDir, told: Told, conclusion: Conclusion<'_, S>) -> Verdict {
    let Conclusion { summary, text, is_right, written, broke } = conclusion;
    if told.json {
        let text = serde_json::to_string_pretty(summary).context("the summary as JSON").or_exit(Exit::BrokeOff)?;
        print(format_args!("{text}\n"))?;
    } else {
        print(format_args!("{text}"))?;
    }
    if !told.quiet {
        tell(format_args!("run folder: {}", dir.path().display()));
    }
    if let Some(failure) = broke {
        if let Err(error) = written {
            tell(format_args!("throttle: {error:#}"));
        }
        return Err(failure);
    }
    written.or_exit(Exit::BrokeOff)?;
    Ok(if is_right { Exit::Done } else { Exit::NotRight })
}
