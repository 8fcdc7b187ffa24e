//! The worker threads: a fixed pool that burns, away from the async runtime.
//!
//! Owns the threads and who gets them. A request takes all the workers it needs or none: it waits, first come first
//! served, until so many are idle, then all its parts are handed over at once. So a request's wall time (first start
//! to last finish) never holds another request's turn; queueing shows only before the start. The price is that a wide
//! request at the head of the queue lets idle workers wait with it. Idle workers block in their channel (a futex
//! without timeout), so a server without requests wakes nothing, and its cgroup's period timer can stop.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::unistd::gettid;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::burn::Burner;
use crate::request::WorkerSpan;
use crate::time::{DurationNs, now};

/// A fixed number of worker threads, named `burn-0`, `burn-1`, …
#[derive(Debug)]
pub struct Pool {
    free: Arc<Semaphore>,
    idle: Arc<Mutex<BTreeSet<usize>>>,
    inboxes: Vec<Sender<Part>>,
    threads: Vec<JoinHandle<()>>,
}

/// Why the pool could not serve.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A worker thread could not be started.
    #[error("cannot start worker thread burn-{worker}: {cause}. Check the process limit (ulimit -u) and pids.max")]
    Start {
        /// Which one.
        worker: u32,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// More workers wanted at once than there are: it would wait for ever.
    #[error("{wanted} workers wanted at once of a pool of {workers}: start the server with more workers")]
    TooMany {
        /// Parts of the request.
        wanted: usize,
        /// Workers of the pool.
        workers: usize,
    },
    /// A worker died with a part of this request.
    #[error("a worker thread ended before its part was done: restart the server")]
    WorkerLost,
}

impl Pool {
    /// Starts `workers` threads that burn with `burner`.
    ///
    /// # Errors
    /// [`PoolError::Start`] when the system refuses a thread; those already started end with the pool.
    pub fn start(workers: u32, burner: Burner) -> Result<Self, PoolError> {
        let idle = Arc::new(Mutex::new(BTreeSet::new()));
        let mut pool = Self { free: Arc::new(Semaphore::new(0)), idle, inboxes: Vec::new(), threads: Vec::new() };
        for worker in 0..workers {
            let (inbox, parts) = channel();
            let idle = Arc::clone(&pool.idle);
            let thread = std::thread::Builder::new()
                .name(format!("burn-{worker}"))
                .spawn(move || work(pool_index(worker), &burner, &parts, &idle))
                .map_err(|cause| PoolError::Start { worker, cause })?;
            lock(&pool.idle).insert(pool_index(worker));
            pool.inboxes.push(inbox);
            pool.threads.push(thread);
            pool.free.add_permits(1);
        }
        Ok(pool)
    }

    /// Burns each of `parts` on a worker of its own, all handed over together, and returns the spans in their order.
    ///
    /// Dropping the future while it waits gives its place in the queue up; once handed over, the parts are burnt to
    /// the end.
    ///
    /// # Errors
    /// [`PoolError::TooMany`] when the pool is smaller than the request, [`PoolError::WorkerLost`] when a thread died.
    pub async fn run(&self, parts: &[DurationNs]) -> Result<Vec<WorkerSpan>, PoolError> {
        let too_many = || PoolError::TooMany { wanted: parts.len(), workers: self.inboxes.len() };
        let wanted = u32::try_from(parts.len()).map_err(|_| too_many())?;
        if parts.len() > self.inboxes.len() {
            return Err(too_many());
        }
        // Tokio's semaphore is first come first served, also between requests for different numbers of permits.
        let mut permits = Arc::clone(&self.free).acquire_many_owned(wanted).await.map_err(|_| PoolError::WorkerLost)?;
        let (done, spans) = oneshot::channel();
        let gather = Arc::new(Gather::new(parts.len(), done));
        // All workers are chosen before the first is set to work: one that is done early is idle again at once, and must not
        // be given a second part of the same request.
        let chosen: Vec<usize> = {
            let mut idle = lock(&self.idle);
            std::iter::from_fn(|| idle.pop_first()).take(parts.len()).collect()
        };
        for (slot, (&work, worker)) in parts.iter().zip(chosen).enumerate() {
            let permit = permits.split(1).ok_or(PoolError::WorkerLost)?;
            let part = Part { work, slot, gather: Arc::clone(&gather), permit };
            self.inboxes[worker].send(part).map_err(|_| PoolError::WorkerLost)?;
        }
        drop(gather);
        spans.await.map_err(|_| PoolError::WorkerLost)
    }
}

impl Drop for Pool {
    /// Lets the workers finish what they were given, then ends them.
    fn drop(&mut self) {
        self.inboxes.clear();
        for thread in self.threads.drain(..) {
            // A worker that panicked has already made its request fail; there is nothing left to do for it here.
            let _ = thread.join();
        }
    }
}

/// One worker's share of a request.
struct Part {
    work: DurationNs,
    slot: usize,
    gather: Arc<Gather>,
    permit: OwnedSemaphorePermit,
}

/// Collects the spans of one request; whoever brings the last one sends the answer, so the async side wakes once.
struct Gather {
    state: Mutex<GatherState>,
}

struct GatherState {
    spans: Vec<Option<WorkerSpan>>,
    missing: usize,
    done: Option<oneshot::Sender<Vec<WorkerSpan>>>,
}

