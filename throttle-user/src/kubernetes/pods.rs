//! What objects of the Kubernetes API say of pods: their names, and the names of their containers by id.
//!
//! Keeps of each object only what names need.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde::Serialize;

use crate::time::{DurationNs, MonoNs};

/// A static pod's mirror in the API has a UID of its own; the kubelet names the cgroup by this one
/// (pkg/kubelet/types/pod_update.go, `ConfigHashAnnotationKey`).
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// What a pod belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Owner {
    /// Such as `ReplicaSet`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// What is kept of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The node it is bound to, if it is.
    pub node: Option<String>,
    /// Its controller; absent for a pod that somebody made by hand.
    pub owner: Option<Owner>,
    /// Names of containers by id, those before the last restart among them.
    containers: HashMap<String, String>,
}

impl PodFacts {
    /// Name of a container by its id; `None` = not in the pod's status: the sandbox, or one that started a moment ago.
    #[must_use]
    pub fn container(&self, id: &str) -> Option<&str> {
        self.containers.get(id).map(String::as_str)
    }

    fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let statuses = status.into_iter().flat_map(|status| {
            [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
                .into_iter()
                .flatten()
                .flatten()
        });
        let controller = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            owner: controller.map(|owner| Owner { kind: owner.kind.clone(), name: owner.name.clone() }),
            containers: statuses
                .flat_map(|status| ids(status).map(|id| (id.to_owned(), status.name.clone())))
                .collect(),
        }
    }
}

/// Ids of a container: now, and before its last restart; without the runtime's name before `://`.
fn ids(status: &ContainerStatus) -> impl Iterator<Item = &str> {
    let terminated = [&status.state, &status.last_state]
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref().and_then(|terminated| terminated.container_id.as_deref()));
    status
        .container_id
        .as_deref()
        .into_iter()
        .chain(terminated)
        .map(|id| id.split_once("://").map_or(id, |(_, id)| id))
        .filter(|id| !id.is_empty())
}

/// The pods known.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    pods: HashMap<String, PodFacts>,
    /// UIDs of the API by the UIDs that kubelets gave static pods.
    mirrors: HashMap<String, String>,
    /// Pods that are gone, and since when: their cgroups may be there for a while, and are asked about after that.
    leaving: HashMap<String, MonoNs>,
}

impl Pods {
    /// A pod as the API, or a kubelet's `/pods`, has it now. One without a UID, which no server has, is left out.
    pub fn apply(&mut self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        if let Some(hash) = pod.metadata.annotations.as_ref().and_then(|all| all.get(CONFIG_HASH))
            && *hash != uid
        {
            self.mirrors.insert(hash.clone(), uid.clone());
        }
        self.leaving.remove(&uid);
        self.pods.insert(uid, PodFacts::of(pod));
    }

    /// A pod is gone, by the UID of the API. It keeps its name until it is forgotten.
    pub fn leave(&mut self, uid: &str, now: MonoNs) {
        if self.pods.contains_key(uid) {
            self.leaving.entry(uid.to_owned()).or_insert(now);
        }
    }

    /// These pods are all there are: any other is gone.
    pub fn leave_others(&mut self, there: &HashSet<String>, now: MonoNs) {
        let gone: Vec<String> = self.pods.keys().filter(|uid| !there.contains(*uid)).cloned().collect();
        gone.iter().for_each(|uid| self.leave(uid, now));
    }

    /// Forgets those that are gone for longer than `grace`.
    pub fn forget(&mut self, now: MonoNs, grace: DurationNs) {
        let over: Vec<String> =
            self.leaving.iter().filter(|(_, since)| **since + grace <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in over {
            self.leaving.remove(&uid);
            self.pods.remove(&uid);
            self.mirrors.retain(|_, of| *of != uid);
        }
    }

    /// Of a UID as a cgroup's path has it.
    #[must_use]
    pub fn find(&self, uid: &str) -> Option<&PodFacts> {
        self.pods.get(uid).or_else(|| self.mirrors.get(uid).and_then(|uid| self.pods.get(uid)))
    }

    /// How many are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

impl<'a> FromIterator<&'a Pod> for Pods {
    fn from_iter<I: IntoIterator<Item = &'a Pod>>(pods: I) -> Self {
        let mut all = Self::default();
        pods.into_iter().for_each(|pod| all.apply(pod));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> Pod {
        serde_json::from_value(json).expect("a pod")
    }

    fn status(name: &str, more: &serde_json::Value) -> serde_json::Value {
        let mut status =
            serde_json::json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0});
        status.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        status
    }

    #[test]
    fn a_static_pod_is_found_by_its_hash_and_forgotten_with_its_mirror() {
        let mut pods = Pods::default();
        pods.apply(&pod(serde_json::json!({"metadata": {
            "namespace": "kube-system", "name": "etcd-n1", "uid": "11-22",
            "annotations": {CONFIG_HASH: "d8c8", "kubernetes.io/config.mirror": "d8c8"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "0", "controller": true}]
        }})));
        let found = pods.find("d8c8").expect("by its hash");
        assert_eq!((found.namespace.as_str(), found.name.as_str()), ("kube-system", "etcd-n1"));
        assert_eq!(found.owner, Some(Owner { kind: "Node".into(), name: "n1".into() }));
        assert_eq!(pods.find("11-22"), Some(found));
        pods.leave("11-22", MonoNs(5));
        pods.forget(MonoNs(104), DurationNs(100));
        assert!(pods.find("d8c8").is_some());
        pods.forget(MonoNs(105), DurationNs(100));
        assert!(pods.find("d8c8").is_none() && pods.mirrors.is_empty() && pods.is_empty());
    }

    #[test]
    fn a_list_of_all_pods_lets_the_others_go_and_one_that_comes_back_stays() {
        let named = |uid: &str| pod(serde_json::json!({"metadata": {"namespace": "n", "name": uid, "uid": uid}}));
        let mut pods: Pods = [&named("a"), &named("b"), &named("c")].into_iter().collect();
        pods.leave_others(&HashSet::from(["a".to_owned()]), MonoNs(0));
        pods.apply(&named("b"));
        pods.forget(MonoNs(100), DurationNs(1));
        assert!(pods.find("a").is_some() && pods.find("b").is_some() && pods.find("c").is_none());
    }

    #[test]
    fn every_kind_of_container_and_the_one_before_a_restart_have_names() {
        let pods: Pods = [&pod(serde_json::json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "1"},
            "status": {
                "containerStatuses": [
                    status("app", &serde_json::json!({
                        "containerID": "containerd://aa",
                        "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://bb"}}
                    })),
                    status("waiting", &serde_json::json!({"containerID": ""})),
                ],
                "initContainerStatuses": [status("first", &serde_json::json!({"containerID": "cri-o://cc"}))],
                "ephemeralContainerStatuses": [status("debug", &serde_json::json!({"containerID": "docker://dd"}))],
            }
        }))]
        .into_iter()
        .collect();
        let facts = pods.find("1").expect("the pod");
        let names: Vec<_> = ["aa", "bb", "cc", "dd", "ee", ""].iter().map(|id| facts.container(id)).collect();
        assert_eq!(names, [Some("app"), Some("app"), Some("first"), Some("debug"), None, None]);
    }
}
