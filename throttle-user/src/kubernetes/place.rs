//! What the path of a cgroup says of it, whatever made it: kubelets with the cgroupfs or the systemd driver; containerd, CRI-O
//! or docker; nodes that are containers themselves.
//!
//! The layout is the kubelet's (pkg/kubelet/cm/cgroup_manager_linux.go, `ToCgroupfs`, `ToSystemd`) and the runtimes':
//!
//! ```text
//! cgroupfs  kubepods[/burstable|/besteffort]/pod<UID>/<id>
//! systemd   kubepods.slice[/kubepods-burstable.slice]/kubepods-burstable-pod<UID with _ for ->.slice/cri-containerd-<id>.scope
//! ```
//!
//! Before `kubepods` may stand anything: the kubelet's `cgroupRoot` (with the systemd driver also as a prefix of each name, as on
//! kind: `kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod….slice`), or the container that the whole node is.

use serde::{Deserialize, Serialize};

/// Quality-of-service class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Qos {
    /// Every container's limits equal its requests.
    Guaranteed,
    /// Some container has a request or a limit.
    Burstable,
    /// None has any.
    BestEffort,
}

impl Qos {
    /// As metrics and JSON spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "guaranteed",
            Self::Burstable => "burstable",
            Self::BestEffort => "besteffort",
        }
    }

    /// As the kubelet spells the folder of a class; guaranteed pods have none.
    const FOLDERS: [(&'static str, Self); 2] = [("burstable", Self::Burstable), ("besteffort", Self::BestEffort)];
}

/// What made a container's cgroup, as far as the name tells: with the cgroupfs driver containerd and docker name it by the id alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// `cri-containerd-<id>.scope`
    Containerd,
    /// `crio-<id>.scope`, `crio-<id>`
    Crio,
    /// `docker-<id>.scope`, by cri-dockerd
    Docker,
}

/// Where a cgroup stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing of Kubernetes, such as a systemd slice; also what lies between `kubepods` and pods and is none of the kubelet's.
    Other,
    /// `kubepods` itself, or the folder of a QoS class.
    Tier {
        /// What stands before `kubepods`; empty on most nodes.
        above: String,
        /// The class; absent = all pods of the node.
        qos: Option<Qos>,
    },
    /// A pod, or something in it that is no container's.
    Pod(PodPlace),
    /// A container, or something in it.
    Container {
        /// Its pod; `below` is empty.
        pod: PodPlace,
        /// Its id, 64 hexadecimal digits.
        id: String,
        /// What made it; absent = the name does not tell.
        runtime: Option<Runtime>,
        /// The runtime's own process beside the container (`crio-conmon-<id>`), not the container.
        monitor: bool,
        /// Path below the container's cgroup; empty = the container's cgroup itself.
        below: String,
    },
}

/// The part of a path that leads to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlace {
    /// What stands before `kubepods`; empty on most nodes.
    pub above: String,
    /// Class, by the folder the pod stands in.
    pub qos: Qos,
    /// UID as the kubelet knows the pod: the one of the API, or of a static pod the hash of its manifest.
    pub uid: String,
    /// Path below the pod's cgroup; empty = the pod's cgroup itself.
    pub below: String,
}

impl Place {
    /// Of a path below the mount of the cpu controller; leading and doubled slashes do not matter.
    ///
    /// Of two `kubepods` in one path the first counts: a node inside a container of this node's is below that container.
    #[must_use]
    pub fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let Some((at, driver)) =
            parts.iter().enumerate().find_map(|(at, part)| Driver::of_root(part).map(|driver| (at, driver)))
        else {
            return Self::Other;
        };
        let above = parts[..at].join("/");
        let below = &parts[at + 1..];
        let (qos, stem, below) = match below.split_first() {
            None => return Self::Tier { above, qos: None },
            Some((first, rest)) => match driver.class(first) {
                Some(qos) if rest.is_empty() => return Self::Tier { above, qos: Some(qos) },
                Some(qos) => (qos, driver.below(first), rest),
                None => (Qos::Guaranteed, driver, below),
            },
        };
        let Some((uid, rest)) = below.split_first().and_then(|(pod, rest)| Some((stem.pod(pod)?, rest))) else {
            return Self::Other;
        };
        let pod = |below: &[&str]| PodPlace { above, qos, uid, below: below.join("/") };
        match rest.split_first().and_then(|(container, rest)| Some((ContainerId::of(container)?, rest))) {
            Some((ContainerId { id, runtime, monitor }, rest)) => {
                Self::Container { pod: pod(&[]), id, runtime, monitor, below: rest.join("/") }
            }
            None => Self::Pod(pod(rest)),
        }
    }
}

/// How the kubelet spells names.
enum Driver<'a> {
    Cgroupfs,
    /// Each name begins with its parent's, which is this.
    Systemd(&'a str),
}

