//! The name of a cgroup: what its path says, completed by what the API says.

use serde::Serialize;

use super::{
    place::{Place, Qos, Runtime},
    pods::{Owner, Pods},
};

/// What kind of cgroup it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A container's.
    Container,
    /// Something inside a container's.
    Inside,
    /// What a runtime runs beside a container.
    Monitor,
    /// A pod's, or something in it that is no container's.
    Pod,
    /// All pods of a node, or of a QoS class.
    Tier,
    /// Not of Kubernetes.
    Other,
}

impl Level {
    /// As metrics and JSON spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Inside => "inside",
            Self::Monitor => "monitor",
            Self::Pod => "pod",
            Self::Tier => "tier",
            Self::Other => "other",
        }
    }
}

/// Where a name comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NamedBy {
    /// An object of the Kubernetes API.
    Api,
    /// The path alone: of a pod only its UID is known, of a container its id.
    Path,
}

/// What a cgroup is called. Absent fields do not apply, or are not known: [`Name::named_by`] and [`Name::level`] tell which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Name {
    /// Path below the mount, without a slash at its ends; empty = the mount itself.
    pub path: String,
    /// Kind.
    pub level: Level,
    /// Where the names come from.
    pub named_by: NamedBy,
    /// QoS class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Qos>,
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Name of the container. Absent for a container that is not in the pod's status: the sandbox, or one that started a moment ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// UID of the pod as its cgroup has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Id of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Runtime, if the path tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// What the pod belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// What stands before `kubepods` in the path: the container that the node is, or the kubelet's own root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub above: String,
}

impl Name {
    /// Of a path below the mount of the cpu controller.
    #[must_use]
    pub fn of(path: &str, pods: &Pods) -> Self {
        let mut name = Self {
            path: path.trim_matches('/').to_owned(),
            level: Level::Other,
            named_by: NamedBy::Path,
            qos: None,
            namespace: None,
            pod: None,
            container: None,
            pod_uid: None,
            container_id: None,
            runtime: None,
            owner: None,
            above: String::new(),
        };
        let pod = match Place::of(path) {
            Place::Other => return name,
            Place::Tier { above, qos } => {
                (name.level, name.above, name.qos) = (Level::Tier, above, qos);
                return name;
            }
            Place::Pod(pod) => {
                name.level = Level::Pod;
                pod
            }
            Place::Container { pod, id, runtime, monitor, below } => {
                name.level = match (monitor, below.is_empty()) {
                    (true, _) => Level::Monitor,
                    (false, true) => Level::Container,
                    (false, false) => Level::Inside,
                };
                (name.container_id, name.runtime) = (Some(id), runtime);
                pod
            }
        };
        (name.qos, name.above) = (Some(pod.qos), pod.above);
        if let Some(facts) = pods.find(&pod.uid) {
            name.named_by = NamedBy::Api;
            name.namespace = Some(facts.namespace.clone());
            name.pod = Some(facts.name.clone());
            name.owner.clone_from(&facts.owner);
            name.container = name.container_id.as_deref().and_then(|id| facts.container(id)).map(str::to_owned);
        }
        name.pod_uid = Some(pod.uid);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_api_a_path_names_what_it_can() {
        let id = "4099efc546c793999b14d176eb7b0b046cbfd42d719d0d2f2c8e24203d64dd13";
        let name = Name::of(&format!("/kubepods/burstable/pod11-22/{id}/init"), &Pods::default());
        assert_eq!((name.level, name.named_by, name.qos), (Level::Inside, NamedBy::Path, Some(Qos::Burstable)));
        assert_eq!((name.pod_uid.as_deref(), name.container_id.as_deref()), (Some("11-22"), Some(id)));
        assert_eq!((name.namespace, name.pod, name.container), (None, None, None));
        let slice = Name::of("/system.slice/cron.service", &Pods::default());
        assert_eq!((slice.level, slice.path.as_str()), (Level::Other, "system.slice/cron.service"));
    }
}
