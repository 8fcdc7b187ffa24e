//! The tracepoints an observer hooks into, and what became of each.

use std::fmt;

use serde::Serialize;

/// One tracepoint of the running kernel, as far as an observer got with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HookReport {
    /// Name of the tracepoint.
    pub tracepoint: &'static str,
    /// Without it nothing is observed: something that would be said could be wrong.
    pub is_required: bool,
    /// What is lost without it.
    pub without: &'static str,
    /// What became of it.
    #[serde(flatten)]
    pub state: HookState,
}

/// What became of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum HookState {
    /// The program was loaded and attached.
    Attached,
    /// This kernel does without: what the hook would tell cannot happen here.
    NotNeeded,
    /// The kernel's BTF does not have it.
    Absent,
    /// The kernel refused the program.
    Failed {
        /// "loaded" or "attached".
        step: &'static str,
        /// What the kernel said, in one line.
        cause: String,
    },
    /// Not used, since it says nothing without another one.
    Unused {
        /// The tracepoint that is missing.
        wants: &'static str,
    },
}

impl HookReport {
    /// Whether something is lost on this kernel.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        !matches!(self.state, HookState::Attached | HookState::NotNeeded)
    }
}

impl fmt::Display for HookState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => write!(f, "attached"),
            Self::NotNeeded => write!(f, "not needed on this kernel"),
            Self::Absent => write!(f, "absent from this kernel"),
            Self::Failed { step, cause } => write!(f, "could not be {step}: {cause}"),
            Self::Unused { wants } => write!(f, "not used without {wants}"),
        }
    }
}

impl fmt::Display for HookReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tracepoint, is_required: _, without, state } = self;
        write!(f, "tracepoint {tracepoint} {state}; without it {without}")
    }
}
