//! Losses: what the probe tried to say and could not. Loss is data, counted where it happens and carried to the result.

use serde::{Deserialize, Serialize};

/// One CPU's losses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLosses {
    /// The CPU.
    pub cpu: u32,
    /// Records it tried to write.
    pub tried: u64,
    /// The same by kind, only kinds that occurred; absent in older recordings.
    #[serde(default)]
    pub produced: Vec<(String, u64)>,
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
