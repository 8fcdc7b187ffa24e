//! The timeline on a whole terminal: keys in, frames out.

use std::io::{self, IsTerminal as _};

use anyhow::anyhow;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::exit::{Exit, Failure, OrExit, Verdict};
use crate::{
    report::tui::{Action, App, draw},
    run::picture::LimitPicture,
};

/// Shows the pictures until the user leaves. `limit`: the place of the one to begin with; `request`: the request to go to.
pub(super) fn run(pictures: Vec<LimitPicture>, limit: usize, request: Option<u64>) -> Verdict {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let error = anyhow!("--tui needs a terminal; without it the same is printed as text");
        return Err(Failure::Told { exit: Exit::BadInput, error });
    }
    let Some(mut app) = App::new(pictures, limit) else {
        let error = anyhow!("nothing was measured: the run ended before its first limit began");
        return Err(Failure::Told { exit: Exit::BadInput, error });
    };
    request.into_iter().for_each(|number| app.show(number));
    // Puts the terminal back, also after a panic.
    let mut terminal = ratatui::try_init().or_exit(Exit::CannotRun)?;
    let ended = watch(&mut terminal, &mut app);
    ratatui::restore();
    ended.or_exit(Exit::BrokeOff)?;
    Ok(Exit::Done)
}

fn watch(terminal: &mut ratatui::DefaultTerminal, app: &mut App) -> io::Result<()> {
    loop {
        terminal.draw(|frame| draw(app, frame))?;
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match asked(key) {
                Asked::Quit => return Ok(()),
                Asked::Act(action) => app.act(action),
                Asked::Nothing => {}
            },
            // Anything else, a resize among it: drawn again.
            _ => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Quit,
    Act(Action),
    Nothing,
}

fn asked(key: KeyEvent) -> Asked {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if key.code == KeyCode::Char('c') { Asked::Quit } else { Asked::Nothing };
    }
    let action = match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Asked::Quit,
        KeyCode::Left | KeyCode::Char('h') => Action::Left,
        KeyCode::Right | KeyCode::Char('l') => Action::Right,
        KeyCode::PageUp => Action::PageLeft,
        KeyCode::PageDown => Action::PageRight,
        KeyCode::Up | KeyCode::Char('k') => Action::Up,
        KeyCode::Down | KeyCode::Char('j') => Action::Down,
        KeyCode::Char('+' | '=') => Action::ZoomIn,
        KeyCode::Char('-') => Action::ZoomOut,
        KeyCode::Char('0') | KeyCode::Home => Action::Whole,
        KeyCode::Char('n') => Action::NextThrottle,
        KeyCode::Char('p') => Action::PreviousThrottle,
        KeyCode::Char('s') => Action::NextSlow,
        KeyCode::Tab => Action::NextLimit,
        KeyCode::BackTab => Action::PreviousLimit,
        KeyCode::Char('r') => Action::List,
        KeyCode::Enter => Action::Choose,
        KeyCode::Char('?') => Action::Help,
        _ => return Asked::Nothing,
    };
    Asked::Act(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_q_and_escape_leave_and_unknown_keys_do_nothing() {
        let key = |code, modifiers| asked(KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Asked::Quit);
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Asked::Quit);
        assert_eq!(key(KeyCode::Esc, KeyModifiers::NONE), Asked::Quit);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Asked::Nothing);
        assert_eq!(key(KeyCode::Char('n'), KeyModifiers::NONE), Asked::Act(Action::NextThrottle));
    }
}
