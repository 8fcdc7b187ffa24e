//! Rights that are given up once the probe is attached: nothing that follows takes any.

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use nix::{errno::Errno, sys::prctl::set_no_new_privs};

/// What a thread keeps of its capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing.
    Nothing,
    /// The one that maps are read with, see [`super::Observer::reads_without_rights`].
    Bpf,
}

/// Why a thread still has its rights.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    /// Of programs that it would start.
    #[error("rights of programs started from here cannot be given up (prctl PR_SET_NO_NEW_PRIVS): {0}")]
    NewPrivileges(#[from] Errno),
    /// Its own.
    #[error("capabilities cannot be given up (capset): {0}")]
    Capabilities(#[from] CapsError),
}

/// Takes all capabilities but `kept` from the calling thread and from threads that it starts from now on. Programs that they start get
/// no more than that, not even as root. Other threads keep theirs: capabilities are a thread's own (capabilities(7)).
///
/// # Errors
/// [`RightsError`] says what could not be given up.
pub fn give_up(kept: Kept) -> Result<(), RightsError> {
    set_no_new_privs()?;
    let kept = kept.of(&caps::read(None, CapSet::Permitted)?);
    // In this order: what is effective is permitted at every step. Ambient capabilities go with the inheritable ones.
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    Ok(())
}

impl Kept {
    /// `CAP_SYS_ADMIN` stands for `CAP_BPF` where that is not there.
    fn of(self, permitted: &CapsHashSet) -> CapsHashSet {
        let candidates: &[Capability] = match self {
            Self::Nothing => &[],
            Self::Bpf => &[Capability::CAP_BPF, Capability::CAP_SYS_ADMIN],
        };
        candidates.iter().copied().find(|capability| permitted.contains(capability)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_up_what_it_has_and_no_other_thread_does() {
        let read = |set| caps::read(None, set).expect("readable");
        let before = [CapSet::Effective, CapSet::Permitted].map(read);
        let after = std::thread::spawn(move || {
            give_up(Kept::Nothing).expect("given up");
            [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable].map(read)
        });
        assert!(after.join().expect("ends").iter().all(CapsHashSet::is_empty));
        assert_eq!([CapSet::Effective, CapSet::Permitted].map(read), before);
    }

    #[test]
    fn what_is_kept_for_maps_is_one_capability_that_is_there() {
        let of = |permitted: &[Capability]| Kept::Bpf.of(&permitted.iter().copied().collect());
        let all = [Capability::CAP_SYS_ADMIN, Capability::CAP_BPF, Capability::CAP_KILL];
        assert_eq!(of(&all), CapsHashSet::from_iter([Capability::CAP_BPF]));
        assert_eq!(of(&[Capability::CAP_SYS_ADMIN]), CapsHashSet::from_iter([Capability::CAP_SYS_ADMIN]));
        assert_eq!(of(&[Capability::CAP_KILL]), CapsHashSet::new());
        assert_eq!(Kept::Nothing.of(&all.into_iter().collect()), CapsHashSet::new());
    }
}
