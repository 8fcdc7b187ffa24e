//! Recorded limits as histories that pollers and alarms are held against.

use super::{derive::RawLimit, environment::Environment};
use crate::{
    attribution::Attribution,
    event::{CgroupId, Event},
    model::history::{History, Job},
    request::{Outcome, ServerSpan},
    time::{DurationNs, MonoNs},
    timeline::{
        Timeline,
        interval::{Span, Spans},
    },
};

/// A limit of a sweep, from its first request's start to its last one's end and a `gap`; `None` = no request was answered, or there
/// are no events.
#[must_use]
pub fn of_limit(environment: &Environment, raw: &RawLimit, gap: DurationNs, events: Vec<Event>) -> Option<History> {
    let setting = raw.setting(environment);
    let timeline = Timeline::build(events, &setting);
    timeline.span?;
    let leaf = raw.begin.levels.first().map_or(CgroupId(0), |level| level.cgroup_id);
    let attribution = Attribution::new(&timeline, &setting, &leaf);
    let answered: Vec<&ServerSpan> = raw
        .spans
        .iter()
        .filter_map(|span| match &span.outcome {
            Outcome::Ok { server } => Some(server),
            Outcome::Failed { .. } => None,
        })
        .collect();
    let start: MonoNs = answered.iter().map(|server| server.started_ns).min()?;
    let end: MonoNs = answered.iter().map(|server| server.finished_ns).max()?;
    let jobs = answered.iter().map(|server| {
        let held = server
            .workers
            .iter()
            .flat_map(|worker| attribution.tile(worker.tid, Span::new(worker.started_ns, worker.finished_ns)).1);
        Job { span: Span::new(server.started_ns, server.finished_ns), held: Spans::union(held).iter().collect() }
    });
    let levels: Vec<CgroupId> = raw.begin.levels.iter().map(|level| level.cgroup_id).collect();
    Some(History::observed(&timeline, &setting, leaf, &levels, Span::new(start, end + gap), jobs.collect()))
}
