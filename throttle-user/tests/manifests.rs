//! The manifests are what the API takes, and ask for no more than the program needs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Container, Namespace, Pod, Service, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
        scheduling::v1::PriorityClass,
    },
    serde::{Serialize, de::DeserializeOwned},
};
use serde::Deserialize as _;
use serde_json::{Value, json};
use throttle_user::probe::prerequisites;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests")
}

fn text(file: &str) -> String {
    fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The documents of a file.
fn documents(file: &str) -> Vec<Value> {
    let text = text(file);
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).unwrap_or_else(|error| panic!("{file}: {error}"))).collect()
}

/// The object as the API's type. A field that the type does not have, or has elsewhere, would not come back.
fn typed<T: DeserializeOwned + Serialize>(file: &str, document: &Value) -> T {
    let object: T = serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert_eq!(&serde_json::to_value(&object).expect("JSON"), document, "{file}: a field is not known to the API");
    object
}

fn find<T: DeserializeOwned + Serialize>(file: &str, kind: &str) -> T {
    let documents = documents(file);
    let document = documents.iter().find(|document| document["kind"] == kind);
    typed(file, document.unwrap_or_else(|| panic!("{file}: no {kind}")))
}

fn daemon() -> DaemonSet {
    find("base/daemonset.yaml", "DaemonSet")
}

fn only(containers: &[Container]) -> &Container {
    assert_eq!(containers.len(), 1);
    &containers[0]
}

#[test]
fn every_object_of_the_base_is_of_the_api_and_the_base_has_no_other() {
    let base: Value = documents("base/kustomization.yaml").remove(0);
    let mut kinds = vec![];
    for file in base["resources"].as_array().expect("resources") {
        let file = format!("base/{}", file.as_str().expect("a name"));
        for document in documents(&file) {
            let kind = document["kind"].as_str().expect("a kind").to_owned();
            match kind.as_str() {
                "Namespace" => drop(typed::<Namespace>(&file, &document)),
                "PriorityClass" => drop(typed::<PriorityClass>(&file, &document)),
                "ServiceAccount" => drop(typed::<ServiceAccount>(&file, &document)),
                "DaemonSet" => drop(typed::<DaemonSet>(&file, &document)),
                "ClusterRole" => drop(typed::<ClusterRole>(&file, &document)),
                "ClusterRoleBinding" => drop(typed::<ClusterRoleBinding>(&file, &document)),
                "Pod" => drop(typed::<Pod>(&file, &document)),
                "Service" => drop(typed::<Service>(&file, &document)),
                other => panic!("{file}: {other} is not looked at by this test"),
            }
            kinds.push(kind);
        }
    }
    let files = fs::read_dir(folder().join("base")).expect("listed").count();
    assert_eq!(files, base["resources"].as_array().map_or(0, Vec::len) + 1, "a file is not in kustomization.yaml");
    for needed in ["Namespace", "PriorityClass", "ServiceAccount", "DaemonSet", "Pod", "Service"] {
        assert!(kinds.iter().any(|kind| kind == needed), "{needed}");
    }
}

#[test]
fn the_daemon_has_two_capabilities_and_one_folder_of_the_host_and_nothing_else() {
    let daemon = daemon();
    let pod = daemon.spec.expect("a spec").template.spec.expect("a pod");
    let container = only(&pod.containers);
    let context = container.security_context.as_ref().expect("a context");
    assert_eq!((context.privileged, context.allow_privilege_escalation), (Some(false), Some(false)));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    let capabilities = context.capabilities.as_ref().expect("capabilities");
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
    // What the program itself says that it takes.
    let needed = prerequisites::NEEDED.map(|needed| needed.name.trim_start_matches("CAP_").to_owned());
    assert_eq!(capabilities.add.as_deref(), Some(&needed[..]));
    let volumes = pod.volumes.as_deref().expect("volumes");
    let paths: Vec<_> = volumes.iter().map(|volume| volume.host_path.as_ref().map(|host| host.path.as_str())).collect();
    assert_eq!(paths, [Some("/sys/fs/cgroup")]);
    let mounts = container.volume_mounts.as_deref().expect("mounts");
    assert!(mounts.iter().all(|mount| mount.read_only == Some(true)), "{mounts:?}");
    assert_eq!((pod.host_pid, pod.host_network, pod.host_ipc), (None, None, None));
    let resources = container.resources.as_ref().expect("resources");
    let limits = resources.limits.as_ref().expect("limits");
    assert!(limits.contains_key("memory") && !limits.contains_key("cpu"), "{limits:?}");
    assert!(
        [&container.startup_probe, &container.readiness_probe, &container.liveness_probe]
            .iter()
            .all(|probe| probe.is_some())
    );
    assert_eq!(pod.priority_class_name.as_deref(), Some("throttle-observer"));
    assert_eq!(
        pod.tolerations.as_deref().and_then(|all| all.first()).and_then(|first| first.operator.as_deref()),
        Some("Exists")
    );
}

