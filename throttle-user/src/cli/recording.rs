//! An observer whose events are kept: in memory for what follows, and in a run's folder if there is one.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, anyhow};

use super::exit::tell;
use crate::{
    cgroup::{Counters, GroupError, Hierarchy, Quietness, Quota, Scratch, tree, wait_quiet},
    event::{CgroupId, Event, Losses, What},
    probe::{Detail, KernelLayout, Observer, ObserverPlan, ProbeError, observer::RING_BYTES},
    run::{EventWriter, Kept, StoreError, record::LevelReading},
};

/// What the reader's thread leaves for the others.
#[derive(Default)]
struct Sink {
    events: Vec<Event>,
    /// Cgroups of which a task was seen on a CPU.
    seen: HashSet<CgroupId>,
    /// Events that came when there were as many as may be kept.
    more: u64,
    writer: Option<EventWriter>,
    failed: Option<StoreError>,
}

/// Where events go besides memory, and how many may be in it.
pub(super) struct Keeping {
    /// Most events kept; those after them are counted.
    pub(super) most: usize,
    /// Writes them to the run's folder.
    pub(super) writer: Option<EventWriter>,
    /// Told of every task when it is first seen, and when it is new.
    pub(super) on_task: Box<dyn FnMut(u32) + Send>,
}

/// What a recording came to.
pub(super) struct Recorded {
    pub(super) events: Vec<Event>,
    pub(super) kept: Kept,
    pub(super) losses: Losses,
    /// Why not all events were written, where there was a writer.
    pub(super) failed: Option<StoreError>,
}

/// A running observer and what it saw so far.
pub(super) struct Recording {
    observer: Observer,
    kept: Arc<Mutex<Sink>>,
}

/// What to observe.
pub(super) struct Scope {
    /// Ids of the scratch groups whose tasks are wanted.
    tasks: Vec<CgroupId>,
    /// Ids of limited groups above them.
    edges: Vec<CgroupId>,
    /// Path of each level, itself first.
    pub(super) paths: Vec<Vec<CgroupId>>,
}

impl Scope {
    /// The levels of a scratch tree, leaf first, and every limited group above it.
    pub(super) fn of(hierarchy: &Hierarchy, scratch: &Scratch) -> Result<Self, GroupError> {
        let ancestors = tree::ancestors(hierarchy, scratch.container())?;
        let ids: Vec<CgroupId> = ancestors.iter().map(|node| CgroupId(node.id)).collect();
        let levels = scratch.levels()?.len();
        let edges = ancestors
            .iter()
            .zip(&ids)
            .skip(levels)
            .filter(|(node, _)| node.bandwidth.is_some_and(|bandwidth| bandwidth.quota != Quota::Unlimited))
            .map(|(_, &id)| id)
            .collect();
        Ok(Self {
            tasks: ids.iter().take(levels).copied().collect(),
            edges,
            paths: (0..ids.len()).map(|level| ids[level..].to_vec()).collect(),
        })
    }

    /// The container's id.
    fn leaf(&self) -> Option<CgroupId> {
        self.tasks.first().copied()
    }
}

impl Recording {
    /// Loads and attaches a probe whose events are kept.
    pub(super) fn start(
        scope: &Scope,
        hierarchy: &Hierarchy,
        kernel: &KernelLayout,
        unlimited: bool,
        log: bool,
        keeping: Keeping,
    ) -> Result<Self, ProbeError> {
        let Keeping { most, writer, mut on_task } = keeping;
        let wanted = |ids: &[CgroupId], detail| ids.iter().map(|&id| (id, detail)).collect::<Vec<_>>();
        let plan = ObserverPlan {
            groups: [wanted(&scope.tasks, Detail::Tasks), wanted(&scope.edges, Detail::Edges)].concat(),
            unlisted: Detail::None,
            idle: true,
            unlimited,
            ring_bytes: RING_BYTES,
            log,
        };
        let kept = Arc::new(Mutex::new(Sink { writer, ..Sink::default() }));
        let sink = Arc::clone(&kept);
        let mut known = HashSet::new();
        let observer = Observer::start(&plan, kernel, hierarchy, move |event| {
            for (task, is_new) in tasks(&event.what) {
                if known.insert(task) || is_new {
                    on_task(task);
                }
            }
            let mut kept = sink.lock().unwrap_or_else(PoisonError::into_inner);
            if let What::Switch { prev, next, .. } = &event.what {
                kept.seen.extend([prev, next].into_iter().flatten().map(|side| side.cgroup));
            }
            if let Some(error) = kept.writer.as_mut().and_then(|writer| writer.write(&event).err()) {
                kept.failed.get_or_insert(error);
                kept.writer = None;
            }
            if kept.events.len() < most {
                kept.events.push(event);
            } else {
                kept.more += 1;
            }
        })?;
        if let Some(why) = observer.unchecked() {
            tell(format_args!("throttle: {why}"));
        }
        Ok(Self { observer, kept })
    }

