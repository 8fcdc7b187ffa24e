//! The lines of periods.

use std::fmt::Write as _;

use super::{at, remark};
use crate::{
    report::{
        bar::quota,
        command::{level_name, measured, ms},
        paint::{Kind, dim, head},
    },
    run::{
        levelled::LevelledPeriod,
        picture::{LevelPicture, LimitPicture, RequestPicture},
    },
    time::{DurationNs, MonoNs},
};

/// All periods of a level, or those numbered `shown` (both included).
pub(super) fn all(picture: &LimitPicture, level: &LevelPicture, shown: Option<(u64, u64)>) -> String {
    let name = level_name(level.name);
    let mut text = String::new();
    let with_out = level.periods.iter().filter(|period| !period.out.is_empty()).count();
    let _ = writeln!(
        text,
        "{}: {} counted, {with_out} with a quota out; times in ms",
        head(&format!("Periods of the {name}")),
        level.periods.len()
    );
    text.push_str(&dim("               used of         CPU    quota out  some idle CPU     level\n"));
    text.push_str(&dim("    #       at quota          used    at    for  held  denied     out\n"));
    let wanted = |period: &&LevelledPeriod| shown.is_none_or(|(from, to)| (from..=to).contains(&period.period.index));
    let mut last: Option<MonoNs> = None;
    let mut marks = Marks::default();
    for period in level.periods.iter().filter(wanted) {
        if let Some(last) = last {
            text.push_str(&rest(last, period.period.start_ns));
        }
        text.push_str(&line(picture, period, &mut marks));
        last = Some(period.period.end_ns);
    }
    if last.is_none() {
        text.push_str(&remark("none: the period timer never ran"));
    }
    text.push_str(&marks.legend());
    text
}

/// The periods of the container that a request crossed, with its own part in each.
pub(super) fn crossed(picture: &LimitPicture, request: &RequestPicture) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}: times in ms", head("Periods of the container that it crossed"));
    text.push_str(&dim("               used of         CPU    quota out  the request     level\n"));
    text.push_str(&dim("    #       at quota          used    at    for on CPU   held     out\n"));
    let mut marks = Marks::default();
    for cell in &request.crossed {
        let (on_cpu, held) = (ms(cell.on_cpu_ns), ms(cell.held_ns));
        let period = cell.period.and_then(|index| picture.leaf()?.periods.get(index));
        let _ = match period {
            Some(period) => {
                let (left, right) = (left(picture, period), right(period, &mut marks));
                writeln!(text, "{}", format!("{left} {} {right}", own(&on_cpu, &held)).trim_end())
            }
            None => {
                let start = at(picture, cell.span.start);
                writeln!(text, "    - {start:>8} {} {}", dim("period not counted             "), own(&on_cpu, &held))
            }
        };
    }
    let more = request.line.share.periods.map_or(0, u64::from).saturating_sub(request.crossed.len() as u64);
    if more > 0 {
        text.push_str(&remark(&format!("and {more} more")));
    }
    text.push_str(&marks.legend());
    text
}

fn own(on_cpu: &str, held: &str) -> String {
    let held = format!("{held:>6}");
    let held = if held.trim() == "0.0" { held } else { Kind::Own.paint(&held) };
    format!("{} {held}", Kind::OnCpu.paint(&format!("{on_cpu:>6}")))
}

/// Left to itself the timer rests: those periods are not counted by the kernel either.
fn rest(last: MonoNs, next: MonoNs) -> String {
    match next.since(last) {
        DurationNs::ZERO => String::new(),
        rest => remark(&format!("{} ms without use, not counted", ms(rest))),
    }
}

fn line(picture: &LimitPicture, period: &LevelledPeriod, marks: &mut Marks) -> String {
    let held = format!("{:>5}", measured(period.period.held_wall_ns));
    let held = if period.period.held_wall_ns == Some(DurationNs::ZERO) { held } else { Kind::Own.paint(&held) };
    let denied = measured(period.period.denied_idle_ns);
    format!("{} {held} {denied:>7} {}", left(picture, period), right(period, marks)).trim_end().to_owned() + "\n"
}

/// Number, time, use, and when a quota was out.
fn left(picture: &LimitPicture, period: &LevelledPeriod) -> String {
    let LevelledPeriod { period, out, out_wall_ns } = period;
    let first = out.first().map_or_else(|| "-".to_owned(), |level| ms(level.after_ns));
    let length = if out.is_empty() { "-".to_owned() } else { ms(*out_wall_ns) };
    let used = quota(period.used_ns, period.quota_ns);
    let used = if out.is_empty() { Kind::OnCpu.paint(&used) } else { Kind::Own.paint(&used) };
    let start = at(picture, period.start_ns);
    format!("{:>5} {start:>8} {used} {:>5} {first:>5} {length:>6}", period.index, measured(period.used_ns))
}

/// Marks and levels.
fn right(period: &LevelledPeriod, marks: &mut Marks) -> String {
    let names: Vec<&str> = period.out.iter().map(|level| level_name(level.level)).collect();
    let late = if period.period.periods > 1 { format!("x{}", period.period.periods) } else { String::new() };
    marks.late |= !late.is_empty();
    marks.not_whole |= !period.period.complete;
    let whole = if period.period.complete { "" } else { "!" };
    format!("{:<3} {}", late + whole, names.join("+")).trim_end().to_owned()
}

/// What must be explained below.
#[derive(Default)]
struct Marks {
    late: bool,
    not_whole: bool,
}

impl Marks {
    fn legend(&self) -> String {
        let mut text = String::new();
        if self.not_whole {
            text.push_str(&dim("  !: records were lost in it, or it is not known what some thread did\n"));
        }
        if self.late {
            text.push_str(&dim("  xN: its timer came late, and ended N periods at once\n"));
        }
        text
    }
}
