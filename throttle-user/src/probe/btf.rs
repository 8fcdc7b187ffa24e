//! Field offsets out of a BTF blob: a pure function of its bytes.
//!
//! Owns the walk through structs, anonymous members and typedefs, and the list of fields the probe needs. Does not read files.

use btf_rs::{Btf, Member, Type};
use throttle_ebpf::config::{ABSENT, Layout};

use crate::{
    cgroup::Version,
    event::{Era, KernelFacts},
};

/// Why a BTF blob does not describe a kernel the probe can run on.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The bytes are not BTF.
    #[error("kernel BTF cannot be parsed: {0}; is the file truncated?")]
    Malformed(String),
    /// A field without which nothing can be observed is missing.
    #[error(
        "this kernel's BTF has no {0}: it was built without CONFIG_CFS_BANDWIDTH, CONFIG_FAIR_GROUP_SCHED or CONFIG_CGROUP_SCHED, or is \
         newer than this program knows; CPU limits cannot be observed here"
    )]
    Missing(&'static str),
}

/// What the probe must know about a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// Offsets for the probe.
    pub layout: Layout,
    /// What later stages must know.
    pub facts: KernelFacts,
    /// Position of `prev` among `sched_switch`'s arguments, counted without the `void *` of the BTF typedef; `next` follows.
    pub switch_prev_arg: u32,
}

/// Resolves every field the probe needs.
///
/// `version` is the cgroup version of the cpu controller: it decides whether `hierarchical_quota` can be trusted
/// (`kernel/sched/core.c`, `tg_cfs_schedulable_down`: on v2 only since c98c18270be1 in 6.6, the release that also brought
/// `throttled_clock_self`).
///
/// # Errors
/// [`BtfError::Malformed`] for bytes that are not BTF, [`BtfError::Missing`] for a kernel without a required field.
pub fn resolve(blob: &[u8], version: Version) -> Result<KernelLayout, BtfError> {
    let btf = Btf::from_bytes(blob).map_err(|error| BtfError::Malformed(error.to_string()))?;
    let need = |path: &'static str| find(&btf, path).map(Place::byte).ok_or(BtfError::Missing(path));
    let want = |path: &'static str| find(&btf, path).map_or(ABSENT, Place::byte);
    let throttled = find(&btf, "cfs_rq.throttled").ok_or(BtfError::Missing("cfs_rq.throttled"))?;
    let local_counter = find(&btf, "cfs_rq.throttled_clock_self").is_some();
    let layout = Layout {
        task_tg: need("task_struct.sched_task_group")?,
        task_cfs_rq: need("task_struct.se.cfs_rq")?,
        task_se_parent: need("task_struct.se.parent")?,
        task_sched_delayed: want("task_struct.se.sched_delayed"),
        task_on_rq: need("task_struct.on_rq")?,
        task_prio: need("task_struct.prio")?,
        task_pid: need("task_struct.pid")?,
        task_last_arrival: want("task_struct.sched_info.last_arrival"),
        task_throttled: want("task_struct.throttled"),
        se_cfs_rq: need("sched_entity.cfs_rq")?,
        se_parent: need("sched_entity.parent")?,
        cfs_rq_throttled: throttled.byte(),
        cfs_rq_throttled_bit: throttled.bit_of_byte(),
        cfs_rq_throttle_count: need("cfs_rq.throttle_count")?,
        cfs_rq_throttled_clock: need("cfs_rq.throttled_clock")?,
        cfs_rq_throttled_clock_self: want("cfs_rq.throttled_clock_self"),
        cfs_rq_runtime_remaining: need("cfs_rq.runtime_remaining")?,
        cfs_rq_tg: need("cfs_rq.tg")?,
        cfs_rq_rq: need("cfs_rq.rq")?,
        cfs_rq_throttled_list: need("cfs_rq.throttled_list")?,
        cfs_rq_throttled_csd_list: want("cfs_rq.throttled_csd_list"),
        rq_cpu: need("rq.cpu")?,
        rq_clock: want("rq.clock"),
        rq_clock_task: want("rq.clock_task"),
        rq_cfsb_csd: want("rq.cfsb_csd"),
        rq_cfsb_csd_list: want("rq.cfsb_csd_list"),
        csd_func: want("__call_single_data.func"),
        tg_cgroup: need("task_group.css.cgroup")?,
        tg_parent: need("task_group.parent")?,
        tg_bandwidth: need("task_group.cfs_bandwidth")?,
        bandwidth_period: need("cfs_bandwidth.period")?,
        bandwidth_quota: need("cfs_bandwidth.quota")?,
        bandwidth_runtime: need("cfs_bandwidth.runtime")?,
        bandwidth_burst: want("cfs_bandwidth.burst"),
        bandwidth_hierarchical_quota: if version == Version::V1 || local_counter {
            want("cfs_bandwidth.hierarchical_quota")
        } else {
            ABSENT
        },
        bandwidth_period_timer: need("cfs_bandwidth.period_timer")?,
        bandwidth_slack_timer: need("cfs_bandwidth.slack_timer")?,
        bandwidth_throttled_list: need("cfs_bandwidth.throttled_cfs_rq")?,
        bandwidth_period_active: need("cfs_bandwidth.period_active")?,
        bandwidth_nr_periods: need("cfs_bandwidth.nr_periods")?,
        bandwidth_nr_throttled: need("cfs_bandwidth.nr_throttled")?,
        bandwidth_throttled_time: need("cfs_bandwidth.throttled_time")?,
        cgroup_kn: need("cgroup.kn")?,
        kn_id: need("kernfs_node.id")?,
        hrtimer_function: need("hrtimer.function")?,
        hrtimer_expires: need("hrtimer.node.expires")?,
    };
    let era = if layout.task_throttled != ABSENT {
        Era::Task
    } else if layout.cfs_rq_throttled_csd_list != ABSENT {
        Era::Async
    } else {
        Era::Direct
    };
    let csd_tracepoints = tracepoint(&btf, "csd_function_exit").is_some()
        && [layout.rq_cfsb_csd, layout.rq_cfsb_csd_list, layout.csd_func].iter().all(|&offset| offset != ABSENT);
    let switch_prev_arg = switch_prev_argument(&btf).ok_or(BtfError::Missing("tracepoint sched_switch"))?;
    Ok(KernelLayout { layout, facts: KernelFacts { era, csd_tracepoints, local_counter }, switch_prev_arg })
}

