//! The timeline on a whole terminal: frames of a test backend, and a real terminal of tmux.

use std::path::Path;

use ratatui::{Terminal, backend::TestBackend};
use throttle_user::{
    report::tui::{Action, App, draw},
    run::{RunDir, picture::LimitPicture},
};

use crate::made::{plan, run_of, whole};

fn pictures(run: &Path) -> Vec<LimitPicture> {
    let (dir, head) = RunDir::open(run).expect("a run");
    let limits = dir.read_record(&head).expect("a record").into_iter();
    limits
        .map(|raw| {
            let (raw, events) = dir.with_events(raw).expect("events");
            LimitPicture::draw(&head, &raw, events)
        })
        .collect()
}

fn app() -> App {
    let (_dir, run) = run_of(plan(), &whole());
    App::new(pictures(&run), 0).expect("a limit")
}

/// What is on a terminal of this size.
fn frame(app: &mut App, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(app, frame)).expect("drawn");
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(usize::from(width));
    lines
        .map(|cells| cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned() + "\n")
        .collect()
}

fn after(actions: &[Action]) -> String {
    let mut app = app();
    frame(&mut app, (100, 24));
    actions.iter().for_each(|&action| app.act(action));
    frame(&mut app, (100, 24))
}

#[test]
fn the_whole_limit_a_request_and_the_list_look_as_committed() {
    insta::assert_snapshot!("tui_whole", after(&[]));
    insta::assert_snapshot!("tui_request", after(&[Action::NextSlow, Action::Down, Action::Right]));
    insta::assert_snapshot!("tui_list", after(&[Action::List, Action::Down]));
    insta::assert_snapshot!("tui_keys", after(&[Action::Help]));
}

#[test]
fn every_size_can_be_drawn_on_and_what_is_too_small_says_so() {
    let mut app = app();
    for size in [(1, 1), (39, 40), (40, 11)] {
        let text = frame(&mut app, size);
        assert!(size.0 < 20 || text.contains("too"), "{size:?}: {text}");
    }
    for size in [(40, 12), (80, 24), (81, 25), (240, 60), (1_000, 13)] {
        for action in [Action::ZoomIn, Action::Right, Action::Down, Action::NextThrottle, Action::Help, Action::List] {
            app.act(action);
            let text = frame(&mut app, size);
            assert!(text.contains("limit  100m") || text.contains(" keys "), "{size:?}: {text}");
        }
        app.act(Action::Whole);
    }
}

#[test]
fn zooming_in_and_out_comes_back_and_moving_stays_inside() {
    let mut app = app();
    let whole = frame(&mut app, (100, 24));
    for _ in 0..60 {
        app.act(Action::ZoomIn);
    }
    let near = frame(&mut app, (100, 24));
    assert_ne!(near, whole);
    for _ in 0..80 {
        app.act(Action::ZoomOut);
    }
    assert_eq!(frame(&mut app, (100, 24)), whole);
    app.act(Action::ZoomIn);
    for action in [Action::PageRight, Action::PageLeft, Action::Right, Action::Left] {
        for _ in 0..300 {
            app.act(action);
        }
        assert!(frame(&mut app, (100, 24)).contains("50 % of it"), "{action:?}");
    }
}

#[test]
fn the_details_name_what_is_under_the_cursor_as_the_report_has_it() {
    let text = after(&[Action::NextThrottle]);
    // The first throttle of the recording is the container's or the pod's; the period it is in says so.
    assert!(text.contains("out after"), "{text}");
    let slow = after(&[Action::NextSlow]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(slow.contains("request ") && slow.contains("throttled: own limit"), "{slow}");
    assert!(slow.contains("cause: throttled: for ") && slow.contains("enough: "), "{slow}");
}

#[test]
fn limits_turn_around_and_each_begins_whole() {
    let (_dir, run) = run_of(plan(), &whole());
    let twice = [pictures(&run), pictures(&run)].concat();
    let mut app = App::new(twice, 0).expect("limits");
    let first = frame(&mut app, (100, 24));
    app.act(Action::ZoomIn);
    app.act(Action::NextLimit);
    app.act(Action::NextLimit);
    assert_eq!(frame(&mut app, (100, 24)), first);
    app.act(Action::PreviousLimit);
    app.act(Action::PreviousLimit);
    assert_eq!(frame(&mut app, (100, 24)), first);
    assert!(App::new(vec![], 0).is_none());
}
