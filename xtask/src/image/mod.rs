//! `cargo xtask image`: a static binary, and an OCI archive of it that any cluster's tools load. Needs no Docker.

mod archive;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use oci_spec::image::Arch;

use crate::{
    exec::{cargo, exec},
    musl::c_compiler,
    setup,
};
use archive::{Contents, archive, digest};

/// Options of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where the archive goes.
    #[arg(long, default_value = "target/image/throttle.tar", value_name = "FILE")]
    out: PathBuf,
    /// Name and tag in the archive.
    #[arg(long, default_value = "throttle:latest", value_name = "NAME:TAG", value_parser = reference)]
    tag: String,
    /// Build it once more, in another folder from a copy of the sources, and fail unless the archives are the same.
    #[arg(long)]
    twice: bool,
}

/// Builds the program and writes the archive.
///
/// # Errors
/// The toolchain cannot be completed, the build fails, a file cannot be written, or two builds differ.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::run(&setup::Options {})?;
    let target = target()?;
    exec(Command::new("rustup").args(["target", "add", target.triple])).with_context(|| {
        format!("the target {} is needed; type: rustup target add {}", target.triple, target.triple)
    })?;
    let root = root();
    let bytes = image(&root, &root.join("target/image"), &target, &options.tag)?;
    let folder = options.out.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder
        .map_or(Ok(()), fs::create_dir_all)
        .with_context(|| format!("cannot make the folder of {}", options.out.display()))?;
    fs::write(&options.out, &bytes).with_context(|| format!("cannot write {}", options.out.display()))?;
    let out = options.out.display();
    eprintln!("image: {out}: {} kB, sha256 {}", bytes.len() / 1_000, digest(&bytes));
    eprintln!("image: load it with one of");
    eprintln!("    minikube image load {out}");
    eprintln!("    kind load image-archive {out}");
    eprintln!("    ctr --namespace k8s.io images import {out}");
    eprintln!("    docker load --input {out}");
    if options.twice {
        same_elsewhere(&root, &target, &options.tag, &bytes)?;
    }
    Ok(())
}

/// A platform.
struct Target {
    triple: &'static str,
    arch: Arch,
}

/// This machine's, statically linked.
fn target() -> Result<Target> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(Target { triple: "x86_64-unknown-linux-musl", arch: Arch::Amd64 }),
        "aarch64" => Ok(Target { triple: "aarch64-unknown-linux-musl", arch: Arch::ARM64 }),
        other => bail!("no image for {other}: only for x86_64 and aarch64"),
    }
}

/// Builds in `sources` into `into`, and makes the archive.
fn image(sources: &Path, into: &Path, target: &Target, tag: &str) -> Result<Vec<u8>> {
    let program = build(sources, into, target)?;
    let program = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    archive(&Contents {
        program: &program,
        arch: target.arch.clone(),
        reference: tag,
        version: env!("CARGO_PKG_VERSION"),
    })
}

fn build(sources: &Path, into: &Path, target: &Target) -> Result<PathBuf> {
    // Paths of this machine must not get into the program: they would tell of it, and differ elsewhere.
    let home = |variable: &str, folder: &str| {
        let home = std::env::var_os(variable).map(PathBuf::from);
        home.or_else(|| std::env::home_dir().map(|home| home.join(folder)))
    };
    let mut flags = vec!["-Cstrip=symbols".to_owned(), "-Ctarget-feature=+crt-static".to_owned()];
    let named = [
        (Some(into.to_owned()), "/build"),
        (Some(sources.to_owned()), "/throttle"),
        (home("CARGO_HOME", ".cargo"), "/cargo"),
        (home("RUSTUP_HOME", ".rustup"), "/rustup"),
    ];
    // The last that fits counts, so the longest of two nested ones stands last.
    let mut named: Vec<_> = named.into_iter().filter_map(|(path, name)| Some((path?, name))).collect();
    named.sort_by_key(|(path, _)| path.as_os_str().len());
    flags.extend(named.iter().map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())));
    let mut cargo = cargo(["build", "--release", "--locked", "--package", "throttle-user", "--bin", "throttle"]);
    cargo
        .args(["--target", target.triple, "--target-dir"])
        .arg(into)
        .current_dir(sources)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CARGO_INCREMENTAL", "0")
        .env("SOURCE_DATE_EPOCH", "0");
    c_compiler(&mut cargo, target.triple);
    exec(&mut cargo)?;
    Ok(into.join(target.triple).join("release/throttle"))
}

/// Builds from a copy of the sources in another folder.
fn same_elsewhere(root: &Path, target: &Target, tag: &str, first: &[u8]) -> Result<()> {
    let elsewhere = std::env::temp_dir().join(format!("throttle-image-{}", std::process::id()));
    let result = copy(root, &elsewhere).and_then(|()| image(&elsewhere, &elsewhere.join("target/image"), target, tag));
    fs::remove_dir_all(&elsewhere).with_context(|| format!("cannot remove {}", elsewhere.display()))?;
    let second = result?;
    if second != first {
        bail!(
            "a build in {} makes another image: sha256 {} instead of {}",
            elsewhere.display(),
            digest(&second),
            digest(first)
        );
    }
    eprintln!("image: a second build, from a copy in {}, is the same byte for byte", elsewhere.display());
    Ok(())
}

/// The files that git knows, as they are now.
fn copy(root: &Path, to: &Path) -> Result<()> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--",
            "Cargo.*",
            "rust-toolchain.toml",
            ".cargo",
            "throttle-ebpf",
            "throttle-user",
            "xtask",
        ])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    if !listed.status.success() {
        bail!("git does not list the sources: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    for path in String::from_utf8(listed.stdout).context("a file's name is not UTF-8")?.split_terminator('\0') {
        let target = to.join(path);
        target
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .with_context(|| format!("cannot make {}", target.display()))?;
        fs::copy(root.join(path), &target).with_context(|| format!("cannot copy {path}"))?;
    }
    Ok(())
}

fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

fn reference(text: &str) -> Result<String, String> {
    let fits = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
    };
    match text.split_once(':') {
        Some((name, tag)) if fits(name) && fits(&tag.to_ascii_lowercase()) => Ok(text.to_owned()),
        _ => Err("want name:tag, such as throttle:latest".to_owned()),
    }
}
