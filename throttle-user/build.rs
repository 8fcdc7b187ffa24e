//! Builds the eBPF object `throttle-probe` into OUT_DIR; without the BPF toolchain an empty file stands in for it.
//!
//! `THROTTLE_PROBE` tells the crate which of the two it got: `built` or `absent`.

#[path = "../xtask/src/toolchain.rs"]
mod toolchain;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aya_build::{Package, Toolchain};

use toolchain::Machine;

/// The bin target of throttle-ebpf.
const OBJECT: &str = "throttle-probe";
/// aya-build builds nothing when this is set.
const SKIP: &str = "AYA_BUILD_SKIP";

fn main() -> Result<()> {
    let machine = Machine::look();
    watch(&machine);
    let state = match missing(&machine) {
        None => {
            build(&machine)?;
            "built"
        }
        Some(missing) => {
            println!("cargo:warning=built without the eBPF probe: {missing}. To have it: cargo xtask setup");
            let object = out_dir()?.join(OBJECT);
            fs::write(&object, []).with_context(|| format!("cannot write {}", object.display()))?;
            "absent"
        }
    };
    println!("cargo:rustc-env=THROTTLE_PROBE={state}");
    Ok(())
}

/// Why the probe cannot be built, in words.
fn missing(machine: &Machine) -> Option<String> {
    if env::var_os(SKIP).is_some() {
        return Some(format!("{SKIP} is set"));
    }
    let lacks: Vec<String> = machine.lacks().iter().map(ToString::to_string).collect();
    (!lacks.is_empty()).then(|| lacks.join(", "))
}

fn build(machine: &Machine) -> Result<()> {
    let nightly = machine.nightly().context("no nightly toolchain")?;
    let probe = Package {
        name: "throttle-ebpf",
        root_dir: "../throttle-ebpf",
        no_default_features: false,
        features: &["probe"],
    };
    aya_build::build_ebpf([probe], Toolchain::Custom(nightly.name))
        .context("the eBPF object does not build; if the toolchain is at fault, `cargo xtask setup` says so")?;
    let object = out_dir()?.join(OBJECT);
    fs::metadata(&object).with_context(|| format!("the build left no {}", object.display()))?;
    Ok(())
}

/// Asks cargo to run us again when the probe's sources change (aya-build asks for their folder) or the toolchain does.
/// Only paths that exist: cargo takes a missing one for changed, and would build throttle-user anew each time.
fn watch(machine: &Machine) {
    for variable in [SKIP, "CARGO_HOME", "RUSTUP_HOME"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    // The versions of the probe's dependencies, its profile, and what counts as a toolchain.
    let mut paths: Vec<PathBuf> =
        ["../Cargo.lock", "../Cargo.toml", "../xtask/src/toolchain.rs"].map(PathBuf::from).into();
    match machine.nightly() {
        Some(nightly) if nightly.has_source => paths.push(nightly.source.clone()),
        // rustup notes here what it installed and when; a component's own folder comes with it.
        Some(nightly) => paths.extend(nightly.source.ancestors().nth(4).map(|rustlib| rustlib.join("components"))),
        None => paths.extend(rustup_home().map(|home| home.join("update-hashes"))),
    }
    match &machine.linker {
        Some(linker) => paths.push(linker.path.clone()),
        None => {
            println!("cargo:rerun-if-env-changed=PATH");
            paths.extend(toolchain::cargo_bin());
        }
    }
    for path in paths.iter().filter(|path| path.exists()) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

fn rustup_home() -> Option<PathBuf> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    home.or_else(|| env::home_dir().map(|home| home.join(".rustup")))
}

fn out_dir() -> Result<PathBuf> {
    env::var_os("OUT_DIR").map(|dir| Path::new(&dir).to_owned()).context("cargo sets OUT_DIR for build scripts")
}
