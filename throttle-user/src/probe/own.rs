//! The self-check at start: a thread of this process ends, and the probe says which cgroup it was in. That must be what the cpu
//! hierarchy says, or no cgroup id the probe reports means anything.

use std::{
    fs,
    path::Path,
    thread::{Builder, sleep},
    time::{Duration, Instant},
};

use aya::maps::{Array, MapData, MapError};
use nix::unistd::gettid;
use throttle_ebpf::config::own;

use super::{ProbeError, load::Loaded};
use crate::{
    cgroup::{Group, Hierarchy, HierarchyError},
    time::now,
};

/// The name of a thread by which the probe knows it: this process's numbers may be of a pid namespace, the probe's never are.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnName(u64);

impl OwnName {
    /// One that no other thread has.
    pub(super) fn new() -> Self {
        Self(now().0)
    }

    /// 15 bytes, the most a thread's name has (`TASK_COMM_LEN`, include/linux/sched.h): 48 bits of ns are three days.
    fn text(self) -> String {
        format!("own{:012x}", self.0 & 0xffff_ffff_ffff)
    }

    /// As it stands in `task_struct.comm`.
    pub(super) fn words(self) -> [u64; 2] {
        let mut comm = [0; 16];
        comm.iter_mut().zip(self.text().bytes()).for_each(|(to, from)| *to = from);
        let (low, high) = comm.split_at(8);
        [low, high].map(|half| half.try_into().map_or(0, u64::from_ne_bytes))
    }
}

/// How long the probe may take to see a thread end.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long one thread is waited for: a tracepoint may fail to fire (ARCHITECTURE.md), another one then will.
const EACH: Duration = Duration::from_millis(200);

/// Compares the probe's view of this process's cgroup with the hierarchy's. `Ok(Err(why))`: nothing contradicts it, but there is nothing
/// to compare it with.
///
/// # Errors
/// [`ProbeError::WrongOffsets`] if they differ, [`ProbeError::Blind`] if the probe sees nothing, others if the check cannot be made.
pub(super) fn check(
    loaded: &mut Loaded,
    hierarchy: &Hierarchy,
    name: OwnName,
) -> Result<Result<(), String>, ProbeError> {
    let map = loaded.ebpf.take_map("OWN").ok_or(ProbeError::Foreign("OWN"))?;
    let seen = Array::<MapData, u64>::try_from(map).map_err(map_error)?;
    loaded.attach_own()?;
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let group = end_a_thread(hierarchy, name)?;
        let until = Instant::now() + EACH;
        while Instant::now() < until {
            if seen.get(&own::SEEN, 0).map_err(map_error)? != 0 {
                let slot = |slot: u32| seen.get(&slot, 0).map_err(map_error);
                loaded.unload_own();
                return match group {
                    Ok(group) => compare(slot(own::GROUP)?, slot(own::PARENT)?, group.id()?, &group).map(Ok),
                    Err(hidden) => Ok(Err(format!(
                        "the probe is not checked against this process's own cgroup: {hidden}; without it wrong field offsets are not \
                         noticed at once"
                    ))),
                };
            }
            sleep(Duration::from_millis(1));
        }
    }
    Err(ProbeError::Blind { within_ms: u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX) })
}

/// An autogroup (`kernel/sched/autogroup.c`) takes in tasks of the root group only, and is its child.
fn compare(seen: u64, above: u64, own: u64, group: &Group) -> Result<(), ProbeError> {
    if seen == own || (seen == 0 && above == own) {
        return Ok(());
    }
    Err(ProbeError::WrongOffsets { seen, above, own, path: group.path().to_owned() })
}

/// Starts a thread of that name, and returns the group it was in as it ended; the inner error says why that is not to be seen.
fn end_a_thread(hierarchy: &Hierarchy, name: OwnName) -> Result<Result<Group, HierarchyError>, ProbeError> {
    let hierarchy = hierarchy.clone();
    let thread = Builder::new()
        .name(name.text())
        .spawn(move || own_group(&hierarchy))
        .map_err(|source| ProbeError::Thread { thread: name.text(), source })?;
    match thread.join().map_err(|_| ProbeError::Reader)? {
        hidden @ Err(HierarchyError::Hidden { .. }) => Ok(hidden),
        found => Ok(Ok(found?)),
    }
}

/// The calling thread's group: on v1, and in a threaded group, not all threads of a process need be in one. In a cgroup namespace of its
/// own a process does not learn its path on the node's mount; but there one group lists it, by the number that it knows itself by.
fn own_group(hierarchy: &Hierarchy) -> Result<Group, HierarchyError> {
    let path = Path::new("/proc/thread-self/cgroup");
    let text = fs::read_to_string(path).map_err(|source| HierarchyError::Proc { path: path.into(), source })?;
    hierarchy.group_in(&text).or_else(|error| listing(hierarchy.root(), gettid().as_raw().unsigned_abs()).ok_or(error))
}

/// The group, of `top` and all below it, that has a thread.
fn listing(top: Group, thread: u32) -> Option<Group> {
    let mut open = vec![top];
    while let Some(group) = open.pop() {
        // Groups come and go; one that cannot be read any more has nobody in it.
        if group.threads().is_ok_and(|members| members.ids.contains(&thread)) {
            return Some(group);
        }
        open.extend(group.children().unwrap_or_default());
    }
    None
}

fn map_error(source: MapError) -> ProbeError {
    ProbeError::Map { map: "OWN", source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Version;

    #[test]
    fn a_name_is_as_the_kernel_keeps_it() {
        let name = OwnName(0xabc_def0_1234_5678);
        assert_eq!(name.text(), "owndef012345678");
        let bytes: Vec<u8> = name.words().iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes, b"owndef012345678\0");
    }

    #[test]
    fn another_cgroup_than_ones_own_is_refused_with_both_ids() {
        let group = Group::new(Version::V1, "/cg/mine".into());
        compare(7, 1, 7, &group).expect("the same");
        compare(0, 1, 1, &group).expect("an autogroup below the root");
        let said = compare(8, 7, 7, &group).expect_err("another group").to_string();
        assert!(said.contains("id 8,") && said.contains("/cg/mine") && said.contains("id is 7"), "{said}");
        assert!(said.contains("offsets are wrong for this kernel"), "{said}");
        let said = compare(0, 3, 7, &group).expect_err("an autogroup elsewhere").to_string();
        assert!(said.contains("id 0 (below 3)"), "{said}");
    }

    #[test]
    fn a_group_out_of_sight_is_found_by_who_is_in_it() {
        let dir = tempfile::tempdir().expect("a directory");
        for (group, threads) in [("", "0\n"), ("a", "7\n71\n"), ("a/b", "17\n"), ("c", "")] {
            fs::create_dir_all(dir.path().join(group)).expect("made");
            fs::write(dir.path().join(group).join("cgroup.threads"), threads).expect("written");
        }
        let top = || Group::new(Version::V2, dir.path().to_owned());
        assert_eq!(listing(top(), 17), Some(top().child("a/b")));
        assert_eq!(listing(top(), 71), Some(top().child("a")));
        assert_eq!(listing(top(), 1), None);
    }
}
