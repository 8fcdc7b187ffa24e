//! What a picture comes to: the cause, the level, and the limit that would have been enough, each with its evidence and with
//! what the recording cannot tell.
//!
//! Owns the rules. They look at nothing but what is drawn, so a verdict can be held against the picture; the words are
//! [`crate::report`]'s.

mod limit;
mod request;
mod sweep;

use serde::Serialize;

use super::{
    agree::Agreement,
    derive::LimitLine,
    need::Need,
    picture::{LevelPicture, LimitPicture, Shares},
};
use crate::{
    attribution::Incomplete,
    cgroup::LevelName,
    event::CgroupId,
    time::{DurationNs, MonoNs},
};

pub use limit::{LevelVerdict, LimitVerdict};
pub use request::RequestVerdict;
pub use sweep::RunVerdict;

/// Where most of the time went that was not spent on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nowhere: at least 19 parts in 20 of the time were spent on a CPU.
    Work,
    /// Held by a CPU limit.
    Throttled,
    /// Waiting for a CPU.
    RunQueue,
    /// Asleep.
    Asleep,
    /// So much is unknown that another cause may be the largest.
    Unknown,
    /// There are no events: nothing was measured.
    NotMeasured,
}

/// Below one part in so many of the wall time, what was not spent on a CPU is not worth a cause.
const WORTH_NAMING: u64 = 20;

impl Cause {
    /// Of shares that sum to a wall time.
    #[must_use]
    pub fn of(shares: &Shares) -> Self {
        let wall = shares.total();
        let mut causes = [
            (shares.throttled(), Self::Throttled),
            (shares.runqueue_ns, Self::RunQueue),
            (shares.blocked_ns, Self::Asleep),
        ];
        causes.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        let [(largest, cause), (second, _), _] = causes;
        let elsewhere = wall.saturating_sub(shares.on_cpu_ns);
        if elsewhere == DurationNs::ZERO || elsewhere.0.saturating_mul(WORTH_NAMING) < wall.0 {
            Self::Work
        } else if shares.unknown_ns != DurationNs::ZERO && second + shares.unknown_ns >= largest {
            Self::Unknown
        } else {
            cause
        }
    }
}

/// What a level had to do with held time. Levels are out of quota at the same time, so these are never added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LevelShare {
    /// Container or pod; absent = a group above.
    pub level: Option<LevelName>,
    /// kernfs id.
    pub cgroup_id: CgroupId,
    /// Held while it was out of quota.
    pub out_ns: DurationNs,
    /// Of that, while no other level was: what a higher quota of this level alone could at most have saved.
    pub alone_ns: DurationNs,
}

/// A reason not to take a verdict for more than it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum NotKnown {
    /// Part of the time.
    Time {
        /// How much of it.
        unknown_ns: DurationNs,
        /// Of how much.
        wall_ns: DurationNs,
    },
    /// Why part of a request is not known.
    Request {
        /// The reason.
        why: Incomplete,
    },
    /// Requests that are not known whole.
    Requests {
        /// How many of them.
        incomplete: u64,
        /// Of how many.
        answered: u64,
    },
    /// Records were lost.
    Lost {
        /// How many of them.
        events: u64,
    },
    /// The file of events ends before the run did.
    CutOff {
        /// The last instant known.
        until: MonoNs,
    },
    /// The counters differ from what was observed.
    Differs {
        /// How, a line a difference.
        because: Vec<String>,
    },
    /// The counters could not be compared.
    NotCompared {
        /// Why.
        because: String,
    },
    /// Which thread waited for which: the limit needed depends on it.
    WhoWaited,
    /// How soon each thread would have had a CPU on a machine with less to do: the limit needed depends on it.
    Hindered,
    /// Whether the quota reaches the CPUs that want it: each takes a slice at once.
    Slices {
        /// Threads on CPUs at the same time.
        threads: u64,
        /// A limit that has a slice for each.
        limit_millicores: u64,
    },
    /// More than the machine has: what the group would use on a larger one.
    WholeMachine {
        /// CPUs of this one.
        cpus: u32,
    },
    /// What a group above, with a limit of its own, would have held.
    LimitAbove,
    /// What a request would have used that was not answered.
    Failed {
        /// How many of them.
        requests: u64,
    },
}

/// What the calculation of the needed limit leaves open.
fn of_need(need: Option<&Need>, cpus: u32) -> impl Iterator<Item = NotKnown> + use<> {
    let found = need.map(|need| {
        let (_, high) = need.range();
        let all = u64::from(cpus) * 1_000;
        let apart = need.apart.limit_millicores != need.together.limit_millicores;
        let hindered = need.unhindered.limit_millicores > need.together.limit_millicores;
        let slices = high
            .caveat
            .map(|caveat| NotKnown::Slices { threads: high.peak_threads, limit_millicores: caveat.limit_millicores });
        [
            apart.then_some(NotKnown::WhoWaited),
            hindered.then_some(NotKnown::Hindered),
            slices,
            (all > 0 && high.limit_millicores >= all).then_some(NotKnown::WholeMachine { cpus }),
        ]
    });
    found.into_iter().flatten().flatten()
}

/// What the recording of a limit leaves open.
fn of_recording(picture: &LimitPicture) -> impl Iterator<Item = NotKnown> + use<> {
    let LimitLine { lost_events, agreement, .. } = &picture.line;
    let above = picture.levels.iter().any(|LevelPicture { name, out, .. }| name.is_none() && !out.is_empty());
    [
        (*lost_events > 0).then_some(NotKnown::Lost { events: *lost_events }),
        picture.cut_off.map(|until| NotKnown::CutOff { until }),
        match agreement {
            Agreement::Agrees => None,
            Agreement::Differs { because } => Some(NotKnown::Differs { because: because.clone() }),
            Agreement::NotCompared { because } => Some(NotKnown::NotCompared { because: because.clone() }),
        },
        above.then_some(NotKnown::LimitAbove),
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(on_cpu: u64, throttled: u64, runqueue: u64, unknown: u64) -> Shares {
        Shares {
            on_cpu_ns: DurationNs(on_cpu),
            throttled_ancestor_ns: DurationNs(throttled),
            runqueue_ns: DurationNs(runqueue),
            unknown_ns: DurationNs(unknown),
            ..Shares::default()
        }
    }

    #[test]
    fn the_cause_is_the_largest_part_that_is_not_work() {
        assert_eq!(Cause::of(&shares(60, 400, 5, 0)), Cause::Throttled);
        assert_eq!(Cause::of(&shares(60, 4, 5, 0)), Cause::RunQueue);
        let asleep = Shares { blocked_ns: DurationNs(10), ..shares(60, 4, 5, 0) };
        assert_eq!(Cause::of(&asleep), Cause::Asleep);
        assert_eq!(Cause::of(&shares(96, 4, 0, 0)), Cause::Work);
        assert_eq!(Cause::of(&shares(95, 5, 0, 0)), Cause::Throttled);
        assert_eq!(Cause::of(&Shares::default()), Cause::Work);
    }

    #[test]
    fn there_is_no_cause_where_what_is_unknown_could_make_another_one_the_largest() {
        assert_eq!(Cause::of(&shares(60, 40, 10, 29)), Cause::Throttled);
        assert_eq!(Cause::of(&shares(60, 40, 10, 30)), Cause::Unknown);
        assert_eq!(Cause::of(&shares(0, 0, 0, 9)), Cause::Unknown);
        assert_eq!(Cause::of(&shares(99, 0, 0, 1)), Cause::Work);
    }
}
