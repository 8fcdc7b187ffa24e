//! An image as an OCI archive: one layer with one program, written the same byte for byte whenever and wherever it is made.
//!
//! Format: OCI image specification 1.1, `image-layout.md`, in a tar; with the `manifest.json` beside it that `docker load` reads before
//! version 25.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, DescriptorBuilder, HistoryBuilder, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, OciLayoutBuilder, Os, RootFsBuilder, SCHEMA_VERSION, Sha256Digest,
};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What goes into an image.
pub(crate) struct Contents<'a> {
    /// The program, put at `/throttle`.
    pub(crate) program: &'a [u8],
    /// Architecture it runs on.
    pub(crate) arch: Arch,
    /// `name:tag`, without a registry.
    pub(crate) reference: &'a str,
    /// Version of the program.
    pub(crate) version: &'a str,
}

/// Long before any build: a time that tells nothing, so that two builds are the same.
const CREATED: &str = "1970-01-01T00:00:00Z";
/// Whom the program runs as unless told otherwise: nobody that exists.
const USER: &str = "65532:65532";

/// The bytes of the archive.
pub(crate) fn archive(contents: &Contents<'_>) -> Result<Vec<u8>> {
    let layer = layer(contents.program)?;
    let layer_digest = digest(&layer);
    let mut gzipped = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    gzipped.write_all(&layer).context("the layer cannot be compressed")?;
    let gzipped = gzipped.finish().context("the layer cannot be compressed")?;
    let config = text(&configuration(contents, &layer_digest)?)?;
    let (config_at, layer_at) =
        (describe(MediaType::ImageConfig, &config)?, describe(MediaType::ImageLayerGzip, &gzipped)?);
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(config_at)
        .layers(vec![layer_at])
        .build()?;
    let manifest = text(&manifest)?;
    let (name, tag) = contents.reference.split_once(':').context("an image is named name:tag")?;
    let named = HashMap::from([
        ("org.opencontainers.image.ref.name".to_owned(), tag.to_owned()),
        // What containerd calls it, and with it what a kubelet looks for.
        ("io.containerd.image.name".to_owned(), format!("docker.io/library/{name}:{tag}")),
    ]);
    let mut manifest_at = describe(MediaType::ImageManifest, &manifest)?;
    manifest_at.set_annotations(Some(named));
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(vec![manifest_at])
        .build()?;
    let docker = json!([{
        "Config": blob(&config),
        "RepoTags": [contents.reference],
        "Layers": [blob(&gzipped)],
    }]);
    let layout = OciLayoutBuilder::default().image_layout_version("1.0.0".to_owned()).build()?;
    let mut files = BTreeMap::from([
        ("index.json".to_owned(), text(&index)?),
        ("manifest.json".to_owned(), text(&docker)?),
        ("oci-layout".to_owned(), text(&layout)?),
    ]);
    for bytes in [config, gzipped, manifest] {
        files.insert(blob(&bytes), bytes);
    }
    let mut tar = tar::Builder::new(Vec::new());
    for directory in ["blobs/", "blobs/sha256/"] {
        append(&mut tar, directory, tar::EntryType::Directory, 0o755, &[])?;
    }
    for (path, bytes) in &files {
        append(&mut tar, path, tar::EntryType::Regular, 0o644, bytes)?;
    }
    tar.into_inner().context("the archive cannot be written")
}

/// The file system: one program and nothing else.
fn layer(program: &[u8]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, "throttle", tar::EntryType::Regular, 0o755, program)?;
    tar.into_inner().context("the layer cannot be written")
}

fn append(tar: &mut tar::Builder<Vec<u8>>, path: &str, kind: tar::EntryType, mode: u32, bytes: &[u8]) -> Result<()> {
    // All that is not given is zero: owner root, time 1970.
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    tar.append_data(&mut header, path, bytes).with_context(|| format!("{path} cannot be written"))
}

