//! The tasks that send: a closed stream, and the open loop's dispatcher.
//!
//! Owns waiting and handing out; when requests are due is decided in `schedule`.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::connection::{Connection, Failure};
use super::schedule::{End, Spacing, part_of};
use super::timer::Timer;
use crate::request::RequestSpan;
use crate::time::{DurationNs, MonoNs, now};

/// Least pause of a closed stream after a lost connection: a server that restarts gets a moment.
const RETRY_PAUSE: DurationNs = DurationNs::from_millis(100);

/// A request that has ended, and what failed, if something did.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) span: RequestSpan,
    pub(super) failure: Option<Failure>,
}

/// What the tasks of one run share.
#[derive(Debug)]
pub(super) struct Run {
    end: End,
    start: MonoNs,
    next: AtomicU64,
    spans: mpsc::Sender<Finished>,
}

impl Run {
    pub(super) fn new(end: End, start: MonoNs, spans: mpsc::Sender<Finished>) -> Self {
        Self { end, start, next: AtomicU64::new(0), spans }
    }

    /// Hands a finished request over; `false` when nobody takes it any more.
    async fn finish(&self, span: RequestSpan, failure: Option<Failure>) -> bool {
        self.spans.send(Finished { span, failure }).await.is_ok()
    }
}

/// One stream of a closed loop: numbers are drawn from the run's common count.
pub(super) async fn closed_stream(
    run: Arc<Run>,
    stream: u32,
    mut connection: Connection,
    gap: DurationNs,
    spread: DurationNs,
) -> io::Result<()> {
    let mut timer = Timer::new()?;
    loop {
        let number = run.next.fetch_add(1, Ordering::Relaxed);
        if !run.end.allows(run.start, number, now()) {
            return Ok(());
        }
        let exchange = connection.exchange().await;
        let sent_ns = exchange.sent_ns;
        let (span, failure) = exchange.into_span(number, stream, sent_ns);
        let lost = matches!(failure, Some(Failure::Connection(_)));
        let resume = span.received_ns + if lost { gap.max(RETRY_PAUSE) } else { gap } + part_of(spread, number);
        if !run.finish(span, failure).await || !run.end.allows(run.start, run.next.load(Ordering::Relaxed), resume) {
            return Ok(());
        }
        timer.until(resume).await?;
    }
}

/// The dispatcher of an open loop: lets each request go at its due time on the free connection with the lowest number.
/// Every request due before the end is sent, however late; the loop returns when all are answered.
pub(super) async fn open_loop(run: Arc<Run>, spacing: Spacing, connections: Vec<Connection>) -> io::Result<()> {
    let mut timer = Timer::new()?;
    let free = Arc::new(Semaphore::new(connections.len()));
    let idle: Idle = Arc::new(Mutex::new((0..).zip(connections).collect()));
    let mut flying = JoinSet::new();
    for number in 0.. {
        let due_ns = spacing.due(run.start, number);
        if !run.end.allows(run.start, number, due_ns) {
            break;
        }
        timer.until(due_ns).await?;
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { break };
        let Some((stream, mut connection)) = lock(&idle).pop_first() else { break };
        let (run, idle) = (Arc::clone(&run), Arc::clone(&idle));
        flying.spawn(async move {
            let (span, failure) = connection.exchange().await.into_span(number, stream, due_ns);
            // Idle before the permit goes: whoever is granted it must find this connection.
            lock(&idle).insert(stream, connection);
            drop(permit);
            run.finish(span, failure).await;
        });
        while flying.try_join_next().is_some() {}
    }
    while flying.join_next().await.is_some() {}
    Ok(())
}

type Idle = Arc<Mutex<BTreeMap<u32, Connection>>>;

/// Locks whatever the state: the map is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
