//! A command's report for a terminal of 80 columns: plain ASCII, for stderr.

use std::fmt::{Result, Write};

use super::periods;
use crate::{
    cgroup::{LevelName, MIN_MILLICPU, Nesting},
    run::{
        agree::Agreement,
        command::{CommandRun, CommandStatus},
        need::Need,
        record::Ending,
    },
    time::DurationNs,
};

/// How much of it to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Threads, most throttled first.
    pub threads: usize,
    /// Periods, from the beginning and the end.
    pub periods: usize,
}

/// Renders the report.
#[must_use]
pub fn text(run: &CommandRun, shown: Shown) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, run, shown);
    text
}

fn write(out: &mut String, run: &CommandRun, shown: Shown) -> Result {
    head(out, run)?;
    out.push('\n');
    totals(out, run)?;
    out.push('\n');
    threads(out, run, shown.threads)?;
    for departure in run.departures.iter().take(shown.threads) {
        let after = departure.at_ns.since(run.started_ns).as_millis_f64() / 1e3;
        writeln!(
            out,
            "note: thread {} left the cgroup after {after:.3} s; what it did then is unknown",
            departure.tid
        )?;
    }
    if run.quota_us.is_some() {
        out.push('\n');
        periods::write(out, run, shown.periods)?;
    }
    out.push('\n');
    need(out, run)?;
    verdict(out, run)
}

fn head(out: &mut String, run: &CommandRun) -> Result {
    writeln!(out, "throttle run: {}", command_line(&run.command, 66))?;
    let groups = match run.nesting {
        Nesting::Nested => "pod and container",
        Nesting::Flat => "container",
    };
    match run.quota_us {
        None => write!(out, "no limit")?,
        Some(quota_us) => {
            write!(out, "limit {} on {groups}: {} of CPU each {}", run.limit, us(quota_us), us(run.period_us))?
        }
    }
    if run.burst_us > 0 {
        write!(out, ", burst {}", us(run.burst_us))?;
    }
    writeln!(out, "\nLinux {}, {} CPUs", run.environment.kernel, run.environment.cpus)?;
    match run.status {
        CommandStatus::Exited { code } => write!(out, "exited with {code}")?,
        CommandStatus::Killed { signal } => write!(out, "killed by {}", signal_name(signal))?,
    }
    let seconds = |length: DurationNs| length.as_millis_f64() / 1e3;
    writeln!(out, " after {:.3} s", seconds(run.wall_ns))?;
    if run.observed_ns < run.wall_ns {
        writeln!(
            out,
            "observed for the first {:.3} s: then there were as many events as --max-events",
            seconds(run.observed_ns)
        )?;
        writeln!(out, "allows; what follows is about that time alone")?;
    }
    if run.killed > 0 {
        let (what, them) = if run.killed == 1 { ("process", "it was") } else { ("processes", "they were") };
        writeln!(out, "{} {what} of it still ran when its main process ended; {them} killed", run.killed)?;
    }
    for group in &run.limits_above {
        writeln!(out, "note: {group} above it has a CPU limit of its own, which counts as an ancestor's")?;
    }
    Ok(())
}

fn totals(out: &mut String, run: &CommandRun) -> Result {
    let over = match run.cpus_used_over_limit {
        Some(ratio) => format!(", {:.0} % of the limit", ratio * 100.0),
        None if run.quota_us.is_some() => ", - % of the limit (under a period)".to_owned(),
        None => String::new(),
    };
    line(out, "CPU used", run.shares.on_cpu_ns, &format!("{:.3} CPUs on average{over}", run.cpus_used))?;
    if run.quota_us.is_some() || !run.limits_above.is_empty() {
        throttled(out, run)?;
    }
    line(out, "run-queue wait", run.shares.runqueue_ns, "runnable and not held; summed over threads")?;
    if run.untraced_events > 0 {
        writeln!(out, "{:<18}{:>9}      events this kernel did not trace; inferred", "untraced", run.untraced_events)?;
    }
    if run.shares.unknown_ns != DurationNs::ZERO {
        line(out, "unknown", run.shares.unknown_ns, "not seen; summed over threads")?;
    }
    Ok(())
}

