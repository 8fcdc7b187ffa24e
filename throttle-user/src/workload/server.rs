//! The HTTP face of the workload: `GET /burn`, `/healthz`, `/info`.
//!
//! Owns routes, answers, what a client may send, and shutdown. Burning is the pool's; parameters are checked in `params`.
//! Runs on whatever runtime polls it; a single-threaded one is enough, for the runtime only reads, hands over and writes.
//!
//! A request has no body, and a head of at most some 400 KiB and 100 fields (hyper's bounds, answered with 431). No timer
//! runs while nothing is asked: it would wake the cgroup under study. So a client may take any time to send its head,
//! until the server is to end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use super::burn::{Burner, Calibration};
use super::params::{BurnDefaults, BurnParams};
use super::pool::{Pool, PoolError};
use crate::request::{ServerSpan, WorkerSpan};
use crate::time::{DurationNs, MonoNs, now};

/// Most worker threads of a server: far more than CPUs, and few enough for any machine.
pub const WORKERS_MAX: u32 = 1024;
/// Once the server is to end and no request is at work, how long connections have to be done with.
const DRAIN: Duration = Duration::from_secs(2);

/// How a server is to run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Worker threads, fixed for the server's life.
    pub workers: u32,
    /// What a request gets that does not say.
    pub defaults: BurnDefaults,
}

/// A bound server. Its threads end when it is dropped.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// Why a server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}. Choose another address, or port 0 for any free one")]
    Bind {
        /// Address asked for.
        address: SocketAddr,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// Defaults that no request could use.
    #[error("{threads} threads a request by default, but only {workers} workers: raise --workers or lower --threads")]
    Defaults {
        /// Default threads a request.
        threads: u32,
        /// Workers there would be.
        workers: u32,
    },
    /// The worker threads could not be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The listening socket failed.
    #[error("serving on {address} failed: {cause}")]
    Serve {
        /// Address listened on.
        address: SocketAddr,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

impl Server {
    /// Binds the address and starts the workers.
    ///
    /// # Errors
    /// [`ServerError`] for an unusable address, defaults that contradict each other, or refused threads.
    pub async fn bind(options: &ServerOptions, burner: Burner) -> Result<Self, ServerError> {
        let &ServerOptions { listen, workers, defaults } = options;
        if defaults.threads == 0 || defaults.threads > workers {
            return Err(ServerError::Defaults { threads: defaults.threads, workers });
        }
        let refused = |cause| ServerError::Bind { address: listen, cause };
        let listener = TcpListener::bind(listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let info = Info {
            name: "throttle",
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            listen: address,
            workers,
            defaults,
            calibration: burner.calibration(),
        };
        let shared =
            Arc::new(Shared { pool: Pool::start(workers, burner)?, workers, info, at_work: watch::Sender::new(0) });
        Ok(Self { listener, address, shared })
    }

    /// Where it listens, the port chosen by the system filled in.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` resolves, then answers what it has accepted, closes idle connections and returns. A
    /// connection on which no request is at work is given up 2 s later, whatever its client is about to send.
    ///
    /// # Errors
    /// [`ServerError::Serve`] when the listening socket fails.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServerError> {
        let Self { listener, address, shared } = self;
        let router = Router::new()
            .route("/burn", get(burn))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/info", get(info))
            .fallback(not_found)
            .layer(from_fn(without_body))
            .with_state(Arc::clone(&shared));
        // Small answers on a kept connection: Nagle would hold them for the client's delayed acknowledgement. A socket
        // that refuses the option still works, so a refusal is of no consequence.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let (stopping, stopped) = oneshot::channel();
        let shutdown = async {
            shutdown.await;
            // Nobody waits for it if serving has failed.
            let _ = stopping.send(());
        };
        let served = axum::serve(listener, router).with_graceful_shutdown(shutdown);
        tokio::select! {
            served = served => served.map_err(|cause| ServerError::Serve { address, cause }),
            () = drained(stopped, shared.at_work.subscribe()) => Ok(()),
        }
    }
}

/// Resolves when the server has been told to end and no request has been at work for [`DRAIN`].
async fn drained(stopped: oneshot::Receiver<()>, mut at_work: watch::Receiver<usize>) {
    if stopped.await.is_err() {
        std::future::pending::<()>().await;
    }
    loop {
        // An error would mean that the sender is gone: then no request is at work either.
        let _ = at_work.wait_for(|count| *count == 0).await;
        let begun = at_work.wait_for(|count| *count > 0);
        if tokio::time::timeout(DRAIN, begun).await.is_err() {
            return;
        }
    }
}

/// What every handler sees.
#[derive(Debug)]
struct Shared {
    pool: Pool,
    workers: u32,
    info: Info,
    /// Burns that are waiting for workers or at work.
    at_work: watch::Sender<usize>,
}

/// Counts one burn for as long as it lives: also one whose client has gone.
struct AtWork<'a>(&'a watch::Sender<usize>);

impl<'a> AtWork<'a> {
    fn begin(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The answer of `/info`.
#[derive(Debug, Serialize)]
struct Info {
    name: &'static str,
    version: &'static str,
    pid: u32,
    listen: SocketAddr,
    workers: u32,
    defaults: BurnDefaults,
    calibration: Calibration,
}

/// The answer to a request that failed.
#[derive(Debug, Serialize)]
struct ErrorBody {
    error: String,
    /// The parameter at fault, where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
}

async fn burn(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let accepted_ns = now();
    let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(&uri) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            format!("the query {:?} is not of the form name=value", uri.query()),
            None,
        );
    };
    let params = match BurnParams::parse(&pairs, &shared.info.defaults, shared.workers) {
        Ok(params) => params,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error.to_string(), Some(error.parameter)),
    };
    let _at_work = AtWork::begin(&shared.at_work);
    let parts = params.parts();
    let work_ns = parts.iter().copied().sum();
    match shared.pool.run(&parts).await.map(|workers| server_span(accepted_ns, work_ns, workers)) {
        Ok(Some(span)) => Json(span).into_response(),
        Ok(None) => refuse(StatusCode::INTERNAL_SERVER_ERROR, PoolError::WorkerLost.to_string(), None),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), None),
    }
}

/// Refuses a request with a body: none has a use for one, and unread it would stand in the way of the next request.
async fn without_body(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let refused =
        refuse(StatusCode::PAYLOAD_TOO_LARGE, "a request here has no body: say all in the query".to_owned(), None);
    ([(header::CONNECTION, "close")], refused).into_response()
}

async fn info(State(shared): State<Arc<Shared>>) -> Response {
    Json(&shared.info).into_response()
}

async fn not_found(uri: Uri) -> Response {
    let error = format!("nothing at {}: try /burn?work_ms=60&threads=1&mode=split, /healthz or /info", uri.path());
    refuse(StatusCode::NOT_FOUND, error, None)
}

fn refuse(status: StatusCode, error: String, parameter: Option<String>) -> Response {
    (status, Json(ErrorBody { error, parameter })).into_response()
}

/// Puts the account of a request together; `None` without a worker.
fn server_span(accepted_ns: MonoNs, work_ns: DurationNs, workers: Vec<WorkerSpan>) -> Option<ServerSpan> {
    let started_ns = workers.iter().map(|worker| worker.started_ns).min()?;
    let finished_ns = workers.iter().map(|worker| worker.finished_ns).max()?;
    Some(ServerSpan { accepted_ns, started_ns, finished_ns, work_ns, workers })
}
