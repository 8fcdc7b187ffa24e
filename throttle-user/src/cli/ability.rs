//! What can be observed on this machine, found out before a verb makes anything.

use crate::{
    cgroup::Hierarchy,
    event::HookReport,
    probe::{self, KernelLayout, Survey, prerequisites},
};

/// A kernel that can be observed, with or without some optional hook.
pub(super) struct Ability {
    /// What the probe must know about it, and what of that can be used.
    pub(super) kernel: KernelLayout,
    /// What became of each hook.
    pub(super) hooks: Vec<HookReport>,
}

impl Ability {
    /// Resolves the kernel's layout, and tries every hook. The error says why nothing can be observed.
    pub(super) fn find(hierarchy: &Hierarchy) -> anyhow::Result<Self> {
        let mut kernel = prerequisites::kernel_layout(hierarchy.version)?;
        let Survey { hooks, broken } = probe::survey(&kernel)?;
        broken.map_or(Ok(()), Err)?;
        kernel.facts.csd_tracepoints &= !lost(&hooks).any(|hook| hook.tracepoint.starts_with("csd_"));
        Ok(Self { kernel, hooks })
    }

    /// The hooks that this kernel should have and that cannot be used: less will be known.
    pub(super) fn lost(&self) -> impl Iterator<Item = &HookReport> {
        lost(&self.hooks)
    }
}

fn lost(hooks: &[HookReport]) -> impl Iterator<Item = &HookReport> {
    hooks.iter().filter(|hook| hook.is_missing())
}
