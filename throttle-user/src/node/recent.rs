//! The last periods of all cgroups, as many as fit.

use std::{collections::VecDeque, sync::Arc};

use crate::timeline::{live::LivePeriod, period::PeriodThrottle};

/// The last periods, oldest first.
#[derive(Clone, Debug)]
pub struct Recent {
    periods: VecDeque<Arc<LivePeriod>>,
    bytes: usize,
    most_bytes: usize,
}

impl Recent {
    /// Keeps as many as fit into so many bytes.
    #[must_use]
    pub fn new(most_bytes: usize) -> Self {
        Self { periods: VecDeque::new(), bytes: 0, most_bytes }
    }

    /// A period ended.
    pub fn push(&mut self, period: Arc<LivePeriod>) {
        self.bytes += size(&period);
        self.periods.push_back(period);
        while self.bytes > self.most_bytes {
            let Some(oldest) = self.periods.pop_front() else { break };
            self.bytes -= size(&oldest);
        }
    }

    /// All that are kept.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<LivePeriod>> {
        self.periods.iter()
    }

    /// Bytes they take, near enough.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn size(period: &LivePeriod) -> usize {
    // The counters of the shared pointer and its place in the queue.
    let pointers = 3 * size_of::<usize>();
    size_of::<LivePeriod>() + pointers + period.record.throttles.capacity() * size_of::<PeriodThrottle>()
}
