//! `periods.jsonl` against the boundaries in the events.

use std::collections::BTreeMap;

use serde_json::Value;

use super::events::{Timer, What};
use super::finding::Checker;
use super::run::Raw;

/// Checks the periods of a limit.
pub(crate) fn check(periods: &mut Checker, raw: &Raw<'_>, lines: &[Value]) {
    let container = raw.limit.levels.first().map_or(0, |level| level.id);
    let held = raw.threads.held(container, (0, u64::MAX));
    for level in &raw.limit.levels {
        let timers: BTreeMap<u64, &Timer> = raw
            .events
            .iter()
            .filter_map(|event| match &event.what {
                What::Period(timer) if timer.cgroup == level.id => Some((timer.due, timer)),
                _ => None,
            })
            .collect();
        let mine = |line: &&Value| line["limit"] == raw.limit.name.as_str() && line["level"] == level.name.as_str();
        let mut index = None;
        for line in lines.iter().filter(mine) {
            let number = |field: &str| line[field].as_u64().unwrap_or(0);
            let about = |figure: &str| format!("{} {} period {}: {figure}", raw.limit.name, level.name, line["index"]);
            if let Some(last) = index.replace(number("index")) {
                periods.exact(about("index"), &line["index"], last + 1);
            }
            periods.exact(about("cgroup"), &line["cgroup"], level.id);
            let due = number("end_ns").saturating_sub((number("periods").max(1) - 1) * number("period_ns"));
            // One that was not traced stands for a single period, as the last one that was.
            let (quota, period, burst, ended) = match timers.get(&due) {
                Some(timer) => {
                    (timer.quota, timer.period, timer.burst, timer.next.saturating_sub(timer.due) / timer.period.max(1))
                }
                None => {
                    let grid = timers.range(..due).next_back().or_else(|| timers.range(due..).next());
                    let on_grid = grid.is_some_and(|(point, timer)| due.abs_diff(*point) % timer.period.max(1) == 0);
                    periods.holds(on_grid, about("end_ns"), number("end_ns"), "a point of the period grid");
                    (raw.limit.quota, raw.limit.period, raw.limit.burst, 1)
                }
            };
            periods.exact(about("periods"), &line["periods"], ended);
            periods.exact(about("quota_ns"), &line["quota_ns"], quota);
            periods.exact(about("period_ns"), &line["period_ns"], period);
            periods.exact(about("burst_ns"), &line["burst_ns"], burst);
            let (from, until) = (due.saturating_sub(period), due + (ended.max(1) - 1) * period);
            periods.exact(about("start_ns"), &line["start_ns"], from);
            periods.exact(about("end_ns"), &line["end_ns"], until);
            let used = raw.threads.used(container, (from, until));
            periods.near(about("used_ns"), &line["used_ns"], used, 500_000 + used / 50);
            let first = held.partition_point(|&(_, end)| end <= from);
            let held: u64 = held[first..]
                .iter()
                .take_while(|&&(start, _)| start < until)
                .map(|&(start, end)| end.min(until) - start.max(from))
                .sum();
            let doubtful = raw.threads.doubtful(container, (from, until));
            periods.near(about("held_wall_ns"), &line["held_wall_ns"], held, 500_000 + held / 50 + doubtful);
            let (part, whole) = (number("fully_held_ns"), number("held_wall_ns"));
            periods.holds(part <= whole, about("fully_held_ns"), part, format!("at most {whole}"));
            own_throttles(periods, &about, line, (from, until));
        }
    }
}

/// The period's own throttles lie within it, and their union is its throttled time.
fn own_throttles(periods: &mut Checker, about: &impl Fn(&str) -> String, line: &Value, window: (u64, u64)) {
    let throttles = line["throttles"].as_array().map_or(&[][..], Vec::as_slice);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let mut spans: Vec<(u64, u64)> =
        throttles.iter().map(|throttle| (number(&throttle["start_ns"]), number(&throttle["end_ns"]))).collect();
    spans.sort_unstable();
    let (mut union, mut reached) = (0, 0);
    for (from, until) in spans {
        let inside = window.0 <= from && from < until && until <= window.1;
        periods.holds(
            inside,
            about("throttles"),
            format!("{from} to {until}"),
            format!("within {} to {}", window.0, window.1),
        );
        union += until.saturating_sub(from.max(reached));
        reached = reached.max(until);
    }
    periods.exact(about("throttled_wall_ns"), &line["throttled_wall_ns"], union);
}
