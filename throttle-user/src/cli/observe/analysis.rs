//! The thread that makes the timeline.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use super::rights;
use crate::{
    event::{CgroupId, Event},
    exporter::Exporter,
    probe::observer::Seen,
    time::{DurationNs, MonoNs},
    timeline::{
        CountsFrom,
        live::{Live, Patience},
    },
};

/// What the thread is told.
pub(in crate::cli) enum Told {
    /// Records.
    Events(Vec<Event>),
    /// All records up to then were sent.
    UpTo(MonoNs),
    /// The probe is attached since then.
    Since(MonoNs),
    /// A cgroup is there: its path of ids, itself first, and whether its threads are followed.
    Added { path: Vec<CgroupId>, followed: bool },
    /// A cgroup is gone.
    Removed(CgroupId),
}

/// Messages on their way: when the timeline cannot keep up, the reader waits, the ring fills, and the probe counts what is lost.
const QUEUE: usize = 64;
/// Records in one message.
const BATCH: usize = 1_024;
/// A record may come this much later than one of another CPU with the same time: its CPU was interrupted, or taken away by a
/// hypervisor, between the stamp and the ring.
const APART: DurationNs = DurationNs::from_millis(100);
/// Time from one look at what is over to the next.
const TURN: DurationNs = DurationNs::from_millis(100);

/// The running thread.
pub(in crate::cli) struct Analysis {
    sender: SyncSender<Told>,
    thread: JoinHandle<()>,
}

impl Analysis {
    pub(in crate::cli) fn start(exporter: Arc<Exporter>, counts_from: CountsFrom, cpus: u32) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(QUEUE);
        let live = Live::new(counts_from, cpus, Patience::default());
        let thread =
            std::thread::Builder::new().name("timeline".into()).spawn(move || analyse(&receiver, live, &exporter))?;
        Ok(Self { sender, thread })
    }

    /// Where the reader of the ring puts what it sees.
    pub(in crate::cli) fn sink(&self) -> impl FnMut(Seen) + Send + 'static + use<> {
        let sender = self.sender.clone();
        let mut batch: Vec<Event> = vec![];
        move |seen| {
            // The other side is gone only when the daemon ends.
            match seen {
                Seen::Event(event) => {
                    batch.push(event);
                    if batch.len() >= BATCH {
                        let _ = sender.send(Told::Events(std::mem::take(&mut batch)));
                    }
                }
                Seen::UpTo(at) => {
                    if !batch.is_empty() {
                        let _ = sender.send(Told::Events(std::mem::take(&mut batch)));
                    }
                    let _ = sender.send(Told::UpTo(at));
                }
            }
        }
    }

    pub(in crate::cli) fn sender(&self) -> SyncSender<Told> {
        self.sender.clone()
    }

    pub(in crate::cli) fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}

fn analyse(receiver: &Receiver<Told>, mut live: Live, exporter: &Exporter) {
    rights::none();
    let mut turned = MonoNs(0);
    while let Ok(told) = receiver.recv() {
        match told {
            Told::Events(events) => events.into_iter().for_each(|event| live.push(event)),
            Told::Since(at) => live.watched_since(at),
            Told::Added { path, followed } => live.add(path, followed),
            Told::Removed(cgroup) => live.remove(cgroup),
            Told::UpTo(at) if turned + TURN <= at => {
                turned = at;
                let finished = live.advance(MonoNs(at.0.saturating_sub(APART.0)));
                exporter.finished(finished, at, live.counts(), live.load().0);
            }
            Told::UpTo(_) => {}
        }
    }
}
