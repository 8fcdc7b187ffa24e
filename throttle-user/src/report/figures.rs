//! `figures/*.svg`: the run as pictures. The same data give the same bytes on any machine: text is left to the viewer's fonts.

use plotters::{
    coord::ranged1d::{IntoSegmentedCoord as _, SegmentValue},
    prelude::*,
};

use crate::{
    run::{
        derive::{Derived, RequestLine},
        summary::{LimitSummary, RunSummary},
    },
    time::DurationNs,
};

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// File name.
    pub name: &'static str,
    /// SVG.
    pub svg: String,
}

/// A picture could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {name}: {why}")]
pub struct FigureError {
    /// Which.
    name: &'static str,
    /// What the library said.
    why: String,
}

pub(super) type Drawn = Result<(), Box<dyn std::error::Error>>;
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Draw = fn(&Area<'_>, &[Row<'_>]) -> Drawn;

const SIZE: (u32, u32) = (760, 420);
/// Told apart also by people who do not see red and green alike (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(0, 0, 0),
];
pub(super) const TEXT: (&str, u32) = ("sans-serif", 16);

/// All pictures of a run; none without answered requests.
///
/// # Errors
/// [`FigureError`].
pub fn all(summary: &RunSummary, derived: &[Derived]) -> Result<Vec<Figure>, FigureError> {
    let rows: Vec<Row<'_>> = summary
        .limits
        .iter()
        .zip(derived)
        .map(|(summary, derived)| Row { summary, requests: derived.requests().collect() })
        .filter(|row| !row.requests.is_empty())
        .collect();
    if rows.is_empty() {
        return Ok(vec![]);
    }
    let pictures: [(&'static str, Draw); 4] =
        [("latency.svg", latency), ("shares.svg", shares), ("cdf.svg", cdf), ("phase.svg", phase)];
    pictures.into_iter().map(|(name, draw)| picture(name, |area| draw(area, &rows))).collect()
}

struct Row<'a> {
    summary: &'a LimitSummary,
    requests: Vec<&'a RequestLine>,
}

impl Row<'_> {
    fn longest(&self) -> f64 {
        self.requests.iter().map(|request| request.share.wall_ns.as_millis_f64()).fold(0.0, f64::max)
    }
}

/// Draws one picture.
pub(super) fn picture(name: &'static str, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<Figure, FigureError> {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let white = area.fill(&WHITE).map_err(Into::into);
        white.and_then(|()| draw(&area)).and_then(|()| area.present().map_err(Into::into))
    };
    drawn.map_err(|why: Box<dyn std::error::Error>| FigureError { name, why: why.to_string() })?;
    Ok(Figure { name, svg: svg + "\n" })
}

