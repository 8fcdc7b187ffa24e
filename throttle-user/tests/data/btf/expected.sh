#!/usr/bin/env bash
# Prints what pahole and bpftool say of the BTF given: the offset of each member that the probe needs (bytes, and the bit of a
# bitfield), `absent` for one the kernel lacks, and the prototypes of two tracepoints.
set -euo pipefail
btf=$1
members=(
    task_struct.{sched_task_group,se,on_rq,prio,pid,sched_info,signal,thread_node,throttled} sched_info.last_arrival
    signal_struct.thread_head
    sched_entity.{cfs_rq,parent,sched_delayed}
    cfs_rq.{throttled,throttle_count,throttled_clock,throttled_clock_self,runtime_remaining,tg,rq,throttled_list,throttled_csd_list}
    rq.{cpu,clock,clock_task,cfsb_csd,cfsb_csd_list} __call_single_data.func
    task_group.{css,parent,cfs_bandwidth} cgroup_subsys_state.cgroup
    cfs_bandwidth.{period,quota,runtime,burst,hierarchical_quota,period_timer,slack_timer,throttled_cfs_rq,period_active}
    cfs_bandwidth.{nr_periods,nr_throttled,throttled_time}
    cgroup.kn kernfs_node.id hrtimer.{function,node} timerqueue_node.expires
)
for member in "${members[@]}"; do
    # `type name; /* offset size */`, `type (*name)(…); /* … */`, `type name:1; /* offset: bit size */`; members of a struct inside
    # are indented further, those of an anonymous one count as the outer's.
    pahole --structs --class_name "${member%.*}" "$btf" 2>/dev/null | awk -v name="${member#*.}" -v member="$member" '
        { sub(/[ ]*__attribute__\(\(.*\)\);/, ";") }
        match($0, /[ *(]([A-Za-z0-9_]+)(:[0-9]+)?(\)\(.*\))?;[ ]*\/\*/) {
            declared = substr($0, RSTART + 1, RLENGTH - 1); sub(/[:;)].*/, "", declared); sub(/^\*/, "", declared)
            if (declared != name) next
            place = $0; sub(/.*\/\*[ ]*/, "", place); sub(/[ ]*\*\/.*/, "", place)
            count = split(place, words, /[: ]+/)
            print member, words[1] (count > 2 ? ":" words[2] : ""); found++
        }
        END { if (!found) print member, "absent"; if (found > 1) exit 1 }'
done
bpftool btf dump file "$btf" format c 2>/dev/null | grep -E '^typedef .*btf_trace_(sched_switch|csd_function_exit)\)' | sort