fn throttled(out: &mut String, run: &CommandRun) -> Result {
    let wall = percent(run.throttled_wall_ns, run.observed_ns);
    line(out, "throttled", run.throttled_wall_ns, &format!("{wall} of the wall time: a limit held some thread"))?;
    if run.throttled_wall_ns == DurationNs::ZERO {
        return Ok(());
    }
    let full = percent(run.fully_throttled_ns, run.throttled_wall_ns);
    line(out, "  fully", run.fully_throttled_ns, &format!("{full} of that: no thread ran meanwhile"))?;
    for level in &run.levels {
        let name = format!("  by {}", level_name(Some(level.level)));
        match &level.observed {
            Some(observed) => line(out, &name, observed.throttled_ns, "its quota was out; summed over CPUs")?,
            None => writeln!(out, "{name:<18}{:>9}      not measured", "-")?,
        }
    }
    let idle = run.node_idle_share.map_or_else(String::new, |share| format!("; CPUs {:.0} % idle", share * 100.0));
    match run.denied_idle_ns {
        Some(denied) => line(out, "idle CPU denied", denied, &format!("idle while threads were held{idle}")),
        None => writeln!(out, "{:<18}{:>9}      not measured", "idle CPU denied", "-"),
    }
}

fn line(out: &mut String, name: &str, length: DurationNs, meaning: &str) -> Result {
    writeln!(out, "{name:<18}{:>9} ms   {meaning}", ms(length))
}

fn threads(out: &mut String, run: &CommandRun, shown: usize) -> Result {
    let threads = &run.threads;
    let nameless = if run.names_known { "(exited)" } else { "?" };
    writeln!(out, "Threads' time in ms, most throttled first")?;
    writeln!(out, "                         on  throttled  throttled     run")?;
    writeln!(out, "    tid command         CPU        own   ancestor   queue   blocked  unknown")?;
    for row in threads.iter().take(shown) {
        let shares = &row.shares;
        let comm = row.comm.as_deref().map_or_else(|| nameless.to_owned(), printable);
        writeln!(
            out,
            "{:>7} {comm:<10.10} {:>8} {:>10} {:>10} {:>7} {:>9} {:>8}",
            row.tid,
            ms(shares.on_cpu_ns),
            ms(shares.throttled_own_ns),
            ms(shares.throttled_ancestor_ns),
            ms(shares.runqueue_ns),
            ms(shares.blocked_ns),
            ms(shares.unknown_ns)
        )?;
    }
    let rest = threads.get(shown..).unwrap_or(&[]);
    if !rest.is_empty() {
        let held: DurationNs = rest.iter().map(|row| row.shares.throttled()).sum();
        let ran: DurationNs = rest.iter().map(|row| row.shares.on_cpu_ns).sum();
        writeln!(out, "    and {} more: on CPU {} ms, throttled {} ms together", rest.len(), ms(ran), ms(held))?;
    }
    match threads.iter().take(shown).any(|row| row.comm.is_none()) {
        true if run.names_known => writeln!(out, "(exited): exited before it was named"),
        true => writeln!(out, "?: the kernel's thread ids are not those of this pid namespace"),
        false => Ok(()),
    }
}

fn need(out: &mut String, run: &CommandRun) -> Result {
    let Some(need) = &run.need else { return writeln!(out, "Limit needed: none, it did not run") };
    let (low, high) = need.range();
    let floor = |millicores: u64| millicores.max(u64::from(MIN_MILLICPU));
    let (from, to) = (floor(low.limit_millicores), floor(high.limit_millicores));
    let window = us(run.period_us);
    let as_if =
        if run.throttled_wall_ns == DurationNs::ZERO { "it used" } else { "throttled time taken out, it would use" };
    if from == to {
        writeln!(out, "Limit needed not to be throttled: {to}m")?;
        writeln!(out, "  {as_if} up to {} ms of CPU in any {window}", ms(high.quota))?;
    } else {
        let Need { apart, together, unhindered } = need;
        writeln!(out, "Limit needed not to be throttled: from {from}m to {to}m, by who waited for whom")?;
        writeln!(out, "  {as_if} up to, in any {window}:")?;
        writeln!(out, "  {:>9} ms of CPU, had no thread waited for another", ms(apart.quota))?;
        writeln!(out, "  {:>9} ms, had every thread waited for the others", ms(together.quota))?;
        writeln!(out, "  {:>9} ms, had each of them also had a CPU at once", ms(unhindered.quota))?;
    }
    if let Some(caveat) = high.caveat {
        writeln!(
            out,
            "  {} threads at once take a 5 ms slice each: below {}m that may throttle it",
            high.peak_threads, caveat.limit_millicores
        )?;
    }
    let all = u64::from(run.environment.cpus) * 1_000;
    if high.limit_millicores >= all && all > 0 {
        writeln!(out, "  That is all of this machine's CPUs: on a larger one it may use more.")?;
    }
    Ok(())
}

