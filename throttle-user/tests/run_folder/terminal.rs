//! `throttle timeline --tui` on a terminal of its own: keys, a resize, and the terminal as it was before.

use std::{
    io::{Read as _, Write},
    num::NonZeroU16,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::made::{plan, run_of, whole};

const DEADLINE: Duration = Duration::from_secs(30);

/// A program on a pseudo terminal, and what is on its screen.
struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
}

fn size(cols: u16, rows: u16) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}

fn some(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("a terminal has room")
}

impl Terminal {
    fn timeline(run: &Path, args: &[&str]) -> Self {
        let pair = native_pty_system().openpty(size(100, 24)).expect("a terminal");
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_throttle"));
        command.arg("timeline");
        command.arg(run);
        command.args(args);
        command.env("TERM", "xterm-256color");
        let child = pair.slave.spawn_command(command).expect("throttle starts");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(some(24), some(100), 0)));
        let mut output = pair.master.try_clone_reader().expect("a reader");
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // The end, or the error that the other side is gone.
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..read]);
            }
        });
        let keys = pair.master.take_writer().expect("a writer");
        Self { child, master: pair.master, keys, screen }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).screen().contents()
    }

    fn is_alternate(&self) -> bool {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).screen().alternate_screen()
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < DEADLINE, "waited in vain for {what}:\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("pressed");
    }

    fn resize(&mut self, cols: u16, rows: u16) {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).screen_mut().set_size(some(rows), some(cols));
        self.master.resize(size(cols, rows)).expect("resized");
    }
}

#[test]
fn keys_move_it_a_resize_draws_it_anew_and_the_terminal_is_as_it_was() {
    let (_dir, run) = run_of(plan(), &whole());
    let mut terminal = Terminal::timeline(&run, &["--tui"]);
    terminal.until("the whole limit", |terminal| terminal.text().contains("0.0 to 2080.0 ms, 100 % of it"));
    assert!(terminal.is_alternate());
    terminal.press("s");
    terminal.until("the slow request", |terminal| terminal.text().contains("request 1: 508.1 ms"));
    terminal.press("\x1b[B\x1b[B");
    terminal.until("the lane below the next", |terminal| terminal.text().contains("pod out: "));
    terminal.resize(60, 16);
    terminal.until("the smaller frame", |terminal| {
        let lines: Vec<String> = terminal.text().lines().map(str::to_owned).collect();
        lines.len() == 16 && lines[15].starts_with("? keys")
    });
    terminal.press("?");
    terminal.until("the keys", |terminal| terminal.text().contains("next throttle, throttle before"));
    terminal.press("q");
    terminal.until("its end", |terminal| !terminal.is_alternate());
    assert_eq!(terminal.child.wait().expect("ended").exit_code(), 0);
}

#[test]
fn a_terminal_has_colours_unless_they_are_refused() {
    let (_dir, run) = run_of(plan(), &whole());
    let mut terminal = Terminal::timeline(&run, &["--slowest"]);
    assert_eq!(terminal.child.wait().expect("ended").exit_code(), 0);
    terminal.until("its last line", |terminal| terminal.text().contains("of CPU in any 100 ms"));
    let red = |terminal: &Terminal| {
        let screen = terminal.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = |row, col| screen.screen().cell(row, col).map(vt100::Cell::fgcolor);
        (0..24).any(|row| (0..100).any(|col| cell(row, col) == Some(vt100::Color::Idx(1))))
    };
    assert!(red(&terminal));
}
