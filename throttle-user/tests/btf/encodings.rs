//! Encodings, prototypes and missing fields that no kernel at hand shows.

use throttle_ebpf::config::ABSENT;
use throttle_user::{
    cgroup::Version,
    event::KernelFacts,
    probe::{BtfError, btf::resolve},
};

use crate::blob::{Blob, Of, kind, words};
use crate::fields::{FIELDS, found, inside};
use crate::kernel::Kernel;
use crate::tools::DIRECT;

#[test]
fn a_kernel_of_required_fields_only_has_all_others_absent_and_no_feature_of_theirs() {
    let layout = Kernel::with(&[]).resolve().expect("all that is required is there");
    for ((path, required), found) in FIELDS.iter().zip(found(&layout)) {
        assert_eq!(found != ABSENT, *required, "{path}");
    }
    assert_eq!(layout.facts, DIRECT);
}

#[test]
fn the_end_of_remote_throttles_is_watched_only_where_tracepoint_and_all_fields_are_there() {
    let fields = ["rq.cfsb_csd", "rq.cfsb_csd_list", "__call_single_data.func"];
    for missing in 0..=fields.len() {
        let there: Vec<_> = (0..fields.len()).filter(|&field| field != missing).map(|field| fields[field]).collect();
        let mut kernel = Kernel::with(&there);
        let facts = |kernel: &Kernel| -> KernelFacts { kernel.resolve().expect("nothing required is missing").facts };
        assert!(!facts(&kernel).csd_tracepoints);
        kernel.tracepoints.push(("csd_function_exit", vec!["", ""]));
        assert_eq!(facts(&kernel).csd_tracepoints, missing == fields.len(), "without field {missing}");
    }
}

