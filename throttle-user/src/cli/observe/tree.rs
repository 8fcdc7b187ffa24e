//! The thread that watches the tree of cgroups.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::anyhow;

use super::analysis;
use crate::{
    cgroup::{Change, Watch, WatchError},
    cli::exit::tell,
    event::CgroupId,
    exporter::Exporter,
    probe::{Detail, Observer},
    time::now,
};

/// Longest wait for a change, and for the request to stop.
const WAIT: Duration = Duration::from_millis(500);
/// Changes mostly come together, and are looked at together: a pod is some ten groups and their limits.
const SETTLE: Duration = Duration::from_millis(20);
/// How often a tree that is not watched in whole is walked.
const WALK: Duration = Duration::from_secs(10);

/// Whom to tell.
pub(in crate::cli) struct Told {
    pub(in crate::cli) exporter: Arc<Exporter>,
    pub(in crate::cli) observer: Arc<Mutex<Option<Observer>>>,
    pub(in crate::cli) analysis: SyncSender<analysis::Told>,
    /// Paths below which threads are followed.
    pub(in crate::cli) tasks: Vec<String>,
}

/// The running thread.
pub(in crate::cli) struct TreeThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), WatchError>>>,
}

impl TreeThread {
    /// `there`: the groups there are; they are told before this returns.
    pub(in crate::cli) fn start(watch: Watch, there: &[Change], told: Told) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        told.tell(there);
        told.exporter.state().walked = true;
        let thread = std::thread::Builder::new().name("tree".into()).spawn({
            let stop = Arc::clone(&stop);
            move || follow(watch, &told, &stop)
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Why it ended, if it did.
    pub(in crate::cli) fn failed(&mut self) -> Option<anyhow::Error> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        match thread.join() {
            Ok(Ok(())) => Some(anyhow!("the thread that watches ended")),
            Ok(Err(error)) => Some(error.into()),
            Err(_) => Some(anyhow!("the thread that watches ended; its last words are above")),
        }
    }

    pub(in crate::cli) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn follow(mut watch: Watch, told: &Told, stop: &AtomicBool) -> Result<(), WatchError> {
    let mut walked = Instant::now();
    let mut warned = false;
    while !stop.load(Ordering::Acquire) {
        let mut changes = watch.changes(WAIT)?;
        if watch.is_partial() && walked.elapsed() > WALK {
            watch.walk(&mut changes)?;
            walked = Instant::now();
        }
        if watch.is_partial() && !warned {
            warned = true;
            tell(format_args!(
                "throttle observe: inotify watches ran out at {} cgroups; changes elsewhere are seen every {} s. Raise \
                 fs.inotify.max_user_watches",
                watch.len(),
                WALK.as_secs()
            ));
        }
        told.exporter.state().own.partial_watch = watch.is_partial();
        if !changes.is_empty() {
            told.tell(&changes);
            std::thread::sleep(SETTLE);
        }
    }
    Ok(())
}

impl Told {
    fn tell(&self, changes: &[Change]) {
        for change in changes {
            let told = {
                let mut state = self.exporter.state();
                state.census.change(change, now());
                match change {
                    Change::Added(node) => {
                        let id = CgroupId(node.id);
                        let followed = node.path.to_str().is_some_and(|path| self.follows(path));
                        Some(analysis::Told::Added { path: state.census.path(id), followed })
                    }
                    Change::Removed { id } => Some(analysis::Told::Removed(CgroupId(*id))),
                    Change::Limited { .. } => None,
                }
            };
            match &told {
                Some(analysis::Told::Added { path, followed: true }) => {
                    path.first().into_iter().for_each(|&id| self.watch(id))
                }
                Some(analysis::Told::Removed(id)) if !self.tasks.is_empty() => self.unwatch(*id),
                _ => {}
            }
            // The other side is gone only when the daemon ends.
            told.into_iter().for_each(|told| drop(self.analysis.send(told)));
        }
    }

    fn follows(&self, path: &str) -> bool {
        self.tasks.iter().any(|tasks| {
            path.strip_prefix(tasks.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || tasks.is_empty())
        })
    }

    fn watch(&self, id: CgroupId) {
        let mut observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = observer.as_mut().map(|observer| observer.watch(id, Detail::Tasks)) {
            tell(format_args!("throttle observe: threads of cgroup {} are not followed: {error}", id.0));
        }
    }

    fn unwatch(&self, id: CgroupId) {
        let mut observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(observer) = observer.as_mut() {
            // It may never have been watched.
            drop(observer.unwatch(id));
        }
    }
}
