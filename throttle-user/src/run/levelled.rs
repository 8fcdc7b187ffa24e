//! Periods of a level with every level on its path that was out of quota in them.
//!
//! Kubernetes gives a pod and its container the same quota, and either may run out first: a period of the one alone does not say
//! why nothing ran.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::record::LimitBegin;
use crate::{
    cgroup::LevelName,
    event::CgroupId,
    time::{DurationNs, MonoNs},
    timeline::{
        Setting, Timeline,
        interval::{Span, Spans},
        level::Throttle,
        period::{PeriodRecord, RELEASE_SLOP, records},
    },
};

/// One period of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelledPeriod {
    /// As the level itself saw it.
    #[serde(flatten)]
    pub period: PeriodRecord,
    /// Levels that were out of quota in it, in the order they ran out.
    pub out: Vec<LevelOut>,
    /// Time in which some level was out of quota on some CPU.
    pub out_wall_ns: DurationNs,
}

/// A level that was out of quota in a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelOut {
    /// Container or pod; absent = a group above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<LevelName>,
    /// kernfs id.
    pub cgroup_id: CgroupId,
    /// From the period's start until some CPU was first out; 0 = since before, by a debt that the refill did not pay.
    pub after_ns: DurationNs,
}

/// The periods of a level, in order.
pub(super) fn periods(
    begin: &LimitBegin,
    timeline: &Timeline,
    setting: &Setting,
    level: CgroupId,
) -> Vec<LevelledPeriod> {
    let path = setting.path(&level);
    let marks = Marks::of(timeline, path);
    let name = |id| begin.levels.iter().find(|level| level.cgroup_id == id).map(|level| level.level);
    records(timeline, setting, level)
        .into_iter()
        .map(|period| {
            let throttles = marks.within(Span::new(period.start_ns, period.end_ns), timeline.end());
            let first = |&cgroup_id: &CgroupId| {
                let own = throttles.iter().filter(|(cgroup, _)| *cgroup == cgroup_id);
                let after_ns = own.map(|(_, span)| span.start).min()?.since(period.start_ns);
                Some(LevelOut { level: name(cgroup_id), cgroup_id, after_ns })
            };
            let mut out: Vec<LevelOut> = path.iter().filter_map(first).collect();
            out.sort_by_key(|level| level.after_ns);
            LevelledPeriod { out, out_wall_ns: Spans::union(throttles.iter().map(|(_, span)| *span)).total(), period }
        })
        .collect()
}

/// Throttles of each level of a path on each CPU, in order; those of one level on one CPU do not overlap.
struct Marks<'a>(BTreeMap<(CgroupId, u32), Vec<&'a Throttle>>);

impl<'a> Marks<'a> {
    fn of(timeline: &'a Timeline, path: &[CgroupId]) -> Self {
        let mut marks: BTreeMap<(CgroupId, u32), Vec<&Throttle>> = BTreeMap::new();
        for throttle in timeline.throttles.iter().filter(|throttle| path.contains(&throttle.cgroup)) {
            marks.entry((throttle.cgroup, throttle.cpu)).or_default().push(throttle);
        }
        Self(marks)
    }

    /// The parts inside a period. A throttle of the period before that ends with this one's refill is not among them.
    fn within(&self, period: Span, end: MonoNs) -> Vec<(CgroupId, Span)> {
        let of = |throttles: &Vec<&Throttle>| {
            let first = throttles.partition_point(|throttle| throttle.span(end).end <= period.start);
            let last = throttles.partition_point(|throttle| throttle.marked < period.end).max(first);
            let clipped = throttles[first..last]
                .iter()
                .map(|throttle| (throttle.cgroup, throttle.marked, throttle.span(end).clip(period)));
            let counts = |&(_, marked, span): &(CgroupId, MonoNs, Span)| {
                !span.is_empty() && (marked >= period.start || span.end > period.start + RELEASE_SLOP)
            };
            clipped.filter(counts).map(|(cgroup, _, span)| (cgroup, span)).collect::<Vec<_>>()
        };
        self.0.values().flat_map(of).collect()
    }
}