impl<'a> Driver<'a> {
    /// If a name is the one of all pods.
    fn of_root(name: &'a str) -> Option<Self> {
        if name == "kubepods" {
            return Some(Self::Cgroupfs);
        }
        let stem = name.strip_suffix(".slice")?;
        (stem == "kubepods" || stem.ends_with("-kubepods")).then_some(Self::Systemd(stem))
    }

    /// The name without what the driver adds to it; `None` = not a name of a child.
    fn bare(&self, name: &'a str) -> Option<&'a str> {
        match self {
            Self::Cgroupfs => Some(name),
            Self::Systemd(stem) => name.strip_suffix(".slice")?.strip_prefix(stem)?.strip_prefix('-'),
        }
    }

    fn class(&self, name: &'a str) -> Option<Qos> {
        let bare = self.bare(name)?;
        Qos::FOLDERS.iter().find(|(folder, _)| *folder == bare).map(|(_, qos)| *qos)
    }

    fn below(&self, name: &'a str) -> Self {
        match self {
            Self::Cgroupfs => Self::Cgroupfs,
            Self::Systemd(_) => Self::Systemd(name.trim_end_matches(".slice")),
        }
    }

    /// UID of the pod that a name stands for.
    fn pod(&self, name: &'a str) -> Option<String> {
        let uid = self.bare(name)?.strip_prefix("pod").filter(|uid| !uid.is_empty())?;
        Some(match self {
            Self::Cgroupfs => uid.to_owned(),
            // A dash would mean a slice inside a slice (systemd.slice(5)); the kubelet writes underscores.
            Self::Systemd(_) => uid.replace('_', "-"),
        })
    }
}

struct ContainerId {
    id: String,
    runtime: Option<Runtime>,
    monitor: bool,
}

impl ContainerId {
    /// Of the name of a container's cgroup. All three runtimes make ids of 32 bytes.
    fn of(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".scope").unwrap_or(name);
        let (runtime, id) = name.rsplit_once('-').map_or(("", name), |(runtime, id)| (runtime, id));
        let (runtime, monitor) = match runtime {
            "" => (None, false),
            "cri-containerd" => (Some(Runtime::Containerd), false),
            "crio" => (Some(Runtime::Crio), false),
            "crio-conmon" => (Some(Runtime::Crio), true),
            "docker" => (Some(Runtime::Docker), false),
            _ => return None,
        };
        let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (id.len() == 64 && id.bytes().all(hexadecimal)).then(|| Self { id: id.to_owned(), runtime, monitor })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "2688e3e2-f165-486c-bff5-6f7628d67bec";
    const SLICED: &str = "2688e3e2_f165_486c_bff5_6f7628d67bec";
    /// Of a static pod: the MD5 of its manifest.
    const HASH: &str = "d8c8e9a9b1d9a39f2d3a6a1d8ec0f9f8";
    const ID: &str = "4099efc546c793999b14d176eb7b0b046cbfd42d719d0d2f2c8e24203d64dd13";

    fn pod(above: &str, qos: Qos, uid: &str, below: &str) -> PodPlace {
        PodPlace { above: above.into(), qos, uid: uid.into(), below: below.into() }
    }

    fn container(pod: PodPlace, runtime: Option<Runtime>) -> Place {
        Place::Container { pod, id: ID.into(), runtime, monitor: false, below: String::new() }
    }

    #[test]
    fn both_drivers_and_all_runtimes_are_told_apart() {
        use Qos::{BestEffort, Burstable, Guaranteed};
        for (path, runtime, qos) in [
            (format!("/kubepods/pod{UID}/{ID}"), None, Guaranteed),
            (format!("kubepods/burstable/pod{UID}/{ID}"), None, Burstable),
            (format!("kubepods/besteffort/pod{UID}/crio-{ID}"), Some(Runtime::Crio), BestEffort),
            (format!("kubepods.slice/kubepods-pod{SLICED}.slice/crio-{ID}.scope"), Some(Runtime::Crio), Guaranteed),
            (
                format!(
                    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICED}.slice/docker-{ID}.scope"
                ),
                Some(Runtime::Docker),
                Burstable,
            ),
            (
                format!(
                    "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICED}.slice/cri-containerd-{ID}.scope"
                ),
                Some(Runtime::Containerd),
                BestEffort,
            ),
        ] {
            assert_eq!(Place::of(&path), container(pod("", qos, UID, ""), runtime), "{path}");
            let of_pod = path.rsplit_once('/').expect("a container below a pod").0;
            assert_eq!(Place::of(of_pod), Place::Pod(pod("", qos, UID, "")), "{of_pod}");
        }
    }