#[test]
fn a_missing_field_is_named_with_its_struct_and_what_it_tells() {
    for (path, _) in FIELDS.iter().filter(|(path, required)| *required && !path.ends_with(":bit")) {
        let (of, name) = path.rsplit_once('.').expect("a member");
        let of = of.rsplit('.').next().map(|last| inside(last).unwrap_or(last)).expect("a struct");
        let mut kernel = Kernel::with(&[]);
        kernel.members(of).retain(|(member, _)| *member != name);
        let Err(BtfError::Missing { lacks, tells, option }) = kernel.resolve() else { panic!("{path} is required") };
        assert_eq!(lacks, format!("field {name} in struct {of}"));
        let text = BtfError::Missing { lacks: lacks.clone(), tells, option }.to_string();
        assert!(!tells.is_empty() && [&*lacks, tells, option].iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn a_missing_struct_is_named() {
    let mut kernel = Kernel::with(&[]);
    kernel.structs.retain(|(name, _)| *name != "cfs_bandwidth");
    let Err(BtfError::Missing { lacks, option, .. }) = kernel.resolve() else { panic!("it is required") };
    assert_eq!((&*lacks, option), ("struct cfs_bandwidth", "CONFIG_CFS_BANDWIDTH"));
}

#[test]
fn a_forward_declaration_is_no_definition() {
    let mut blob = Blob::new();
    blob.record("cfs_rq", kind::FWD, 0, &[]);
    resolve(&Kernel::with(&[]).write(blob), Version::V2).expect("the struct comes behind its declaration");
    let mut blob = Blob::new();
    blob.record("cfs_rq", kind::FWD, 0, &[]);
    let mut kernel = Kernel::with(&[]);
    kernel.structs.retain(|(name, _)| *name != "cfs_rq");
    let error = resolve(&kernel.write(blob), Version::V2).expect_err("only declared");
    assert!(matches!(&error, BtfError::Missing { lacks, .. } if lacks == "struct cfs_rq"), "{error}");
}

#[test]
fn members_of_anonymous_structs_and_unions_count_as_their_owners() {
    let plain = Kernel::with(&["task_struct.throttled"]);
    let mut wrapped = Kernel::with(&["task_struct.throttled"]);
    for of in ["task_struct", "cfs_rq", "cfs_bandwidth"] {
        let members = std::mem::take(wrapped.members(of));
        let inner = Of::Anonymous { union: false, members };
        let unit = vec![("spare", Of::Word), ("", inner), ("another", Of::Word)];
        *wrapped.members(of) = vec![("", Of::Anonymous { union: true, members: unit })];
    }
    assert_eq!(wrapped.resolve().expect("anonymous"), plain.resolve().expect("plain"));
    wrapped.members("task_struct").insert(0, ("first", Of::Word));
    let moved = wrapped.resolve().expect("moved").layout;
    assert_eq!(moved.task_pid, plain.resolve().expect("plain").layout.task_pid + 8);
}

#[test]
fn a_member_of_a_named_struct_inside_does_not_count_as_its_owners() {
    let mut kernel = Kernel::with(&[]);
    kernel.members("task_struct").retain(|(name, _)| *name != "pid");
    kernel.members("sched_entity").push(("pid", Of::Word));
    let error = kernel.resolve().expect_err("task_struct has no pid of its own");
    assert!(error.to_string().contains("field pid in struct task_struct"), "{error}");
}

#[test]
fn neighbours_may_be_renamed() {
    // `task_struct.state` is `__state` from 5.14 on, `kernfs_node.parent` is `__parent` from 6.15 on.
    let with = |state, parent| {
        let mut kernel = Kernel::with(&[]);
        kernel.members("task_struct").insert(0, (state, Of::Word));
        kernel.members("kernfs_node").insert(0, (parent, Of::Word));
        kernel.resolve().expect("neither is read")
    };
    assert_eq!(with("state", "parent"), with("__state", "__parent"));
}

#[test]
fn throttled_is_the_lowest_bit_of_an_int_or_any_bit_of_a_bitfield() {
    let int = Kernel::with(&[]).resolve().expect("an int").layout;
    assert_eq!(int.cfs_rq_throttled_bit, 0);
    for (bit, names) in [vec!["throttled", "other"], vec!["other", "throttled"], vec![""; 10]].into_iter().enumerate() {
        let mut kernel = Kernel::with(&[]);
        let throttled = kernel.members("cfs_rq").iter_mut().find(|(name, _)| *name == "throttled").expect("required");
        let names = if bit == 2 { names.into_iter().chain(["throttled"]).collect() } else { names };
        *throttled = ("", Of::Flags(names));
        // With flags in it, all offsets of the struct carry a size in their upper byte.
        let flag = kernel.resolve().expect("a bitfield").layout;
        let (byte, bit) = [(0, 0), (0, 1), (1, 2)][bit];
        assert_eq!((flag.cfs_rq_throttled, flag.cfs_rq_throttled_bit), (int.cfs_rq_throttled + byte, bit));
        assert_eq!(flag.cfs_rq_throttled_list, int.cfs_rq_throttled_list);
    }
}

#[test]
fn typedefs_and_qualifiers_around_a_struct_are_seen_through() {
    let mut blob = Blob::new();
    let entity = blob.structure("sched_entity", false, &words(&["cfs_rq", "parent"]));
    let constant = blob.record("", kind::CONST, entity, &[]);
    let typedef = blob.record("entity_t", kind::TYPEDEF, constant, &[]);
    let mut kernel = Kernel::with(&[]);
    kernel.structs.retain(|(name, _)| *name != "sched_entity");
    let direct = Kernel::with(&[]).resolve().expect("direct").layout;
    kernel.members("task_struct").retain(|(name, _)| *name != "se");
    kernel.members("task_struct").push(("se", Of::Id(typedef)));
    let last = 8 * u32::try_from(kernel.members("task_struct").len() - 1).expect("few");
    // One word longer than `Of::Id` says.
    kernel.members("task_struct").push(("", Of::Word));
    let layout = resolve(&kernel.write(blob), Version::V2).expect("seen through").layout;
    assert_eq!((layout.task_cfs_rq, layout.task_se_parent), (last, last + 8));
    assert_eq!(layout.se_parent, direct.se_parent);
}

#[test]
fn the_tasks_of_a_switch_are_found_where_the_kernel_passes_them() {
    let with = |arguments: &[&'static str]| {
        let mut kernel = Kernel::with(&[]);
        kernel.tracepoints = vec![("sched_switch", arguments.to_vec())];
        kernel.resolve()
    };
    let position = |arguments: &[&'static str]| with(arguments).map(|layout| layout.switch_prev_arg);
    assert_eq!(position(&["", "task_struct", "task_struct"]), Ok(1), "up to 5.17");
    assert_eq!(position(&["", "", "task_struct", "task_struct"]), Ok(2), "fa2c3254d7cf");
    assert_eq!(position(&["", "task_struct", "task_struct", ""]), Ok(1), "from 5.18 on");
    for unknown in
        [&["task_struct", "task_struct"][..], &["", "task_struct", "", "task_struct"], &["", "", "", ""], &[]]
    {
        let error = with(unknown).expect_err("not known");
        assert!(matches!(error, BtfError::SwitchArguments { .. }), "{error}");
    }
    let mut kernel = Kernel::with(&[]);
    kernel.tracepoints.clear();
    let error = kernel.resolve().expect_err("required");
    assert!(matches!(&error, BtfError::Missing { lacks, .. } if lacks == "tracepoint sched_switch"), "{error}");
}
