//! The live test: `throttle run` on this very program as it spins.

use std::path::PathBuf;

use super::spin::SPIN;
use crate::{
    cgroup::{CpuLimit, DEFAULT_PERIOD_US, Hierarchy, MIN_MILLICPU, Nesting, ScratchPlan, remove_stale},
    cli::{
        exit::{Exit, Failure, OrExit, tell},
        limited::not_observed,
        run::{Signals, Stage, observe},
    },
    probe::KernelLayout,
    run::{
        command::{CommandRun, derive},
        environment::Environment,
    },
};

/// The smallest limit: 1 ms each 100 ms.
const LIMIT: CpuLimit = CpuLimit::Millicpu(MIN_MILLICPU);
/// Far more events than come in a second or two.
const MOST_EVENTS: usize = 2_000_000;

/// Spins under the limit and derives what came of it; or says why that cannot be done.
pub(super) async fn run(
    hierarchy: &Hierarchy,
    kernel: &KernelLayout,
    parent: Option<PathBuf>,
    signals: &mut Signals,
) -> Result<CommandRun, String> {
    let ran = spun(hierarchy, kernel, parent, signals).await;
    ran.map_err(|failure| failure.text())
}

async fn spun(
    hierarchy: &Hierarchy,
    kernel: &KernelLayout,
    parent: Option<PathBuf>,
    signals: &mut Signals,
) -> Result<CommandRun, Failure> {
    not_observed(hierarchy)?;
    for stale in remove_stale(hierarchy).or_exit(Exit::CannotRun)? {
        tell(format_args!("throttle: left behind by process {}: {}", stale.owner.pid, stale.removal));
    }
    let bandwidth = LIMIT.bandwidth(DEFAULT_PERIOD_US, 0).or_exit(Exit::BadInput)?;
    let program = std::env::current_exe().or_exit(Exit::CannotRun)?;
    let command = [program.into_os_string(), SPIN.into()];
    let stage = Stage {
        hierarchy,
        kernel,
        plan: &ScratchPlan { nesting: Nesting::Flat, bandwidth, parent },
        limit: LIMIT,
        command: &command,
        probe_log: false,
        most_events: MOST_EVENTS,
    };
    let environment = Environment::gather(hierarchy, &kernel.facts);
    let (raw, events) = observe(&stage, signals, environment).await?;
    Ok(derive(raw, events))
}
