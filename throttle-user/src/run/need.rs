//! What limit a group would have needed: a bracket around [`model::what_if`](crate::model::what_if), for threads that may
//! depend on each other.
//!
//! Without the limit a throttled thread would have gone on at once. What that does to the *other* threads depends on who
//! waited for whom, which is not known. So two cases are calculated: nobody waited for anybody, and everybody did. And a
//! thread that waited for a CPU might have had one at once on a machine with less to do: a third case.

use serde::{Deserialize, Serialize};

use crate::{
    model::what_if::{SmallestLimit, ThreadUse, smallest_limit},
    time::{DurationNs, MonoNs},
    timeline::{
        interval::{Span, Spans},
        thread::{State, ThreadLine},
    },
};

/// The smallest limits under which the group would not have been throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Had no thread waited for another: from each one's course only its own throttled time is cut out.
    pub apart: SmallestLimit,
    /// Had every thread waited for the others: stretches in which the whole group stood still are cut out for all, then each
    /// one's own throttled time.
    pub together: SmallestLimit,
    /// As together, and had every thread had a CPU as soon as it could run: each one's waits in the run queue are cut out too.
    pub unhindered: SmallestLimit,
}

impl Need {
    /// For threads inside a window. `stopped` are the stretches in which some were throttled and none ran. Never more than
    /// all of the machine's CPUs. `None` if nothing ran.
    #[must_use]
    pub fn of<'a>(
        threads: impl IntoIterator<Item = &'a ThreadLine>,
        window: Span,
        stopped: &Spans,
        period: DurationNs,
        cpus: u32,
    ) -> Option<Self> {
        let lines: Vec<&ThreadLine> = threads.into_iter().collect();
        let still = Cut::new(stopped.within(window));
        let apart: Vec<ThreadUse> = lines.iter().map(|line| thread_use(line, window, false)).collect();
        let moved = |thread: &ThreadUse| ThreadUse {
            on_cpu: still.moved(&thread.on_cpu),
            throttled: still.moved(&thread.throttled),
        };
        let together: Vec<ThreadUse> = apart.iter().map(moved).collect();
        let unhindered: Vec<ThreadUse> = lines.iter().map(|line| moved(&thread_use(line, window, true))).collect();
        let smallest = |threads: &[ThreadUse]| smallest_limit(threads, period).map(|found| within(found, cpus));
        Some(Self { apart: smallest(&apart)?, together: smallest(&together)?, unhindered: smallest(&unhindered)? })
    }

    /// The lowest and the highest of the three.
    #[must_use]
    pub fn range(&self) -> (SmallestLimit, SmallestLimit) {
        let Self { apart, together, unhindered } = *self;
        let others = [together, unhindered];
        others.into_iter().fold((apart, apart), |(low, high), other| {
            (if other.quota < low.quota { other } else { low }, if other.quota > high.quota { other } else { high })
        })
    }
}

/// Moved forward, more threads may run at once than there are CPUs; they could not have.
fn within(found: SmallestLimit, cpus: u32) -> SmallestLimit {
    let all = DurationNs(found.period.0 * u64::from(cpus));
    if found.quota <= all {
        return found;
    }
    SmallestLimit { quota: all, limit_millicores: u64::from(cpus) * 1_000, ..found }
}

/// When a thread ran, and when it could not: held by a limit, and with `waits` also in a run queue.
fn thread_use(line: &ThreadLine, window: Span, waits: bool) -> ThreadUse {
    let mut found = ThreadUse::default();
    for segment in line.within(window) {
        let stretch = (segment.span.start, segment.span.end);
        match segment.state {
            State::Running { .. } => found.on_cpu.push(stretch),
            State::Throttled { .. } => found.throttled.push(stretch),
            State::Waiting { .. } if waits => found.throttled.push(stretch),
            State::Waiting { .. } | State::Blocked | State::Unknown => {}
        }
    }
    found
}

/// Stretches of time taken out: what follows moves forward.
struct Cut {
    spans: Vec<Span>,
    /// Time cut out before each span.
    before: Vec<u64>,
}

impl Cut {
    fn new(spans: impl Iterator<Item = Span>) -> Self {
        let spans: Vec<Span> = spans.collect();
        let before = spans
            .iter()
            .scan(0, |sum, span| {
                let before = *sum;
                *sum += span.length().0;
                Some(before)
            })
            .collect();
        Self { spans, before }
    }

