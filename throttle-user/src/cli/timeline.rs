//! `throttle timeline DIR`: what happened, period by period and request by request.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};

use super::{
    exit::{Exit, Failure, OrExit, Verdict, print_styled, tell},
    tui,
};
use crate::{
    cgroup::{CpuLimit, LevelName},
    report::{
        html,
        lanes::{self, Subject},
        perfetto, timeline,
    },
    run::{
        Head, RunDir, StoreError,
        derive::{Derived, RawLimit},
        picture::{LimitPicture, RequestPicture, Span},
        summary::summarise,
    },
};

/// Show what happened at a limit, period by period, or to one request, and what it comes to.
///
/// Without a selection: all limits of the run in short. Everything is derived from the run's raw files, as `throttle report`
/// does, on any machine and without root. Colours only on a terminal (NO_COLOR and CLICOLOR_FORCE are respected). With --svg,
/// --perfetto or --html the picture goes to files instead.
///
/// Exit code: 0 shown; 2 no such run, limit, request or period, or the run's files were changed; 4 a file cannot be written.
#[derive(Debug, Args)]
pub(super) struct TimelineArgs {
    /// Folder of the run.
    dir: PathBuf,
    /// The limit, such as 100m or unlimited; not needed where the run has only one.
    #[arg(long, value_name = "LIMIT")]
    limit: Option<CpuLimit>,
    /// One request, by its number: where its time went, and the periods it crossed.
    #[arg(long, value_name = "N", conflicts_with_all = ["slowest", "period", "level"])]
    request: Option<u64>,
    /// The request with the longest wall time; of all limits if none is given.
    #[arg(long, conflicts_with_all = ["period", "level"])]
    slowest: bool,
    /// Only these periods, by their numbers in the first column: 12, or 12..20.
    #[arg(long, value_name = "A..B")]
    period: Option<Periods>,
    /// Whose periods.
    #[arg(long, value_enum, default_value = "container")]
    level: Level,
    /// Draw what is selected as a figure for a document: one limit, request or stretch of periods.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the limit, or all, as a trace for Perfetto (ui.perfetto.dev).
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Write the limit, or all, as one page for a browser that needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Look at it on the whole terminal: lanes to zoom and pan, by keys (? shows them).
    #[arg(long, conflicts_with_all = ["svg", "perfetto", "html"])]
    tui: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Level {
    /// Those of the group that the requests ran in.
    Container,
    /// Those of its parent, where that has a limit as well.
    Pod,
}

impl From<Level> for LevelName {
    fn from(level: Level) -> Self {
        match level {
            Level::Container => Self::Container,
            Level::Pod => Self::Pod,
        }
    }
}

/// Numbers of periods, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Periods {
    from: u64,
    to: u64,
}

impl FromStr for Periods {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u64>().ok();
        match (number(from), number(to)) {
            (Some(from), Some(to)) if from <= to => Ok(Self { from, to }),
            (Some(from), Some(to)) => Err(format!("{from} comes after {to}; write the smaller number first")),
            _ => Err("want a number such as 12, or two such as 12..20".to_owned()),
        }
    }
}

/// Runs the verb.
pub(super) fn run(args: &TimelineArgs) -> Verdict {
    let (dir, head) = RunDir::open(&args.dir).or_exit(Exit::BadInput)?;
    let record = dir.read_record(&head).or_exit(Exit::BadInput)?;
    let chosen = choose(args, &head, record).or_exit(Exit::BadInput)?;
    let pictures = chosen.into_iter().map(|raw| draw(&dir, &head, raw));
    let pictures = pictures.collect::<Result<Vec<_>, _>>().or_exit(Exit::BadInput)?;
    let selection = Selection::of(args, &pictures).or_exit(Exit::BadInput)?;
    if args.tui {
        let (limit, request) = selection.place(&pictures);
        return tui::run(pictures, limit, request);
    }
    if let Some(path) = &args.svg {
        let (picture, subject) = selection.subject(args.level.into()).or_exit(Exit::BadInput)?;
        let svg = lanes::svg(picture, subject).or_exit(Exit::BrokeOff)?;
        write(path, svg.as_bytes())?;
    }
    if let Some(path) = &args.perfetto {
        write(path, &perfetto::trace(&pictures))?;
    }
    if let Some(path) = &args.html {
        let derived: Vec<Derived> = pictures.iter().map(LimitPicture::derived).collect();
        let mut summary = summarise(&head, &derived);
        if args.limit.is_some() {
            // The others were not asked for, which is not the same as not run.
            summary.not_run.clear();
        }
        let page = html::page(&head, &summary, &pictures).context("the page's data").or_exit(Exit::BrokeOff)?;
        write(path, page.as_bytes())?;
    }
    if args.svg.is_none() && args.perfetto.is_none() && args.html.is_none() {
        print_styled(&selection.text(args, &head, &pictures))?;
    }
    Ok(Exit::Done)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display())).or_exit(Exit::BrokeOff)?;
    tell(format_args!("written: {}", path.display()));
    Ok(())
}

/// The limits to draw: the one named, or all.
fn choose(args: &TimelineArgs, head: &Head, record: Vec<RawLimit>) -> anyhow::Result<Vec<RawLimit>> {
    let there: Vec<String> = record.iter().map(|raw| raw.begin.limit.to_string()).collect();
    let there =
        if there.is_empty() { "none: it ended before its first limit began".to_owned() } else { there.join(", ") };
    if let Some(limit) = args.limit {
        let planned = if head.plan.limits.contains(&limit) { "planned but not run" } else { "not in this run" };
        let found = record.into_iter().find(|raw| raw.begin.limit == limit);
        return Ok(vec![found.with_context(|| format!("limit {limit} is {planned}; there are: {there}"))?]);
    }
    let one_is_meant = args.request.is_some() || args.period.is_some();
    if one_is_meant && record.len() != 1 {
        return Err(anyhow!("which limit? Name one with --limit; there are: {there}"));
    }
    Ok(record)
}

