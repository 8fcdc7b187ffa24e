//! What a thread did, stretch by stretch: the same as its shares, in the order of time.

use super::Attribution;
use crate::{
    event::{CgroupId, Levels},
    time::{DurationNs, MonoNs},
    timeline::{
        interval::{Span, Spans},
        thread::{Segment, State},
    },
};

/// What a thread did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// On a CPU.
    OnCpu {
        /// The CPU.
        cpu: u32,
    },
    /// Held by a limit.
    Throttled {
        /// CPU whose queue it is on.
        cpu: u32,
        /// Whether the thread's own cgroup was out of quota there.
        own: bool,
        /// Which levels of the path that was asked about were, bit 0 the leaf. None where the level's mark was not seen.
        levels: Levels,
    },
    /// Runnable and not held.
    Waiting {
        /// CPU whose queue it is on.
        cpu: u32,
    },
    /// Asleep.
    Blocked,
    /// Not known.
    Unknown,
}

/// A stretch of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When.
    pub span: Span,
    /// What.
    pub doing: Doing,
    /// Of a stretch on a CPU, time that the scheduler charged to nobody; it counts as waiting.
    pub uncharged: DurationNs,
}

impl Attribution<'_> {
    /// A thread's course over a window: adjoining stretches, none empty, that make up the window, with `Unknown` where nothing is
    /// known of the thread.
    #[must_use]
    pub fn course(&self, thread: u32, window: Span) -> Vec<Stretch> {
        let mut course = Vec::new();
        let mut reached = window.start;
        let unknown =
            |from, to| Stretch { span: Span::new(from, to), doing: Doing::Unknown, uncharged: DurationNs::ZERO };
        for (path, segment) in self.segments(thread, window) {
            if segment.span.start > reached {
                course.push(unknown(reached, segment.span.start));
            }
            reached = segment.span.end;
            match segment.state {
                State::Throttled { cpu } => course.extend(self.held(path, cpu, segment.span)),
                _ => course.push(plain(segment)),
            }
        }
        if window.end > reached {
            course.push(unknown(reached, window.end));
        }
        course
    }

    /// A stretch held by a limit on a CPU, cut wherever a level ran out or was refilled.
    fn held(&self, path: &[CgroupId], cpu: u32, span: Span) -> Vec<Stretch> {
        let marked = |level: &CgroupId| self.marked(std::slice::from_ref(level), cpu, span);
        let own = path.first().map(marked).unwrap_or_default();
        let levels: Vec<_> = self.path.iter().take(16).map(marked).collect();
        let edges = |spans: &Spans| -> Vec<MonoNs> { spans.iter().flat_map(|span| [span.start, span.end]).collect() };
        let mut cuts: Vec<MonoNs> = levels.iter().chain([&own]).flat_map(edges).chain([span.start, span.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let piece = |ends: &[MonoNs]| {
            let span = Span::new(ends[0], ends[1]);
            let out = |spans: &Spans| spans.within(span).next().is_some();
            let bits =
                levels.iter().enumerate().filter(|(_, spans)| out(spans)).fold(0, |bits, (at, _)| bits | 1 << at);
            Stretch {
                span,
                doing: Doing::Throttled { cpu, own: out(&own), levels: Levels(bits) },
                uncharged: DurationNs::ZERO,
            }
        };
        cuts.windows(2).map(piece).collect()
    }
}

fn plain(segment: Segment) -> Stretch {
    let doing = match segment.state {
        State::Running { cpu } => Doing::OnCpu { cpu },
        State::Waiting { cpu } => Doing::Waiting { cpu },
        State::Throttled { cpu } => Doing::Throttled { cpu, own: false, levels: Levels::NONE },
        State::Blocked => Doing::Blocked,
        State::Unknown => Doing::Unknown,
    };
    Stretch { span: segment.span, doing, uncharged: segment.uncharged }
}
