//! Spike length against the boundary's place in it, as one picture: how many spikes were held, and how many the model says.

use std::collections::BTreeMap;

use plotters::prelude::*;

use super::figures::{Area, Drawn, Figure, FigureError, TEXT, picture};
use crate::{
    cgroup::Nesting,
    run::spikes::{
        derive::{DerivedGroup, DerivedLine},
        group_name,
    },
    time::DurationNs,
};

/// Spikes of one length whose boundary lies at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    spikes: u32,
    held: u32,
    /// Such as the model says are held in every course, and in none.
    always: u32,
    never: u32,
}

/// Width of a cell along the boundary, ms.
const STEP_MS: u64 = 5;

/// One picture a group of the run; of a group without a spike whose boundary is known, none.
///
/// # Errors
/// [`FigureError`].
pub fn all(groups: &[(Nesting, DerivedGroup)]) -> Result<Vec<Figure>, FigureError> {
    let drawn = groups.iter().map(|(nesting, group)| (*nesting, cells(group))).filter(|(_, cells)| !cells.is_empty());
    drawn.map(|(nesting, cells)| picture(name(nesting), |area| map(area, nesting, &cells))).collect()
}

fn name(nesting: Nesting) -> &'static str {
    match nesting {
        Nesting::Flat => "spike-map-flat.svg",
        Nesting::Nested => "spike-map-nested.svg",
    }
}

/// By length and by where the container's boundary lies, in steps; a boundary beyond the spike's end does not meet it.
fn cells(group: &DerivedGroup) -> BTreeMap<(DurationNs, u64), Cell> {
    let mut cells: BTreeMap<(DurationNs, u64), Cell> = BTreeMap::new();
    for line in &group.lines {
        let DerivedLine::Spike(spike) = line else { continue };
        let Some(Some(boundary)) = spike.boundary_after_ns.first() else { continue };
        let cell = cells.entry((spike.length_ns, boundary.0 / (STEP_MS * 1_000_000))).or_default();
        cell.spikes += 1;
        cell.held += u32::from(spike.held());
        if let Some(model) = &spike.model {
            cell.always += u32::from(model.is_always());
            cell.never += u32::from(model.held_in == 0);
        }
    }
    cells
}

fn map(area: &Area<'_>, nesting: Nesting, cells: &BTreeMap<(DurationNs, u64), Cell>) -> Drawn {
    let mut lengths: Vec<DurationNs> = cells.keys().map(|(length, _)| *length).collect();
    lengths.dedup();
    let columns = cells.keys().map(|(_, column)| *column).max().unwrap_or(0) + 1;
    let rows = u32::try_from(lengths.len())?;
    let columns = u32::try_from(columns)?;
    let caption = format!("Spikes held, {}: measured over what the model says", group_name(nesting));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, TEXT)
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..f64::from(columns), 0.0..f64::from(rows))?;
    let label = |row: &f64| {
        let index = row.floor();
        let name = lengths.iter().zip(0_u32..).find(|(_, at)| (f64::from(*at) - index).abs() < 0.5);
        name.map_or_else(String::new, |(length, _)| length.as_millis_f64().to_string())
    };
    #[expect(clippy::cast_precision_loss, reason = "a few milliseconds")]
    let place = |column: &f64| format!("{}", column * STEP_MS as f64);
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("boundary, ms after the spike begins")
        .y_desc("spike, ms")
        .x_labels(11)
        .y_labels(lengths.len().max(2))
        .x_label_formatter(&place)
        .y_label_formatter(&label)
        .label_style(TEXT)
        .draw()?;
    for ((length, column), cell) in cells {
        let row = lengths.iter().zip(0_u32..).find(|(other, _)| *other == length).map_or(0, |(_, row)| row);
        let (left, low) = (f64::from(u32::try_from(*column)?), f64::from(row));
        let share = f64::from(cell.held) / f64::from(cell.spikes.max(1));
        let fill = RGBColor(213, 94, 0).mix(share * 0.85 + 0.02);
        chart.draw_series([Rectangle::new([(left, low), (left + 1.0, low + 1.0)], fill.filled())])?;
        chart.draw_series([Rectangle::new([(left, low), (left + 1.0, low + 1.0)], BLACK.mix(0.25))])?;
        let says = match (cell.always, cell.never) {
            (always, _) if always == cell.spikes => "all".to_owned(),
            (_, never) if never == cell.spikes => "none".to_owned(),
            (0, 0) => "some".to_owned(),
            (always, never) => format!("{always}-{}", cell.spikes - never),
        };
        let style = ("sans-serif", 10).into_font().color(&BLACK);
        let centre = style.pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Center,
            plotters::style::text_anchor::VPos::Center,
        ));
        for (text, height) in [(format!("{}/{}", cell.held, cell.spikes), 0.68), (says, 0.28)] {
            chart.draw_series([Text::new(text, (left + 0.5, low + height), centre.clone())])?;
        }
    }
    Ok(())
}
