//! A run of load from first connection to last answer.
//!
//! Owns the plan, the report, and when to give up. Streams run as tasks (see `pacing`); each finished request is handed
//! to the caller as it comes, so a run that breaks off has lost nothing it measured.

use std::io;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::connection::{Connection, Failure};
use super::pacing::{Finished, Run, closed_stream, open_loop};
use super::schedule::{End, Pace};
use super::target::Target;
use crate::request::{Outcome, RequestSpan, WorkSpec};
use crate::time::{DurationNs, MonoNs, now};

/// After so many requests in a row, over all streams, that found no connection or lost it, the server counts as gone.
const LOSSES_MAX: u32 = 3;
/// Finished requests that may wait for the caller's callback before streams wait with their next request.
const BACKLOG: usize = 1024;
/// From the end of preparations to the first due time of an open loop, so that the first request is not late already.
const LEAD: DurationNs = DurationNs::from_millis(2);

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Closed or open loop.
    pub pace: Pace,
    /// When to stop sending.
    pub end: End,
    /// What each request asks of the server.
    pub work: WorkSpec,
    /// Longest wait for a connection, and for an answer.
    pub timeout: DurationNs,
    /// Most connections an open loop opens. When all are busy a request is sent late, and its `sent_ns` says so.
    pub connections: NonZeroU32,
}

impl Default for LoadPlan {
    /// One closed stream without end, 200 ms after each answer, the work left to the server.
    fn default() -> Self {
        Self {
            pace: Pace::Closed {
                streams: NonZeroU32::MIN,
                gap: DurationNs::from_millis(200),
                spread: DurationNs::ZERO,
            },
            end: End::default(),
            work: WorkSpec::default(),
            timeout: DurationNs::from_millis(60_000),
            connections: NonZeroU32::MIN.saturating_add(63),
        }
    }
}

/// What a run came to. The requests themselves went to the callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// When the first stream was let go; in an open loop the first due time.
    pub started_ns: MonoNs,
    /// When the last request handed to the callback was answered; equals `started_ns` without one.
    pub finished_ns: MonoNs,
    /// Requests handed to the callback.
    pub requests: u64,
    /// Those of them that failed.
    pub failed: u64,
}

/// Why a run ended before its plan did.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There was no server to begin with; nothing was sent.
    #[error("{cause}. Is the server running, and is {target} the address it printed?")]
    Unreachable {
        /// Where it was looked for.
        target: Target,
        /// The failure, naming the address.
        cause: String,
    },
    /// The server went away during the run.
    #[error(
        "{target} is gone after {} answers ({failures} requests in a row without a connection): {cause}",
        report.requests - report.failed
    )]
    ServerGone {
        /// Where it was.
        target: Target,
        /// Requests in a row that found no connection or lost it.
        failures: u32,
        /// The last failure.
        cause: String,
        /// What the run came to until then.
        report: LoadReport,
    },
    /// The server, or whatever answers there, will not serve this request.
    #[error("{cause}")]
    Refused {
        /// Its answer, naming address and status.
        cause: String,
        /// What the run came to until then.
        report: LoadReport,
    },
    /// The client's own timer failed.
    #[error("cannot wait for the next request: timerfd: {cause}. Check the limit on open files (ulimit -n)")]
    Timer {
        /// What the system said.
        #[source]
        cause: io::Error,
        /// What the run came to until then.
        report: LoadReport,
    },
}

impl ClientError {
    /// What the run came to before it ended; `None` when it never began.
    #[must_use]
    pub fn report(&self) -> Option<&LoadReport> {
        match self {
            Self::Unreachable { .. } => None,
            Self::ServerGone { report, .. } | Self::Refused { report, .. } | Self::Timer { report, .. } => Some(report),
        }
    }
}

/// Runs `plan` against `target` and hands every finished request to `on_span`, in order of their answers.
///
/// `on_span` returning `Break` ends the run at once; so does dropping the future. Requests in flight are then given
/// up and appear nowhere. Needs a tokio runtime with IO and time; stamps are taken in the streams' tasks, so a slow
/// `on_span` touches none of them on a runtime with a second thread.
///
/// # Errors
/// [`ClientError`]; all but `Unreachable` carry the report, and what was measured has been handed out.
pub async fn drive(
    plan: &LoadPlan,
    target: &Target,
    mut on_span: impl FnMut(RequestSpan) -> ControlFlow<()>,
) -> Result<LoadReport, ClientError> {
    let connections = connect(plan, target).await?;
    let (spans, mut finished) = mpsc::channel(BACKLOG);
    let (mut tasks, started_ns) = launch(plan, connections, spans);
    let mut report = LoadReport { started_ns, finished_ns: started_ns, requests: 0, failed: 0 };
    let mut losses = 0;
    while let Some(Finished { span, failure }) = finished.recv().await {
        report.count(&span);
        let flow = on_span(span);
        match failure {
            None | Some(Failure::Answer(_)) => losses = 0,
            Some(Failure::Refused(cause)) => return Err(ClientError::Refused { cause, report }),
            Some(Failure::Connection(cause)) => {
                losses += 1;
                if losses >= LOSSES_MAX {
                    return Err(ClientError::ServerGone { target: target.clone(), failures: losses, cause, report });
                }
            }
        }
        if flow.is_break() {
            return Ok(report);
        }
    }
    while let Some(task) = tasks.join_next().await {
        // A task that panicked or was aborted has no cause to tell; its requests are missing from the count.
        if let Ok(Err(cause)) = task {
            return Err(ClientError::Timer { cause, report });
        }
    }
    Ok(report)
}

impl LoadReport {
    fn count(&mut self, span: &RequestSpan) {
        self.requests += 1;
        self.failed += u64::from(matches!(span.outcome, Outcome::Failed { .. }));
        self.finished_ns = self.finished_ns.max(span.received_ns);
    }
}

/// Makes the run's connections, and opens those that will surely be used.
async fn connect(plan: &LoadPlan, target: &Target) -> Result<Vec<Connection>, ClientError> {
    let (made, opened) = match plan.pace {
        Pace::Closed { streams, .. } => (streams, streams.get()),
        Pace::Open { .. } => (plan.connections, 1),
    };
    let request = target.path_and_query(&plan.work);
    let mut connections = Vec::new();
    for number in 0..made.get() {
        let mut connection = Connection::new(target, &request, plan.timeout);
        if number < opened {
            connection.connect().await.map_err(|failure| ClientError::Unreachable {
                target: target.clone(),
                cause: failure.text().to_owned(),
            })?;
        }
        connections.push(connection);
    }
    Ok(connections)
}

/// Starts the tasks of a run; they end with the set.
fn launch(
    plan: &LoadPlan,
    connections: Vec<Connection>,
    spans: mpsc::Sender<Finished>,
) -> (JoinSet<io::Result<()>>, MonoNs) {
    let mut tasks = JoinSet::new();
    match plan.pace {
        Pace::Closed { gap, spread, .. } => {
            let start = now();
            let run = Arc::new(Run::new(plan.end, start, spans));
            for (stream, connection) in (0..).zip(connections) {
                tasks.spawn(closed_stream(Arc::clone(&run), stream, connection, gap, spread));
            }
            (tasks, start)
        }
        Pace::Open { spacing } => {
            let start = now() + LEAD;
            tasks.spawn(open_loop(Arc::new(Run::new(plan.end, start, spans)), spacing, connections));
            (tasks, start)
        }
    }
}
