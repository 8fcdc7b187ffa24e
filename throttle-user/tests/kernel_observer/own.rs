//! The self-check at start: the probe must see the observer in the cgroup that it is in.

use throttle_user::{
    cgroup::Nesting,
    probe::{KernelLayout, Observer, ObserverPlan, ProbeError},
};

use crate::observed::{Bench, one_at_a_time};

fn start(bench: &Bench, kernel: &KernelLayout) -> Result<Observer, ProbeError> {
    Observer::start(&ObserverPlan::default(), kernel, &bench.hierarchy, |_| {})
}

#[test]
fn kernel_the_probe_sees_this_process_where_it_is_and_where_it_moves() {
    let _turn = one_at_a_time();
    let mut bench = Bench::new(Nesting::Nested);
    start(&bench, &bench.kernel).expect("the group it came from");
    bench.scratch.join_driver().expect("moved");
    start(&bench, &bench.kernel).expect("a group of its own");
}

#[test]
fn kernel_a_wrong_offset_is_refused_with_both_ids() {
    let _turn = one_at_a_time();
    let mut bench = Bench::new(Nesting::Nested);
    bench.scratch.join_driver().expect("moved");
    let own = bench.scratch.driver().id().expect("an id");
    let mut kernel = bench.kernel;
    // The member before it (include/linux/kernfs.h, `struct kernfs_node`): a load the verifier accepts, and another number.
    kernel.layout.kn_id -= 8;
    let error = start(&bench, &kernel).err().expect("refused");
    let ProbeError::WrongOffsets { seen, own: told, path, .. } = &error else { panic!("{error}") };
    assert_eq!((*told, path.as_path()), (own, bench.scratch.driver().path()));
    assert_ne!(*seen, own);
    assert!(error.to_string().contains(&own.to_string()) && error.to_string().contains(&seen.to_string()), "{error}");
}
