//! Names of pods from the API server: a watch of this node's pods, and of no others.

use std::{collections::HashSet, sync::Arc};

use clap::ValueEnum;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};

use crate::{
    cli::exit::tell,
    exporter::{Exporter, NamesFrom},
    time::now,
};

/// Where names come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Source {
    /// The API server inside a cluster, else paths alone.
    Auto,
    /// The API server: inside a cluster its own, else that of the kubeconfig.
    Api,
    /// Paths alone: UIDs and ids.
    Paths,
}

/// Set in every pod of a cluster.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// Keeps the names up to date, for ever; says in the state where they come from.
pub(super) async fn follow(exporter: Arc<Exporter>, source: Source, node: Option<String>) {
    let inside = std::env::var_os(IN_CLUSTER).is_some();
    let without = match (source, &node) {
        (Source::Paths, _) => Some("--names paths was asked for"),
        (Source::Auto, _) if !inside => Some("not in a cluster; --names api takes the kubeconfig's"),
        (_, None) => Some("the node's name is not known; give --node, or NODE_NAME from spec.nodeName"),
        _ => None,
    };
    if let Some(why) = without {
        degrade(&exporter, NamesFrom::Paths(why.to_owned()));
        return;
    }
    let node = node.unwrap_or_default();
    let config = if inside {
        Config::incluster().map_err(|error| error.to_string())
    } else {
        Config::infer().await.map_err(|error| error.to_string())
    };
    let client = config.and_then(|config| Client::try_from(config).map_err(|error| error.to_string()));
    match client {
        Ok(client) => watch(&exporter, Api::all(client), &node).await,
        Err(error) => degrade(&exporter, NamesFrom::Paths(error)),
    }
}

async fn watch(exporter: &Exporter, pods: Api<Pod>, node: &str) {
    let only = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    // A watch that breaks is begun again, later and later.
    let mut events = watcher(pods, only).default_backoff().boxed();
    let mut listed: HashSet<String> = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => took(exporter, &mut listed, event),
            Err(error) => {
                let known = !exporter.state().pods.is_empty();
                let names = if known { NamesFrom::Silent } else { NamesFrom::Paths };
                degrade(exporter, names(error.to_string()));
            }
        }
    }
}

/// Takes over what the API server says.
fn took(exporter: &Exporter, listed: &mut HashSet<String>, event: Event<Pod>) {
    let mut state = exporter.state();
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(pod) => {
            listed.extend(pod.metadata.uid.clone());
            state.pods.apply(&pod);
        }
        Event::InitDone => {
            state.pods.leave_others(&std::mem::take(listed), now());
            if state.names != NamesFrom::Api {
                state.names = NamesFrom::Api;
                tell(format_args!("throttle observe: names of {} pods from the API server", state.pods.len()));
            }
        }
        Event::Apply(pod) => {
            state.pods.apply(&pod);
            state.names = NamesFrom::Api;
        }
        Event::Delete(pod) => {
            if let Some(uid) = &pod.metadata.uid {
                state.pods.leave(uid, now());
            }
        }
    }
}

/// Says so once, however often it is tried again.
fn degrade(exporter: &Exporter, names: NamesFrom) {
    let mut state = exporter.state();
    if let Some(degraded) = names.degraded().filter(|_| state.names != names) {
        tell(format_args!("throttle observe: {degraded}"));
    }
    state.names = names;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        node::{Bounds, Census, Recent},
        time::DurationNs,
    };

    fn exporter() -> Exporter {
        let bounds = Bounds { counted: 1, grace: DurationNs::from_millis(1) };
        Exporter::new(Census::new(bounds), Recent::new(0))
    }

    fn pod(uid: &str) -> Pod {
        let json = serde_json::json!({"metadata": {"namespace": "n", "name": uid, "uid": uid}});
        serde_json::from_value(json).expect("a pod")
    }

    #[test]
    fn a_list_replaces_what_was_known_and_changes_follow() {
        let (exporter, mut listed) = (exporter(), HashSet::new());
        let mut took = |event| took(&exporter, &mut listed, event);
        took(Event::Apply(pod("old")));
        for event in [Event::Init, Event::InitApply(pod("a")), Event::InitApply(pod("b")), Event::InitDone] {
            took(event);
        }
        took(Event::Apply(pod("c")));
        took(Event::Delete(pod("a")));
        let mut state = exporter.state();
        assert_eq!(state.names, NamesFrom::Api);
        assert!(
            ["old", "a", "b", "c"].iter().all(|uid| state.pods.find(uid).is_some()),
            "they keep their names for a while"
        );
        let later = now() + DurationNs::from_millis(60_000);
        state.pods.forget(later, DurationNs::from_millis(1));
        let known: Vec<bool> = ["old", "a", "b", "c"].iter().map(|uid| state.pods.find(uid).is_some()).collect();
        assert_eq!(known, [false, false, true, true]);
    }
}
