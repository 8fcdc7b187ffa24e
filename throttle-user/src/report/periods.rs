//! The periods of a command's container, one line each.

use std::fmt::{Result, Write};

use super::{
    bar::quota,
    command::{level_name, measured, ms},
};
use crate::{
    run::{command::CommandRun, levelled::LevelledPeriod},
    time::{DurationNs, MonoNs},
};

/// Writes the periods; of more than `shown` the middle is left out.
pub(super) fn write(out: &mut String, run: &CommandRun, shown: usize) -> Result {
    let with_out = run.periods.iter().filter(|period| !period.out.is_empty()).count();
    writeln!(out, "Periods of the container, ms: {} counted, {with_out} with a quota out", run.periods.len())?;
    writeln!(out, "                         CPU   quota out   threads held  idle CPU  level")?;
    writeln!(out, "       at used of quota used    at    for   some    all    denied  out")?;
    let (head, middle, tail) = split(&run.periods, shown);
    let mut last: Option<MonoNs> = None;
    for period in head {
        rest(out, last, period)?;
        line(out, run.started_ns, period)?;
        last = Some(period.period.end_ns);
    }
    if !middle.is_empty() {
        let held: Option<DurationNs> = middle.iter().map(|period| period.period.held_wall_ns).sum();
        let used: Option<DurationNs> = middle.iter().map(|period| period.period.used_ns).sum();
        let (used, held) = (measured(used), measured(held));
        writeln!(out, "      ... {} more: used {used} ms, held {held} ms together", middle.len())?;
        last = middle.last().map(|period| period.period.end_ns);
    }
    for period in tail {
        rest(out, last, period)?;
        line(out, run.started_ns, period)?;
        last = Some(period.period.end_ns);
    }
    if run.periods.is_empty() {
        return Ok(());
    }
    writeln!(out, "  at: from the command's start to the period's. quota out at: from there until a")?;
    writeln!(out, "  quota was out on some CPU (0.0: since before); for: how long it was")
}

/// First half, what is left out, last half.
fn split(periods: &[LevelledPeriod], shown: usize) -> (&[LevelledPeriod], &[LevelledPeriod], &[LevelledPeriod]) {
    if periods.len() <= shown {
        return (periods, &[], &[]);
    }
    let (head, others) = periods.split_at(shown.div_ceil(2));
    let (middle, tail) = others.split_at(others.len() - shown / 2);
    (head, middle, tail)
}

/// The timer rests while nothing runs: those periods are not counted by the kernel either.
fn rest(out: &mut String, last: Option<MonoNs>, period: &LevelledPeriod) -> Result {
    match last.map(|last| period.period.start_ns.since(last)) {
        Some(rest) if rest != DurationNs::ZERO => writeln!(out, "      ... {} ms without use, not counted", ms(rest)),
        _ => Ok(()),
    }
}

fn line(out: &mut String, started: MonoNs, period: &LevelledPeriod) -> Result {
    let LevelledPeriod { period, out: levels, out_wall_ns } = period;
    let at = if period.start_ns >= started {
        ms(period.start_ns.since(started))
    } else {
        format!("-{}", ms(started.since(period.start_ns)))
    };
    let names: Vec<&str> = levels.iter().map(|level| level_name(level.level)).collect();
    let first = levels.first().map_or_else(|| "-".to_owned(), |level| ms(level.after_ns));
    write!(
        out,
        "{at:>9} {} {:>5} {first:>5} {:>6} {:>6} {:>6} {:>9}{}",
        quota(period.used_ns, period.quota_ns),
        measured(period.used_ns),
        ms(*out_wall_ns),
        measured(period.held_wall_ns),
        measured(period.fully_held_ns),
        measured(period.denied_idle_ns),
        if names.is_empty() { String::new() } else { format!("  {}", names.join("+")) }
    )?;
    if period.periods > 1 {
        write!(out, " ({} periods, late timer)", period.periods)?;
    }
    out.push_str(if period.complete { "\n" } else { " (not whole)\n" });
    Ok(())
}
