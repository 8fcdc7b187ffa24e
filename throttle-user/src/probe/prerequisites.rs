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

/// Capabilities that loading and attaching needs; `CAP_SYS_ADMIN` stands for both (`kernel/bpf/token.c`, `bpf_capable`;
/// `include/linux/capability.h`, `perfmon_capable`).
const NEEDED: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];

/// Checks object, capabilities and BTF, and resolves the kernel's layout.
///
/// # Errors
/// [`Unable`] names what is missing and what to do.
pub fn kernel_layout(version: Version) -> Result<KernelLayout, Unable> {
    if env!("THROTTLE_PROBE") != "built" {
        return Err(Unable::NotBuilt);
    }
    capabilities(|capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false))?;
    layout_from(Path::new(KERNEL_BTF), version)
}

fn capabilities(has: impl Fn(Capability) -> bool) -> Result<(), Unable> {
    if has(Capability::CAP_SYS_ADMIN) {
        return Ok(());
    }
    let missing: Vec<_> = NEEDED.into_iter().filter(|&needed| !has(needed)).map(|needed| needed.to_string()).collect();
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
        let error = capabilities(|capability| capability == Capability::CAP_BPF).expect_err("perfmon is missing");
        assert!(error.to_string().contains("needs CAP_PERFMON,"), "{error}");
        let error = capabilities(|_| false).expect_err("both are missing");
        assert!(error.to_string().contains("CAP_BPF and CAP_PERFMON"), "{error}");
        capabilities(|capability| capability == Capability::CAP_SYS_ADMIN).expect("CAP_SYS_ADMIN stands for both");
    }

    #[test]
    fn a_kernel_without_btf_is_named_with_the_option_to_set() {
        let error = layout_from(Path::new("no-such-btf"), Version::V2).expect_err("there is no such file");
        assert!(error.to_string().contains("no-such-btf") && error.to_string().contains("CONFIG_DEBUG_INFO_BTF"));
    }
}
