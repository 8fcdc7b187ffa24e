//! What the parts of a picture look like on a terminal: a character, a word and a colour each.
//!
//! Text always carries its colours; whoever prints it strips them where they are not wanted. The characters alone say the same.

use anstyle::{AnsiColor, Style};

use crate::{
    run::picture::{Doing, Shares},
    time::DurationNs,
};

/// A kind of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// On a CPU.
    OnCpu,
    /// Held, the own cgroup out of quota.
    Own,
    /// Held, only ancestors out of quota.
    Ancestor,
    /// Waiting for a CPU.
    Waiting,
    /// Asleep.
    Asleep,
    /// Not known.
    Unknown,
}

impl Kind {
    /// All, in the order in which shares are shown.
    pub(super) const ALL: [Self; 6] =
        [Self::OnCpu, Self::Own, Self::Ancestor, Self::Waiting, Self::Asleep, Self::Unknown];

    /// Of a stretch.
    pub(super) fn of(doing: Doing) -> Self {
        match doing {
            Doing::OnCpu { .. } => Self::OnCpu,
            Doing::Throttled { own: true, .. } => Self::Own,
            Doing::Throttled { own: false, .. } => Self::Ancestor,
            Doing::Waiting { .. } => Self::Waiting,
            Doing::Blocked => Self::Asleep,
            Doing::Unknown => Self::Unknown,
        }
    }

    /// Its part of some shares.
    pub(super) fn share(self, shares: &Shares) -> DurationNs {
        match self {
            Self::OnCpu => shares.on_cpu_ns,
            Self::Own => shares.throttled_own_ns,
            Self::Ancestor => shares.throttled_ancestor_ns,
            Self::Waiting => shares.runqueue_ns,
            Self::Asleep => shares.blocked_ns,
            Self::Unknown => shares.unknown_ns,
        }
    }

    /// The name of its share where it is written down, in ms.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::OnCpu => "on_cpu_ms",
            Self::Own => "throttled_own_ms",
            Self::Ancestor => "throttled_ancestor_ms",
            Self::Waiting => "runqueue_ms",
            Self::Asleep => "blocked_ms",
            Self::Unknown => "unknown_ms",
        }
    }

    /// The character it is drawn with.
    pub(super) fn mark(self) -> char {
        match self {
            Self::OnCpu => '#',
            Self::Own => 'x',
            Self::Ancestor => '^',
            Self::Waiting => 'w',
            Self::Asleep => '.',
            Self::Unknown => '?',
        }
    }

    /// Its name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::OnCpu => "on CPU",
            Self::Own => "throttled: own limit",
            Self::Ancestor => "throttled: ancestor only",
            Self::Waiting => "waiting for a CPU",
            Self::Asleep => "asleep",
            Self::Unknown => "unknown",
        }
    }

    fn style(self) -> Style {
        let colour = |colour: AnsiColor| colour.on_default();
        match self {
            Self::OnCpu => colour(AnsiColor::Green),
            Self::Own => colour(AnsiColor::Red),
            Self::Ancestor => colour(AnsiColor::Yellow),
            Self::Waiting => colour(AnsiColor::Cyan),
            Self::Asleep => Style::new().dimmed(),
            Self::Unknown => Style::new().invert(),
        }
    }

    /// Text in its colour; nothing, codes included, of empty text.
    pub(super) fn paint(self, text: &str) -> String {
        painted(self.style(), text)
    }
}

/// A heading.
pub(super) fn head(text: &str) -> String {
    painted(Style::new().bold(), text)
}

/// What is there for completeness.
pub(super) fn dim(text: &str) -> String {
    painted(Style::new().dimmed(), text)
}

fn painted(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}
