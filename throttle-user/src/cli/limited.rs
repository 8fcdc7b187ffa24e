//! The flags that say how groups are limited, the same for every verb that makes groups.
//!
//! Owns what was typed and what it means for [`crate::cgroup`]; which limit goes with it is the verb's.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{
    args,
    exit::{Exit, Failure, OrExit},
};
use crate::{
    cgroup::{Hierarchy, HierarchyError, Nesting, Owner},
    time::DurationNs,
};

/// How and where groups are limited.
#[derive(Clone, Debug, Args)]
pub(super) struct LimitedArgs {
    /// Limit pod and container, as the kubelet does (the default).
    #[arg(long, conflicts_with = "flat")]
    nested: bool,
    /// Limit the container alone.
    #[arg(long)]
    flat: bool,
    /// CFS period, 1 ms to 1 s.
    #[arg(long, default_value = "100ms", value_parser = args::some_duration, value_name = "TIME")]
    period: DurationNs,
    /// CFS burst: unused quota that may be kept for later periods, at most a quota.
    #[arg(long, default_value = "0", value_parser = args::duration, value_name = "TIME")]
    burst: DurationNs,
    /// Cgroup to work in, absolute or relative to the cpu controller's mount [default: near this process].
    #[arg(long, value_name = "CGROUP")]
    pub(super) parent: Option<PathBuf>,
}

impl LimitedArgs {
    /// Which groups are limited.
    pub(super) fn nesting(&self) -> Nesting {
        if self.flat { Nesting::Flat } else { Nesting::Nested }
    }

    /// Period, in the kernel's unit.
    pub(super) fn period_us(&self) -> anyhow::Result<u64> {
        args::whole_us("--period", self.period)
    }

    /// Burst, in the kernel's unit.
    pub(super) fn burst_us(&self) -> anyhow::Result<u64> {
        args::whole_us("--burst", self.burst)
    }
}

/// Refuses to make groups inside those that another `throttle` is observing: it would not see what runs in ours, and tell its
/// user that nothing ran.
pub(super) fn not_observed(hierarchy: &Hierarchy) -> Result<(), Failure> {
    let own = match hierarchy.own_group() {
        Ok(own) => own,
        // Out of sight, so not inside anything this process could see.
        Err(HierarchyError::Hidden { .. }) => return Ok(()),
        Err(error) => return Err(error).or_exit(Exit::CannotRun),
    };
    match observer_of(own.path(), Owner::is_alive) {
        None => Ok(()),
        Some(owner) => {
            let error = anyhow::anyhow!(
                "this process is in cgroup {}, which the throttle with process id {} observes: groups made here would be out of its \
                 sight. Give one of the two the whole command: start this one outside the other",
                own.path().display(),
                owner.pid
            );
            Err(Failure::Told { exit: Exit::BadInput, error })
        }
    }
}

/// Whose observed group a cgroup is in: below a living owner's tree, but not in its driver, where the observer itself is.
fn observer_of(path: &Path, is_alive: impl Fn(&Owner) -> bool) -> Option<Owner> {
    let names: Vec<&str> = path.iter().filter_map(|name| name.to_str()).collect();
    let trees = names.windows(2).filter(|pair| pair[1] != "driver");
    trees.filter_map(|pair| pair[0].parse::<Owner>().ok()).find(is_alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_observed_side_of_a_living_tree_is_refused() {
        let of = |path: &str, alive: bool| observer_of(Path::new(path), |_| alive).map(|owner| owner.pid);
        assert_eq!(of("/cg/throttle-7-99/pod/container", true), Some(7));
        assert_eq!(of("/cg/a/throttle-7-99/container/deeper", true), Some(7));
        assert_eq!(of("/cg/throttle-7-99/driver", true), None);
        assert_eq!(of("/cg/throttle-7-99/pod/container", false), None);
        assert_eq!(of("/cg/throttle-xtask-12/x", true), None);
        assert_eq!(of("/cg", true), None);
    }
}
