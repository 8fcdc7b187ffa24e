//! A run's timeline as text of 80 columns: a line a period, a bar a request, and the verdicts.
//!
//! The text carries colours; whoever prints it strips them where they are not wanted.

mod course;
mod periods;

use std::fmt::Write as _;

use super::{
    command::{level_name, ms},
    paint::{dim, head},
    verdict,
};
use crate::{
    cgroup::{CpuLimit, LevelName},
    run::{
        picture::{LevelPicture, LimitPicture, RequestPicture, Span},
        record::Ending,
        verdict::{LimitVerdict, RequestVerdict, RunVerdict},
    },
    time::{DurationNs, MonoNs},
};

/// All limits in short: verdict, and the slowest request of each.
#[must_use]
pub fn run(limits: &[LimitPicture], not_run: &[CpuLimit]) -> String {
    let verdicts = limits.iter().map(LimitVerdict::of).collect();
    let mut text = verdict::run(&RunVerdict::of(verdicts, not_run.to_vec())).text();
    if limits.iter().any(|limit| !limit.requests.is_empty()) {
        let _ = writeln!(text, "\n{}", head("Slowest request of each limit"));
        for limit in limits {
            match limit.slowest() {
                None => {
                    let _ = writeln!(text, "  {:<10} no request was answered", limit.limit.to_string());
                }
                Some(request) => text.push_str(&course::short(limit, request)),
            }
        }
        text.push_str(&course::legend());
    }
    text
}

/// A limit: what was observed, its periods, and the verdict. `shown`: numbers of the periods wanted, all if absent.
#[must_use]
pub fn limit(picture: &LimitPicture, level: LevelName, shown: Option<(u64, u64)>) -> String {
    let mut text = title(picture);
    text.extend(notices(picture).iter().map(|line| filled(line)));
    text.push('\n');
    match picture.levels.iter().find(|drawn| drawn.name == Some(level)) {
        _ if picture.bandwidth.quota.us().is_none() => text.push_str("No limit, so no periods.\n"),
        Some(drawn) => text.push_str(&periods::all(picture, drawn, shown)),
        None => {
            let _ = writeln!(text, "The {} had no limit, so no periods.", level_name(Some(level)));
        }
    }
    if shown.is_none() {
        text.push('\n');
        text.push_str(&requests(picture));
        text.push('\n');
        text.push_str(&verdict::limit(&LimitVerdict::of(picture)).text());
    }
    text
}

/// A request: its course, its shares, the periods it crossed, and the verdict.
#[must_use]
pub fn request(picture: &LimitPicture, request: &RequestPicture) -> String {
    let mut text = title(picture);
    text.extend(notices(picture).iter().map(|line| filled(line)));
    text.push('\n');
    text.push_str(&course::long(picture, request));
    if !request.crossed.is_empty() {
        text.push('\n');
        text.push_str(&periods::crossed(picture, request));
    }
    text.push('\n');
    text.push_str(&verdict::request(&RequestVerdict::of(picture, request)).text());
    text
}

fn title(picture: &LimitPicture) -> String {
    let bandwidth = &picture.bandwidth;
    let us = |us: u64| DurationNs::from_micros(us).as_millis_f64();
    let quota = match bandwidth.quota.us() {
        None => "no quota".to_owned(),
        Some(quota) => format!("{} ms of CPU each {} ms", us(quota), us(bandwidth.period_us)),
    };
    let burst = if bandwidth.burst_us == 0 { String::new() } else { format!(", burst {} ms", us(bandwidth.burst_us)) };
    let levels: Vec<&str> = picture.levels.iter().filter(|level| level.name.is_some()).map(name).collect();
    format!("{}: {quota}{burst}, on {}\n", head(&format!("Limit {}", picture.limit)), levels.join(" and "))
}

fn name(level: &LevelPicture) -> &'static str {
    level_name(level.name)
}

/// What the reader must know before believing what is drawn.
pub(super) fn notices(picture: &LimitPicture) -> Vec<String> {
    let mut lines = Vec::new();
    match (picture.seen, picture.cut_off) {
        (None, _) => lines.push("There are no events of it: only the requests' own stamps are known.".to_owned()),
        (Some(_), Some(until)) => {
            lines.push(format!(
                "The file of events is cut off at {} ms; from then on nothing is known.",
                at(picture, until)
            ));
        }
        (Some(_), None) => {}
    }
    for gap in &picture.gaps {
        let Span { start, end } = gap.span;
        let records = if gap.lost == 1 { "record" } else { "records" };
        lines.push(format!(
            "CPU {} lost {} {records} between {} and {} ms; periods and requests there are not whole (!).",
            gap.cpu,
            gap.lost,
            at(picture, start),
            at(picture, end)
        ));
    }
    for broken in &picture.broken {
        let (from, to) = (at(picture, broken.start), at(picture, broken.end));
        lines.push(format!("A stamp between {from} and {to} ms is wrong: nothing drawn there can be right."));
    }
    match &picture.line.ending {
        Ending::Complete => {}
        Ending::Interrupted => lines.push("The run was interrupted while this limit ran.".to_owned()),
        Ending::Broken { cause } => lines.push(format!("The run broke off: {cause}")),
    }
    lines
}

/// Broken at column 79.
fn filled(line: &str) -> String {
    textwrap::fill(line, textwrap::Options::new(79).subsequent_indent("  ")) + "\n"
}

/// A line a request.
fn requests(picture: &LimitPicture) -> String {
    let mut text = String::new();
    if picture.requests.is_empty() {
        text.push_str("No request was answered.\n");
    } else {
        let _ = writeln!(text, "{}", head("Requests"));
        text.push_str(&course::heading());
        for request in &picture.requests {
            text.push_str(&course::line(picture, request));
        }
        text.push_str(&course::legend());
    }
    for (number, error) in &picture.failed {
        text.push_str(&filled(&format!("request {number} failed: {error}")));
    }
    text
}

/// Milliseconds from the beginning of what is drawn; negative before it.
fn at(picture: &LimitPicture, at: MonoNs) -> String {
    let begin = picture.window.start;
    if at >= begin { ms(at.since(begin)) } else { format!("-{}", ms(begin.since(at))) }
}

/// A remark in the table.
fn remark(text: &str) -> String {
    dim(&format!("      ... {text}")) + "\n"
}
