//! `cargo xtask spikes`: builds the observer with its eBPF object, then becomes `throttle spikes`.

use std::ffi::OsString;

use anyhow::Result;

use crate::sweep;

/// Everything is `throttle spikes`' own.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Passed to `throttle spikes` as they stand (`--help` lists what it takes).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// Returns only if something fails before the spikes.
///
/// # Errors
/// As [`sweep::become_verb`].
pub(crate) fn run(options: &Options) -> Result<()> {
    sweep::become_verb("spikes", &options.args)
}