fn configuration(contents: &Contents<'_>, layer: &str) -> Result<oci_spec::image::ImageConfiguration> {
    let config = ConfigBuilder::default()
        .user(USER)
        .entrypoint(vec!["/throttle".to_owned()])
        .cmd(vec!["--help".to_owned()])
        .working_dir("/")
        .labels(HashMap::from([("org.opencontainers.image.version".to_owned(), contents.version.to_owned())]))
        .build()?;
    let root = RootFsBuilder::default().typ("layers").diff_ids(vec![format!("sha256:{layer}")]).build()?;
    let made = HistoryBuilder::default().created(CREATED).created_by("cargo xtask image").build()?;
    Ok(ImageConfigurationBuilder::default()
        .created(CREATED)
        .architecture(contents.arch.clone())
        .os(Os::Linux)
        .config(config)
        .rootfs(root)
        .history(vec![made])
        .build()?)
}

fn describe(kind: MediaType, bytes: &[u8]) -> Result<Descriptor> {
    let digest: Sha256Digest = digest(bytes).parse()?;
    Ok(DescriptorBuilder::default().media_type(kind).digest(digest).size(bytes.len() as u64).build()?)
}

/// JSON with its members in the order of their names, whatever order maps have in memory.
fn text(value: &impl Serialize) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(&sorted(serde_json::to_value(value)?))?)
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let ordered: BTreeMap<String, Value> =
                members.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            Value::Object(ordered.into_iter().collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(sorted).collect()),
        other => other,
    }
}

fn blob(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", digest(bytes))
}

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};

    use super::*;

    const PROGRAM: &[u8] = b"\x7fELF and so on";

    fn made() -> Vec<u8> {
        let contents = Contents { program: PROGRAM, arch: Arch::Amd64, reference: "throttle:latest", version: "1.2.3" };
        archive(&contents).expect("an archive")
    }

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut tar = tar::Archive::new(archive);
        let entries = tar.entries().expect("entries").map(|entry| entry.expect("an entry"));
        entries
            .filter(|entry| entry.header().entry_type().is_file())
            .map(|mut entry| {
                let path = entry.path().expect("a path").display().to_string();
                let mut bytes = vec![];
                entry.read_to_end(&mut bytes).expect("read");
                (path, bytes)
            })
            .collect()
    }

    fn at<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Descriptor) -> &'a [u8] {
        let bytes = &files[&format!("blobs/{}", descriptor.digest().to_string().replace(':', "/"))];
        assert_eq!(
            (bytes.len() as u64, format!("sha256:{}", digest(bytes))),
            (descriptor.size(), descriptor.digest().to_string())
        );
        bytes
    }

    #[test]
    fn every_digest_leads_to_its_bytes_down_to_the_program() {
        let files = files(&made());
        let index: ImageIndex = serde_json::from_slice(&files["index.json"]).expect("an index");
        let manifest: ImageManifest = serde_json::from_slice(at(&files, &index.manifests()[0])).expect("a manifest");
        let config: ImageConfiguration =
            serde_json::from_slice(at(&files, manifest.config())).expect("a configuration");
        let mut layer = vec![];
        flate2::read::GzDecoder::new(at(&files, &manifest.layers()[0])).read_to_end(&mut layer).expect("gzip");
        assert_eq!(config.rootfs().diff_ids(), &[format!("sha256:{}", digest(&layer))]);
        assert_eq!(tests::files(&layer), BTreeMap::from([("throttle".to_owned(), PROGRAM.to_vec())]));
        let runs = config.config().as_ref().expect("what it runs");
        assert_eq!(
            (runs.user().as_deref(), runs.entrypoint().clone()),
            (Some(USER), Some(vec!["/throttle".to_owned()]))
        );
        let docker: Value = serde_json::from_slice(&files["manifest.json"]).expect("docker's manifest");
        assert_eq!(docker[0]["RepoTags"], json!(["throttle:latest"]));
        for path in [&docker[0]["Config"], &docker[0]["Layers"][0]] {
            assert!(files.contains_key(path.as_str().expect("a path")), "{path}");
        }
    }

    #[test]
    fn the_same_contents_make_the_same_bytes() {
        // Maps are in another order each time.
        assert!((0..20).all(|_| made() == made()));
    }

    #[test]
    fn nothing_in_it_tells_when_or_by_whom_it_was_made() {
        let archive = made();
        for entry in tar::Archive::new(archive.as_slice()).entries().expect("entries") {
            let entry = entry.expect("an entry");
            let header = entry.header();
            assert_eq!((header.mtime().ok(), header.uid().ok(), header.gid().ok()), (Some(0), Some(0), Some(0)));
            assert_eq!(header.username().ok().flatten(), Some(""));
        }
    }
}
