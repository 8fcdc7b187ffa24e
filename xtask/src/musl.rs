//! Static programs for musl: the compiler for the C and assembly in a dependency (`ring`).

use std::env;
use std::process::Command;

/// Lets `cargo` build for `triple`, whose architecture is this machine's. That C includes no header but those of the compiler and calls
/// nothing but `memcpy` and the like, so the machine's own compiler does where there is none for musl.
pub(crate) fn c_compiler(cargo: &mut Command, triple: &str) {
    let variable = format!("CC_{}", triple.replace('-', "_"));
    // The name that the build script looks for.
    let own = format!("{}-gcc", triple.replace("-unknown", ""));
    let on_path = |name: &str| {
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(name).is_file())
    };
    if env::var_os(&variable).is_none() && !on_path(&own) {
        cargo.env(variable, "cc");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_compiler_is_named_where_there_is_none_for_musl() {
        let mut cargo = Command::new("cargo");
        // No machine has a compiler of that name.
        c_compiler(&mut cargo, "none-unknown-linux-musl");
        let set: Vec<_> = cargo.get_envs().collect();
        assert_eq!(set, [("CC_none_unknown_linux_musl".as_ref(), Some("cc".as_ref()))]);
    }
}
