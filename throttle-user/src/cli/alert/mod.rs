//! `throttle alert DIR`: alarms replayed over a recorded or a simulated run.

mod openmetrics;
mod simulated;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::args;
use super::exit::{Exit, OrExit, Verdict, print, tell};
use crate::{
    model::{
        alarm::{Eye, Replay, Rule, replay},
        history::History,
        poller::{Housekeeping, Poller, Stamps},
        prometheus::Edition,
    },
    run::{Head, RunDir, history, spikes},
    time::DurationNs,
};

/// Replay alarms over a run: when each would have fired, and what happened to requests meanwhile.
///
/// Takes the folder of a sweep or of spikes, each limit or step repeated for --over as if its load had gone on; or simulates a load
/// (--limit, --every, --work or --busy, --trickle). The alarms: CPUThrottlingHigh as kubernetes-mixin has it (a quarter of the
/// periods over 5 minutes, for 15), its older form (three windows of 5 minutes), and one on time lost (over 5 minutes more than a
/// quarter of the active time and a hundredth of all time, for 2 minutes); with --windows, --thresholds and --holds any others on
/// periods.
///
/// They see the run as Prometheus would: counters as the kubelet reads them, scraped, with the arithmetic of `increase`; or exactly,
/// with --exact. A request is harmed if limits took a tenth of its wall time or more.
///
/// Exit code: 0 done; 1 done, but records were lost, so that harm may be missing; 2 no run, or bad usage.
#[derive(Debug, Args)]
pub(super) struct AlertArgs {
    /// Folder of the run.
    #[arg(required_unless_present = "limit")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    load: simulated::Load,
    /// How long the load goes on.
    #[arg(long, default_value = "1h", value_parser = args::some_duration, value_name = "TIME")]
    over: DurationNs,
    /// Let alarms see every counter at every instant.
    #[arg(long)]
    exact: bool,
    /// From one scrape to the next.
    #[arg(long, default_value = "30s", value_parser = args::some_duration, value_name = "TIME")]
    scrape: DurationNs,
    /// Shortest time between two readings of the kubelet; each is up to twice as long.
    #[arg(long, default_value = "10s", value_parser = args::some_duration, value_name = "TIME")]
    housekeeping: DurationNs,
    /// Whose time stamp a sample has.
    #[arg(long, value_enum, default_value = "reading", value_name = "WHOSE")]
    stamps: Whose,
    /// Version of Prometheus.
    #[arg(long, value_enum, default_value = "3", value_name = "VERSION")]
    prometheus: Version,
    /// From one evaluation of an alarm to the next.
    #[arg(long, default_value = "30s", value_parser = args::some_duration, value_name = "TIME")]
    evaluation: DurationNs,
    /// Windows of further alarms on periods.
    #[arg(long, value_delimiter = ',', value_parser = args::some_duration, value_name = "TIMES", requires = "thresholds")]
    windows: Vec<DurationNs>,
    /// Their thresholds, per cent.
    #[arg(long, value_delimiter = ',', value_name = "PERCENTS", requires = "windows")]
    thresholds: Vec<f64>,
    /// Their hold times (`for`).
    #[arg(long, value_delimiter = ',', default_value = "0", value_parser = args::duration, value_name = "TIMES", requires = "windows")]
    holds: Vec<DurationNs>,
    /// Decides the random parts of the kubelet's waits.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,
    /// Write the samples as OpenMetrics text, for `promtool tsdb create-blocks-from openmetrics`.
    #[arg(long, value_name = "FILE", conflicts_with = "exact")]
    openmetrics: Option<PathBuf>,
    /// Print JSON lines, one a load and alarm, instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Whose {
    /// The kubelet's reading (`honor_timestamps: true`, the default).
    Reading,
    /// The scrape.
    Scrape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Version {
    /// Up to 2.50.
    #[value(name = "2.50")]
    UpTo2_50,
    /// 2.51 to 2.55.
    #[value(name = "2.51")]
    From2_51,
    /// From 3.0.
    #[value(name = "3")]
    From3,
}

/// A load and its history.
struct Scene {
    name: String,
    /// Once as it was, if it was recorded.
    recorded: Option<DurationNs>,
    history: History,
}

/// A line of the JSON output.
#[derive(Serialize)]
struct Line<'a> {
    load: &'a str,
    recorded_ns: Option<DurationNs>,
    over_ns: DurationNs,
    #[serde(flatten)]
    eye: Eye,
    #[serde(flatten)]
    replay: &'a Replay,
}

