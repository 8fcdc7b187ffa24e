//! What of the periods no later event can change any more.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finished, Group, Live, LivePeriod, NO_SETTING};
use crate::{
    event::CgroupId,
    time::{DurationNs, MonoNs},
    timeline::{
        Setting, Timeline,
        boundary::Boundary,
        gap,
        interval::{Span, Spans},
        level::Throttle,
        period::{Recorder, is_counted},
        release,
        untraced::{self, Activity},
    },
};

/// A throttle that lasts at a boundary is seen to have ended, or to go on, at the next one; its record comes this much later.
const AFTER_NEXT: DurationNs = DurationNs::from_millis(20);

impl Live {
    /// Everything up to `end` was taken in. `all`: nothing more comes.
    pub(super) fn hand_out(&mut self, end: MonoNs, all: bool) -> Finished {
        let Some(replay) = self.replay.take() else { return Finished::default() };
        let mut replay = replay.under(&self.setting);
        let begin = replay.begin;
        let (closed, open) = replay.levels.take_ended();
        let lost = gap::instants(&replay.gaps);
        let mut window = Timeline {
            span: Some(Span::new(begin.max(self.kept_from), end)),
            unseen: Spans::union(
                replay.gaps.iter().map(|gap| Span::new(gap.span.start, gap.span.end + self.patience.lag)),
            ),
            gaps: replay.gaps.clone(),
            lost,
            ..Timeline::default()
        };
        let complete = |throttle: Throttle| Throttle {
            complete: throttle.complete && !gap::touches(&window.lost, throttle.span(end)),
            ..throttle
        };
        let closed: Vec<Throttle> = closed.into_iter().map(complete).collect();
        let throttles: Vec<Throttle> = self.ended.iter().chain(&closed).cloned().chain(open).map(complete).collect();
        (window.idle, window.idle_unknown) =
            if all { replay.idle.clone().finish(end) } else { replay.idle.so_far(end, self.setting.cpus) };
        window.threads = replay.threads.clone().finish(end).0;
        gap::blank(&mut window.threads, &window.gaps);
        release::release(&mut window.threads, &throttles, &self.setting, end);
        let mut of_group: BTreeMap<CgroupId, Vec<Throttle>> = BTreeMap::new();
        for throttle in throttles {
            of_group.entry(throttle.cgroup).or_default().push(throttle);
        }
        of_group.values_mut().for_each(|throttles| throttles.sort_by_key(|throttle| (throttle.marked, throttle.cpu)));
        let mut finished = Finished { periods: vec![], throttles: closed.clone() };
        self.ended.extend(closed);
        for cgroup in self.busy(&replay.boundaries, &of_group) {
            let seen = replay.boundaries.remove(&cgroup).unwrap_or_default();
            window.throttles = of_group.remove(&cgroup).unwrap_or_default();
            let group = self.groups.entry(cgroup).or_default();
            let (before, seen) = in_order(group, seen, &mut self.counts.contradicted);
            let activity = Activity::new(&self.setting, cgroup, &window.throttles, &window.threads, end);
            let (boundaries, _broken) = untraced::add(seen.clone(), &activity, end);
            // All but those dealt with, the first of which is only there for what comes after it.
            let over = boundaries[before..]
                .iter()
                .take_while(|boundary| all || is_over(boundary, seen.last(), end, self.patience.lag))
                .count();
            window.boundaries = BTreeMap::from([(cgroup, boundaries)]);
            finished.periods.extend(records(&window, &self.setting, cgroup, before, over, group));
            let boundaries = window.boundaries.remove(&cgroup).unwrap_or_default();
            let dealt_with = &boundaries[before..before + over];
            self.counts.untraced += dealt_with.iter().filter(|boundary| boundary.inferred).count() as u64;
            if let Some(last) = dealt_with.last() {
                group.last = Some(last.clone());
            }
            let heard = dealt_with.iter().filter(|boundary| !boundary.inferred).map(|boundary| boundary.exit);
            group.heard = heard.max().max(Some(group.heard)).unwrap_or_default();
            let due = group.last.as_ref().map(|last| last.due);
            let kept: Vec<Boundary> =
                seen.into_iter().filter(|boundary| due.is_none_or(|due| boundary.due > due)).collect();
            if !kept.is_empty() {
                replay.boundaries.insert(cgroup, kept);
            }
        }
        self.replay = Some(replay.under(&NO_SETTING));
        finished
    }

