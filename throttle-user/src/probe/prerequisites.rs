//! What the machine must offer before anything is loaded, asked one by one so that the answer names what is missing.

use std::path::{Path, PathBuf};

use caps::{CapSet, Capability};

use crate::{
    cgroup::Version,
    probe::btf::{self, BtfError, KernelLayout},
};

/// Where the kernel shows its own BTF (`kernel/bpf/sysfs_btf.c`).
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Why nothing can be observed on this machine.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// The eBPF object was not built.
    #[error("this binary was built without its eBPF object; build it again after `cargo xtask setup`")]
    NotBuilt,
    /// Missing capabilities.
    #[error(
        "loading eBPF needs {missing}, which this process does not have; run as root, or grant it (in a pod: securityContext.capabilities.add)"
    )]
    Capabilities {
        /// Names, joined by "and".
        missing: String,
    },
    /// No BTF.
    #[error(
        "{path} cannot be read ({source}); the kernel must be built with CONFIG_DEBUG_INFO_BTF=y and /sys must be mounted"
    )]
    NoBtf {
        /// File looked for.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// BTF without the fields of CFS bandwidth control.
    #[error(transparent)]
    Btf(#[from] BtfError),
}

/// A capability that observing takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub reason: &'static str,
    capability: Capability,
}

/// Capabilities that loading and attaching takes; `CAP_SYS_ADMIN` stands for both (`include/linux/capability.h`, `bpf_capable` and
/// `perfmon_capable`).
pub const NEEDED: [Needed; 2] = [
    Needed {
        name: "CAP_BPF",
        reason: "the kernel makes the probe's maps and takes its programs from nobody else (bpf(2): BPF_MAP_CREATE, BPF_BTF_LOAD, \
                 BPF_PROG_LOAD)",
        capability: Capability::CAP_BPF,
    },
    Needed {
        name: "CAP_PERFMON",
        reason: "programs at tracepoints that read kernel memory are taken from nobody else (BPF_PROG_TYPE_TRACING, \
                 bpf_probe_read_kernel)",
        capability: Capability::CAP_PERFMON,
    },
];

/// Whether the calling thread has a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It has.
    Itself,
    /// It has `CAP_SYS_ADMIN`, which stands for it.
    ByAdmin,
    /// It has neither.
    No,
}

/// Which of the capabilities in [`NEEDED`] the calling thread has.
#[must_use]
pub fn held() -> Vec<(Needed, Held)> {
    held_of(|capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false))
}

/// Whether the calling thread may write where its user may not: the root of a v1 hierarchy is a directory that not even its owner may
/// write to, and only this makes a cgroup there.
#[must_use]
pub fn overrides_permissions() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_OVERRIDE).unwrap_or(false)
}

/// Whether this binary has its eBPF object.
#[must_use]
pub fn is_built() -> bool {
    env!("THROTTLE_PROBE") == "built"
}

/// Checks object, capabilities and BTF, and resolves the kernel's layout.
///
/// # Errors
/// [`Unable`] names what is missing and what to do.
pub fn kernel_layout(version: Version) -> Result<KernelLayout, Unable> {
    if !is_built() {
        return Err(Unable::NotBuilt);
    }
    all_held(&held())?;
    layout(version)
}

/// Resolves the kernel's layout, which takes no right.
///
/// # Errors
/// [`Unable::NoBtf`] or [`Unable::Btf`].
pub fn layout(version: Version) -> Result<KernelLayout, Unable> {
    layout_from(Path::new(KERNEL_BTF), version)
}

fn held_of(has: impl Fn(Capability) -> bool) -> Vec<(Needed, Held)> {
    let held = |capability| match (has(capability), has(Capability::CAP_SYS_ADMIN)) {
        (true, _) => Held::Itself,
        (false, true) => Held::ByAdmin,
        (false, false) => Held::No,
    };
    NEEDED.iter().map(|&needed| (needed, held(needed.capability))).collect()
}

fn all_held(held: &[(Needed, Held)]) -> Result<(), Unable> {
    let missing: Vec<_> = held.iter().filter(|(_, held)| *held == Held::No).map(|(needed, _)| needed.name).collect();
    if missing.is_empty() { Ok(()) } else { Err(Unable::Capabilities { missing: missing.join(" and ") }) }
}

fn layout_from(path: &Path, version: Version) -> Result<KernelLayout, Unable> {
    let blob = std::fs::read(path).map_err(|source| Unable::NoBtf { path: path.into(), source })?;
    Ok(btf::resolve(&blob, version)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_capability_is_named() {
        let of = |has: &dyn Fn(Capability) -> bool| all_held(&held_of(has));
        let error = of(&|capability| capability == Capability::CAP_BPF).expect_err("perfmon is missing");
        assert!(error.to_string().contains("needs CAP_PERFMON,"), "{error}");
        let error = of(&|_| false).expect_err("both are missing");
        assert!(error.to_string().contains("CAP_BPF and CAP_PERFMON"), "{error}");
        of(&|capability| capability == Capability::CAP_SYS_ADMIN).expect("CAP_SYS_ADMIN stands for both");
    }

    #[test]
    fn a_kernel_without_btf_is_named_with_the_option_to_set() {
        let error = layout_from(Path::new("no-such-btf"), Version::V2).expect_err("there is no such file");
        assert!(error.to_string().contains("no-such-btf") && error.to_string().contains("CONFIG_DEBUG_INFO_BTF"));
    }
}
