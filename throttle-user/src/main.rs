//! The `throttle` binary: parse, then call one verb.

use std::process::ExitCode;

fn main() -> ExitCode {
    throttle_user::cli::main()
}