#[test]
fn the_daemon_may_list_and_watch_pods_and_nothing_else() {
    let role: ClusterRole = find("base/rbac.yaml", "ClusterRole");
    let rules = role.rules.expect("rules");
    assert_eq!(rules.len(), 1);
    assert_eq!(
        (rules[0].resources.as_deref(), rules[0].verbs.as_slice()),
        (Some(&["pods".to_owned()][..]), &["list".to_owned(), "watch".to_owned()][..])
    );
    let binding: ClusterRoleBinding = find("base/rbac.yaml", "ClusterRoleBinding");
    let account: ServiceAccount = find("base/serviceaccount.yaml", "ServiceAccount");
    let pod = daemon().spec.expect("a spec").template.spec.expect("a pod");
    assert_eq!(binding.role_ref.name, role.metadata.name.expect("a name"));
    assert_eq!(pod.service_account_name, account.metadata.name);
    let subjects = binding.subjects.expect("subjects");
    assert_eq!(subjects.iter().map(|subject| Some(subject.name.clone())).collect::<Vec<_>>(), [account.metadata.name]);
}

#[test]
fn each_capability_and_each_mount_says_why() {
    let text = text("base/daemonset.yaml");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for granted in ["- BPF", "- PERFMON", "- name: cgroup"] {
        let at = lines.iter().position(|line| *line == granted).unwrap_or_else(|| panic!("{granted}"));
        assert!(lines[at - 1].starts_with("# "), "no reason before {granted}");
    }
}

#[test]
fn the_pod_under_a_limit_has_one_and_runs_as_nobody() {
    let pod: Pod = find("base/burst.yaml", "Pod");
    let service: Service = find("base/burst.yaml", "Service");
    let labels = pod.metadata.labels.expect("labels");
    let selected = service.spec.and_then(|spec| spec.selector).expect("a selector");
    assert!(selected.iter().all(|(name, value)| labels.get(name) == Some(value)), "{selected:?} {labels:?}");
    let spec = pod.spec.expect("a spec");
    assert_eq!(spec.security_context.as_ref().and_then(|context| context.run_as_non_root), Some(true));
    let container = only(&spec.containers);
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref()).expect("limits");
    assert_eq!(limits["cpu"].0, "200m");
}

#[test]
fn the_program_takes_the_arguments_it_is_given() {
    let daemon = daemon().spec.expect("a spec").template.spec.expect("a pod");
    let burst: Pod = find("base/burst.yaml", "Pod");
    for container in [only(&daemon.containers), only(&burst.spec.expect("a spec").containers)] {
        // Unknown arguments are refused before help is given.
        let args = container.args.clone().expect("arguments");
        let output = Command::new(env!("CARGO_BIN_EXE_throttle")).args(&args).arg("--help").output().expect("runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let port = container.ports.as_deref().and_then(|ports| ports.first()).map(|port| port.container_port);
        let listen =
            args.iter().find_map(|arg| arg.strip_prefix("--listen=")).and_then(|listen| listen.rsplit(':').next());
        assert_eq!(listen.map(str::parse), port.map(Ok), "{args:?}");
    }
}

#[test]
fn overlays_name_files_that_are_there_and_patch_what_the_base_has() {
    for overlay in ["generic", "minikube", "kind"] {
        let folder = format!("overlays/{overlay}");
        let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
        assert_eq!(kustomization["resources"], json!(["../../base"]), "{overlay}");
        for patch in kustomization["patches"].as_array().expect("patches") {
            match patch["path"].as_str() {
                Some(file) => {
                    let document = documents(&format!("{folder}/{file}")).remove(0);
                    let kind = document["kind"].as_str().expect("a kind");
                    let name = document["metadata"]["name"].as_str().expect("a name");
                    assert!(in_base(kind, name), "{overlay}: {file} patches {kind} {name}");
                }
                None => {
                    let target = &patch["target"];
                    let (kind, name) =
                        (target["kind"].as_str().expect("a kind"), target["name"].as_str().expect("a name"));
                    assert!(in_base(kind, name), "{overlay}: {kind} {name}");
                }
            }
        }
    }
}

fn in_base(kind: &str, name: &str) -> bool {
    ["base/daemonset.yaml", "base/burst.yaml"]
        .iter()
        .flat_map(|file| documents(file))
        .any(|document| document["kind"] == kind && document["metadata"]["name"] == name)
}
