//! The lines of a raw record, sorted by limit and held against the plan and each other.
//!
//! Owns what a record may look like. A run writes each limit's beginning, its requests and its end in this order, so a line
//! twice, a line of another run or a line changed by hand shows; such a record is refused as a whole, because figures from
//! the rest of it would be of a run that never was.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::{
    derive::RawLimit,
    record::{Head, LevelReading, LimitBegin, LimitEnd, RawLine},
};
use crate::{
    cgroup::{Bandwidth, CpuLimit, LevelName, Nesting},
    event::Event,
    request::{FanOut, Outcome, RequestSpan, ServerSpan},
    time::{DurationNs, MonoNs},
};

/// How many of a limit's events are at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All that were read from the probe.
    All,
    /// Those up to an instant.
    Until {
        /// The last of them.
        until: MonoNs,
        /// How many came after it; `None` = not known.
        more: Option<u64>,
    },
    /// None: the file is missing or empty. Whatever is told by events was not measured.
    None,
}

/// A line that no run can have written where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Line, from 1; `None` = it is the plan.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
}

/// Longest a limit can have taken; only what was changed by hand is longer.
const LONGEST: DurationNs = DurationNs::from_millis(365 * 86_400_000);

/// Sorts the lines of a record by limit, in the order the limits began. The line at index 0 is line 1.
///
/// # Errors
/// [`Wrong`] for the first line that does not fit the plan or the lines before it.
pub fn limits(head: &Head, lines: Vec<RawLine>) -> Result<Vec<RawLimit>, Wrong> {
    let arms = head.plan.arms().map_err(|error| Wrong { line: None, what: error.to_string() })?;
    let mut ledger = Ledger { head, arms, limits: vec![], answered: BTreeSet::new() };
    for (line, number) in lines.into_iter().zip(1..) {
        let taken = match line {
            RawLine::LimitBegin(begin) => ledger.begin(begin),
            RawLine::Request { limit, span } => ledger.request(limit, span),
            RawLine::LimitEnd(end) => ledger.end(end),
        };
        taken.map_err(|what| Wrong { line: Some(number), what })?;
    }
    Ok(ledger.limits)
}

/// Records of one CPU that an interrupt may have shuffled: it writes its own into the middle of another one's, which then has the
/// same number or a lower one. Interrupts nest a few deep.
const SHUFFLED: usize = 16;

/// Events as the probe numbers them: each CPU's ascend, a jump is a loss, and what an interrupt shuffled goes back a few numbers.
///
/// # Errors
/// [`Wrong`] for the first one that goes back further, or is there a second time.
pub fn numbered(events: &[Event]) -> Result<(), Wrong> {
    let mut cpus: HashMap<u32, (u32, VecDeque<&Event>)> = HashMap::new();
    for (event, line) in events.iter().zip(1..) {
        let (highest, lately) = cpus.entry(event.cpu).or_insert((event.seq, VecDeque::new()));
        // Numbers begin anew at 2^32: half of that is no loss but a step back.
        let back = highest.wrapping_sub(event.seq);
        let ahead = back > u32::MAX / 2;
        let shuffled = (back as usize) < SHUFFLED && !lately.contains(&event);
        if !ahead && !shuffled {
            let what = format!("event {} of CPU {} comes after its event {highest}", event.seq, event.cpu);
            return Err(Wrong { line: Some(line), what });
        }
        if ahead {
            *highest = event.seq;
        }
        lately.truncate(SHUFFLED - 1);
        lately.push_front(event);
    }
    Ok(())
}

struct Ledger<'a> {
    head: &'a Head,
    arms: Vec<(CpuLimit, Bandwidth)>,
    limits: Vec<RawLimit>,
    /// Numbers of the requests of the limit that is open.
    answered: BTreeSet<u64>,
}

