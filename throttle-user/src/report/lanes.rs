//! A timeline as an SVG figure for a document: the quota's use, requests, levels, threads and CPUs over one axis of time.

use std::mem::discriminant;

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{
    columns,
    command::ms,
    figures::{Area, COLOURS, Drawn, FigureError, drawn},
    paint::Kind,
    strips::{self, Seen},
};
use crate::{
    run::{
        levelled::LevelledPeriod,
        picture::{LimitPicture, RequestPicture, Span},
    },
    time::{DurationNs, MonoNs},
};

/// What is drawn of a limit.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// All of it.
    Whole,
    /// One request, with a tenth of its length on either side.
    Request(&'a RequestPicture),
    /// From one instant to another.
    Window(Span),
}

/// Draws the figure.
///
/// # Errors
/// [`FigureError`].
pub fn svg(picture: &LimitPicture, subject: Subject<'_>) -> Result<String, FigureError> {
    let window = window(picture, subject);
    let lanes = lanes(picture, window);
    let height = HEAD + LANE * u32::try_from(lanes.len()).unwrap_or(0) + FOOT;
    drawn("timeline", (WIDTH, height), |area| figure(area, &title(picture, subject), picture, window, &lanes))
}

const WIDTH: u32 = 960;
const HEAD: u32 = 40;
const LANE: u32 = 24;
const FOOT: u32 = 84;
const LEFT: u32 = 150;
const RIGHT: u32 = 16;
/// Pixels of the axis.
const COLUMNS: u32 = WIDTH - LEFT - RIGHT;
const TEXT: (&str, u32) = ("sans-serif", 13);
const TITLE: (&str, u32) = ("sans-serif", 16);
/// Most lanes of a kind; the others are counted.
const MOST_LANES: usize = 12;
/// Most periods whose borders are drawn.
const MOST_BORDERS: usize = 120;

/// Colour of something that is none of the kinds of a thread's time.
const OTHER: RGBColor = RGBColor(150, 150, 150);

struct Lane {
    name: String,
    bars: Vec<Bar>,
}

#[derive(Clone, Copy, PartialEq)]
struct Bar {
    span: Span,
    colour: RGBColor,
    /// Of the lane's height, 0 to 1.
    height: f64,
}

fn colour(kind: Kind) -> RGBColor {
    match kind {
        Kind::OnCpu => COLOURS[2],
        Kind::Own => COLOURS[1],
        Kind::Ancestor => COLOURS[4],
        Kind::Waiting => COLOURS[0],
        Kind::Asleep => RGBColor(205, 225, 235),
        Kind::Unknown => COLOURS[7],
    }
}

/// Nothing shorter is drawn: the axis needs numbers that differ.
const SHORTEST: DurationNs = DurationNs::from_micros(100);

fn window(picture: &LimitPicture, subject: Subject<'_>) -> Span {
    let window = match subject {
        Subject::Whole => picture.window,
        Subject::Window(span) => span,
        Subject::Request(request) => {
            let (start, end) = (request.line.started_ns, request.line.finished_ns);
            let margin = DurationNs(end.since(start).0 / 10);
            Span::new(MonoNs(start.0.saturating_sub(margin.0)), end + margin)
        }
    };
    Span::new(window.start, window.end.max(window.start + SHORTEST))
}

fn title(picture: &LimitPicture, subject: Subject<'_>) -> String {
    let limit = format!("limit {}", picture.limit);
    match subject {
        Subject::Whole => format!("{limit}: {} requests, {} periods", picture.requests.len(), counted(picture)),
        Subject::Window(span) => format!("{limit}: {} ms", ms(span.length())),
        Subject::Request(request) => {
            let share = &request.line.share;
            format!(
                "Request {} at {limit}: {} ms, {} ms of it on CPU and {} ms throttled",
                request.line.request,
                ms(share.wall_ns),
                ms(share.shares.on_cpu_ns),
                ms(share.shares.throttled())
            )
        }
    }
}

fn counted(picture: &LimitPicture) -> usize {
    picture.leaf().map_or(0, |leaf| leaf.periods.len())
}

fn lanes(picture: &LimitPicture, window: Span) -> Vec<Lane> {
    let mut lanes = Vec::new();
    if let Some(leaf) = picture.leaf().filter(|leaf| !leaf.periods.is_empty()) {
        let bar = |period: &LevelledPeriod| {
            let (used, quota) = (period.period.used_ns?, period.period.quota_ns?);
            let colour = if period.out.is_empty() { colour(Kind::OnCpu) } else { colour(Kind::Own) };
            let height = (used.as_millis_f64() / quota.as_millis_f64().max(1e-6)).min(1.0);
            Some(Bar { span: Span::new(period.period.start_ns, period.period.end_ns), colour, height })
        };
        lanes.push(Lane { name: "quota used".to_owned(), bars: leaf.periods.iter().filter_map(bar).collect() });
    }
    let strips = strips::of(picture);
    for alike in strips.chunk_by(|one, other| discriminant(&one.of) == discriminant(&other.of)) {
        lanes.extend(alike.iter().take(MOST_LANES).map(|strip| Lane {
            name: strip.name.clone(),
            bars: strip.course.iter().map(|&(span, seen)| Bar { span, colour: of_seen(seen), height: 1.0 }).collect(),
        }));
        if let Some(more) = alike.len().checked_sub(MOST_LANES).filter(|more| *more > 0) {
            lanes.push(Lane { name: format!("and {more} more"), bars: vec![] });
        }
    }
    for lane in &mut lanes {
        lane.bars = fit(&lane.bars, window);
    }
    lanes
}

