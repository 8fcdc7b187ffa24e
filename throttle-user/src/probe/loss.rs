//! Losses: what the probe tried to say and could not. Loss is data, counted where it happens and carried to the result.

use serde::{Deserialize, Serialize};
use throttle_ebpf::record::{CpuState, kind};

/// Names of the record kinds, in the order of the wire contract.
const KIND_NAMES: [&str; kind::COUNT] =
    ["switch", "wakeup", "wakeup_new", "migrate", "exit", "period", "slack", "queue"];

/// One CPU's losses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLosses {
    /// The CPU.
    pub cpu: u32,
    /// Records it tried to write.
    pub tried: u64,
    /// Records lost because the ring buffer was full: kind and number, only kinds with a loss.
    pub lost: Vec<(String, u64)>,
    /// Timer or CSD runs with more throttled CPUs than the probe lists.
    pub truncated: u64,
}

/// Losses of all CPUs, and of the reader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// One entry a possible CPU that tried to write anything.
    pub cpus: Vec<CpuLosses>,
    /// Records that were read but not understood.
    pub undecoded: u64,
}

impl Losses {
    /// From the probe's per-CPU accounts.
    pub(crate) fn from_states(states: impl IntoIterator<Item = CpuState>) -> Self {
        let cpus = (0u32..)
            .zip(states)
            .filter(|(_, state)| state.tried > 0 || state.truncated > 0)
            .map(|(cpu, state)| CpuLosses {
                cpu,
                tried: state.tried,
                lost: KIND_NAMES
                    .into_iter()
                    .zip(state.lost)
                    .filter(|&(_, count)| count > 0)
                    .map(|(name, count)| (name.to_owned(), count))
                    .collect(),
                truncated: state.truncated,
            })
            .collect();
        Self { cpus, undecoded: 0 }
    }

    /// Records lost, of all kinds on all CPUs, and those not understood.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.cpus.iter().flat_map(|cpu| &cpu.lost).map(|(_, count)| count).sum::<u64>()
            + self.cpus.iter().map(|cpu| cpu.truncated).sum::<u64>()
            + self.undecoded
    }

    /// Records tried on all CPUs.
    #[must_use]
    pub fn tried(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.tried).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_named_by_kind_and_cpu_and_add_up() {
        let mut second = CpuState { tried: 10, truncated: 1, ..CpuState::default() };
        second.lost[usize::from(kind::QUEUE)] = 3;
        let losses = Losses::from_states([CpuState::default(), second]);
        assert_eq!(losses.cpus.len(), 1);
        assert_eq!(losses.cpus[0].cpu, 1);
        assert_eq!(losses.cpus[0].lost, [("queue".to_owned(), 3)]);
        assert_eq!((losses.total(), losses.tried()), (4, 10));
    }
}
