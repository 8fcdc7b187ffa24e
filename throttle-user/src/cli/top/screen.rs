//! The table on a terminal, drawn anew every interval.

use std::time::{Duration, Instant};

use ratatui::{
    Frame,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::Paragraph,
};

use super::watching::Watching;
use crate::{
    node::Rates,
    report::top::{FIGURES, Key, heads, line, sort},
};

/// Draws until the user leaves.
pub(super) fn run(watching: &mut Watching, key: Key, interval: Duration) -> anyhow::Result<()> {
    // Puts the terminal back, also after a panic.
    let mut terminal = ratatui::try_init()?;
    let ended = rounds(watching, key, interval, &mut terminal);
    ratatui::restore();
    ended
}

fn rounds(
    watching: &mut Watching,
    mut key: Key,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> anyhow::Result<()> {
    let mut rows = vec![];
    let mut stopped = false;
    // The first figures are there when the first periods are.
    let mut next = Instant::now() + Duration::from_millis(500);
    loop {
        sort(&mut rows, key);
        terminal.draw(|frame| draw(frame, &rows, key, stopped))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(pressed) if pressed.kind != KeyEventKind::Release => match pressed.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if pressed.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char(' ') => stopped = !stopped,
                    code => key = chosen(code).unwrap_or(key),
                },
                // Anything else, a resize among it: drawn again.
                _ => {}
            }
        }
        if Instant::now() >= next {
            next = Instant::now() + interval;
            if !stopped {
                rows = watching.rates()?;
            }
        }
    }
}

fn chosen(code: KeyCode) -> Option<Key> {
    match code {
        KeyCode::Char('o') => Some(Key::Out),
        KeyCode::Char('p') => Some(Key::Exhausted),
        KeyCode::Char('u') => Some(Key::Used),
        KeyCode::Char('a') => Some(Key::After),
        KeyCode::Char('t') => Some(Key::Parallel),
        KeyCode::Char('d') => Some(Key::Denied),
        KeyCode::Char('n') => Some(Key::Name),
        _ => None,
    }
}

fn draw(frame: &mut Frame<'_>, rows: &[Rates], key: Key, stopped: bool) {
    let area = frame.area();
    let [title, heading, table] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(2), Constraint::Min(0)]).areas(area);
    let out = rows.iter().filter(|row| row.any_ms_per_s() > 0.0).count();
    let words = format!(
        "{out} of {} cgroups ran out; by {}{}   keys: q o p u a t d n space",
        rows.len(),
        key.word(),
        if stopped { "; stopped" } else { "" }
    );
    frame.render_widget(Paragraph::new(words), title);
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(heads().map(Line::from).to_vec()).style(dim), heading);
    let width = usize::from(area.width).saturating_sub(FIGURES);
    let lines: Vec<Line<'_>> = rows
        .iter()
        .take(usize::from(table.height))
        .map(|row| {
            let style = if row.any_ms_per_s() > 0.0 { Style::new().fg(Color::Red) } else { Style::new() };
            Line::from(line(row, Some(width))).style(style)
        })
        .collect();
    let empty = vec![Line::from("no cgroup with a CPU limit was seen yet")];
    frame.render_widget(Paragraph::new(if lines.is_empty() { empty } else { lines }), table);
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        for (width, height) in [(1, 1), (20, 3), (80, 24), (300, 2)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
            terminal.draw(|frame| draw(frame, &[], Key::Name, true)).expect("drawn");
        }
    }
}
