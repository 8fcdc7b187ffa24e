#!/bin/sh
# Cuts a recording of a node down to what the tests of names need, and writes what another program found in it.
#
#     trim.sh RECORDING OUT
#
# A recording has: cgroup-values.txt ("### <file of a cgroup>" lines, each followed by the file's text), pods-A.json (kubectl get
# pods -A -o json), kubelet-pods.json (the kubelet's /pods), kubelet-metrics-cadvisor.txt (its /metrics/cadvisor).
set -eu
recording=$1 out=$2
mkdir -p "$out"

# Bandwidth files of every cgroup below the cpu mount, paths relative to it.
awk '
    /^### / { keep = $2 ~ /\/(cpu\.max|cpu\.cfs_quota_us|cpu\.cfs_period_us)$/; sub(/^### \/sys\/fs\/cgroup\/(cpu\/)?/, "### ") }
    keep
' "$recording/cgroup-values.txt" > "$out/bandwidth.tree"

trimmed='{
    apiVersion, kind, metadata: {},
    items: [.items[] | {
        metadata: ({name: .metadata.name, namespace: .metadata.namespace, uid: .metadata.uid}
            + (.metadata.annotations // {} | with_entries(select(.key | startswith("kubernetes.io/config")))
                | if . == {} then {} else {annotations: .} end)
            + (if .metadata.ownerReferences then {ownerReferences: .metadata.ownerReferences} else {} end)),
        spec: {nodeName: .spec.nodeName, containers: [.spec.containers[] | {name, resources}]},
        status: ({qosClass: .status.qosClass, phase: .status.phase} + (.status | to_entries
            | map(select(.key | endswith("ontainerStatuses"))
                | .value |= map({name, image, imageID, ready, restartCount, containerID, state, lastState})) | from_entries))
    }]
}'
jq "$trimmed" "$recording/pods-A.json" > "$out/pods.json"
jq "$trimmed" "$recording/kubelet-pods.json" > "$out/kubelet-pods.json"

# What the kubelet itself calls the limited cgroups.
grep '^container_spec_cpu_quota{' "$recording/kubelet-metrics-cadvisor.txt" > "$out/cadvisor.txt"

# The expected table, from kubectl's list by grep and jq alone: path, level, QoS class, namespace, pod, container, quota in us.
find_container='.items[] | . as $pod | .status | [.containerStatuses, .initContainerStatuses] | add // [] | .[]
    | select(.containerID | endswith($id)) | [$pod.metadata.namespace, $pod.metadata.name, .name] | @tsv'
find_pod='.items[] | select(.metadata.uid == $uid) | [.metadata.namespace, .metadata.name, "-"] | @tsv'
find_qos='.items[] | select(.metadata.namespace == $namespace and .metadata.name == $pod) | .status.qosClass | ascii_downcase'
awk '/^### / { path = $2; next } path ~ /(cpu.max|cfs_quota_us)$/ && $1 != "max" && $1 != "-1" { print path, $1 }' \
    "$out/bandwidth.tree" | while read -r path quota; do
    path=${path%/*}
    id=$(printf '%s' "$path" | grep -oE '[0-9a-f]{64}' || true)
    if [ -n "$id" ]; then
        level=container
        named=$(jq -r --arg id "$id" "$find_container" "$recording/pods-A.json")
    else
        level=pod
        uid=$(printf '%s' "$path" | grep -oE 'pod[0-9a-f]{8}[-_0-9a-f]+' | sed 's/^pod//; s/_/-/g')
        named=$(jq -r --arg uid "$uid" "$find_pod" "$recording/pods-A.json")
    fi
    qos=$(jq -r --arg namespace "$(printf '%s' "$named" | cut -f1)" --arg pod "$(printf '%s' "$named" | cut -f2)" "$find_qos" \
        "$recording/pods-A.json")
    printf '%s\t%s\t%s\t%s\t%s\n' "$path" "$level" "$qos" "$named" "$quota"
done > "$out/expected.tsv"
