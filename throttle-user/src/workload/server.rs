//! The HTTP face of the workload: `GET /burn`, `/healthz`, `/info`.
//!
//! Owns routes, answers and shutdown. Burning is the pool's; parameters are checked in `params`. Runs on whatever
//! runtime polls it; a single-threaded one is enough, for the runtime only reads, hands over and writes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;

use super::burn::{Burner, Calibration};
use super::params::{BurnDefaults, BurnParams};
use super::pool::{Pool, PoolError};
use crate::request::{ServerSpan, WorkerSpan};
use crate::time::{DurationNs, MonoNs, now};

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
        let shared = Arc::new(Shared { pool: Pool::start(workers, burner)?, workers, info });
        Ok(Self { listener, address, shared })
    }

    /// Where it listens, the port chosen by the system filled in.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` resolves, then answers what it has accepted, closes idle connections and returns.
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
            .with_state(shared);
        // Small answers on a kept connection: Nagle would hold them for the client's delayed acknowledgement. A socket
        // that refuses the option still works, so a refusal is of no consequence.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, router)
            .with_graceful_shutdown(shutdown)
            .await
            .map_err(|cause| ServerError::Serve { address, cause })
    }
}

/// What every handler sees.
#[derive(Debug)]
struct Shared {
    pool: Pool,
    workers: u32,
    info: Info,
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
    let parts = params.parts();
    let work_ns = parts.iter().copied().sum();
    match shared.pool.run(&parts).await.map(|workers| server_span(accepted_ns, work_ns, workers)) {
        Ok(Some(span)) => Json(span).into_response(),
        Ok(None) => refuse(StatusCode::INTERNAL_SERVER_ERROR, PoolError::WorkerLost.to_string(), None),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), None),
    }
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
