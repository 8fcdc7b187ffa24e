//! The lanes of a limit as every drawing has them: requests, levels, threads, CPUs, each a course of stretches.

use super::{command::level_name, paint::Kind};
use crate::{
    run::picture::{CpuDoing, LimitPicture, Span},
    time::MonoNs,
};

/// What is seen of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A kind of a thread's time; a CPU that runs a thread is on CPU.
    Time(Kind),
    /// Work of somebody else.
    Other,
}

/// What a strip is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Requests of a stream.
    Requests(u32),
    /// A level, by its place: when it was out of quota.
    Level(usize),
    /// A thread.
    Thread(u32),
    /// A CPU.
    Cpu(u32),
}

/// One lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) name: String,
    pub(super) of: Of,
    /// In order, without overlaps. Between them is nothing: no request, quota left, an idle CPU.
    pub(super) course: Vec<(Span, Seen)>,
}

impl Strip {
    /// Stretches that meet a window.
    pub(super) fn within(&self, window: Span) -> &[(Span, Seen)] {
        let first = self.course.partition_point(|(span, _)| span.end <= window.start);
        let last = self.course.partition_point(|(span, _)| span.start < window.end).max(first);
        &self.course[first..last]
    }

    /// The stretch at an instant.
    pub(super) fn at(&self, at: MonoNs) -> Option<(Span, Seen)> {
        let place = self.course.partition_point(|(span, _)| span.end <= at);
        self.course.get(place).copied().filter(|(span, _)| span.contains(at))
    }
}

/// All strips, in the order in which they are drawn.
pub(super) fn of(picture: &LimitPicture) -> Vec<Strip> {
    let mut strips = Vec::new();
    let mut streams: Vec<u32> = picture.requests.iter().map(|request| request.line.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    let several = streams.len() > 1;
    for stream in streams {
        let requests = picture.requests.iter().filter(|request| request.line.stream == stream);
        let mut course: Vec<(Span, Seen)> = requests
            .flat_map(|request| &request.course)
            .map(|stretch| (stretch.span, Seen::Time(Kind::of(stretch.doing))))
            .collect();
        course.sort_by_key(|(span, _)| span.start);
        let name = if several { format!("requests {stream}") } else { "requests".to_owned() };
        strips.push(Strip { name, of: Of::Requests(stream), course });
    }
    for (place, level) in picture.levels.iter().enumerate() {
        let kind = if place == 0 { Kind::Own } else { Kind::Ancestor };
        strips.push(Strip {
            name: format!("{} out", level_name(level.name)),
            of: Of::Level(place),
            course: level.out_anywhere().into_iter().map(|span| (span, Seen::Time(kind))).collect(),
        });
    }
    strips.extend(picture.threads.iter().map(|lane| Strip {
        name: format!("thread {}", lane.tid),
        of: Of::Thread(lane.tid),
        course: lane.course.iter().map(|stretch| (stretch.span, Seen::Time(Kind::of(stretch.doing)))).collect(),
    }));
    strips.extend(picture.cpu_lanes.iter().map(|lane| Strip {
        name: format!("CPU {}", lane.cpu),
        of: Of::Cpu(lane.cpu),
        course: lane.course.iter().filter_map(|&(span, doing)| Some((span, seen(doing)?))).collect(),
    }));
    strips
}

fn seen(doing: CpuDoing) -> Option<Seen> {
    match doing {
        CpuDoing::Thread { .. } => Some(Seen::Time(Kind::OnCpu)),
        CpuDoing::Other => Some(Seen::Other),
        CpuDoing::Unknown => Some(Seen::Time(Kind::Unknown)),
        CpuDoing::Idle => None,
    }
}
