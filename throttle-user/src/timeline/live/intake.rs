//! Events put in order, each with what must be known of those after it.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    event::{CgroupId, Event, What},
    time::MonoNs,
    timeline::{
        gap::{Finder, Gap},
        levels::{Grant, Grants},
        replay::Ahead,
    },
};

/// Events on their way to the state machines.
#[derive(Default)]
pub(super) struct Intake {
    /// As they came.
    waiting: Vec<Event>,
    /// In order.
    ready: VecDeque<(Event, Option<Gap>)>,
    losses: Option<Finder>,
    grants: Grants,
    /// Moves not yet told.
    announced: Vec<(u32, CgroupId, MonoNs)>,
}

/// What is next.
pub(super) enum Next {
    /// This event, and the loss that it ends.
    Event {
        event: Event,
        ahead: Ahead,
        gap: Option<Gap>,
    },
    /// A grant of which it is not known yet whether its call was traced.
    Undecided {
        at: MonoNs,
    },
    Nothing,
}

impl Intake {
    pub(super) fn push(&mut self, event: Event) {
        self.waiting.push(event);
    }

    /// Puts everything up to a watermark in order; returns how many events lie before `cursor`, up to where others were taken in.
    /// `begin`: since when the observer watches, if that was said.
    pub(super) fn order(&mut self, watermark: MonoNs, cursor: MonoNs, begin: Option<MonoNs>) -> u64 {
        self.waiting.sort_by_key(|event| (event.at, event.cpu, event.seq));
        let until = self.waiting.partition_point(|event| event.at <= watermark);
        let late = self.waiting.partition_point(|event| event.at < cursor).min(until);
        let Some(first) = self.waiting.first() else { return 0 };
        let losses =
            self.losses.get_or_insert_with(|| Finder::new(begin.map_or(first.at, |begin| begin.min(first.at))));
        let (lot, later) = self.waiting.split_at(until);
        let mut gaps = losses.next(lot, later).into_iter().peekable();
        for (index, event) in self.waiting.drain(..until).enumerate() {
            self.grants.note(&event);
            if let What::Attach { thread, cgroup, .. } = event.what {
                self.announced.push((thread, cgroup, event.at));
            }
            let gap = gaps.next_if(|(at, _)| *at == index).map(|(_, gap)| gap);
            self.ready.push_back((event, gap));
        }
        late as u64
    }

    /// The next event in order.
    pub(super) fn next(&mut self) -> Next {
        let Some((event, _)) = self.ready.front() else { return Next::Nothing };
        let answered = match Grant::of(event) {
            None => false,
            Some(grant) => match self.grants.decided(grant) {
                Some(answered) => {
                    self.grants.forget(grant);
                    answered
                }
                None => return Next::Undecided { at: event.at },
            },
        };
        let listed = Ahead::listed(event, self.ready.iter().skip(1).map(|(event, _)| event));
        match self.ready.pop_front() {
            Some((event, gap)) => Next::Event { event, ahead: Ahead { listed, answered }, gap },
            None => Next::Nothing,
        }
    }

    /// The call of the grant that is next is no longer waited for.
    pub(super) fn give_up(&mut self) {
        if let Some(grant) = self.ready.front().and_then(|(event, _)| Grant::of(event)) {
            self.grants.forget(grant);
        }
    }

    /// Moves that records show, since last asked.
    pub(super) fn announced(&mut self) -> impl Iterator<Item = (u32, CgroupId, MonoNs)> + '_ {
        self.announced.drain(..)
    }

    /// Time of the last event in order.
    pub(super) fn last(&self) -> Option<MonoNs> {
        self.ready.back().map(|(event, _)| event.at)
    }

    /// Losses that no event ends, up to the end.
    pub(super) fn lost_at_last(&self, tried: &BTreeMap<u32, u64>, end: MonoNs) -> Vec<Gap> {
        self.losses.as_ref().map_or_else(Vec::new, |losses| losses.last(tried, end))
    }

    /// Events held.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }
}
