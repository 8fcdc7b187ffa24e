//! Paths, parameters, answers.

use std::{collections::VecDeque, sync::Arc};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, State as Shared},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::broadcast::{
    Receiver,
    error::{RecvError, TryRecvError},
};

use super::{
    metrics::{Format, Metrics},
    rows::{self, PeriodLine},
    state::Exporter,
};
use crate::{kubernetes::Name, time::now, timeline::live::LivePeriod};

/// Periods in one piece of an answer, at most.
const BATCH: usize = 256;

/// What every handler sees.
struct Routes {
    exporter: Arc<Exporter>,
    metrics: Metrics,
}

/// All routes of an exporter.
pub fn router(exporter: Arc<Exporter>) -> Router {
    let metrics = Metrics::of(&exporter);
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/api/v1/cgroups", get(cgroups))
        .route("/api/v1/periods", get(periods))
        .fallback(not_found)
        .with_state(Arc::new(Routes { exporter, metrics }))
}

/// Which cgroups are meant; what is not given does not matter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Namespace of the pod.
    namespace: Option<String>,
    /// Name of the pod.
    pod: Option<String>,
    /// Name of the container.
    container: Option<String>,
    /// Path of the cgroup.
    cgroup: Option<String>,
    /// For periods: also those that end from now on. Else the answer ends with the last that is kept.
    follow: Option<bool>,
    /// For periods: also those that ended before.
    recent: Option<bool>,
}

impl Wanted {
    fn wants(&self, name: &Name) -> bool {
        let same = |wanted: &Option<String>, is: &Option<String>| wanted.is_none() || wanted == is;
        same(&self.namespace, &name.namespace)
            && same(&self.pod, &name.pod)
            && same(&self.container, &name.container)
            && self.cgroup.as_ref().is_none_or(|cgroup| cgroup.trim_matches('/') == name.path)
    }
}

async fn metrics_text(Shared(routes): Shared<Arc<Routes>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept);
    match routes.metrics.text(format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.media_type())], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics cannot be written: {error}\n")).into_response()
        }
    }
}

async fn health(Shared(routes): Shared<Arc<Routes>>) -> Response {
    verdict(routes.exporter.state().sick(now()), None)
}

async fn ready(Shared(routes): Shared<Arc<Routes>>) -> Response {
    let state = routes.exporter.state();
    verdict(state.unready(now()), state.degraded())
}

/// `degraded`: what is worse than it could be, though not wrong.
fn verdict(against: Option<String>, degraded: Option<String>) -> Response {
    match (against, degraded) {
        (None, None) => "ok\n".into_response(),
        (None, Some(degraded)) => format!("ok, but {degraded}\n").into_response(),
        (Some(reason), _) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn cgroups(Shared(routes): Shared<Arc<Routes>>, uri: Uri) -> Response {
    match wanted(&uri) {
        Ok(wanted) => Json(rows::cgroups(&routes.exporter.state(), |name| wanted.wants(name))).into_response(),
        Err(refused) => refused,
    }
}

async fn periods(Shared(routes): Shared<Arc<Routes>>, uri: Uri) -> Response {
    let wanted = match wanted(&uri) {
        Ok(wanted) => wanted,
        Err(refused) => return refused,
    };
    let (recent, coming) = routes.exporter.follow();
    let recent = if wanted.recent == Some(false) { VecDeque::new() } else { recent.into() };
    let coming = (wanted.follow != Some(false)).then_some(coming);
    let stream = Stream { exporter: Arc::clone(&routes.exporter), wanted, recent, coming, skipped: 0 };
    let pieces = stream::unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), stream))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(pieces)).into_response()
}

/// Lines of one answer.
struct Stream {
    exporter: Arc<Exporter>,
    wanted: Wanted,
    recent: VecDeque<Arc<LivePeriod>>,
    coming: Option<Receiver<Arc<LivePeriod>>>,
    /// Periods that this reader was too slow for, and was not told of yet.
    skipped: u64,
}

impl Stream {
    /// The next lines that are wanted; `None` = no more.
    async fn next(&mut self) -> Option<String> {
        loop {
            if !self.recent.is_empty() {
                let batch: Vec<_> = self.recent.drain(..self.recent.len().min(BATCH)).collect();
                let text = self.lines(&batch);
                if !text.is_empty() {
                    return Some(text);
                }
                continue;
            }
            let coming = self.coming.as_mut()?;
            if self.skipped > 0 {
                return Some(format!("{{\"skipped\":{}}}\n", std::mem::take(&mut self.skipped)));
            }
            let mut batch = vec![match coming.recv().await {
                Ok(period) => period,
                Err(RecvError::Lagged(skipped)) => {
                    self.skipped += skipped;
                    continue;
                }
                Err(RecvError::Closed) => return None,
            }];
            while batch.len() < BATCH {
                match coming.try_recv() {
                    Ok(period) => batch.push(period),
                    Err(TryRecvError::Lagged(skipped)) => {
                        self.skipped += skipped;
                        break;
                    }
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            let text = self.lines(&batch);
            if !text.is_empty() {
                return Some(text);
            }
        }
    }

    fn lines(&self, batch: &[Arc<LivePeriod>]) -> String {
        let state = self.exporter.state();
        let lines = batch.iter().map(|period| PeriodLine::of(period, &state.census, &state.pods));
        let wanted = lines.filter(|line| self.wanted.wants(&line.name));
        // Names and numbers are always JSON.
        wanted.filter_map(|line| serde_json::to_string(&line).ok()).map(|line| line + "\n").collect()
    }
}

#[expect(clippy::result_large_err, reason = "a refusal is an answer")]
fn wanted(uri: &Uri) -> Result<Wanted, Response> {
    Query::<Wanted>::try_from_uri(uri).map(|Query(wanted)| wanted).map_err(|error| {
        let known = "namespace, pod, container, cgroup, follow=true|false, recent=true|false";
        (StatusCode::BAD_REQUEST, format!("{error}; parameters are {known}\n")).into_response()
    })
}

async fn not_found(uri: Uri) -> Response {
    let known = "/metrics, /healthz, /readyz, /api/v1/cgroups or /api/v1/periods";
    (StatusCode::NOT_FOUND, format!("nothing at {}: try {known}\n", uri.path())).into_response()
}
