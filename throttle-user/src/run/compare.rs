//! What was seen of a limit beside what the kernel counted of it, level by level, and what the comparison comes to.

use super::{
    agree::{Agreement, Check, Quantity},
    derive::{KernelGrowth, KernelNames, LevelLine, Observed, RawLimit, RequestLine},
    ledger::Kept,
    record::LevelReading,
};
use crate::{
    cgroup::{Bandwidth, Counters, LevelName},
    time::{DurationNs, MonoNs},
    timeline::{
        Timeline,
        boundary::{Boundary, rolls, throttled_rolls},
        interval::Span,
    },
};

/// What the hypervisor took between the two readings.
pub(super) fn stolen(raw: &RawLimit) -> Option<DurationNs> {
    Some(raw.end.as_ref()?.stolen_ns?.saturating_sub(raw.begin.stolen_ns?))
}

pub(super) fn level_line(before: &LevelReading, raw: &RawLimit, timeline: &Timeline, window: Span) -> LevelLine {
    let id = before.cgroup_id;
    let after = raw
        .end
        .as_ref()
        .and_then(|end| end.levels.as_ref())
        .and_then(|levels| levels.iter().find(|level| level.cgroup_id == id).map(|level| level.counters.clone()));
    let boundaries: Vec<Boundary> =
        timeline.boundaries_of(id).iter().filter(|boundary| window.contains(boundary.exit)).cloned().collect();
    // The kernel adds a throttle when it ends, whole.
    let ended: Vec<_> = timeline
        .throttles
        .iter()
        .filter(|throttle| throttle.cgroup == id && throttle.end.is_some_and(|end| window.contains(end)))
        .collect();
    let any_level = timeline
        .hierarchy
        .iter()
        .filter(|throttle| throttle.cgroup == id)
        .filter_map(|throttle| throttle.end.filter(|&end| window.contains(end)).map(|end| end.since(throttle.start)))
        .sum();
    LevelLine {
        level: before.level,
        cgroup_id: id,
        before: names(&before.counters),
        kernel: after.as_ref().and_then(|after| before.counters.delta(after).ok()).map(|grown| KernelGrowth {
            nr_periods: grown.nr_periods(),
            nr_throttled: grown.nr_throttled(),
            throttled_ns: grown.throttled(),
            throttled_any_level_ns: grown.throttled_local(),
        }),
        after: after.as_ref().map(names),
        observed: timeline.span.map(|_| Observed {
            nr_periods: rolls(&boundaries),
            nr_throttled: throttled_rolls(&boundaries),
            throttled_ns: ended.iter().map(|throttle| throttle.counted()).sum(),
            throttled_any_level_ns: any_level,
            edges: ended.iter().filter(|throttle| throttle.start.is_some()).count() as u64,
            boundaries_with_unseen_edges: boundaries
                .iter()
                .filter(|boundary| (boundary.marked_cpus > 0) != boundary.throttled())
                .count() as u64,
        }),
    }
}

fn names(counters: &Counters) -> KernelNames {
    KernelNames { stat: counters.figures.stat.clone(), local: counters.figures.local.clone() }
}

pub(super) fn checks(levels: &[LevelLine], requests: &[&RequestLine]) -> Vec<Check> {
    let mut checks = Vec::new();
    for level in levels {
        let (Some(grown), Some(observed)) = (&level.kernel, &level.observed) else { continue };
        if let Some(kernel) = grown.nr_periods {
            checks.push(Check::exact(Quantity::Periods, level.level, observed.nr_periods, kernel));
        }
        if let Some(kernel) = grown.nr_throttled {
            checks.push(Check::exact(Quantity::ThrottledPeriods, level.level, observed.nr_throttled, kernel));
        }
        if let Some(kernel) = grown.throttled_ns {
            let quantity = Quantity::ThrottledTime;
            checks.push(Check::throttled(quantity, level.level, observed.throttled_ns, kernel, observed.edges));
        }
        if let Some(kernel) = grown.throttled_any_level_ns {
            let edges = levels
                .iter()
                .filter_map(|level| level.observed.as_ref())
                .map(|observed| observed.edges)
                .max()
                .unwrap_or(0);
            let any = observed.throttled_any_level_ns;
            checks.push(Check::throttled(Quantity::ThrottledByAnyLevel, level.level, any, kernel, edges));
        }
    }
    let worst = requests
        .iter()
        .flat_map(|request| &request.share.workers)
        .map(|worker| Check::on_cpu(worker.shares.on_cpu_ns, worker.worker.cpu_time_ns))
        .max_by_key(|check| i128::from(check.difference()) - i128::from(check.tolerance));
    checks.extend(worst);
    checks
}