    #[test]
    fn nodes_that_are_containers_have_their_own_path_before_all_pods() {
        let kind = format!(
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICED}.slice/cri-containerd-{ID}.scope"
        );
        let burstable = |above| container(pod(above, Qos::Burstable, UID, ""), Some(Runtime::Containerd));
        assert_eq!(Place::of(&kind), burstable("kubelet.slice"));
        let (docker, scope) = (format!("docker/{ID}"), format!("system.slice/docker-{ID}.scope"));
        assert_eq!(Place::of(&format!("{scope}/{kind}")), burstable(&format!("{scope}/kubelet.slice")));
        assert_eq!(
            Place::of(&format!("/{docker}/kubelet/kubepods/pod{UID}/{ID}")),
            container(pod(&format!("{docker}/kubelet"), Qos::Guaranteed, UID, ""), None)
        );
        // The node's own container is none of Kubernetes' here.
        assert_eq!(Place::of(&docker), Place::Other);
        assert_eq!(Place::of(&scope), Place::Other);
    }

    #[test]
    fn a_node_inside_a_container_of_this_node_is_below_that_container() {
        let path = format!("kubepods/pod{UID}/{ID}/kubelet/kubepods/burstable/pod{HASH}/{ID}");
        let Place::Container { pod, below, .. } = Place::of(&path) else { panic!("{path}") };
        assert_eq!((pod.uid.as_str(), pod.qos), (UID, Qos::Guaranteed));
        assert_eq!(below, format!("kubelet/kubepods/burstable/pod{HASH}/{ID}"));
    }

    #[test]
    fn static_pods_have_a_hash_without_dashes() {
        for path in [
            format!("kubepods/burstable/pod{HASH}"),
            format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice"),
        ] {
            assert_eq!(Place::of(&path), Place::Pod(pod("", Qos::Burstable, HASH, "")), "{path}");
        }
    }

    #[test]
    fn what_a_runtime_puts_beside_or_into_a_container_is_not_the_container() {
        let slice = format!("kubepods.slice/kubepods-pod{SLICED}.slice");
        let Place::Container { monitor, id, .. } = Place::of(&format!("{slice}/crio-conmon-{ID}.scope")) else {
            panic!("a monitor")
        };
        assert_eq!((monitor, id.as_str()), (true, ID));
        let Place::Container { monitor, below, .. } = Place::of(&format!("{slice}/crio-{ID}.scope/container")) else {
            panic!("a container")
        };
        assert_eq!((monitor, below.as_str()), (false, "container"));
        let kata = format!("kata_{ID}");
        assert_eq!(
            Place::of(&format!("{slice}/{kata}/vcpu")),
            Place::Pod(pod("", Qos::Guaranteed, UID, &format!("{kata}/vcpu")))
        );
    }

    #[test]
    fn tiers_and_what_is_not_of_kubernetes() {
        let tier = |above: &str, qos| Place::Tier { above: above.into(), qos };
        assert_eq!(Place::of("kubepods.slice"), tier("", None));
        assert_eq!(Place::of("/kubelet/kubepods"), tier("kubelet", None));
        assert_eq!(Place::of("kubepods.slice/kubepods-burstable.slice"), tier("", Some(Qos::Burstable)));
        assert_eq!(Place::of("kubepods/besteffort"), tier("", Some(Qos::BestEffort)));
        for path in [
            "",
            "/",
            "system.slice/containerd.service",
            "user.slice/user-1000.slice/session-2.scope",
            "kubepods.slice/kubepods-burstable.slice/other.slice",
            "kubepods.slice/kubepods-pod.slice",
            "kubepods/poddle",
            "mykubepods.slice",
        ] {
            let expected = match path {
                // An odd UID is a UID all the same: static pods may be given one.
                "kubepods/poddle" => Place::Pod(pod("", Qos::Guaranteed, "dle", "")),
                _ => Place::Other,
            };
            assert_eq!(Place::of(path), expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_has_a_place(path in "(/?(kubepods(\\.slice)?|kubepods-burstable\\.slice|burstable|pod[a-f0-9]{0,4}|[a-z.-]{0,9}|é)){0,7}") {
            let _ = Place::of(&path);
        }

        #[test]
        fn a_uid_comes_back_from_either_spelling(uid in "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", class in 0usize..3) {
            let class = ["", "burstable", "besteffort"][class];
            let (folder, slice, stem) = if class.is_empty() {
                (String::new(), String::new(), "kubepods".to_owned())
            } else {
                (format!("/{class}"), format!("/kubepods-{class}.slice"), format!("kubepods-{class}"))
            };
            let sliced = uid.replace('-', "_");
            let both = [format!("kubepods{folder}/pod{uid}"), format!("kubepods.slice{slice}/{stem}-pod{sliced}.slice")];
            for path in both {
                let Place::Pod(pod) = Place::of(&path) else { panic!("{path}") };
                prop_assert_eq!((&pod.uid, pod.below.as_str()), (&uid, ""));
                prop_assert!(class.is_empty() == (pod.qos == Qos::Guaranteed), "{:?}", pod);
            }
        }
    }
}
