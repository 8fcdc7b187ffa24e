//! Draws what is looked at into a frame of any size.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span as Piece},
    widgets::{Block, Borders, Clear, Paragraph, Wrap},
};

use super::{App, details, whole};
use crate::{
    report::{columns, command::ms, paint::Kind, strips::Seen, verdict::percent},
    run::picture::Span,
    time::{DurationNs, MonoNs},
};

/// Columns of the lanes' names.
const NAMES: u16 = 15;
/// Nothing smaller shows a lane and its details.
const LEAST: (u16, u16) = (40, 12);
/// Lines of the details, with their border.
const DETAILS: u16 = 8;

/// Draws the whole frame. It notes how many columns there are, which the cursor's steps depend on.
pub fn draw(app: &mut App, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let words = format!("{} by {} is too small: {} by {} are needed", area.width, area.height, LEAST.0, LEAST.1);
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), area);
        return;
    }
    let [title, lanes, axis, details, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(1),
        Constraint::Length(DETAILS.min(area.height / 3).max(4)),
        Constraint::Length(1),
    ])
    .areas(area);
    app.columns = usize::from(area.width - NAMES);
    frame.render_widget(Paragraph::new(titles(app)), title);
    draw_lanes(app, frame, lanes);
    frame.render_widget(Paragraph::new(ruler(app)), axis);
    let block = Block::new().borders(Borders::TOP);
    match app.list {
        Some(place) => {
            frame.render_widget(Paragraph::new(requests(app, place, details.height - 1)).block(block), details)
        }
        None => {
            let lines: Vec<Line<'_>> = details::lines(app).into_iter().map(Line::from).collect();
            frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(block), details);
        }
    }
    let words = "? keys  Tab limit  +- zoom  n/p throttle  s slow  r requests  q quit";
    frame.render_widget(Paragraph::new(Line::from(words).style(Style::new().add_modifier(Modifier::DIM))), keys);
    if app.help {
        help(frame, area);
    }
}

fn titles(app: &App) -> Vec<Line<'static>> {
    let tabs = app.limits.iter().enumerate().flat_map(|(place, limit)| {
        let style = if place == app.limit { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Piece::styled(format!(" {} ", limit.limit), style), Piece::raw(" ")]
    });
    let picture = app.picture();
    let begin = picture.window.start;
    let part = percent(app.window.length(), whole(picture).length());
    let mut second = format!(
        "{} to {} ms, {part} of it; {} requests",
        ms(app.window.start.since(begin)),
        ms(app.window.end.since(begin)),
        picture.requests.len()
    );
    if picture.seen.is_none() {
        second.push_str("; there are no events of it");
    } else if picture.cut_off.is_some() {
        second.push_str("; the file of events is cut off");
    } else if !picture.gaps.is_empty() {
        second.push_str("; records were lost");
    }
    vec![Line::from_iter([Piece::raw("limit ")].into_iter().chain(tabs)), Line::from(second)]
}

