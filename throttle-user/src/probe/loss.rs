//! The probe's per-CPU accounts, turned into [`Losses`].

use throttle_ebpf::record::{CpuState, kind};

use crate::event::{CpuLosses, KINDS, Losses};

const _: () = assert!(KINDS.len() == kind::COUNT, "each kind of record has a name");

/// Losses by the accounts of CPU 0, 1, 2, …, and by the reader's own count of records it did not understand.
pub(super) fn losses(states: impl IntoIterator<Item = CpuState>, undecoded: u64) -> Losses {
    let cpus = (0u32..)
        .zip(states)
        .filter(|(_, state)| state.tried > 0 || state.truncated > 0)
        .map(|(cpu, state)| CpuLosses {
            cpu,
            tried: state.tried,
            produced: by_kind(&state.produced),
            lost: by_kind(&state.lost),
            truncated: state.truncated,
        })
        .collect();
    Losses { cpus, undecoded }
}

fn by_kind(counts: &[u64]) -> Vec<(String, u64)> {
    let named = KINDS.into_iter().zip(counts.iter().copied());
    named.filter(|&(_, count)| count > 0).map(|(name, count)| (name.to_owned(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_named_by_kind_and_cpu_and_add_up() {
        let mut second = CpuState { tried: 10, truncated: 1, ..CpuState::default() };
        second.lost[usize::from(kind::QUEUE)] = 3;
        let losses = losses([CpuState::default(), second], 2);
        assert_eq!(losses.cpus.len(), 1);
        assert_eq!(losses.cpus[0].cpu, 1);
        assert_eq!(losses.cpus[0].lost, [("queue".to_owned(), 3)]);
        assert_eq!((losses.total(), losses.tried()), (6, 10));
    }

    #[test]
    fn every_kind_has_the_name_its_event_gives_itself() {
        let mut bytes = [0_u8; 128];
        for (kind, name) in (0_u8..).zip(KINDS) {
            bytes[14] = kind;
            assert_eq!(crate::probe::decode::decode(&bytes).map(|event| event.what.kind()), Ok(name));
        }
    }
}
