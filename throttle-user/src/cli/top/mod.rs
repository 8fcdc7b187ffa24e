//! `throttle top`: the limited cgroups of this machine, as they are now.

mod screen;
mod watching;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{
    args,
    exit::{Exit, Failure, OrExit, Verdict, print},
};
use crate::{
    cgroup::Hierarchy,
    node::Rates,
    probe::prerequisites,
    report::top::{self, Key},
    time::DurationNs,
};
use watching::{SETTLED, Watching};

/// Version of the JSON. Changes when a reader of the former would misread the latter.
const SCHEMA: u32 = 1;

/// Show the CPU limits of this machine as they act: which cgroups run out of quota, how often, and how soon.
///
/// On a terminal the table is drawn anew every interval. Keys: q quits; o p u a t d n choose the order (time out of quota, periods
/// out, quota used, time until out, threads at once, idle CPU denied, path); space stops and goes on.
///
/// Columns: quota and period; share of the quota used, or below what was drawn from the pool (<); periods that ended out of quota, of
/// those counted (a group at rest has none); time out of quota on some CPU, ms for each second, and at which level: own, above, or
/// both; time in which some thread was held; median time from a period's start until the quota was out; most threads on CPU at
/// once; most CPUs out at once (at least so many had run in parallel); idle CPU time while threads were held. - does not apply, ? was
/// not measured: threads are followed only with --threads.
///
/// Exit code: 0 done; 2 no terminal to draw on; 3 this machine cannot do it; 4 the observer broke off.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Print once what one window saw, and end.
    #[arg(long)]
    once: bool,
    /// As JSON, one object; with --once.
    #[arg(long, requires = "once")]
    json: bool,
    /// Order of the rows.
    #[arg(long, value_enum, default_value = "out")]
    sort: Sort,
    /// Length of time that the figures are of.
    #[arg(long, default_value = "5s", value_parser = args::some_duration, value_name = "TIME")]
    window: DurationNs,
    /// How often the table is drawn anew.
    #[arg(long, default_value = "1s", value_parser = args::some_duration, value_name = "TIME")]
    interval: DurationNs,
    /// Follow the threads of limited cgroups and idle CPUs: quota used, held time, threads at once and idle CPU denied are then
    /// measured. Costs a record a switch of theirs, and one each time any CPU gets idle.
    #[arg(long)]
    threads: bool,
    /// Also cgroups without a limit of their own: they may be held by one above.
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Time out of quota.
    Out,
    /// Share of periods that ended out of quota.
    Periods,
    /// Share of the quota used.
    Used,
    /// Time until it was out, the shortest first.
    After,
    /// Threads at once.
    Threads,
    /// Idle CPU time denied.
    Denied,
    /// Path.
    Name,
}

impl From<Sort> for Key {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Out => Self::Out,
            Sort::Periods => Self::Exhausted,
            Sort::Used => Self::Used,
            Sort::After => Self::After,
            Sort::Threads => Self::Parallel,
            Sort::Denied => Self::Denied,
            Sort::Name => Self::Name,
        }
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Seen {
    schema: u32,
    /// Length of time that the figures are of.
    window_ns: DurationNs,
    /// Records that were lost since the observer began; absent = its account cannot be read.
    lost_events: Option<u64>,
    /// In the order asked for.
    cgroups: Vec<Rates>,
}

/// Runs the verb.
pub(super) fn run(args: &TopArgs) -> Verdict {
    let on_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !args.once && !on_terminal {
        let error = anyhow!("this is no terminal to draw on: give --once, with --json for a program");
        return Err(Failure::Told { exit: Exit::BadInput, error });
    }
    let hierarchy = Hierarchy::find().or_exit(Exit::CannotRun)?;
    let kernel = prerequisites::kernel_layout(hierarchy.version).or_exit(Exit::CannotRun)?;
    let mut watching = Watching::start(args, &hierarchy, &kernel).or_exit(Exit::CannotRun)?;
    if !args.once {
        let interval = Duration::from_nanos(args.interval.0);
        screen::run(&mut watching, args.sort.into(), interval).or_exit(Exit::BrokeOff)?;
        return Ok(Exit::Done);
    }
    std::thread::sleep(Duration::from_nanos((watching.warm_up() + args.window + SETTLED).0));
    let mut rows = watching.rates().or_exit(Exit::BrokeOff)?;
    top::sort(&mut rows, args.sort.into());
    if args.json {
        let lost_events = watching.lost();
        let seen = Seen { schema: SCHEMA, window_ns: args.window, lost_events, cgroups: rows };
        let text = serde_json::to_string_pretty(&seen).context("the rows as JSON").or_exit(Exit::BrokeOff)?;
        print(format_args!("{text}\n"))?;
    } else {
        print(format_args!("{}", top::text(&rows)))?;
    }
    Ok(Exit::Done)
}
