//! The timeline on a whole terminal: what is looked at, and how it moves. Pure: takes actions and draws into a buffer; the
//! terminal is the verb's.

mod details;
mod draw;

use super::strips::{self, Of, Strip};
use crate::{
    run::picture::{LimitPicture, RequestPicture, Span},
    time::{DurationNs, MonoNs},
};

pub use draw::draw;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The cursor a column to the left.
    Left,
    /// The cursor a column to the right.
    Right,
    /// Half a window earlier.
    PageLeft,
    /// Half a window later.
    PageRight,
    /// The lane above, or the request above in the list.
    Up,
    /// The lane below, or the request below in the list.
    Down,
    /// Twice as near.
    ZoomIn,
    /// Twice as far.
    ZoomOut,
    /// Everything.
    Whole,
    /// To the next throttle of any level.
    NextThrottle,
    /// To the throttle before.
    PreviousThrottle,
    /// To the next request at or above the limit's 90th percentile.
    NextSlow,
    /// The next limit.
    NextLimit,
    /// The limit before.
    PreviousLimit,
    /// Shows the list of requests, slowest first, or hides it.
    List,
    /// To the request chosen in the list.
    Choose,
    /// Shows the keys, or hides them.
    Help,
}

/// Everything that is looked at.
#[derive(Debug)]
pub struct App {
    limits: Vec<LimitPicture>,
    limit: usize,
    strips: Vec<Strip>,
    window: Span,
    cursor: MonoNs,
    /// The lane that the details are of; 0 is the quota's.
    row: usize,
    /// First lane drawn, where there are more than fit.
    scroll: usize,
    /// Columns of the lanes when last drawn.
    columns: usize,
    list: Option<usize>,
    help: bool,
}

/// Nothing shorter fills the window.
const LEAST: DurationNs = DurationNs::from_micros(50);

impl App {
    /// Looks at the limit at place `limit`, whole. `None` without a limit.
    #[must_use]
    pub fn new(limits: Vec<LimitPicture>, limit: usize) -> Option<Self> {
        let picture = limits.get(limit)?;
        let (window, strips) = (whole(picture), strips::of(picture));
        Some(Self {
            limits,
            limit,
            strips,
            window,
            cursor: window.start,
            row: 0,
            scroll: 0,
            columns: 80,
            list: None,
            help: false,
        })
    }

    fn picture(&self) -> &LimitPicture {
        &self.limits[self.limit]
    }

    /// Lanes: the quota's use first.
    fn rows(&self) -> usize {
        self.strips.len() + 1
    }

