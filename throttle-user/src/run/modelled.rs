//! What the model says about the requests of a limit, and why it says nothing where it does not.

use serde::{Deserialize, Serialize};

use super::{
    derive::{RawLimit, RequestLine},
    record::Head,
};
use crate::{
    model::{
        bandwidth::Bandwidth,
        predict::{LevelAtStart, Measured, Unknowns, compare},
    },
    time::DurationNs,
};

/// CPU time the server's I/O thread may have used in the period before a request's worker starts.
const SERVER_OVERHEAD: DurationNs = DurationNs::from_millis(1);

/// The model beside the requests of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Model {
    /// It says what they should have come to.
    Predicts(Predicted),
    /// It does not cover them.
    Silent {
        /// Why, in words.
        because: String,
    },
}

impl Model {
    /// What it predicts, if it does.
    #[must_use]
    pub fn predicted(&self) -> Option<&Predicted> {
        match self {
            Self::Predicts(predicted) => Some(predicted),
            Self::Silent { .. } => None,
        }
    }

    /// Why it predicts nothing, if it does not.
    #[must_use]
    pub fn because(&self) -> Option<&str> {
        match self {
            Self::Predicts(_) => None,
            Self::Silent { because } => Some(because),
        }
    }
}

/// Measured beside predicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// Predicted median.
    pub p50_ns: DurationNs,
    /// Predicted maximum.
    pub max_ns: DurationNs,
    /// Requests whose wall time, less what they waited, lies in the model's bracket.
    pub inside: u64,
}

/// The model on one request. It is inside if its CPU time and its throttled time together lie from `low_ns` to `high_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bracket {
    /// No smaller wall time is possible.
    pub low_ns: DurationNs,
    /// Median over what is not observed.
    pub central_ns: DurationNs,
    /// No larger wall time is possible.
    pub high_ns: DurationNs,
}

/// The model on the answered requests of a limit, and one bracket a request where there is one.
pub(super) fn model(head: &Head, raw: &RawLimit, seen: bool, requests: &[&RequestLine]) -> (Model, Vec<Bracket>) {
    match predict(head, raw, seen, requests) {
        Ok((predicted, brackets)) => (Model::Predicts(predicted), brackets),
        Err(because) => (Model::Silent { because }, vec![]),
    }
}

fn predict(
    head: &Head,
    raw: &RawLimit,
    seen: bool,
    requests: &[&RequestLine],
) -> Result<(Predicted, Vec<Bracket>), String> {
    let set = raw.begin.bandwidth;
    covered(head, set.period_us, set.burst_us)?;
    if !seen {
        return Err("nothing of it was observed".to_owned());
    }
    let bandwidth = match set.quota.us() {
        None => None,
        Some(quota_us) => {
            let us = DurationNs::from_micros;
            let level = Bandwidth::new(us(quota_us), us(set.period_us)).map_err(|error| error.to_string())?;
            Some(level.with_burst(us(set.burst_us)).map_err(|error| error.to_string())?)
        }
    };
    let measured: Vec<Measured> = requests
        .iter()
        .map(|request| Measured {
            cpu: request.share.cpu_time_ns,
            wall: request.share.wall_ns,
            // Whatever was neither used nor held: run-queue wait, sleep, interrupts, steal.
            waited: request.share.wall_ns.saturating_sub(request.share.cpu_time_ns + request.share.shares.throttled()),
            levels: (0..raw.begin.levels.len())
                .filter_map(|level| {
                    let to_refill = request.share.to_refill_ns.get(level).copied().flatten();
                    Some(LevelAtStart { bandwidth: bandwidth?, to_refill })
                })
                .collect(),
        })
        .collect();
    let hz = head.environment.hz.ok_or("this kernel does not show its tick (CONFIG_HZ)")?;
    let unknowns = Unknowns { spent: SERVER_OVERHEAD, ..Unknowns::at_hz(hz) };
    let comparison = compare(&measured, &unknowns).ok_or("no request was answered")?;
    let brackets = comparison.predictions.iter().map(|prediction| Bracket {
        low_ns: prediction.lowest,
        central_ns: prediction.central,
        high_ns: prediction.highest,
    });
    let predicted =
        Predicted { p50_ns: comparison.predicted.p50, max_ns: comparison.predicted.max, inside: comparison.inside };
    Ok((predicted, brackets.collect()))
}

/// The model covers one thread at a time that finds its pools full. A level that nobody uses is refilled twice before its
/// timer stops (`do_sched_cfs_period_timer`, kernel/sched/fair.c): the first refill fills the quota, and both the burst,
/// which is no larger than the quota.
fn covered(head: &Head, period_us: u64, burst_us: u64) -> Result<(), String> {
    let plan = &head.plan;
    if plan.threads != 1 {
        return Err("it covers requests of one thread".to_owned());
    }
    if plan.streams != 1 {
        return Err("it covers one stream: of several, one request uses what another is counted on to find".to_owned());
    }
    let (periods, words) = if burst_us == 0 { (1, "a period") } else { (2, "two periods, which a burst needs") };
    if plan.gap_ns < DurationNs::from_micros(period_us * periods) {
        return Err(format!("the gap is shorter than {words}: what a request finds in the pools is not known"));
    }
    Ok(())
}
