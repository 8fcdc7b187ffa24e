//! Idle CPUs, from switches to and from the idle task.

use std::collections::BTreeMap;

use super::{
    gap::Gap,
    interval::{Span, Spans},
};
use crate::{
    event::{Event, What},
    time::MonoNs,
};

/// What is known of one CPU.
#[derive(Clone, Copy)]
enum Doing {
    /// No idle switch since then. As each is recorded, it has been idle since then if the next one leaves idleness. `lost`: it was
    /// known once.
    NotKnown {
        since: MonoNs,
        lost: bool,
    },
    Idle {
        since: MonoNs,
    },
    Busy,
}

/// Idle spans of each CPU that showed at least one idle switch, and the stretches in which it is not known of some CPU whether it
/// was idle, because records were lost.
#[derive(Clone)]
pub(super) struct IdleTracker {
    begin: MonoNs,
    cpus: BTreeMap<u32, Doing>,
    spans: BTreeMap<u32, Vec<Span>>,
    unknown: Vec<Span>,
}

impl IdleTracker {
    pub(super) fn new(begin: MonoNs) -> Self {
        Self { begin, cpus: BTreeMap::new(), spans: BTreeMap::new(), unknown: vec![] }
    }

    /// `gap`: the loss that this event ends.
    pub(super) fn observe(&mut self, event: &Event, gap: Option<Gap>) {
        if let Some(gap) = gap {
            self.unknown.push(gap.span);
            self.interrupt(gap, event.at);
        }
        let doing = self.cpus.entry(event.cpu).or_insert(Doing::NotKnown { since: self.begin, lost: false });
        let What::Switch { from_idle, to_idle, ran, .. } = event.what else { return };
        let idle_until = match ran {
            // It was not traced, but somebody came in between and had the CPU since then.
            Some(ran) if !from_idle => MonoNs(event.at.0.saturating_sub(ran.0)),
            _ => event.at,
        };
        match *doing {
            Doing::NotKnown { since, .. } | Doing::Idle { since } if from_idle => {
                self.spans.entry(event.cpu).or_default().push(Span::new(since, event.at));
            }
            Doing::Idle { since } if ran.is_some() => {
                self.spans.entry(event.cpu).or_default().push(Span::new(since, idle_until));
            }
            Doing::NotKnown { .. } | Doing::Idle { .. } | Doing::Busy => {}
        }
        *doing = if to_idle { Doing::Idle { since: event.at } } else { Doing::Busy };
    }

    /// A loss that no event ends.
    pub(super) fn lose(&mut self, gap: Gap) {
        self.unknown.push(gap.span);
        self.interrupt(gap, gap.span.start);
    }

    /// What a CPU does is not known from `again` on.
    fn interrupt(&mut self, gap: Gap, again: MonoNs) {
        let doing = self.cpus.entry(gap.cpu).or_insert(Doing::NotKnown { since: self.begin, lost: false });
        if let Doing::Idle { since } = *doing {
            self.spans.entry(gap.cpu).or_default().push(Span::new(since, gap.span.start));
        }
        *doing = Doing::NotKnown { since: again, lost: true };
    }

    /// What was before an instant is not asked for again.
    pub(super) fn forget(&mut self, before: MonoNs) {
        self.spans.values_mut().for_each(|spans| spans.retain(|span| span.end > before));
        self.unknown.retain(|span| span.end > before);
    }

    /// Up to an instant with more to come. A CPU that showed no idle switch yet may turn out to have been idle since the beginning,
    /// or since a loss: of `cpus` CPUs, those are not known.
    pub(super) fn so_far(&self, end: MonoNs, cpus: u32) -> (BTreeMap<u32, Spans>, Spans) {
        let mut known = self.clone();
        for cpu in 0..cpus {
            match self.cpus.get(&cpu) {
                Some(Doing::NotKnown { since, .. }) => known.unknown.push(Span::new(*since, end)),
                Some(Doing::Idle { .. } | Doing::Busy) => {}
                None => known.unknown.push(Span::new(self.begin, end)),
            }
        }
        known.finish(end)
    }

    /// Up to the end of what was seen.
    pub(super) fn finish(mut self, end: MonoNs) -> (BTreeMap<u32, Spans>, Spans) {
        for (cpu, doing) in self.cpus {
            match doing {
                Doing::Idle { since } => self.spans.entry(cpu).or_default().push(Span::new(since, end)),
                Doing::NotKnown { since, lost: true } => self.unknown.push(Span::new(since, end)),
                Doing::NotKnown { .. } | Doing::Busy => {}
            }
        }
        (self.spans.into_iter().map(|(cpu, spans)| (cpu, Spans::union(spans))).collect(), Spans::union(self.unknown))
    }
}