    /// Whether a task of a cgroup was seen on a CPU, be the event among those kept or not.
    fn saw_task_of(&self, cgroup: CgroupId) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).seen.contains(&cgroup)
    }

    /// Waits until a task of the container was seen on a CPU, which had one just now; or until `give_up`. The reader looks every few
    /// milliseconds, so its switches are in the ring.
    ///
    /// # Errors
    /// None was seen within a second, `although` what happened there.
    pub(super) async fn sees(&self, scope: &Scope, although: &str, give_up: impl Fn() -> bool) -> anyhow::Result<()> {
        let leaf = scope.leaf().context("the scratch tree has no container")?;
        for _ in 0..50 {
            if self.saw_task_of(leaf) || give_up() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(anyhow!(
            "the probe saw no task of cgroup {} although {although}: this kernel's BTF does not describe the running kernel, or \
             another cpu controller is in charge; nothing it says can be trusted",
            leaf.0
        ))
    }

    /// Makes what was written so far readable; the first failure to write is returned here, once.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = kept.failed.take() {
            return Err(error);
        }
        kept.writer.as_mut().map_or(Ok(()), EventWriter::flush)
    }

    /// Reads what is left and detaches.
    pub(super) fn stop(self) -> Result<Recorded, ProbeError> {
        let Self { observer, kept } = self;
        let losses = observer.stop()?;
        let mut guard = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Sink { events, seen: _, more, writer, failed } = std::mem::take(&mut *guard);
        let finished = writer.map_or(Ok(()), |mut writer| writer.finish());
        let kept = match (more, events.iter().map(|event| event.at).max()) {
            (0, _) => Kept::All,
            (_, None) => Kept::None,
            (more, Some(until)) => Kept::Until { until, more: Some(more) },
        };
        Ok(Recorded { events, kept, losses, failed: failed.or(finished.err()) })
    }
}

/// Tasks an event names on a CPU or in a queue, and whether they were just made.
fn tasks(what: &What) -> impl Iterator<Item = (u32, bool)> {
    let (first, second) = match what {
        What::Switch { prev, next, .. } => {
            (prev.map(|side| (side.thread, false)), next.map(|side| (side.thread, false)))
        }
        What::Wakeup { task, new, .. } => (Some((task.thread, *new)), None),
        _ => (None, None),
    };
    [first, second].into_iter().flatten()
}

/// Longest wait for the period timers to stop: they need two periods of at most a second after the last activity, and a
/// group with debt pays it back first.
const QUIET: Duration = Duration::from_secs(15);

/// Waits until the period timers of a scratch tree have stopped; `false` = they had not within 15 s, or until `give_up`.
pub(super) fn wait_until_quiet(scratch: &Scratch, give_up: impl Fn() -> bool) -> Result<bool, GroupError> {
    let groups: Vec<_> = [Some(scratch.container()), scratch.pod()].into_iter().flatten().collect();
    Ok(matches!(wait_quiet(&groups, QUIET, give_up)?, Quietness::Quiet { .. }))
}

/// Reads the counters of every level, leaf first.
pub(super) fn read_levels(scratch: &Scratch) -> Result<Vec<LevelReading>, GroupError> {
    scratch
        .levels()?
        .into_iter()
        .map(|level| {
            Ok(LevelReading {
                level: level.level,
                cgroup_id: CgroupId(level.cgroup_id),
                counters: Counters::read(&level.group)?,
            })
        })
        .collect()
}