    fn at(&self, at: MonoNs) -> MonoNs {
        let next = self.spans.partition_point(|span| span.start < at);
        let Some((span, before)) =
            next.checked_sub(1).and_then(|last| Some((self.spans[last], self.before.get(last)?)))
        else {
            return at;
        };
        let inside = at.min(span.end).since(span.start).0;
        MonoNs(at.0.saturating_sub(before + inside))
    }

    fn moved(&self, stretches: &[(MonoNs, MonoNs)]) -> Vec<(MonoNs, MonoNs)> {
        stretches
            .iter()
            .map(|&(start, end)| (self.at(start), self.at(end)))
            .filter(|(start, end)| end > start)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::CgroupId, timeline::thread::Segment};

    const RUN: State = State::Running { cpu: 0 };
    const HELD: State = State::Throttled { cpu: 0 };
    const PERIOD: DurationNs = DurationNs::from_millis(100);

    fn ms(at: u64) -> MonoNs {
        MonoNs(at * 1_000_000)
    }

    fn line(parts: &[(u64, u64, State)]) -> ThreadLine {
        let segments = parts
            .iter()
            .map(|&(from, to, state)| Segment { span: Span::new(ms(from), ms(to)), state, uncharged: DurationNs::ZERO })
            .collect();
        ThreadLine::in_one(CgroupId(1), segments)
    }

    fn need(lines: &[ThreadLine], stopped: &[(u64, u64)], cpus: u32) -> Need {
        let stopped = Spans::union(stopped.iter().map(|&(from, to)| Span::new(ms(from), ms(to))));
        Need::of(lines, Span::new(ms(0), ms(1_000)), &stopped, PERIOD, cpus).expect("something ran")
    }

    #[test]
    fn one_thread_has_one_answer() {
        let spinner = [line(&[(0, 20, RUN), (20, 100, HELD), (100, 120, RUN), (120, 200, HELD), (200, 260, RUN)])];
        let need = need(&spinner, &[(20, 100), (120, 200)], 2);
        assert_eq!((need.apart.limit_millicores, need.together.limit_millicores), (1_000, 1_000));
    }

    #[test]
    fn a_chain_of_processes_needs_more_than_its_throttled_pieces_show() {
        // A parent that waits for one child after the other; each child is throttled once.
        let parent = line(&[(0, 5, RUN), (5, 300, State::Blocked), (300, 305, RUN)]);
        let first = line(&[(5, 20, RUN), (20, 100, HELD), (100, 110, RUN)]);
        let second = line(&[(110, 120, RUN), (120, 200, HELD), (200, 220, RUN)]);
        let need = need(&[parent, first, second], &[(20, 100), (120, 200)], 2);
        // Apart, the first child's end moves to 20..30, the second child's pieces stay where they were, 110..120 and 120..140.
        assert_eq!(need.apart.limit_millicores, 300);
        // Together: parent 0..5, first 5..30, second 30..60, then nothing until the parent's last piece.
        assert_eq!(need.together.limit_millicores, 600);
        assert_eq!(need.range().1.limit_millicores, 600);
    }

    #[test]
    fn more_threads_than_cpus_need_no_more_than_the_cpus() {
        let half = |from: u64| line(&[(from, from + 50, RUN), (from + 50, 400, HELD), (400, 450, RUN)]);
        let need = need(&[half(0), half(0), half(0)], &[(50, 400)], 2);
        assert_eq!((need.apart.limit_millicores, need.apart.quota), (2_000, DurationNs::from_millis(200)));
        assert_eq!(need.apart.peak_threads, 3);
    }

    #[test]
    fn a_thread_that_waited_for_a_cpu_may_need_more_on_a_machine_with_less_to_do() {
        // 30 ms of CPU in each of the first two periods, because something else had the CPU in between.
        let hindered = line(&[(0, 30, RUN), (30, 130, State::Waiting { cpu: 0 }), (130, 160, RUN)]);
        let need = need(&[hindered], &[], 2);
        assert_eq!((need.apart.limit_millicores, need.together.limit_millicores), (300, 300));
        assert_eq!(need.unhindered.limit_millicores, 600);
        assert_eq!((need.range().0.limit_millicores, need.range().1.limit_millicores), (300, 600));
    }

    #[test]
    fn nothing_run_needs_no_limit() {
        let window = Span::new(ms(0), ms(9));
        assert_eq!(Need::of(&[line(&[(0, 9, State::Blocked)])], window, &Spans::default(), PERIOD, 2), None);
    }
}