fn of_seen(seen: Seen) -> RGBColor {
    match seen {
        Seen::Time(kind) => colour(kind),
        Seen::Other => OTHER,
    }
}

/// The bars of a window; of more than can be seen, what most of each column is.
fn fit(bars: &[Bar], window: Span) -> Vec<Bar> {
    let clipped = bars.iter().map(|bar| Bar { span: bar.span.clip(window), ..*bar });
    let mut inside: Vec<Bar> = clipped.filter(|bar| !bar.span.is_empty()).collect();
    if inside.len() <= 2 * COLUMNS as usize {
        return inside;
    }
    inside.sort_by_key(|bar| bar.span.start);
    let kinds = inside.iter().map(|bar| (bar.span, (bar.colour, bar.height)));
    let columns = columns::most(kinds, window, COLUMNS as usize);
    columns::joined(&columns, window).into_iter().map(|(span, (colour, height))| Bar { span, colour, height }).collect()
}

fn figure(area: &Area<'_>, title: &str, picture: &LimitPicture, window: Span, lanes: &[Lane]) -> Drawn {
    let begin = picture.window.start;
    // Before the first reading as well, where a request's margin reaches there.
    let at = |at: MonoNs| at.since(begin).as_millis_f64() - begin.since(at).as_millis_f64();
    let count = lanes.len().max(1);
    let rows = f64::from(u32::try_from(count)?);
    let mut chart = ChartBuilder::on(area)
        .margin_left(LEFT)
        .margin_right(RIGHT)
        .margin_top(HEAD)
        .margin_bottom(FOOT - 44)
        .x_label_area_size(44)
        .build_cartesian_2d(at(window.start)..at(window.end), rows..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .max_light_lines(1)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .x_desc("ms from the limit's beginning")
        .label_style(TEXT)
        .draw()?;
    borders(&mut chart, picture, window, at, rows)?;
    for gap in picture.gaps.iter().map(|gap| gap.span.clip(window)).filter(|span| !span.is_empty()) {
        let corners = [(at(gap.start), 0.0), (at(gap.end), rows)];
        chart.draw_series([Rectangle::new(corners, BLACK.mix(0.18).filled())])?;
    }
    for (row, lane) in (0_u32..).zip(lanes) {
        let (top, bottom) = (f64::from(row) + 0.12, f64::from(row) + 0.88);
        chart.draw_series(lane.bars.iter().map(|bar| {
            let corners = [(at(bar.span.start), bottom - (bottom - top) * bar.height), (at(bar.span.end), bottom)];
            Rectangle::new(corners, bar.colour.filled())
        }))?;
    }
    let right = TEXT.into_font().color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
    for (row, lane) in (0_u32..).zip(lanes) {
        let y = HEAD + row * LANE + LANE / 2;
        let place = (i32::try_from(LEFT)? - 8, i32::try_from(y)?);
        area.draw(&Text::new(lane.name.clone(), place, right.clone()))?;
    }
    area.draw(&Text::new(title.to_owned(), (i32::try_from(LEFT)?, 12), TITLE.into_font().color(&BLACK)))?;
    legend(area, i32::try_from(HEAD + LANE * u32::try_from(lanes.len())? + FOOT - 24)?)
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// Where the container's periods begin and end.
fn borders(
    chart: &mut Chart<'_, '_>,
    picture: &LimitPicture,
    window: Span,
    at: impl Fn(MonoNs) -> f64,
    rows: f64,
) -> Drawn {
    let periods = picture.leaf().into_iter().flat_map(|leaf| &leaf.periods);
    let mut points: Vec<MonoNs> = periods.flat_map(|period| [period.period.start_ns, period.period.end_ns]).collect();
    points.sort_unstable();
    points.dedup();
    points.retain(|&point| window.contains(point));
    if points.len() <= MOST_BORDERS {
        let line = |point| PathElement::new([(at(point), 0.0), (at(point), rows)], BLACK.mix(0.35));
        chart.draw_series(points.into_iter().map(line))?;
    }
    Ok(())
}

fn legend(area: &Area<'_>, y: i32) -> Drawn {
    let words = Kind::ALL.iter().map(|kind| (kind.word(), colour(*kind))).chain([("other work", OTHER)]);
    let mut x = 12;
    for (word, colour) in words {
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], colour.filled()))?;
        area.draw(&Text::new(word, (x + 17, y), TEXT.into_font().color(&BLACK)))?;
        x += 40 + i32::try_from(word.len())? * 7;
    }
    Ok(())
}