/// Measured median to maximum beside the model's, for each limit.
fn latency(area: &Area<'_>, rows: &[Row<'_>]) -> Drawn {
    let model = rows.iter().filter_map(|row| row.summary.model.as_ref()).map(|model| model.max_ns.as_millis_f64());
    let top = rows.iter().map(Row::longest).chain(model).fold(0.0, f64::max) * 1.08;
    let names = names(rows);
    let mut chart = ChartBuilder::on(area)
        .caption("Wall time of a request: measured, and by the model", TEXT)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((0..rows.len() - 1).into_segmented(), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(1)
        .y_label_formatter(&whole)
        .x_desc("CPU limit")
        .y_desc("ms, median to maximum")
        .x_label_formatter(&|value| name_of(&names, value))
        .label_style(TEXT)
        .draw()?;
    let half = 680 / u32::try_from(rows.len())?.max(1) / 2;
    let bar = |index: usize, from: f64, to: f64, colour: RGBColor, left: bool| {
        let mut bar = Rectangle::new(
            [(SegmentValue::Exact(index), from), (edge(index + 1, rows.len()), to)],
            colour.mix(0.75).filled(),
        );
        // Flat where median and maximum are one.
        let (low, high) = if to - from < top / 200.0 { (1, 1) } else { (0, 0) };
        let (inner, outer) = (half + 2, half / 3);
        if left {
            bar.set_margin(high, low, outer, inner)
        } else {
            bar.set_margin(high, low, inner, outer)
        };
        bar
    };
    let ms = |length: Option<DurationNs>| length.map_or(0.0, DurationNs::as_millis_f64);
    chart
        .draw_series(rows.iter().enumerate().map(|(index, row)| {
            bar(
                index,
                ms(row.summary.p50_ns),
                ms(row.summary.max_ns).max(ms(row.summary.p50_ns) + top / 300.0),
                COLOURS[0],
                true,
            )
        }))?
        .label("measured")
        .legend(|at| square(at, COLOURS[0]));
    let modelled = rows.iter().enumerate().filter_map(|(index, row)| Some((index, row.summary.model.as_ref()?)));
    chart
        .draw_series(modelled.map(|(index, model)| {
            let (p50, max) = (model.p50_ns.as_millis_f64(), model.max_ns.as_millis_f64());
            bar(index, p50, max.max(p50 + top / 300.0), COLOURS[4], false)
        }))?
        .label("model")
        .legend(|at| square(at, COLOURS[4]));
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .label_font(TEXT)
        .draw()?;
    Ok(())
}

/// Where the mean request's wall time went, for each limit.
fn shares(area: &Area<'_>, rows: &[Row<'_>]) -> Drawn {
    type Part = (&'static str, fn(&RequestLine) -> DurationNs, usize);
    const PARTS: [Part; 6] = [
        ("on CPU", |request| request.share.shares.on_cpu_ns, 2),
        ("throttled: own limit", |request| request.share.shares.throttled_own_ns, 1),
        ("throttled: ancestor only", |request| request.share.shares.throttled_ancestor_ns, 4),
        ("waiting for a CPU", |request| request.share.shares.runqueue_ns, 0),
        ("asleep", |request| request.share.shares.blocked_ns, 5),
        ("unknown", |request| request.share.shares.unknown_ns, 7),
    ];
    let mean = |row: &Row<'_>, of: fn(&RequestLine) -> DurationNs| {
        let total: DurationNs = row.requests.iter().map(|request| of(request)).sum();
        total.as_millis_f64() / f64::from(u32::try_from(row.requests.len()).unwrap_or(u32::MAX))
    };
    let top = rows.iter().map(|row| PARTS.iter().map(|(_, of, _)| mean(row, *of)).sum()).fold(0.0, f64::max) * 1.08;
    let names = names(rows);
    let mut chart = ChartBuilder::on(area)
        .caption("Where the wall time of a mean request went", TEXT)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((0..rows.len() - 1).into_segmented(), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(1)
        .y_label_formatter(&whole)
        .x_desc("CPU limit")
        .y_desc("ms")
        .x_label_formatter(&|value| name_of(&names, value))
        .label_style(TEXT)
        .draw()?;
    let mut reached = vec![0.0; rows.len()];
    for (name, of, colour) in PARTS {
        let bars: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(index, row)| {
                let from = reached[index];
                reached[index] += mean(row, of);
                let corners = [(SegmentValue::Exact(index), from), (edge(index + 1, rows.len()), reached[index])];
                let mut bar = Rectangle::new(corners, COLOURS[colour].mix(0.85).filled());
                bar.set_margin(0, 0, 14, 14);
                bar
            })
            .collect();
        chart.draw_series(bars)?.label(name).legend(move |at| square(at, COLOURS[colour]));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .label_font(TEXT)
        .draw()?;
    Ok(())
}

/// Share of requests no longer than so much, a line a limit.
fn cdf(area: &Area<'_>, rows: &[Row<'_>]) -> Drawn {
    let top = rows.iter().map(Row::longest).fold(0.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(area)
        .caption("Share of requests within a wall time", TEXT)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..top, 0.0..1.0)?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .x_label_formatter(&whole)
        .x_desc("wall time, ms")
        .y_desc("share of requests")
        .label_style(TEXT)
        .draw()?;
    for (index, row) in rows.iter().enumerate() {
        let mut walls: Vec<f64> = row.requests.iter().map(|request| request.share.wall_ns.as_millis_f64()).collect();
        walls.sort_unstable_by(f64::total_cmp);
        let n = f64::from(u32::try_from(walls.len())?);
        let mut line = vec![(0.0, 0.0)];
        let mut share = 0.0;
        for (rank, wall) in (1_u32..).zip(walls) {
            line.push((wall, share));
            share = f64::from(rank) / n;
            line.push((wall, share));
        }
        line.push((top, 1.0));
        let colour = COLOURS[index % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(row.summary.limit.to_string())
            .legend(move |at| square(at, colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .label_font(TEXT)
        .draw()?;
    Ok(())
}

/// Wall time against the point of the container's period at which a request began; without a limit there is no period.
fn phase(area: &Area<'_>, rows: &[Row<'_>]) -> Drawn {
    let points = |row: &Row<'_>| -> Vec<(f64, f64)> {
        let of = |request: &&RequestLine| {
            Some((request.share.phase_ns?.as_millis_f64(), request.share.wall_ns.as_millis_f64()))
        };
        row.requests.iter().filter_map(of).collect()
    };
    let all: Vec<Vec<(f64, f64)>> = rows.iter().map(points).collect();
    let furthest = |of: fn(&(f64, f64)) -> f64| all.iter().flatten().map(of).fold(1.0, f64::max);
    let (right, top) = (furthest(|point| point.0) * 1.02, furthest(|point| point.1) * 1.08);
    let mut chart = ChartBuilder::on(area)
        .caption("Wall time by where in its period a request began", TEXT)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .x_desc("ms after the container's last refill")
        .y_desc("wall time, ms")
        .label_style(TEXT)
        .draw()?;
    for (index, (row, points)) in rows.iter().zip(all).enumerate().filter(|(_, (_, points))| !points.is_empty()) {
        let colour = COLOURS[index % COLOURS.len()];
        chart
            .draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.mix(0.6).filled())))?
            .label(row.summary.limit.to_string())
            .legend(move |at| square(at, colour));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .label_font(TEXT)
        .draw()?;
    Ok(())
}

fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

/// Left edge of a limit's place; right of the last one there is no other.
fn edge(index: usize, places: usize) -> SegmentValue<usize> {
    if index < places { SegmentValue::Exact(index) } else { SegmentValue::Last }
}

fn square(at: (i32, i32), colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(at.0 + 2, at.1 - 6), (at.0 + 14, at.1 + 6)], colour.mix(0.85).filled())
}

fn names(rows: &[Row<'_>]) -> Vec<String> {
    rows.iter().map(|row| row.summary.limit.to_string()).collect()
}

fn name_of(names: &[String], value: &SegmentValue<usize>) -> String {
    match value {
        SegmentValue::CenterOf(index) => names.get(*index).cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_answers_has_no_pictures() {
        let summary = RunSummary { schema: 1, quantile_definition: String::new(), limits: vec![], not_run: vec![] };
        assert_eq!(all(&summary, &[]).expect("nothing to draw"), vec![]);
    }
}
