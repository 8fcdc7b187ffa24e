//! What the workload and the client know about one request, without any help from the observer.

use serde::{Deserialize, Serialize};

use crate::time::{DurationNs, MonoNs};

/// How a request with several workers shares its work out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FanOut {
    /// Each worker burns its part of the work: the parts sum to it.
    #[default]
    Split,
    /// Each worker burns the whole work.
    Whole,
}

impl FanOut {
    /// The word for it in queries, flags and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Whole => "whole",
        }
    }
}

impl std::str::FromStr for FanOut {
    type Err = UnknownFanOut;
    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "split" => Ok(Self::Split),
            "whole" => Ok(Self::Whole),
            _ => Err(UnknownFanOut),
        }
    }
}

/// A word that names no [`FanOut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither `split` (each thread burns its part of the work) nor `whole` (each thread burns all of it)")]
pub struct UnknownFanOut;

/// What a client asks of the burn server. What is `None` is left to the server's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkSpec {
    /// CPU time to burn.
    pub work_ns: Option<DurationNs>,
    /// Worker threads to burn it on.
    pub threads: Option<u32>,
    /// How the threads share it.
    pub fan_out: Option<FanOut>,
}

impl WorkSpec {
    /// The query of `GET /burn`, without the `?`; empty when everything is left to the server. Work is given in
    /// milliseconds, exact to the nanosecond.
    #[must_use]
    pub fn query(&self) -> String {
        let work = self.work_ns.map(|DurationNs(ns)| format!("work_ms={}.{:06}", ns / 1_000_000, ns % 1_000_000));
        let threads = self.threads.map(|threads| format!("threads={threads}"));
        let mode = self.fan_out.map(|fan_out| format!("mode={}", fan_out.word()));
        [work, threads, mode].into_iter().flatten().collect::<Vec<_>>().join("&")
    }
}

/// One worker thread's part of a request, stamped by the worker itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSpan {
    /// Thread id as the kernel numbers it (`gettid`), in the server's pid namespace.
    pub tid: u32,
    /// `CLOCK_MONOTONIC` when the worker took its part up.
    pub started_ns: MonoNs,
    /// `CLOCK_MONOTONIC` when its part was done.
    pub finished_ns: MonoNs,
    /// `CLOCK_THREAD_CPUTIME_ID` difference between the two stamps.
    pub cpu_time_ns: DurationNs,
}

/// The server's answer: when the request came, and what each worker did for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSpan {
    /// `CLOCK_MONOTONIC` when the server had read the request.
    pub accepted_ns: MonoNs,
    /// Earliest start of a worker.
    pub started_ns: MonoNs,
    /// Latest finish of a worker.
    pub finished_ns: MonoNs,
    /// CPU time asked of the request as a whole, ns.
    pub work_ns: DurationNs,
    /// One entry a worker, in order of hand-out; never empty.
    pub workers: Vec<WorkerSpan>,
}

impl ServerSpan {
    /// Wall time of the work: first start to last finish. This is the latency the study reports.
    #[must_use]
    pub fn wall(&self) -> DurationNs {
        self.finished_ns.since(self.started_ns)
    }

    /// CPU time of all workers together.
    #[must_use]
    pub fn cpu_time(&self) -> DurationNs {
        self.workers.iter().map(|worker| worker.cpu_time_ns).sum()
    }

    /// The worker that finished last: the critical path of a fan-out request.
    #[must_use]
    pub fn critical(&self) -> Option<&WorkerSpan> {
        self.workers.iter().max_by_key(|worker| worker.finished_ns)
    }
}

/// How a request ended, as the client saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// Answered with a span.
    Ok {
        /// The server's own account.
        server: ServerSpan,
    },
    /// Not answered, or answered with an error.
    Failed {
        /// What went wrong, naming the address.
        error: String,
    },
}

/// One request from due time to answer, as the client stamped it (client's `CLOCK_MONOTONIC`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSpan {
    /// Number of the request within its run, from 0.
    pub request: u64,
    /// Stream that sent it, from 0.
    pub stream: u32,
    /// When the schedule wanted it sent. In a closed loop this equals `sent_ns`.
    pub due_ns: MonoNs,
    /// When it was sent.
    pub sent_ns: MonoNs,
    /// When the whole answer, or the error, was there.
    pub received_ns: MonoNs,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl RequestSpan {
    /// Sent to received.
    #[must_use]
    pub fn service_time(&self) -> DurationNs {
        self.received_ns.since(self.sent_ns)
    }

    /// Due to received: what a user of a fixed schedule waits, late sends included.
    #[must_use]
    pub fn latency(&self) -> DurationNs {
        self.received_ns.since(self.due_ns)
    }
}

/// One spike of a generator: work that is bounded by time and not by how much gets done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpikeSpan {
    /// Number of the spike within its run, from 0.
    pub spike: u64,
    /// When the schedule wanted it to begin (`CLOCK_MONOTONIC`).
    pub due_ns: MonoNs,
    /// When the schedule wanted it to end, however late it began.
    pub until_ns: MonoNs,
    /// One entry a thread; never empty.
    pub workers: Vec<WorkerSpan>,
}

impl SpikeSpan {
    /// CPU time it would use on free CPUs without a limit: its length, for each thread.
    #[must_use]
    pub fn expected(&self) -> DurationNs {
        DurationNs(self.until_ns.since(self.due_ns).0.saturating_mul(self.workers.len() as u64))
    }

    /// CPU time it used.
    #[must_use]
    pub fn consumed(&self) -> DurationNs {
        self.workers.iter().map(|worker| worker.cpu_time_ns).sum()
    }

    /// Wall time its threads lost by starting late, summed over them.
    #[must_use]
    pub fn lost_to_late_starts(&self) -> DurationNs {
        self.workers.iter().map(|worker| worker.started_ns.min(self.until_ns).since(self.due_ns)).sum()
    }

    /// How late the latest of its threads started.
    #[must_use]
    pub fn late(&self) -> DurationNs {
        self.workers.iter().map(|worker| worker.started_ns.since(self.due_ns)).max().unwrap_or_default()
    }

    /// How long after the schedule's end the last of its threads noticed it: one that is held then does so when it runs again.
    #[must_use]
    pub fn overrun(&self) -> DurationNs {
        self.workers.iter().map(|worker| worker.finished_ns.since(self.until_ns)).max().unwrap_or_default()
    }
}