impl Ledger<'_> {
    fn begin(&mut self, begin: LimitBegin) -> Result<(), String> {
        let limit = begin.limit;
        if self.limits.iter().any(|raw| raw.begin.limit == limit) {
            return Err(format!("limit {limit} begins a second time"));
        }
        if let Some(open) = self.limits.last().filter(|raw| raw.end.is_none()) {
            return Err(format!("limit {limit} begins before limit {} has ended", open.begin.limit));
        }
        match self.arms.get(self.limits.len()) {
            Some((planned, bandwidth)) if *planned == limit => {
                if *bandwidth != begin.bandwidth {
                    return Err(format!(
                        "limit {limit} begins with {:?}, but the plan comes to {bandwidth:?}",
                        begin.bandwidth
                    ));
                }
            }
            Some((planned, _)) => return Err(format!("limit {limit} begins where the plan has {planned}")),
            None => return Err(format!("limit {limit} begins after the last one of the plan")),
        }
        self.levels(&begin.levels)?;
        let paths_fit = begin.paths.len() >= begin.levels.len()
            && begin.levels.iter().zip(&begin.paths).all(|(level, path)| path.first() == Some(&level.cgroup_id));
        if !paths_fit {
            return Err(format!("the paths of limit {limit} do not begin with its levels' cgroups"));
        }
        self.answered.clear();
        self.limits.push(RawLimit { begin, spans: vec![], end: None, kept: Kept::All });
        Ok(())
    }

    fn request(&mut self, limit: CpuLimit, span: RequestSpan) -> Result<(), String> {
        let number = span.request;
        let plan = &self.head.plan;
        let open = open(&mut self.limits, limit, &format!("request {number}"))?;
        if number >= plan.requests || span.stream >= plan.streams {
            return Err(format!(
                "request {number} of stream {} is not in the plan of {} requests of {} streams",
                span.stream, plan.requests, plan.streams
            ));
        }
        if !self.answered.insert(number) {
            return Err(format!("request {number} of limit {limit} is there a second time"));
        }
        let since = read_until(&open.begin.levels);
        let stamps = [("counters read", since), ("sent", span.sent_ns), ("received", span.received_ns)];
        ordered(&stamps).map_err(|what| format!("request {number}: {what}"))?;
        ordered(&[("due", span.due_ns), ("received", span.received_ns)])
            .map_err(|what| format!("request {number}: {what}"))?;
        if span.received_ns.since(since) > LONGEST {
            return Err(format!("request {number} was answered more than a year after the limit began"));
        }
        if let Outcome::Ok { server } = &span.outcome {
            served(self.head, &span, server).map_err(|what| format!("request {number}: {what}"))?;
        }
        open.spans.push(span);
        Ok(())
    }

    fn end(&mut self, end: LimitEnd) -> Result<(), String> {
        let open = open(&mut self.limits, end.limit, "an end")?;
        let last = open.spans.iter().map(|span| span.received_ns).max();
        let since = read_until(&open.begin.levels).max(last.unwrap_or_default());
        let until = end.levels.as_ref().map_or(MonoNs(end.clock.monotonic_ns), |levels| read_from(levels));
        if until < since {
            return Err(format!("limit {} ends before its last request was answered", end.limit));
        }
        if let Some(levels) = &end.levels {
            self.levels(levels)?;
        }
        if let Some(raw) = self.limits.last_mut() {
            raw.end = Some(end);
        }
        Ok(())
    }

    /// The levels that the plan's nesting has, each with a reading of itself.
    fn levels(&self, levels: &[LevelReading]) -> Result<(), String> {
        let wanted: &[LevelName] = match self.head.plan.nesting {
            Nesting::Nested => &[LevelName::Container, LevelName::Pod],
            Nesting::Flat => &[LevelName::Container],
        };
        let found: Vec<LevelName> = levels.iter().map(|level| level.level).collect();
        if found != wanted {
            return Err(format!("its levels are {found:?}, but the plan has {wanted:?}"));
        }
        for LevelReading { level, cgroup_id, counters } in levels {
            if counters.cgroup_id != cgroup_id.0 {
                return Err(format!(
                    "the {level:?} is cgroup {}, but its counters are of {}",
                    cgroup_id.0, counters.cgroup_id
                ));
            }
            ordered(&[("read from", counters.read_from_ns), ("read until", counters.read_until_ns)])
                .map_err(|what| format!("counters of the {level:?}: {what}"))?;
        }
        Ok(())
    }
}