    /// Does what a key asks for.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Left => self.step(false),
            Action::Right => self.step(true),
            Action::PageLeft => self.page(false),
            Action::PageRight => self.page(true),
            Action::Up => match &mut self.list {
                Some(place) => *place = place.saturating_sub(1),
                None => self.row = self.row.saturating_sub(1),
            },
            Action::Down => match &mut self.list {
                Some(place) => *place = (*place + 1).min(self.limits[self.limit].requests.len().saturating_sub(1)),
                None => self.row = (self.row + 1).min(self.rows() - 1),
            },
            Action::ZoomIn => self.zoom(1, 2),
            Action::ZoomOut => self.zoom(2, 1),
            Action::Whole => self.window = whole(self.picture()),
            Action::NextThrottle => self.throttle(true),
            Action::PreviousThrottle => self.throttle(false),
            Action::NextSlow => self.slow(),
            Action::NextLimit => self.turn(self.limit + 1),
            Action::PreviousLimit => self.turn(self.limit + self.limits.len() - 1),
            Action::List => {
                self.list = if self.list.is_some() || self.picture().requests.is_empty() { None } else { Some(0) };
            }
            Action::Choose => {
                if let Some(number) = self.list.and_then(|place| Some(self.by_wall().get(place)?.line.request)) {
                    self.show(number);
                }
            }
            Action::Help => self.help = !self.help,
        }
    }

    /// Shows a request of the limit.
    pub fn show(&mut self, number: u64) {
        let Some(request) = self.picture().request(number) else { return };
        let (start, end, stream) = (request.line.started_ns, request.line.finished_ns, request.line.stream);
        let margin = end.since(start).0 / 8;
        self.row = self.strips.iter().position(|strip| strip.of == Of::Requests(stream)).map_or(0, |place| place + 1);
        self.look(start.0.saturating_sub(margin), end.0.saturating_sub(start.0) + 2 * margin);
        self.cursor = start;
    }

    /// Requests of the limit, the longest first.
    fn by_wall(&self) -> Vec<&RequestPicture> {
        let mut requests: Vec<&RequestPicture> = self.picture().requests.iter().collect();
        requests.sort_by_key(|request| (std::cmp::Reverse(request.line.share.wall_ns), request.line.request));
        requests
    }

    /// Looks at a stretch, kept inside of what there is.
    fn look(&mut self, start: u64, length: u64) {
        let all = whole(self.picture());
        let length = length.clamp(LEAST.0.min(all.length().0), all.length().0);
        let start = start.clamp(all.start.0, all.end.0 - length);
        self.window = Span::new(MonoNs(start), MonoNs(start + length));
    }

    fn column(&self) -> DurationNs {
        DurationNs((self.window.length().0 / self.columns.max(1) as u64).max(1))
    }

    /// Moves the cursor by a column, and the window with it at its border.
    fn step(&mut self, forward: bool) {
        let (all, column) = (whole(self.picture()), self.column());
        let last = MonoNs(all.end.0.saturating_sub(1)).max(all.start);
        let moved = if forward { self.cursor + column } else { MonoNs(self.cursor.0.saturating_sub(column.0)) };
        self.cursor = moved.clamp(all.start, last);
        if !self.window.contains(self.cursor) {
            let start =
                if forward { self.window.start.0 + column.0 } else { self.window.start.0.saturating_sub(column.0) };
            self.look(start, self.window.length().0);
        }
    }

    fn page(&mut self, forward: bool) {
        let half = self.window.length().0 / 2;
        let start = if forward { self.window.start.0 + half } else { self.window.start.0.saturating_sub(half) };
        self.look(start, self.window.length().0);
        self.cursor = MonoNs(self.window.start.0.midpoint(self.window.end.0));
    }

    /// Zooms about the cursor, which stays in its column.
    fn zoom(&mut self, times: u64, over: u64) {
        let Span { start, .. } = self.window;
        let at = if self.window.contains(self.cursor) { self.cursor } else { start };
        let before = at.since(start).0 / over * times;
        self.look(at.0.saturating_sub(before), self.window.length().0 / over * times);
    }

    /// To where a level ran out next, or before.
    fn throttle(&mut self, forward: bool) {
        let starts = self.picture().levels.iter().flat_map(|level| level.out.iter().map(|out| out.span.start));
        let next = if forward {
            starts.filter(|start| *start > self.cursor).min()
        } else {
            starts.filter(|start| *start < self.cursor).max()
        };
        if let Some(start) = next {
            self.cursor = start;
            self.follow();
        }
    }

    /// Brings the cursor into view.
    fn follow(&mut self) {
        if !self.window.contains(self.cursor) {
            let length = self.window.length().0;
            self.look(self.cursor.0.saturating_sub(length / 2), length);
        }
    }

    fn slow(&mut self) {
        let by_wall = self.by_wall();
        // At or above the 90th percentile, by nearest rank: a tenth of them, at least one.
        let slow = &by_wall[..by_wall.len().div_ceil(10)];
        let after = |request: &&&RequestPicture| request.line.started_ns > self.cursor;
        let start = |request: &&&RequestPicture| request.line.started_ns;
        let next = slow.iter().filter(after).min_by_key(start).or_else(|| slow.iter().min_by_key(start));
        if let Some(number) = next.map(|request| request.line.request) {
            self.show(number);
        }
    }

    fn turn(&mut self, limit: usize) {
        self.limit = limit % self.limits.len();
        self.strips = strips::of(self.picture());
        self.window = whole(self.picture());
        (self.cursor, self.row, self.scroll, self.list) = (self.window.start, 0, 0, None);
    }
}

/// All of a limit; never without a length.
fn whole(picture: &LimitPicture) -> Span {
    Span::new(picture.window.start, picture.window.end.max(picture.window.start + DurationNs(1)))
}
