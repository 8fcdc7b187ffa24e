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
pub(super) fn spans(events: &[Event], gaps: &[(usize, Gap)], seen: Span) -> (BTreeMap<u32, Spans>, Spans) {
    let mut cpus: BTreeMap<u32, Doing> = BTreeMap::new();
    let mut spans: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    let mut unknown: Vec<Span> = gaps.iter().map(|(_, gap)| gap.span).collect();
    let mut gaps = gaps.iter().peekable();
    for (index, event) in events.iter().enumerate() {
        let doing = cpus.entry(event.cpu).or_insert(Doing::NotKnown { since: seen.start, lost: false });
        if let Some((_, gap)) = gaps.next_if(|(at, _)| *at == index) {
            if let Doing::Idle { since } = *doing {
                spans.entry(event.cpu).or_default().push(Span::new(since, gap.span.start));
            }
            *doing = Doing::NotKnown { since: event.at, lost: true };
        }
        let What::Switch { from_idle, to_idle, ran, .. } = event.what else { continue };
        let idle_until = match ran {
            // It was not traced, but somebody came in between and had the CPU since then.
            Some(ran) if !from_idle => MonoNs(event.at.0.saturating_sub(ran.0)),
            _ => event.at,
        };
        match *doing {
            Doing::NotKnown { since, .. } | Doing::Idle { since } if from_idle => {
                spans.entry(event.cpu).or_default().push(Span::new(since, event.at));
            }
            Doing::Idle { since } if ran.is_some() => {
                spans.entry(event.cpu).or_default().push(Span::new(since, idle_until));
            }
            Doing::NotKnown { .. } | Doing::Idle { .. } | Doing::Busy => {}
        }
        *doing = if to_idle { Doing::Idle { since: event.at } } else { Doing::Busy };
    }
    for (_, gap) in gaps {
        let doing = cpus.entry(gap.cpu).or_insert(Doing::NotKnown { since: seen.start, lost: false });
        if let Doing::Idle { since } = *doing {
            spans.entry(gap.cpu).or_default().push(Span::new(since, gap.span.start));
        }
        *doing = Doing::NotKnown { since: gap.span.start, lost: true };
    }
    for (cpu, doing) in cpus {
        match doing {
            Doing::Idle { since } => spans.entry(cpu).or_default().push(Span::new(since, seen.end)),
            Doing::NotKnown { since, lost: true } => unknown.push(Span::new(since, seen.end)),
            Doing::NotKnown { .. } | Doing::Busy => {}
        }
    }
    (spans.into_iter().map(|(cpu, spans)| (cpu, Spans::union(spans))).collect(), Spans::union(unknown))
}