/// Where a member lies.
#[derive(Clone, Copy)]
struct Place {
    bit: u32,
}

impl Place {
    fn byte(self) -> u32 {
        self.bit / 8
    }

    /// Bit of the byte at [`Self::byte`] that holds a flag. Little-endian: the lowest bit of an int that is 0 or 1.
    fn bit_of_byte(self) -> u32 {
        self.bit % 8
    }
}

/// Finds `struct.member[.member…]`, walking through anonymous members and typedefs.
fn find(btf: &Btf, path: &str) -> Option<Place> {
    let mut names = path.split('.');
    let mut current = structure(btf, names.next()?)?;
    let mut place = Place { bit: 0 };
    for name in names {
        let (inner, member) = lookup(btf, &current, name, 0)?;
        place = Place { bit: place.bit + inner };
        current = strip(btf, &member)?;
    }
    Some(place)
}

/// The definition of a struct by name; forward declarations of the same name are passed over.
fn structure(btf: &Btf, name: &str) -> Option<Type> {
    btf.resolve_types_by_name(name).ok()?.into_iter().find(|found| matches!(found, Type::Struct(_)))
}

/// Type of a member without typedefs and qualifiers; a pointer stays a pointer.
fn strip(btf: &Btf, member: &Member) -> Option<Type> {
    let mut found = btf.resolve_chained_type(member).ok()?;
    for _ in 0..16 {
        found = match &found {
            Type::Typedef(inner) => btf.resolve_chained_type(inner).ok()?,
            Type::Const(inner) | Type::Volatile(inner) | Type::Restrict(inner) => {
                btf.resolve_chained_type(inner).ok()?
            }
            Type::TypeTag(inner) => btf.resolve_chained_type(inner).ok()?,
            _ => return Some(found),
        };
    }
    None
}

/// A member by name and its bit offset, also inside anonymous structs and unions (RANDSTRUCT wraps most of `task_struct`).
fn lookup(btf: &Btf, within: &Type, name: &str, depth: u32) -> Option<(u32, Member)> {
    let (Type::Struct(found) | Type::Union(found)) = within else { return None };
    for member in &found.members {
        let own = btf.resolve_name(member).unwrap_or_default();
        if own == name {
            return Some((member.bit_offset(), member.clone()));
        }
        if own.is_empty()
            && depth < 8
            && let Some(inner) = strip(btf, member)
            && let Some((bit, found)) = lookup(btf, &inner, name, depth + 1)
        {
            return Some((member.bit_offset() + bit, found));
        }
    }
    None
}

/// Parameters of a BTF tracepoint (`typedef void (*btf_trace_<name>)(void *, …)`), as type names of what they point to.
fn tracepoint(btf: &Btf, name: &str) -> Option<Vec<Option<String>>> {
    let typedef = btf
        .resolve_types_by_name(&format!("btf_trace_{name}"))
        .ok()?
        .into_iter()
        .find(|found| matches!(found, Type::Typedef(_)))?;
    let proto = btf.chained_type_iter(typedef.as_btf_type()?).find_map(|found| match found {
        Type::FuncProto(proto) => Some(proto),
        _ => None,
    })?;
    Some(
        proto
            .parameters
            .iter()
            .skip(1)
            .map(|parameter| match btf.resolve_chained_type(parameter).ok()? {
                Type::Ptr(pointer) => match btf.resolve_chained_type(&pointer).ok()? {
                    Type::Struct(pointee) => btf.resolve_name(&pointee).ok(),
                    _ => None,
                },
                _ => None,
            })
            .collect(),
    )
}

/// Position of `prev`: the first of two adjacent `struct task_struct *`. Positions 1 and 2 exist in the wild
/// (fa2c3254d7cf put `prev_state` before it for a while).
fn switch_prev_argument(btf: &Btf) -> Option<u32> {
    let parameters = tracepoint(btf, "sched_switch")?;
    let is_task = |parameter: &Option<String>| parameter.as_deref() == Some("task_struct");
    let first = parameters.windows(2).position(|pair| pair.iter().all(is_task))?;
    u32::try_from(first).ok().filter(|first| [1, 2].contains(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_btf_are_an_error() {
        for blob in [&b""[..], b"\x9f\xeb", b"hello world, this is not BTF at all", &[0; 64]] {
            assert!(matches!(resolve(blob, Version::V2), Err(BtfError::Malformed(_))), "{blob:?}");
        }
    }

    #[test]
    fn a_flag_in_a_bitfield_is_read_by_its_bit_and_an_int_by_its_lowest() {
        let bitfield = Place { bit: 3329 };
        assert_eq!((bitfield.byte(), bitfield.bit_of_byte()), (416, 1));
        let int = Place { bit: 3328 };
        assert_eq!((int.byte(), int.bit_of_byte()), (416, 0));
    }
}