/// What a period boundary showed of the limit that was not what was set, in words; `None` = nothing.
pub(super) fn changed(raw: &RawLimit, timeline: &Timeline, window: Span) -> Option<String> {
    let Bandwidth { quota, period_us, burst_us } = raw.begin.bandwidth;
    let set = (
        quota.us().map(DurationNs::from_micros),
        DurationNs::from_micros(period_us),
        DurationNs::from_micros(burst_us),
    );
    raw.begin.levels.iter().find_map(|level| {
        let shown = timeline.boundaries_of(level.cgroup_id).iter().filter(|boundary| window.contains(boundary.exit));
        let other = shown.map(|boundary| (boundary.quota, boundary.period, boundary.burst)).find(|shown| *shown != set)?;
        let words = |(quota, period, burst): (Option<DurationNs>, DurationNs, DurationNs)| {
            let quota = quota.map_or_else(|| "no quota".to_owned(), |quota| format!("{} ms", quota.as_millis_f64()));
            format!("{quota} each {} ms, burst {} ms", period.as_millis_f64(), burst.as_millis_f64())
        };
        let name = match level.level {
            LevelName::Container => "container",
            LevelName::Pod => "pod",
        };
        Some(format!(
            "something else changed the limit of the {name} while it was measured, from {} to {}: the figures are of neither",
            words(set),
            words(other)
        ))
    })
}

/// Where the recording contradicts itself, in words.
pub(super) fn broken(timeline: &Timeline) -> impl Iterator<Item = String> + '_ {
    let begin = timeline.span.map_or(MonoNs(0), |span| span.start);
    let seconds = move |at: MonoNs| at.since(begin).as_millis_f64() / 1e3;
    timeline.broken.iter().map(move |broken| {
        let (from, to) = (seconds(broken.span.start), seconds(broken.span.end));
        format!(
            "the recording is broken: a stamp between {from:.3} and {to:.3} s of it is wrong, for the period timer of cgroup {} \
             must have run more often in between than can have gone unseen",
            broken.cgroup.0
        )
    })
}

pub(super) fn agreement(
    raw: &RawLimit,
    lost_events: u64,
    checks: &[Check],
    others: impl IntoIterator<Item = String>,
) -> Agreement {
    let not_compared = |because: &str| Agreement::NotCompared { because: because.to_owned() };
    let Some(end) = &raw.end else { return not_compared("the run was killed before the counters were read again") };
    let Some(after) = &end.levels else {
        return not_compared("the cgroups were gone before the counters were read again");
    };
    for before in &raw.begin.levels {
        let Some(after) = after.iter().find(|after| after.cgroup_id == before.cgroup_id) else {
            return not_compared("a cgroup was replaced while the limit ran");
        };
        if let Err(error) = before.counters.delta(&after.counters) {
            return Agreement::NotCompared { because: error.to_string() };
        }
    }
    match raw.kept {
        Kept::All => {}
        Kept::None => return not_compared("there are no events of it: their file is missing or empty"),
        Kept::Until { more: None, .. } => return not_compared("the file of its events is cut off"),
        Kept::Until { more: Some(more), .. } => {
            return not_compared(&format!("{more} events came after the last one that could be kept"));
        }
    }
    if !raw.begin.quiet || !end.quiet {
        return not_compared(
            "the period timer did not come to rest around the readings, so they do not bracket the run",
        );
    }
    let mut because: Vec<String> = checks
        .iter()
        .filter(|check| !check.agrees())
        .map(|check| match stolen(raw) {
            // Switches do not show what a hypervisor takes; a thread's own clock leaves it out.
            Some(stolen) if check.quantity == Quantity::OnCpu && stolen != DurationNs::ZERO => {
                format!("{check}; the hypervisor took {:.0} ms of CPU time meanwhile", stolen.as_millis_f64())
            }
            _ => check.to_string(),
        })
        .collect();
    if lost_events > 0 {
        because.push(format!("{lost_events} records lost"));
    }
    because.extend(others);
    if because.is_empty() { Agreement::Agrees } else { Agreement::Differs { because } }
}
