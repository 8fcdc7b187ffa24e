//! One kept HTTP/1 connection, and one exchange on it.
//!
//! Owns connecting, sending, the time limit, and sorting failures by what they say about the server.

use std::error::Error;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinHandle};

use super::target::Target;
use crate::request::{Outcome, RequestSpan, ServerSpan};
use crate::time::{DurationNs, MonoNs, now};

/// An answer of this many bytes is none of ours: a span of a thousand workers is a seventh of it.
const ANSWER_MAX: usize = 1 << 20;

/// A stream to the server: connected, or to be connected by the next exchange.
#[derive(Debug)]
pub(super) struct Connection {
    target: Target,
    request: String,
    timeout: DurationNs,
    open: Option<Open>,
}

/// What became of one request.
#[derive(Debug)]
pub(super) struct Exchange {
    /// When it was sent; when connecting failed, when that was tried.
    pub(super) sent_ns: MonoNs,
    pub(super) received_ns: MonoNs,
    pub(super) result: Result<ServerSpan, Failure>,
}

/// Why a request failed, by what follows for the run. The text names the address and the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection, or lost in the middle: the server may be gone.
    Connection(String),
    /// The server answers but not this time: a 5xx, or the time limit.
    Answer(String),
    /// The server will never answer this request: a 4xx, or something that is no burn server.
    Refused(String),
}

impl Failure {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Connection(text) | Self::Answer(text) | Self::Refused(text) => text,
        }
    }
}

impl Exchange {
    /// The span of the request this exchange answers, and what failed, if something did.
    pub(super) fn into_span(self, request: u64, stream: u32, due_ns: MonoNs) -> (RequestSpan, Option<Failure>) {
        let Self { sent_ns, received_ns, result } = self;
        let (outcome, failure) = match result {
            Ok(server) => (Outcome::Ok { server }, None),
            Err(failure) => (Outcome::Failed { error: failure.text().to_owned() }, Some(failure)),
        };
        (RequestSpan { request, stream, due_ns, sent_ns, received_ns, outcome }, failure)
    }
}

impl Connection {
    /// Prepares a stream; nothing is connected yet. `request` is the path and query of every exchange.
    pub(super) fn new(target: &Target, request: &str, timeout: DurationNs) -> Self {
        Self { target: target.clone(), request: request.to_owned(), timeout, open: None }
    }

    /// Connects ahead of the first exchange, so that it starts on a ready connection like all others.
    pub(super) async fn connect(&mut self) -> Result<(), Failure> {
        if self.open.as_ref().is_some_and(Open::usable) {
            return Ok(());
        }
        self.open = None;
        let address = self.target.authority();
        let lost = |cause: &dyn Error| Failure::Connection(format!("cannot connect to {address}: {}", chain(cause)));
        let connecting = async {
            let stream = TcpStream::connect(self.target.endpoint()).await.map_err(|cause| lost(&cause))?;
            stream.set_nodelay(true).map_err(|cause| lost(&cause))?;
            handshake(TokioIo::new(stream)).await.map_err(|cause| lost(&cause))
        };
        let (send, driver) = within(self.timeout, connecting).await.unwrap_or_else(|| {
            let limit = self.timeout.as_millis_f64();
            Err(Failure::Connection(format!("cannot connect to {address}: no connection within {limit} ms")))
        })?;
        // The driver's own end tells nothing that the exchange does not tell as well.
        let driver = tokio::spawn(async move { drop(driver.await) });
        self.open = Some(Open { send, _driver: AbortOnDrop::new(&driver) });
        Ok(())
    }

    /// Sends the request and reads the whole answer. After a failure the next exchange connects anew.
    pub(super) async fn exchange(&mut self) -> Exchange {
        let tried_ns = now();
        if let Err(failure) = self.connect().await {
            return Exchange { sent_ns: tried_ns, received_ns: now(), result: Err(failure) };
        }
        let sent_ns = now();
        let timeout = self.timeout;
        let result = within(timeout, self.ask()).await.unwrap_or_else(|| {
            let (address, limit) = (self.target.authority(), timeout.as_millis_f64());
            Err(Failure::Answer(format!("no answer from {address} within {limit} ms")))
        });
        let received_ns = now();
        if result.is_err() {
            self.open = None;
        }
        Exchange { sent_ns, received_ns, result }
    }

    async fn ask(&mut self) -> Result<ServerSpan, Failure> {
        let address = self.target.authority();
        let lost = |cause: &dyn Error| Failure::Connection(format!("connection to {address} lost: {}", chain(cause)));
        let not_ours = |what: &str| {
            Failure::Refused(format!("{address} answered {} with {what}: is it a `throttle serve`?", self.request))
        };
        let Some(open) = &mut self.open else {
            return Err(Failure::Connection(format!("connection to {address} lost before the request was sent")));
        };
        let request = Request::get(&self.request)
            .header(HOST, &address)
            .body(Empty::<Bytes>::new())
            .map_err(|cause| Failure::Refused(format!("cannot ask {address} for {}: {cause}", self.request)))?;
        let answer = open.send.send_request(request).await.map_err(|cause| lost(&cause))?;
        let status = answer.status();
        let body = match Limited::new(answer.into_body(), ANSWER_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(cause) if cause.is::<http_body_util::LengthLimitError>() => {
                return Err(not_ours("more than a mebibyte"));
            }
            Err(cause) => return Err(lost(cause.as_ref())),
        };
        match status {
            StatusCode::OK => {
                serde_json::from_slice(&body).map_err(|cause| not_ours(&format!("something else ({cause})")))
            }
            status if status.is_server_error() => {
                Err(Failure::Answer(format!("{address} answered {status}: {}", error_text(&body))))
            }
            status => Err(Failure::Refused(format!("{address} answered {status}: {}", error_text(&body)))),
        }
    }
}

/// An established connection with the task that drives it.
#[derive(Debug)]
struct Open {
    send: SendRequest<Empty<Bytes>>,
    _driver: AbortOnDrop,
}

impl Open {
    /// Whether the server has not closed it meanwhile.
    fn usable(&self) -> bool {
        !self.send.is_closed()
    }
}

/// Ends a task with its owner, so that a dropped run leaves nothing behind.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl AbortOnDrop {
    fn new(task: &JoinHandle<()>) -> Self {
        Self(task.abort_handle())
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `future` for at most `limit`; `None` when it took longer.
async fn within<T>(limit: DurationNs, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_nanos(limit.0), future).await.ok()
}

/// The `error` of a server's JSON answer, else the beginning of whatever it sent.
fn error_text(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    match json.as_ref().and_then(|json| json.get("error")?.as_str()) {
        Some(error) => error.to_owned(),
        None => String::from_utf8_lossy(body).chars().take(200).collect(),
    }
}

/// An error with its causes, for hyper's texts say the kind and keep the cause to themselves.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
