//! A small simulated kernel for tests: two CPUs, a limited pod with a limited container and an unlimited sidecar, threads that
//! run, block, wake, move and end. It emits the events the probe would, and knows the truth that the timeline must find again.
//!
//! The rules are those of kernel/sched/fair.c as far as an observer can tell: slices, debt, distribution just above zero, the
//! idle period before a timer stops, remote releases by a call, the slack timer, throttles at enqueue, and from 6.18 on threads
//! that leave one by one on their way to user mode.

mod bandwidth;
mod kernel;
mod scheduler;
mod truth;

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{
    event::{CgroupId, Event},
    time::{DurationNs, MonoNs},
    timeline::{CountsFrom, Setting},
};
use kernel::Kernel;
pub(crate) use truth::{Roll, Truth};

/// The limited parent.
pub(crate) const POD: CgroupId = CgroupId(1_000);
/// A limited group in it.
pub(crate) const CONTAINER: CgroupId = CgroupId(1_001);
/// A group in it without a limit of its own.
pub(crate) const SIDECAR: CgroupId = CgroupId(1_002);

/// CPUs simulated.
pub(crate) const CPUS: u32 = 2;

/// Longest time from a timer's due point to the entry of its callback, where timers are prompt.
pub(crate) const TIMER_LATENCY: DurationNs = DurationNs::from_micros(40);
/// Longest run of a timer callback.
pub(crate) const CALLBACK: DurationNs = DurationNs::from_micros(25);
/// Longest time from a remote call's sending to its end.
pub(crate) const CALL: DurationNs = DurationNs::from_micros(100);

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

/// How a kernel throttles and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Up to 6.2.
    Direct,
    /// 6.3 to 6.5.
    Async,
    /// 6.6 to 6.17.
    AsyncQueued,
    /// From 6.18.
    Task,
}

impl Rules {
    pub(crate) fn counts_from(self) -> CountsFrom {
        match self {
            Self::Direct | Self::Async => CountsFrom::Mark,
            Self::AsyncQueued => CountsFrom::Queued,
            Self::Task => CountsFrom::Task,
        }
    }
}

/// Quota and period of a level, and its period grid's offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) quota: u64,
    pub(crate) period: u64,
    pub(crate) phase: u64,
}

/// A thread: its group, whether it is at work when the observation begins, and its stretches of (work, sleep); it ends after the last.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) group: CgroupId,
    pub(crate) at_work: bool,
    pub(crate) stretches: Vec<(u64, u64)>,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) rules: Rules,
    pub(crate) limits: BTreeMap<CgroupId, Limit>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) length: u64,
    /// Timers now and then come more than a period late.
    pub(crate) late_timers: bool,
    /// Threads now and then are moved to the other group.
    pub(crate) regroup: bool,
    pub(crate) seed: u64,
}

/// A simulated observation.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    pub(crate) events: Vec<Event>,
    pub(crate) setting: Setting,
    pub(crate) truth: Truth,
}

impl Simulated {
    pub(crate) fn of(plan: &Plan) -> Self {
        let (events, truth) = Kernel::new(plan).run();
        let mut tried = BTreeMap::new();
        for event in &events {
            *tried.entry(event.cpu).or_default() += 1;
        }
        Self { setting: Setting { tried, ..setting(plan.rules) }, events, truth }
    }
}

/// Paths of the three groups.
pub(crate) fn setting(rules: Rules) -> Setting {
    let paths = [(CONTAINER, vec![CONTAINER, POD]), (SIDECAR, vec![SIDECAR, POD]), (POD, vec![POD])];
    Setting {
        followed: paths.iter().map(|(cgroup, _)| *cgroup).collect(),
        paths: BTreeMap::from(paths),
        counts_from: rules.counts_from(),
        cpus: CPUS,
        watched_until: None,
        tried: BTreeMap::new(),
    }
}

/// Enough cases to meet the rarer turns of events; `PROPTEST_CASES` asks for more.
pub(crate) fn config() -> ProptestConfig {
    let cases = ProptestConfig::default().cases.max(400);
    ProptestConfig { cases, max_global_rejects: 20 * cases, ..ProptestConfig::default() }
}

/// First instant simulated.
pub(crate) const BEGIN: MonoNs = MonoNs(1_000_000_000);

fn a_limit() -> impl Strategy<Value = Limit> {
    (1u64..=12, prop_oneof![Just(10u64), Just(20), Just(30)], 0u64..MS * 10).prop_map(|(quota, period, phase)| Limit {
        quota: quota * MS,
        period: period * MS,
        phase,
    })
}

fn a_worker() -> impl Strategy<Value = Worker> {
    let stretch = (prop_oneof![100 * US..2 * MS, MS..40 * MS], prop_oneof![50 * US..2 * MS, MS..30 * MS]);
    (prop_oneof![3 => Just(CONTAINER), 1 => Just(SIDECAR)], any::<bool>(), prop::collection::vec(stretch, 1..8))
        .prop_map(|(group, at_work, stretches)| Worker { group, at_work, stretches })
}

/// Plans under any rules.
pub(crate) fn plans(late_timers: bool) -> impl Strategy<Value = Plan> {
    let rules = prop::sample::select(vec![Rules::Direct, Rules::Async, Rules::AsyncQueued, Rules::Task]);
    let limits = (prop::option::weighted(0.8, a_limit()), prop::option::weighted(0.6, a_limit()));
    (rules, limits, prop::collection::vec(a_worker(), 1..5), 10u64..150, any::<u64>()).prop_map(
        move |(rules, (container, pod), workers, length, seed)| {
            let limits = [(CONTAINER, container), (POD, pod)];
            let limits = limits.into_iter().filter_map(|(id, limit)| Some((id, limit?))).collect();
            Plan { rules, limits, workers, length: length * MS, late_timers, regroup: false, seed }
        },
    )
}
