//! Other load on the node: a busy thread for each CPU, in a group beside the limited ones.

use std::{num::NonZeroU32, ops::ControlFlow};

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use super::server::BurnServer;
use crate::{
    cgroup::Scratch,
    client::{ClientError, End, LoadPlan, Pace, drive},
    request::WorkSpec,
    run::record::Ending,
    time::DurationNs,
};

/// CPU time of each piece of load: stopping waits for the one at work.
const PIECE: DurationNs = DurationNs::from_millis(500);

/// Load that runs until it is stopped.
pub(super) struct Background {
    server: BurnServer,
    load: JoinHandle<Result<(), ClientError>>,
}

impl Background {
    /// Starts a second server in a group with `times` the weight of the limited ones, and keeps `cpus` of its threads busy.
    pub(super) async fn start(scratch: &Scratch, times: u32, cpus: u32) -> Result<Self> {
        let group = scratch.beside(times)?;
        let server = BurnServer::start(group.path(), cpus).await.context("the background load")?;
        let target = server.target.clone();
        let plan = LoadPlan {
            pace: Pace::Closed {
                streams: NonZeroU32::new(cpus).unwrap_or(NonZeroU32::MIN),
                gap: DurationNs::ZERO,
                spread: DurationNs::ZERO,
            },
            end: End::default(),
            work: WorkSpec { work_ns: Some(PIECE), threads: Some(1), fan_out: None },
            ..LoadPlan::default()
        };
        let load = tokio::spawn(async move { drive(&plan, &target, |_| ControlFlow::Continue(())).await.map(drop) });
        Ok(Self { server, load })
    }

    /// Stops it. If it had ended before, the limit did not run under load, and that is how it ended.
    pub(super) async fn stop(self, ending: Ending) -> Ending {
        let Self { server, load } = self;
        let ended = load.is_finished();
        load.abort();
        server.stop().await;
        match load.await {
            Ok(Err(error)) if ended => Ending::Broken { cause: format!("the background load ended: {error}") },
            _ => ending,
        }
    }
}