    /// Cgroups that may have periods to hand out.
    fn busy(
        &self,
        boundaries: &BTreeMap<CgroupId, Vec<Boundary>>,
        throttles: &BTreeMap<CgroupId, Vec<Throttle>>,
    ) -> BTreeSet<CgroupId> {
        let armed = self.groups.iter().filter(|(_, group)| group.last.as_ref().is_some_and(|last| last.active));
        let followed = self.setting.followed.iter().flat_map(|leaf| self.setting.path(leaf));
        boundaries
            .keys()
            .chain(throttles.keys())
            .chain(armed.map(|(cgroup, _)| cgroup))
            .chain(followed.filter(|level| self.groups.contains_key(level)))
            .copied()
            .collect()
    }
}

/// The boundary dealt with last and those seen since, and how many of them were dealt with.
fn in_order(group: &Group, seen: Vec<Boundary>, contradicted: &mut u64) -> (usize, Vec<Boundary>) {
    let Some(last) = &group.last else { return (0, seen) };
    let all = seen.len();
    let new: Vec<Boundary> = seen.into_iter().filter(|boundary| boundary.due > last.due).collect();
    *contradicted += (all - new.len()) as u64;
    (1, [last.clone()].into_iter().chain(new).collect())
}

/// Whether no event to come can change a boundary or the period it ends.
fn is_over(boundary: &Boundary, last_seen: Option<&Boundary>, end: MonoNs, lag: DurationNs) -> bool {
    let sure = last_seen.is_some_and(|last| boundary.due <= last.due);
    let wait = if sure { boundary.period + AFTER_NEXT } else { lag };
    boundary.exit.max(boundary.next_due()) + wait <= end + boundary.period
}

fn records(
    window: &Timeline,
    setting: &Setting,
    cgroup: CgroupId,
    before: usize,
    over: usize,
    group: &mut Group,
) -> Vec<LivePeriod> {
    if over == 0 {
        return vec![];
    }
    let recorder = Recorder::new(window, setting, cgroup);
    let boundaries = window.boundaries_of(cgroup);
    let mut periods = vec![];
    for index in before..before + over {
        let boundary = &boundaries[index];
        if !is_counted(boundary) {
            continue;
        }
        let mut record = recorder.record(boundary, group.records);
        group.records += 1;
        if group.followed_since.is_some_and(|since| record.start_ns < since) {
            record = record.without_threads();
        }
        let drawn_ns = index.checked_sub(1).and_then(|before| drawn(&boundaries[before], boundary));
        periods.push(LivePeriod { record, boundary: boundary.clone(), drawn_ns });
    }
    periods
}

/// What left the pool between two runs of a timer: from what the first one filled it to (kernel/sched/fair.c,
/// `__refill_cfs_bandwidth_runtime`) to what was left at the second.
fn drawn(before: &Boundary, boundary: &Boundary) -> Option<i64> {
    let same_limit = (before.quota, before.period, before.burst) == (boundary.quota, boundary.period, boundary.burst);
    if !same_limit || boundary.inferred || (before.inferred && boundary.burst != DurationNs::ZERO) {
        return None;
    }
    let quota = boundary.quota?;
    let filled = (before.pool_left + quota).min(quota + boundary.burst);
    let filled = if before.inferred { quota } else { filled };
    Some(i64::try_from(filled.0).ok()? - i64::try_from(boundary.pool_left.0).ok()?)
}
