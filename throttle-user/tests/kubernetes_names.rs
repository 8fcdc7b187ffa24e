//! Every limited cgroup of three recorded nodes gets its right name, by the same walk and the same code that name a live node's.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;
use throttle_user::{
    cgroup::{Hierarchy, Quota, Version, tree},
    kubernetes::{Name, NamedBy, Pods, name::Level},
};

const LAYOUTS: [(&str, Version); 3] =
    [("v1-hybrid-cgroupfs", Version::V1), ("v2-cgroupfs", Version::V2), ("v2-systemd", Version::V2)];

fn read(layout: &str, file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kubernetes").join(layout).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn pods(layout: &str, file: &str) -> Pods {
    let list: serde_json::Value = serde_json::from_str(&read(layout, file)).expect("JSON");
    let items: Vec<Pod> = serde_json::from_value(list["items"].clone()).expect("pods");
    items.iter().collect()
}

/// The recorded cgroups laid out as directories, so that they are walked and read as live ones are.
fn laid_out(layout: &str, version: Version) -> (tempfile::TempDir, Hierarchy) {
    let dir = tempfile::tempdir().expect("a directory");
    for file in read(layout, "bandwidth.tree").split("### ").skip(1) {
        let (path, text) = file.split_once('\n').expect("a path line");
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }
    let mount = dir.path().to_owned();
    (dir, Hierarchy { version, mount, mount_root: PathBuf::from("/") })
}

/// Names of the limited cgroups, each with its quota, us.
fn limited(layout: &str, version: Version, pods: &Pods) -> Vec<(Name, u64)> {
    let (_dir, hierarchy) = laid_out(layout, version);
    let nodes = tree::walk(&hierarchy).expect("walked");
    let quota = |node: &tree::Node| node.bandwidth.map(|bandwidth| bandwidth.quota).and_then(Quota::us);
    let named = |node: &tree::Node| Some((Name::of(node.path.to_str().expect("UTF-8"), pods), quota(node)?));
    nodes.iter().filter_map(named).collect()
}

fn row((name, quota): &(Name, u64)) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let qos = name.qos.expect("a pod has a class").as_str();
    let (namespace, pod, container) = (or_dash(&name.namespace), or_dash(&name.pod), or_dash(&name.container));
    format!("{}\t{}\t{qos}\t{namespace}\t{pod}\t{container}\t{quota}", name.path, name.level.as_str())
}

#[test]
fn every_limited_cgroup_of_each_layout_has_its_name() {
    for (layout, version) in LAYOUTS {
        for file in ["pods.json", "kubelet-pods.json"] {
            let mut found: Vec<String> = limited(layout, version, &pods(layout, file)).iter().map(row).collect();
            let mut expected: Vec<String> = read(layout, "expected.tsv").lines().map(str::to_owned).collect();
            found.sort();
            expected.sort();
            assert!(expected.len() >= 7, "{layout}");
            assert_eq!(found, expected, "{layout}, {file}");
        }
    }
}

#[test]
fn the_kubelet_calls_them_the_same() {
    for (layout, version) in LAYOUTS {
        let ours: BTreeMap<String, (Name, u64)> = limited(layout, version, &pods(layout, "pods.json"))
            .into_iter()
            .map(|(name, quota)| (format!("/{}", name.path), (name, quota)))
            .collect();
        let text = read(layout, "cadvisor.txt");
        assert_eq!(text.lines().count(), ours.len(), "{layout}");
        let mut containers = 0;
        for line in text.lines() {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\"")).expect("a label");
                rest.split('"').next().filter(|value| !value.is_empty())
            };
            let (name, quota) = &ours[label("id").expect("a path")];
            assert_eq!(line.rsplit(' ').next(), Some(quota.to_string().as_str()), "{line}");
            // Of what it has no name for it says nothing at all.
            if label("pod").is_some() {
                let expected = (label("namespace"), label("pod"), label("container"));
                assert_eq!((name.namespace.as_deref(), name.pod.as_deref(), name.container.as_deref()), expected);
                containers += usize::from(label("container").is_some());
            }
        }
        assert_eq!(containers > 0, version == Version::V2, "{layout}");
    }
}

#[test]
fn without_any_object_the_paths_tell_class_and_ids_and_say_so() {
    for (layout, version) in LAYOUTS {
        let named: BTreeMap<String, Name> = limited(layout, version, &pods(layout, "pods.json"))
            .into_iter()
            .map(|(name, _)| (name.path.clone(), name))
            .collect();
        for (bare, _) in limited(layout, version, &Pods::default()) {
            let full = &named[&bare.path];
            assert_eq!((bare.named_by, full.named_by), (NamedBy::Path, NamedBy::Api), "{layout}");
            assert_eq!((bare.namespace, bare.pod, bare.container), (None, None, None), "{layout}");
            let ids = |name: &Name| (name.level, name.qos, name.pod_uid.clone(), name.container_id.clone());
            assert_eq!((bare.level, bare.qos, bare.pod_uid, bare.container_id), ids(full), "{layout}: {}", bare.path);
            assert_eq!(full.container.is_some(), full.level == Level::Container, "{layout}: {}", bare.path);
        }
    }
}
