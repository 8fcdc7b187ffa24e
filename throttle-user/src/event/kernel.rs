//! What a kernel can show, as far as later stages must know it.

use serde::{Deserialize, Serialize};

/// How the kernel throttles, told apart by BTF fields, never by version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// Up to 6.2: queues are throttled, the timer releases all CPUs.
    Direct,
    /// 6.3 to 6.17: queues are throttled, remote CPUs are released by a call.
    Async,
    /// From 6.18: tasks are throttled on their way to user mode (`task_struct.throttled`).
    Task,
}

impl std::fmt::Display for Era {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Async => "async",
            Self::Task => "task",
        })
    }
}

/// Facts found in a kernel's BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// How it throttles.
    pub era: Era,
    /// Whether `csd_function_entry`/`_exit` exist (6.5+): they give exact ends of throttles on other CPUs than the timer's.
    pub csd_tracepoints: bool,
    /// Whether `cpu.stat.local` counts throttled time (`cfs_rq.throttled_clock_self`, 6.6+).
    pub local_counter: bool,
}