fn verdict(out: &mut String, run: &CommandRun) -> Result {
    match &run.agreement {
        Agreement::Agrees if run.quota_us.is_none() => {
            writeln!(out, "Kernel's counters: agree (no period, nothing throttled)")?;
        }
        Agreement::Agrees => {
            writeln!(out, "Kernel's counters: agree (periods and throttled time at each level)")?;
        }
        Agreement::Differs { because } => {
            writeln!(out, "Kernel's counters: differ")?;
            because.iter().try_for_each(|because| writeln!(out, "  {}", broken(because)))?;
        }
        Agreement::NotCompared { because } => writeln!(out, "Kernel's counters: not compared:\n  {because}")?,
    }
    match &run.ending {
        Ending::Complete | Ending::Interrupted => Ok(()),
        Ending::Broken { cause } => writeln!(out, "The observation broke off: {cause}"),
    }
}

/// Milliseconds with one decimal.
pub(super) fn ms(length: DurationNs) -> String {
    format!("{:.1}", length.as_millis_f64())
}

/// The same; `?` = not measured.
pub(super) fn measured(length: Option<DurationNs>) -> String {
    length.map_or_else(|| "?".to_owned(), ms)
}

/// The level in one word; a group above the limited ones is `above`.
pub(super) fn level_name(level: Option<LevelName>) -> &'static str {
    match level {
        Some(LevelName::Container) => "container",
        Some(LevelName::Pod) => "pod",
        None => "above",
    }
}

fn us(us: u64) -> String {
    format!("{} ms", DurationNs::from_micros(us).as_millis_f64())
}

fn percent(part: DurationNs, whole: DurationNs) -> String {
    let percent = (part.0 * 100 + whole.0 / 2).checked_div(whole.0).unwrap_or(0);
    format!("{percent} %")
}

/// The words as one would type them, cut to `width` characters.
fn command_line(words: &[String], width: usize) -> String {
    let plain =
        |word: &str| !word.is_empty() && word.chars().all(|at| at.is_ascii_alphanumeric() || "-_./:=,+@%".contains(at));
    let quoted: Vec<String> = words
        .iter()
        .map(|word| if plain(word) { word.clone() } else { format!("'{}'", printable(word).replace('\'', "'\\''")) })
        .collect();
    let text = quoted.join(" ");
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width.saturating_sub(3)).chain("...".chars()).collect()
}

/// Control characters of a name somebody else chose must not reach the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|at| if at.is_control() { '?' } else { at }).collect()
}

fn signal_name(signal: u8) -> String {
    nix::sys::signal::Signal::try_from(i32::from(signal))
        .map_or_else(|_| format!("signal {signal}"), |name| format!("{name} (signal {signal})"))
}

/// A difference as long as a line with its indent is broken after its name.
fn broken(because: &str) -> String {
    match because.split_once(": ") {
        Some((name, figures)) if because.chars().count() > 78 => format!("{name}:\n    {figures}"),
        _ => because.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_difference_is_broken_and_a_short_one_is_not() {
        let long =
            "container own throttled time: observed 2160.938 ms, kernel 2163.509 ms, 2.571 ms apart (within 2.164)";
        assert!(broken(long).starts_with("container own throttled time:\n    observed "));
        assert!(broken(long).lines().all(|line| line.chars().count() <= 78));
        assert_eq!(broken("pod periods: observed 3, kernel 4"), "pod periods: observed 3, kernel 4");
    }
}