fn draw_lanes(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let shown = usize::from(area.height);
    app.scroll = app.scroll.min(app.row).max((app.row + 1).saturating_sub(shown));
    let lines: Vec<Line<'_>> = (app.scroll..app.rows()).take(shown).map(|row| lane(app, row)).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// A lane: its name, then a character a column.
fn lane(app: &App, row: usize) -> Line<'static> {
    let (name, cells) = match row.checked_sub(1).and_then(|row| app.strips.get(row)) {
        Some(strip) => {
            let seen = columns::most(strip.within(app.window).iter().copied(), app.window, app.columns);
            (strip.name.clone(), seen.into_iter().map(cell).collect::<Vec<_>>())
        }
        None => ("quota used".to_owned(), quota(app)),
    };
    let width = usize::from(NAMES) - 1;
    let name = format!("{name:<width$.width$} ");
    let name_style = if row == app.row { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
    let cursor = cursor_column(app);
    let mut pieces = vec![Piece::styled(name, name_style)];
    let marked = cells.into_iter().enumerate().map(|(column, (mark, style))| {
        (mark, if Some(column) == cursor { style.add_modifier(Modifier::REVERSED) } else { style })
    });
    let marked: Vec<(char, Style)> = marked.collect();
    pieces.extend(
        marked
            .chunk_by(|one, other| one.1 == other.1)
            .map(|run| Piece::styled(run.iter().map(|(mark, _)| mark).collect::<String>(), run[0].1)),
    );
    Line::from(pieces)
}

fn cell(seen: Option<Seen>) -> (char, Style) {
    match seen {
        None => (' ', Style::new()),
        Some(Seen::Other) => ('-', Style::new().add_modifier(Modifier::DIM)),
        Some(Seen::Time(kind)) => (kind.mark(), style(kind)),
    }
}

fn style(kind: Kind) -> Style {
    match kind {
        Kind::OnCpu => Style::new().fg(Color::Green),
        Kind::Own => Style::new().fg(Color::Red),
        Kind::Ancestor => Style::new().fg(Color::Yellow),
        Kind::Waiting => Style::new().fg(Color::Cyan),
        Kind::Asleep => Style::new().add_modifier(Modifier::DIM),
        Kind::Unknown => Style::new().fg(Color::Magenta),
    }
}

/// Mean use of the container's quota in each column: a digit for its tenths, `X` where it or another level was out in most.
fn quota(app: &App) -> Vec<(char, Style)> {
    let periods = app.picture().leaf().map_or(&[][..], |leaf| &leaf.periods);
    let column = |column: usize| {
        let edge = |column| columns::edge(app.window, column, app.columns);
        let part = Span::new(edge(column), edge(column + 1));
        let first = periods.partition_point(|period| period.period.end_ns <= part.start);
        let inside = || periods[first..].iter().take_while(|period| period.period.start_ns < part.end);
        let count = inside().count();
        if count == 0 {
            return (' ', Style::new());
        }
        let out = inside().filter(|period| !period.out.is_empty()).count();
        if out * 2 >= count {
            return ('X', style(Kind::Own));
        }
        let used: DurationNs = inside().filter_map(|period| period.period.used_ns).sum();
        let quota: DurationNs = inside().filter_map(|period| period.period.quota_ns).sum();
        let tenths = (used.0 * 10).checked_div(quota.0).unwrap_or(0).min(9);
        (char::from_digit(u32::try_from(tenths).unwrap_or(9), 10).unwrap_or('9'), style(Kind::OnCpu))
    };
    (0..app.columns).map(column).collect()
}

fn cursor_column(app: &App) -> Option<usize> {
    if !app.window.contains(app.cursor) {
        return None;
    }
    let into = u128::from(app.cursor.since(app.window.start).0) * app.columns as u128;
    usize::try_from(into / u128::from(app.window.length().0.max(1))).ok()
}

/// Times under the lanes, as many as fit, and a mark at the cursor.
fn ruler(app: &App) -> Line<'static> {
    let begin = app.picture().window.start;
    let mut text = vec![' '; app.columns];
    let step = 16;
    for column in (0..app.columns.saturating_sub(step / 2)).step_by(step) {
        let at: MonoNs = columns::edge(app.window, column, app.columns);
        let label = format!("|{}", ms(at.since(begin)));
        for (place, mark) in label.chars().enumerate().filter(|(place, _)| column + place < app.columns) {
            text[column + place] = mark;
        }
    }
    if let Some(mark) = cursor_column(app).and_then(|column| text.get_mut(column)) {
        *mark = '^';
    }
    let name = format!("{:<width$}", "ms", width = usize::from(NAMES));
    Line::from(name + &text.into_iter().collect::<String>())
}

/// The list of requests, the chosen one in view.
fn requests(app: &App, chosen: usize, height: u16) -> Vec<Line<'static>> {
    let shown = usize::from(height.saturating_sub(1)).max(1);
    let first = (chosen + 1).saturating_sub(shown);
    let head = Line::from("    #       at ms   wall ms  throttled  (up, down, Enter)")
        .style(Style::new().add_modifier(Modifier::DIM));
    let begin = app.picture().window.start;
    let rows = app.by_wall().into_iter().enumerate().skip(first).take(shown).map(|(place, request)| {
        let share = &request.line.share;
        let throttled = match app.picture().seen {
            Some(_) => percent(share.shares.throttled(), share.wall_ns),
            None => "?".to_owned(),
        };
        let text = format!(
            "{:>5} {:>11} {:>9} {throttled:>10}",
            request.line.request,
            ms(request.line.started_ns.since(begin)),
            ms(share.wall_ns)
        );
        let style = if place == chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        Line::from(text).style(style)
    });
    std::iter::once(head).chain(rows).collect()
}

const KEYS: [(&str, &str); 13] = [
    ("left, right", "move the cursor"),
    ("PgUp, PgDn", "half a window earlier, later"),
    ("up, down", "choose a lane, or a request of the list"),
    ("+, -", "zoom in, out, about the cursor"),
    ("0", "all of the limit"),
    ("n, p", "next throttle, throttle before"),
    ("s", "next slow request"),
    ("Tab", "next limit"),
    ("r, Enter", "list of requests; go to the chosen one"),
    ("q", "quit"),
    ("# x ^", "on CPU; held by own limit; by an ancestor's alone"),
    ("w . ? -", "waiting for a CPU; asleep; unknown; other work"),
    ("0-9 X", "tenths of the quota used; a quota was out"),
];

fn help(frame: &mut Frame<'_>, area: Rect) {
    let width = area.width.min(68);
    let height = area.height.min(u16::try_from(KEYS.len()).unwrap_or(0) + 2);
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let lines: Vec<Line<'_>> = KEYS.iter().map(|(keys, words)| Line::from(format!(" {keys:<12} {words}"))).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), place);
}