fn draw(dir: &RunDir, head: &Head, raw: RawLimit) -> Result<LimitPicture, StoreError> {
    let (raw, events) = dir.with_events(raw)?;
    Ok(LimitPicture::draw(head, &raw, events))
}

/// What of the pictures is wanted.
enum Selection<'a> {
    Run,
    Limit(&'a LimitPicture),
    Periods(&'a LimitPicture, Periods),
    Request(&'a LimitPicture, &'a RequestPicture),
}

impl<'a> Selection<'a> {
    fn of(args: &TimelineArgs, pictures: &'a [LimitPicture]) -> anyhow::Result<Self> {
        if args.slowest {
            let slowest = pictures.iter().filter_map(|picture| Some((picture, picture.slowest()?)));
            let (picture, request) = slowest
                .max_by_key(|(_, request)| request.line.share.wall_ns)
                .context("no request was answered, so none is the slowest")?;
            return Ok(Self::Request(picture, request));
        }
        let [picture] = pictures else { return Ok(Self::Run) };
        if let Some(number) = args.request {
            let request = picture.request(number).with_context(|| no_request(picture, number))?;
            return Ok(Self::Request(picture, request));
        }
        match args.period {
            None => Ok(Self::Limit(picture)),
            Some(periods) => {
                has_periods(picture, args.level.into(), periods)?;
                Ok(Self::Periods(picture, periods))
            }
        }
    }

    fn text(&self, args: &TimelineArgs, head: &Head, pictures: &[LimitPicture]) -> String {
        match *self {
            Self::Run => {
                let not_run: Vec<CpuLimit> = head.plan.limits.iter().skip(pictures.len()).copied().collect();
                timeline::run(pictures, &not_run)
            }
            Self::Limit(picture) => timeline::limit(picture, args.level.into(), None),
            Self::Periods(picture, Periods { from, to }) => {
                timeline::limit(picture, args.level.into(), Some((from, to)))
            }
            Self::Request(picture, request) => timeline::request(picture, request),
        }
    }

    /// Place of the limit to begin with, and the request to go to.
    fn place(&self, pictures: &[LimitPicture]) -> (usize, Option<u64>) {
        let place = |wanted: &LimitPicture| pictures.iter().position(|picture| picture.limit == wanted.limit);
        match self {
            Self::Run => (0, None),
            Self::Limit(picture) | Self::Periods(picture, _) => (place(picture).unwrap_or(0), None),
            Self::Request(picture, request) => (place(picture).unwrap_or(0), Some(request.line.request)),
        }
    }

    /// What a figure shows.
    fn subject(&self, level: LevelName) -> anyhow::Result<(&'a LimitPicture, Subject<'a>)> {
        match *self {
            Self::Run => Err(anyhow!("a figure shows one limit or request: name one with --limit, or give --slowest")),
            Self::Limit(picture) => Ok((picture, Subject::Whole)),
            Self::Request(picture, request) => Ok((picture, Subject::Request(request))),
            Self::Periods(picture, Periods { from, to }) => {
                let periods =
                    picture.levels.iter().filter(|drawn| drawn.name == Some(level)).flat_map(|drawn| &drawn.periods);
                let inside = periods.filter(|period| (from..=to).contains(&period.period.index));
                let spans = inside.map(|period| (period.period.start_ns, period.period.end_ns));
                let whole = spans.reduce(|(start, _), (_, end)| (start, end)).context("no period is selected")?;
                Ok((picture, Subject::Window(Span::new(whole.0, whole.1))))
            }
        }
    }
}

fn no_request(picture: &LimitPicture, number: u64) -> String {
    let limit = picture.limit;
    if let Some((_, error)) = picture.failed.iter().find(|(failed, _)| *failed == number) {
        return format!("request {number} of limit {limit} was not answered ({error}), so it has no timeline");
    }
    let numbers = || picture.requests.iter().map(|request| request.line.request);
    match (numbers().min(), numbers().max()) {
        (Some(first), Some(last)) => {
            format!("limit {limit} has no request {number}; it has {first} to {last}, as far as they were answered")
        }
        _ => format!("limit {limit} has no request {number}: none was answered"),
    }
}

fn has_periods(picture: &LimitPicture, level: LevelName, Periods { from, to }: Periods) -> anyhow::Result<()> {
    let drawn = picture.levels.iter().find(|drawn| drawn.name == Some(level));
    let numbers = || drawn.into_iter().flat_map(|drawn| &drawn.periods).map(|period| period.period.index);
    if numbers().any(|number| (from..=to).contains(&number)) {
        return Ok(());
    }
    Err(match (numbers().min(), numbers().max()) {
        (Some(first), Some(last)) => {
            anyhow!("limit {} has no period {from}..{to}; it has {first}..{last}", picture.limit)
        }
        _ => anyhow!("limit {} has no periods: there is no quota, or no events of it", picture.limit),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_one_number_or_two_in_order() {
        assert_eq!("12".parse(), Ok(Periods { from: 12, to: 12 }));
        assert_eq!("12..20".parse(), Ok(Periods { from: 12, to: 20 }));
        for wrong in ["", "..", "20..12", "1..", "-1", "a..b", "1..2..3"] {
            assert!(wrong.parse::<Periods>().is_err(), "{wrong}");
        }
    }
}
