//! Names of a group's threads, asked for when they are first seen and while they live.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{cgroup::Group, cli::enter};

/// The whole group is asked this long after a thread was first seen, for it may have become another program by then; after
/// that each time twice as long, up to [`SLOWEST`].
const FIRST: Duration = Duration::from_millis(2);
const SLOWEST: Duration = Duration::from_millis(200);
/// Asking the group may take a twentieth of the time.
const REST: u32 = 19;

/// Tells of threads that were seen.
#[derive(Clone)]
pub(super) struct Sightings(Sender<u32>);

impl Sightings {
    /// A thread is there: its name is asked for at once.
    pub(super) fn tell(&self, tid: u32) {
        // Nobody asks any more: then nobody wants to know.
        let _ = self.0.send(tid);
    }
}

/// A thread that asks for names.
pub(super) struct Names {
    looking: JoinHandle<BTreeMap<u32, String>>,
}

/// A pair of ends: threads that are seen go in at one, [`Names::watch`] takes the other.
pub(super) fn sightings() -> (Sightings, Receiver<u32>) {
    let (sender, seen) = channel();
    (Sightings(sender), seen)
}

impl Names {
    /// Begins to ask for the names of a group's threads; those seen before keep no name they had then.
    pub(super) fn watch(group: &Group, seen: Receiver<u32>) -> std::io::Result<Self> {
        let group = group.clone();
        let looking = std::thread::Builder::new().name("names".into()).spawn(move || look(&group, &seen))?;
        Ok(Self { looking })
    }

    /// The newest name of every thread that could be asked, once nobody tells of threads any more.
    pub(super) fn join(self) -> BTreeMap<u32, String> {
        self.looking.join().unwrap_or_default()
    }
}

fn look(group: &Group, seen: &Receiver<u32>) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    let mut pause = FIRST;
    let mut next = Instant::now();
    loop {
        match seen.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(tid) => {
                ask(tid, &mut names);
                pause = FIRST;
                next = next.min(Instant::now() + pause);
            }
            Err(RecvTimeoutError::Timeout) => {
                let began = Instant::now();
                // A group that is gone has no name to add.
                group
                    .threads()
                    .map(|members| members.ids)
                    .unwrap_or_default()
                    .into_iter()
                    .for_each(|tid| ask(tid, &mut names));
                next = Instant::now() + pause.max(began.elapsed() * REST);
                pause = (pause * 2).min(SLOWEST);
            }
            Err(RecvTimeoutError::Disconnected) => return names,
        }
    }
}

/// A thread that is gone keeps the name it had, if it had one.
fn ask(tid: u32, names: &mut BTreeMap<u32, String>) {
    if let Some(name) = name_of(tid) {
        names.insert(tid, name);
    }
}

/// A thread's name now; `None` if it is gone, or is not the command yet.
pub(super) fn name_of(tid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).ok()?;
    let name = name.trim_end_matches('\n');
    (name != enter::NAME).then(|| name.to_owned())
}