/// Runs the verb.
pub(super) fn run(args: &AlertArgs) -> Verdict {
    let rules = rules(args).or_exit(Exit::BadInput)?;
    let eye = eye(args);
    let scenes = scenes(args).or_exit(Exit::BadInput)?;
    if let (Some(path), Eye::Prometheus { agent, exporter, .. }) = (&args.openmetrics, &eye) {
        let named: Vec<_> = scenes.iter().map(|scene| (scene.name.as_str(), &scene.history)).collect();
        let text = openmetrics::text(&named, agent, exporter);
        std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))
            .or_exit(Exit::BrokeOff)?;
    }
    for scene in &scenes {
        let replays: Vec<Replay> = rules.iter().map(|rule| replay(&scene.history, 0, rule, &eye)).collect();
        if args.json {
            for replay in &replays {
                let line = Line { load: &scene.name, recorded_ns: scene.recorded, over_ns: args.over, eye, replay };
                let text = serde_json::to_string(&line).or_exit(Exit::BrokeOff)?;
                print(format_args!("{text}\n"))?;
            }
        } else {
            print(format_args!("{}\n", table::text(&scene.name, scene.recorded, &scene.history, &replays)))?;
        }
    }
    let lossy: Vec<&str> =
        scenes.iter().filter(|scene| !scene.history.whole).map(|scene| scene.name.as_str()).collect();
    if lossy.is_empty() {
        return Ok(Exit::Done);
    }
    tell(format_args!("throttle: not all of it was seen, harm may be missing: {}", lossy.join(", ")));
    Ok(Exit::NotRight)
}

fn rules(args: &AlertArgs) -> Result<Vec<Rule>> {
    let mut rules = vec![Rule::cpu_throttling_high(), Rule::three_windows(), Rule::time_lost()];
    if let Some(bad) = args.thresholds.iter().find(|percent| !(0.0..100.0).contains(*percent)) {
        return Err(anyhow!(
            "--thresholds {bad} is no share of periods: give per cent from 0 to below 100, such as 25"
        ));
    }
    let thresholds: Vec<f64> = args.thresholds.iter().map(|percent| percent / 100.0).collect();
    rules.extend(Rule::grid(&args.windows, &thresholds, &args.holds));
    for rule in &mut rules {
        rule.every_ns = args.evaluation;
    }
    Ok(rules)
}

fn eye(args: &AlertArgs) -> Eye {
    if args.exact {
        return Eye::Exact;
    }
    // Prometheus spreads targets over the interval; no target is better than another.
    let offset_ns = DurationNs(args.scrape.0 / 3);
    let exporter = Poller { housekeeping: None, scrape_ns: args.scrape, offset_ns, seed: args.seed };
    let stamps = match args.stamps {
        Whose::Reading => Stamps::Reading,
        Whose::Scrape => Stamps::Scrape,
    };
    let most_ns = args.housekeeping.max(Housekeeping::KUBELET.most_ns);
    let housekeeping = Housekeeping { every_ns: args.housekeeping, most_ns, stamps, ..Housekeeping::KUBELET };
    Eye::Prometheus {
        agent: Poller { housekeeping: Some(housekeeping), ..exporter },
        exporter,
        edition: match args.prometheus {
            Version::UpTo2_50 => Edition::UpTo2_50,
            Version::From2_51 => Edition::From2_51,
            Version::From3 => Edition::From3,
        },
    }
}

fn scenes(args: &AlertArgs) -> Result<Vec<Scene>> {
    if let Some((name, history)) = args.load.history(args.over)? {
        return Ok(vec![Scene { name, recorded: None, history }]);
    }
    let path = args.dir.as_ref().context("name the folder of a run, or a load with --limit")?;
    let recorded = match RunDir::kind(path)?.as_str() {
        spikes::KIND => of_spikes(path)?,
        _ => of_sweep(path)?,
    };
    let mut scenes = Vec::new();
    for (name, history) in recorded {
        match history {
            None => tell(format_args!("throttle: {name}: nothing was answered, or there are no events; left out")),
            Some(history) => {
                let length = history.span.length();
                let times = args.over.0.div_ceil(length.0.max(1));
                scenes.push(Scene { name, recorded: Some(length), history: history.repeated(times) });
            }
        }
    }
    Ok(scenes)
}

type Recorded = Vec<(String, Option<History>)>;

fn of_sweep(path: &std::path::Path) -> Result<Recorded> {
    let (dir, head) = RunDir::open::<Head>(path)?;
    let limits = dir.read_record(&head)?.into_iter().map(|mut raw| {
        let (events, kept) = dir.read_events(raw.begin.limit)?;
        raw.kept = kept;
        let history = history::of_limit(&head.environment, &raw, head.plan.gap_ns, events);
        Ok((raw.begin.limit.to_string(), history))
    });
    limits.collect()
}

fn of_spikes(path: &std::path::Path) -> Result<Recorded> {
    let (dir, head) = RunDir::open::<spikes::SpikesHead>(path)?;
    let mut recorded = Vec::new();
    for mut raw in dir.read_spikes(&head)? {
        let name = spikes::group_name(raw.nesting);
        let (events, kept) = dir.read_events(name)?;
        raw.kept = kept;
        for (step, history) in spikes::derive::histories(&head, &raw, events) {
            let boundary =
                step.boundary_ns.map_or_else(String::new, |at| format!(", boundary at {} ms", at.as_millis_f64()));
            let (length, per_second) = (step.length_ns.as_millis_f64(), step.per_second);
            recorded.push((format!("{name} {} {length} ms x {per_second}/s{boundary}", head.plan.limit), history));
        }
    }
    Ok(recorded)
}
