//! `throttle spike`: load in short spikes, confined to slots of a second or to a point of the group's period.
//!
//! Owns the order of steps: calibrate, join the group, learn its period grid, choose the origin, spike, and only then tell.

mod summary;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, anyhow};
use clap::Args;
use nix::sys::signal::Signal;
use serde::Serialize;

use self::summary::{Boundary, Summary};
use super::args;
use super::exit::{Exit, Failure, OrExit as _, Verdict, print};
use crate::cgroup::{Bandwidth, Hierarchy, Learned, Phase, phase};
use crate::request::SpikeSpan;
use crate::time::{ClockAnchor, DurationNs, MonoNs, now};
use crate::workload::{Burner, SLOT, SpikeError, SpikePlan};

/// Shortest time from the end of all preparation to the first spike.
const LEAD: DurationNs = DurationNs::from_millis(50);
/// Periods after which a group that was used has its whole quota again, and its timer rests.
const REST_PERIODS: u64 = 4;

/// Spike: keep busy for a fixed time at the start of chosen 100 ms slots, and idle otherwise.
///
/// A spike ends on time whatever it got: one that is throttled uses less CPU time than it would have. Spikes are kept to an absolute
/// schedule; late starts are measured. What each used is told when all are over, for telling would use of the quota.
///
/// By default slots are those of the wall clock. With --phase spikes begin at a point of the group's own CFS period instead, which
/// is learnt from its cpu.stat, without BPF, before the first spike; where it cannot be, this says so, and ends with 3.
///
/// Exit code: 0 done, also if spikes were cut short; 2 bad usage; 3 this machine or group cannot do it; 130 interrupted, what was
/// done is told.
#[derive(Debug, Args)]
pub(super) struct SpikeArgs {
    /// Length of each spike, 1 to 100 ms: 60ms is 0.6 of a slot.
    #[arg(long, default_value = "60ms", value_parser = args::duration, value_name = "TIME")]
    length: DurationNs,
    /// Slots of each second that begin with a spike, 1 to 10, evenly spread.
    #[arg(long, default_value = "1", value_name = "N")]
    per_second: u32,
    /// How long: spikes due before its end are begun.
    #[arg(long, default_value = "10s", value_parser = args::duration, value_name = "TIME")]
    duration: DurationNs,
    /// Threads that spike together.
    #[arg(long, default_value = "1", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
    threads: u32,
    /// Begin spikes so long after a boundary of the group's own period; 0 = at it [default: at slots of the wall clock].
    #[arg(long, value_parser = args::duration, value_name = "TIME")]
    phase: Option<DurationNs>,
    /// A known boundary of that period, ns of CLOCK_MONOTONIC (`start_ns` of a line of periods.jsonl); nothing is learnt then.
    #[arg(long, value_name = "NS")]
    boundary: Option<u64>,
    /// Cgroup directory to join before anything else, such as /sys/fs/cgroup/cpu/NAME [default: stay].
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Print JSON lines instead of the summary: each spike, then the summary.
    #[arg(long)]
    json: bool,
}

/// A line of the JSON output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Spike {
        #[serde(flatten)]
        span: &'a SpikeSpan,
        expected_ns: DurationNs,
        consumed_ns: DurationNs,
    },
    Summary(&'a Summary),
}

/// Runs the verb.
pub(super) fn run(args: &SpikeArgs) -> Verdict {
    let plan =
        SpikePlan { length: args.length, per_second: args.per_second, duration: args.duration, threads: args.threads };
    let plan = plan.checked().or_exit(Exit::BadInput)?;
    // Outside the limit, as long as there is an outside.
    let burner = Burner::calibrate();
    super::join(args.cgroup.as_deref())?;
    let stop: Arc<AtomicBool> = Arc::default();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        signal_hook::flag::register(signal as i32, Arc::clone(&stop))
            .with_context(|| format!("cannot listen for {signal}"))
            .or_exit(Exit::CannotRun)?;
    }
    let grid = grid(args.boundary);
    let clock = ClockAnchor::take();
    let origin = origin(args.phase, &grid, &clock)?;
    let spans = plan.run(&burner, origin, &stop).map_err(|error| {
        let exit = if matches!(error, SpikeError::Start { .. }) { Exit::CannotRun } else { Exit::BrokeOff };
        Failure::Told { exit, error: error.into() }
    })?;
    let summary = Summary::new(&plan, origin, &clock, &ClockAnchor::take(), boundary(&grid, origin), &spans);
    if args.json {
        for span in &spans {
            let (expected_ns, consumed_ns) = (span.expected(), span.consumed());
            print_line(&Line::Spike { span, expected_ns, consumed_ns })?;
        }
        print_line(&Line::Summary(&summary))?;
    } else {
        print(format_args!("{summary}"))?;
    }
    Ok(if stop.load(Ordering::Acquire) { Exit::Interrupted } else { Exit::Done })
}

/// The grid of the own group's period, and how it is known; else why it is not.
enum Grid {
    Known { phase: Phase, learnt: bool },
    Unknown { because: String },
}

fn grid(boundary: Option<u64>) -> Grid {
    match own_grid(boundary) {
        Ok(grid) => grid,
        Err(error) => Grid::Unknown { because: format!("{error:#}") },
    }
}