/// The limit that a line belongs to; it must be the one that began last, and must not have ended.
fn open<'a>(limits: &'a mut [RawLimit], limit: CpuLimit, what: &str) -> Result<&'a mut RawLimit, String> {
    if !limits.iter().any(|raw| raw.begin.limit == limit) {
        return Err(format!("{what} of limit {limit}, which never began"));
    }
    match limits.last_mut().filter(|raw| raw.begin.limit == limit && raw.end.is_none()) {
        Some(open) => Ok(open),
        None => Err(format!("{what} of limit {limit}, which has ended already")),
    }
}

fn read_until(levels: &[LevelReading]) -> MonoNs {
    levels.iter().map(|level| level.counters.read_until_ns).max().unwrap_or_default()
}

fn read_from(levels: &[LevelReading]) -> MonoNs {
    levels.iter().map(|level| level.counters.read_from_ns).min().unwrap_or_default()
}

/// The server's account of an answered request: client and server read the same clock.
fn served(head: &Head, span: &RequestSpan, server: &ServerSpan) -> Result<(), String> {
    let plan = &head.plan;
    ordered(&[
        ("sent", span.sent_ns),
        ("accepted", server.accepted_ns),
        ("started", server.started_ns),
        ("finished", server.finished_ns),
        ("received", span.received_ns),
    ])?;
    let work = match plan.mode {
        FanOut::Split => plan.work_ns.0,
        FanOut::Whole => plan.work_ns.0.saturating_mul(u64::from(plan.threads)),
    };
    if server.work_ns.0 != work || server.workers.len() as u64 != u64::from(plan.threads) {
        return Err(format!(
            "{} ns of work on {} threads, but the plan has {work} ns on {}",
            server.work_ns.0,
            server.workers.len(),
            plan.threads
        ));
    }
    let first = server.workers.iter().map(|worker| worker.started_ns).min();
    let last = server.workers.iter().map(|worker| worker.finished_ns).max();
    if (first, last) != (Some(server.started_ns), Some(server.finished_ns)) {
        return Err("it does not start with its first worker and finish with its last".to_owned());
    }
    for worker in &server.workers {
        ordered(&[("worker started", worker.started_ns), ("worker finished", worker.finished_ns)])?;
        let wall = worker.finished_ns.since(worker.started_ns);
        // Two clocks: one is slewed to the time of day, by at most 500 parts in a million.
        if worker.cpu_time_ns.0 > wall.0 + wall.0 / 1_000 + 1_000_000 {
            return Err(format!("thread {} used {} ns of CPU in {} ns", worker.tid, worker.cpu_time_ns.0, wall.0));
        }
    }
    Ok(())
}

/// Stamps in the order of their names, or the first pair that is not.
fn ordered(stamps: &[(&str, MonoNs)]) -> Result<(), String> {
    match stamps.windows(2).find(|pair| pair[1].1 < pair[0].1) {
        None => Ok(()),
        Some(pair) => {
            let ((before, earlier), (after, later)) = (pair[0], pair[1]);
            Err(format!("{after} at {} is before {before} at {}", later.0, earlier.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CgroupId, What};

    /// Line of the first event that is refused; an event is its number and its stamp.
    fn refused(events: &[(u32, u64)]) -> Option<usize> {
        let exit = What::Exit { thread: 1, cgroup: CgroupId(1) };
        let event = |&(seq, at): &(u32, u64)| Event { at: MonoNs(at), cpu: 3, seq, what: exit.clone() };
        numbered(&events.iter().map(event).collect::<Vec<_>>()).err().and_then(|wrong| wrong.line)
    }

    #[test]
    fn an_event_twice_or_far_from_its_place_is_refused() {
        assert_eq!(refused(&[(0, 10), (1, 11), (1, 11)]), Some(3));
        assert_eq!(refused(&[(0, 10), (1, 11), (0, 10)]), Some(3));
        assert_eq!(refused(&[(2, 10), (40, 11), (3, 12)]), Some(3));
    }

    #[test]
    fn losses_and_what_an_interrupt_shuffled_are_not() {
        assert_eq!(refused(&[(0, 10), (3, 11), (4, 12), (90, 13)]), None);
        assert_eq!(refused(&[(0, 10), (2, 12), (3, 13), (1, 11), (4, 14)]), None);
        assert_eq!(refused(&[(0, 10), (1, 12), (2, 13), (1, 11), (2, 14), (3, 15)]), None);
        assert_eq!(refused(&[(u32::MAX, 10), (1, 12), (0, 11), (2, 13)]), None);
    }
}
