//! Names of a group's threads, asked for while they live.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::cgroup::Group;

/// First look after this long; then each time twice as long, up to [`SLOWEST`].
const FIRST: Duration = Duration::from_millis(2);
const SLOWEST: Duration = Duration::from_millis(200);
/// A look may take a twentieth of the time.
const REST: u32 = 19;

/// A thread that looks at a group again and again.
pub(super) struct Names {
    stop: Arc<AtomicBool>,
    looking: JoinHandle<BTreeMap<u32, String>>,
}

impl Names {
    /// Begins to look.
    pub(super) fn watch(group: &Group) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let looking = std::thread::Builder::new().name("names".into()).spawn({
            let (group, stop) = (group.clone(), Arc::clone(&stop));
            move || look(&group, &stop)
        })?;
        Ok(Self { stop, looking })
    }

    /// Looks a last time and returns the newest name of every thread ever seen.
    pub(super) fn stop(self) -> BTreeMap<u32, String> {
        self.stop.store(true, Ordering::Release);
        self.looking.thread().unpark();
        self.looking.join().unwrap_or_default()
    }
}

fn look(group: &Group, stop: &AtomicBool) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    let mut pause = FIRST;
    loop {
        let last = stop.load(Ordering::Acquire);
        let began = Instant::now();
        // A group or thread that is gone has no name to add.
        for tid in group.threads().map(|members| members.ids).unwrap_or_default() {
            if let Ok(name) = std::fs::read_to_string(format!("/proc/{tid}/comm")) {
                names.insert(tid, name.trim_end_matches('\n').to_owned());
            }
        }
        if last {
            return names;
        }
        std::thread::park_timeout(pause.max(began.elapsed() * REST));
        pause = (pause * 2).min(SLOWEST);
    }
}