fn own_grid(boundary: Option<u64>) -> anyhow::Result<Grid> {
    let unknown = |because: &str| Ok(Grid::Unknown { because: because.to_owned() });
    let group = Hierarchy::find()?.own_group()?;
    if let Some(boundary) = boundary {
        let limited = Bandwidth::read(&group)?.filter(|bandwidth| bandwidth.quota.us().is_some());
        let Some(bandwidth) = limited else { return unknown("this process's cgroup has no limit of its own") };
        let period = DurationNs::from_micros(bandwidth.period_us);
        let phase = Phase { boundary: MonoNs(boundary), period, within: DurationNs::ZERO };
        return Ok(Grid::Known { phase, learnt: false });
    }
    match phase::learn(&group)? {
        Learned::Phase(phase) => Ok(Grid::Known { phase, learnt: true }),
        Learned::NoLimit => unknown("this process's cgroup has no limit of its own"),
        Learned::NoPeriods => unknown("nr_periods of this process's cgroup did not grow while it was watched"),
    }
}

/// When slot 0 begins.
fn origin(wanted: Option<DurationNs>, grid: &Grid, clock: &ClockAnchor) -> Result<MonoNs, Failure> {
    let rest = match grid {
        Grid::Known { phase, .. } => DurationNs(phase.period.0.saturating_mul(REST_PERIODS)),
        Grid::Unknown { .. } => DurationNs::ZERO,
    };
    let earliest = now() + rest.max(LEAD);
    let Some(offset) = wanted else { return Ok(whole_second(clock, earliest)) };
    match grid {
        Grid::Unknown { because } => {
            let error = anyhow!(
                "spikes cannot be put at a point of the period, which is not known: {because}. Leave --phase out for slots of the \
                 wall clock, or run in a limited cgroup (--cgroup)"
            );
            Err(Failure::Told { exit: Exit::CannotRun, error })
        }
        Grid::Known { phase, .. } if !SLOT.0.is_multiple_of(phase.period.0) => {
            let error = anyhow!(
                "slots of 100 ms do not keep a point of a period of {} ms: give the group a period that divides 100 ms, or leave \
                 --phase out",
                phase.period.as_millis_f64()
            );
            Err(Failure::Told { exit: Exit::CannotRun, error })
        }
        Grid::Known { phase, .. } => Ok(phase.first_at(offset, earliest)),
    }
}

/// The first whole second of the wall clock from an instant on.
fn whole_second(clock: &ClockAnchor, at: MonoNs) -> MonoNs {
    const SECOND: u64 = 1_000_000_000;
    at + DurationNs((SECOND - clock.realtime_ns(at) % SECOND) % SECOND)
}

/// Where the boundary lies in every spike.
fn boundary(grid: &Grid, origin: MonoNs) -> Boundary {
    match grid {
        Grid::Known { phase, .. } if !SLOT.0.is_multiple_of(phase.period.0) => Boundary::Unknown {
            because: format!("it differs from spike to spike: the period is {} ms", phase.period.as_millis_f64()),
        },
        Grid::Known { phase, learnt } => {
            let after_ns = phase.to_next(origin);
            let point_ns = phase.boundary;
            if *learnt {
                Boundary::Learnt { after_ns, point_ns, within_ns: phase.within }
            } else {
                Boundary::Given { after_ns, point_ns }
            }
        }
        Grid::Unknown { because } => Boundary::Unknown { because: because.clone() },
    }
}

fn print_line(line: &Line<'_>) -> Result<(), Failure> {
    let text = serde_json::to_string(line).or_exit(Exit::BrokeOff)?;
    print(format_args!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(length: u64) -> DurationNs {
        DurationNs::from_millis(length)
    }

    fn known(period: DurationNs) -> Grid {
        let phase = Phase { boundary: MonoNs(40_000_000), period, within: ms(0) };
        Grid::Known { phase, learnt: true }
    }

    #[test]
    fn without_a_phase_slots_are_those_of_the_wall_clock() {
        let clock =
            ClockAnchor { monotonic_ns: 5_000, boottime_ns: 0, realtime_ns: 1_700_000_000_300_005_000, error_ns: 0 };
        let origin = origin(None, &Grid::Unknown { because: "x".to_owned() }, &clock).expect("an origin");
        assert_eq!(clock.realtime_ns(origin) % 1_000_000_000, 0);
        assert!(origin >= now());
        assert_eq!(whole_second(&clock, MonoNs(5_000)), MonoNs(5_000) + DurationNs(699_995_000));
        assert_eq!(whole_second(&clock, MonoNs(699_995_000 + 5_000)), MonoNs(700_000_000));
    }

    #[test]
    fn a_phase_puts_every_spike_at_the_same_point_of_the_period() {
        let clock = ClockAnchor::take();
        for period in [ms(100), ms(50), ms(20)] {
            let origin = origin(Some(ms(15)), &known(period), &clock).expect("an origin");
            assert_eq!((origin.0 - 55_000_000) % period.0, 0);
            let Boundary::Learnt { after_ns, .. } = boundary(&known(period), origin) else { panic!("known") };
            assert_eq!(after_ns, period - ms(15));
        }
    }

    #[test]
    fn a_phase_that_is_not_known_or_cannot_be_kept_is_refused() {
        let clock = ClockAnchor::take();
        for (grid, word) in [(Grid::Unknown { because: "no limit".to_owned() }, "no limit"), (known(ms(30)), "30 ms")] {
            let Err(Failure::Told { exit: Exit::CannotRun, error }) = origin(Some(ms(0)), &grid, &clock) else {
                panic!("refused")
            };
            assert!(error.to_string().contains(word), "{error}");
            assert!(origin(None, &grid, &clock).is_ok());
        }
    }
}