impl Gather {
    fn new(parts: usize, done: oneshot::Sender<Vec<WorkerSpan>>) -> Self {
        Self { state: Mutex::new(GatherState { spans: vec![None; parts], missing: parts, done: Some(done) }) }
    }

    fn bring(&self, slot: usize, span: WorkerSpan) {
        let mut state = lock(&self.state);
        state.spans[slot] = Some(span);
        state.missing -= 1;
        if state.missing == 0 {
            let spans = state.spans.drain(..).flatten().collect();
            if let Some(done) = state.done.take() {
                // The client may have gone; its answer is then nobody's.
                let _ = done.send(spans);
            }
        }
    }
}

/// The life of worker thread `worker`: block, burn, stamp, hand in.
fn work(worker: usize, burner: &Burner, parts: &Receiver<Part>, idle: &Mutex<BTreeSet<usize>>) {
    let tid = gettid().as_raw().unsigned_abs();
    while let Ok(Part { work, slot, gather, permit }) = parts.recv() {
        let started_ns = now();
        let cpu_time_ns = burner.burn(work);
        let span = WorkerSpan { tid, started_ns, finished_ns: now(), cpu_time_ns };
        // Idle before the permit goes: whoever is granted it must find this worker.
        lock(idle).insert(worker);
        drop(permit);
        gather.bring(slot, span);
    }
}

fn pool_index(worker: u32) -> usize {
    usize::try_from(worker).unwrap_or(usize::MAX)
}

/// Locks whatever the state: the values behind these locks are whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: DurationNs = DurationNs::from_millis(1);

    #[tokio::test]
    async fn each_part_has_a_thread_of_its_own_and_spans_keep_their_order() {
        let pool = Pool::start(3, Burner::calibrate()).expect("three threads");
        let asked = [SHORT, DurationNs::from_millis(6), DurationNs::from_millis(3)];
        let spans = pool.run(&asked).await.expect("spans");
        let tids: BTreeSet<u32> = spans.iter().map(|span| span.tid).collect();
        assert_eq!(tids.len(), 3);
        for (span, asked) in spans.iter().zip(asked) {
            assert!(span.cpu_time_ns.0 as f64 > 0.95 * asked.0 as f64, "{span:?} for {asked:?}");
            assert!(span.finished_ns.since(span.started_ns) >= span.cpu_time_ns, "{span:?}");
        }
    }

    #[tokio::test]
    async fn a_worker_that_is_done_at_once_gets_no_second_part_of_the_same_request() {
        let pool = Pool::start(3, Burner::calibrate()).expect("three threads");
        for _ in 0..500 {
            let spans = pool.run(&[DurationNs(1); 3]).await.expect("spans");
            let tids: BTreeSet<u32> = spans.iter().map(|span| span.tid).collect();
            assert_eq!(tids.len(), 3, "{spans:?}");
        }
    }

    #[tokio::test]
    async fn one_worker_serves_one_request_at_a_time_in_order() {
        let pool = Pool::start(1, Burner::calibrate()).expect("a thread");
        let (first, second) = tokio::join!(pool.run(&[SHORT]), pool.run(&[SHORT]));
        let (first, second) = (first.expect("first"), second.expect("second"));
        assert!(first[0].finished_ns <= second[0].started_ns, "{first:?} then {second:?}");
    }

    #[tokio::test]
    async fn a_wide_request_waits_for_all_its_workers_and_is_not_overtaken() {
        let pool = Pool::start(2, Burner::calibrate()).expect("two threads");
        let long = [DurationNs::from_millis(20)];
        let (narrow, wide, late) = tokio::join!(pool.run(&long), pool.run(&[SHORT; 2]), pool.run(&[SHORT]));
        let (narrow, wide, late) = (narrow.expect("narrow"), wide.expect("wide"), late.expect("late"));
        let first_start = wide.iter().map(|span| span.started_ns).min().expect("spans");
        assert!(first_start >= narrow[0].finished_ns, "both parts waited for the busy worker");
        let first_finish = wide.iter().map(|span| span.finished_ns).min().expect("spans");
        assert!(late[0].started_ns >= first_finish, "the later request did not slip in before");
    }

    #[tokio::test]
    async fn a_request_wider_than_the_pool_is_refused_instead_of_waiting_for_ever() {
        let pool = Pool::start(1, Burner::calibrate()).expect("a thread");
        let error = pool.run(&[SHORT, SHORT]).await.expect_err("two of one");
        assert!(matches!(error, PoolError::TooMany { wanted: 2, workers: 1 }), "{error}");
    }

    #[tokio::test]
    async fn a_dropped_request_leaves_the_queue_and_the_pool_whole() {
        let pool = Pool::start(1, Burner::calibrate()).expect("a thread");
        let (short, endless) = ([DurationNs::from_millis(5)], [DurationNs::from_millis(600_000)]);
        let busy = pool.run(&short);
        let dropped = async {
            tokio::select! {
                biased;
                _ = pool.run(&endless) => unreachable!("it waits behind the busy one"),
                () = tokio::task::yield_now() => {}
            }
        };
        let (busy, ()) = tokio::join!(busy, dropped);
        busy.expect("the running one ends");
        pool.run(&[SHORT]).await.expect("and the next is served");
    }
}
