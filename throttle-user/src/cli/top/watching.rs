//! The threads that watch the node, as the daemon has them, and what they saw last.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow};

use super::TopArgs;
use crate::{
    cgroup::{Hierarchy, Watch},
    cli::observe::{
        analysis::{self, Analysis},
        tree::{self, TreeThread},
    },
    exporter::Exporter,
    node::{self, Bounds, Census, Rates, Recent, Wanted},
    probe::{Detail, KernelLayout, Observer, ObserverPlan, observer::RING_BYTES},
    run::environment::{counts_from, cpus_online},
    time::{DurationNs, MonoNs, now},
    timeline::interval::Span,
};

/// How long ago a period must have ended to be sure to have been handed out: the reader's interval, the timeline's turn and what it
/// waits for stragglers, and a period of the usual length, whose next timer run tells that it is over.
pub(super) const SETTLED: DurationNs = DurationNs::from_millis(400);
/// How often the reader looks.
const POLL: Duration = Duration::from_millis(20);
/// Cgroups that are counted, and how long one that is gone is remembered.
const BOUNDS: Bounds = Bounds { counted: 100_000, grace: DurationNs::from_millis(1_000) };
/// Memory for the last periods: some 100,000 of them.
const RECENT_BYTES: usize = 64 << 20;

pub(super) struct Watching {
    exporter: Arc<Exporter>,
    analysis: Analysis,
    tree: TreeThread,
    observer: Arc<Mutex<Option<Observer>>>,
    since: MonoNs,
    window: DurationNs,
    all: bool,
    followed: bool,
}

impl Watching {
    pub(super) fn start(args: &TopArgs, hierarchy: &Hierarchy, kernel: &KernelLayout) -> anyhow::Result<Self> {
        let exporter = Arc::new(Exporter::new(Census::new(BOUNDS), Recent::new(RECENT_BYTES)));
        let (watch, there) = Watch::start(hierarchy)?;
        let analysis = Analysis::start(Arc::clone(&exporter), counts_from(&kernel.facts), cpus_online())?;
        let plan = ObserverPlan {
            groups: vec![],
            unlisted: Detail::Edges,
            idle: args.threads,
            unlimited: false,
            ring_bytes: RING_BYTES,
            log: false,
        };
        let observer = Observer::start_seen(&plan, kernel, hierarchy, POLL, analysis.sink())?;
        let since = now();
        // The other side has just been started.
        drop(analysis.sender().send(analysis::Told::Since(since)));
        let observer = Arc::new(Mutex::new(Some(observer)));
        let told = tree::Told {
            exporter: Arc::clone(&exporter),
            observer: Arc::clone(&observer),
            analysis: analysis.sender(),
            // All that are below the mount.
            tasks: if args.threads { vec![String::new()] } else { vec![] },
        };
        let tree = TreeThread::start(watch, &there, told)?;
        let (window, all, followed) = (args.window, args.all, args.threads);
        Ok(Self { exporter, analysis, tree, observer, since, window, all, followed })
    }

    /// What limits did over the window that ended when everything in it was surely known, or since the start if that is shorter.
    pub(super) fn rates(&mut self) -> anyhow::Result<Vec<Rates>> {
        if let Some(error) = self.tree.failed() {
            return Err(error.context("the cgroups are no longer watched"));
        }
        if !self.analysis.is_running() {
            return Err(anyhow!("the thread that makes the timeline ended"));
        }
        let is_reading = |observer: &Observer| observer.is_reading();
        if !self.locked().as_ref().is_some_and(is_reading) {
            return Err(anyhow!("the thread that reads the ring buffer ended"));
        }
        let mut state = self.exporter.state();
        state.census.forget(now());
        let read = state.read_until.context("no record was read yet")?;
        let end = MonoNs(read.0.saturating_sub(SETTLED.0)).max(self.since);
        let whole = (self.since + longest_period(&state.census)).min(end);
        let start = MonoNs(end.0.saturating_sub(self.window.0)).max(whole);
        let wanted = Wanted { window: Span::new(start, end), all: self.all, followed: self.followed };
        Ok(node::rates(&state.census, &state.recent, wanted))
    }

    /// Of the periods that were running at the start only a part was seen: a window begins when they are over.
    pub(super) fn warm_up(&self) -> DurationNs {
        longest_period(&self.exporter.state().census)
    }

    /// Records lost so far; `None` = the probe's account cannot be read.
    pub(super) fn lost(&self) -> Option<u64> {
        self.locked().as_ref().and_then(|observer| observer.losses().ok()).map(|losses| losses.total())
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Option<Observer>> {
        self.observer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn longest_period(census: &Census) -> DurationNs {
    let periods = census.members().filter_map(|(_, member)| member.bandwidth).map(|limit| limit.period_us);
    DurationNs::from_micros(periods.max().unwrap_or_default())
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.tree.stop();
        if let Some(observer) = self.locked().take() {
            // Whatever it says now, nobody would read it.
            drop(observer.stop());
        }
    }
}
