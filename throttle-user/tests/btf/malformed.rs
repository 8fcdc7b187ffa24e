//! Blobs that are no BTF, or BTF that no compiler wrote: an error, and soon.

use proptest::prelude::*;
use throttle_user::{
    cgroup::Version,
    probe::{BtfError, btf::resolve},
};

use crate::blob::{Blob, KIND_FLAG, Of, kind};
use crate::data;
use crate::kernel::Kernel;

fn malformed(blob: &[u8], why: &str) {
    match resolve(blob, Version::V2) {
        Err(BtfError::Malformed(said)) => assert!(said.contains(why), "{said}, not {why}"),
        other => panic!("{other:?}, not malformed: {why}"),
    }
}

#[test]
fn what_is_not_btf_is_malformed() {
    for blob in [&b""[..], b"\x9f", b"\x9f\xeb", b"hello world, this is not BTF at all", &[0; 64]] {
        malformed(blob, "");
    }
    malformed(b"\xeb\x9f\x01\0", "big-endian");
    malformed(b"\x9f\xeb\x02\0", "version is 2");
}

#[test]
fn a_blob_cut_off_anywhere_is_malformed() {
    let blob = data("6.18", "btf");
    for length in (0..blob.len()).step_by(211).chain([blob.len() - 1]) {
        malformed(&blob[..length], "");
    }
}

/// A kernel whose `task_struct.se` is of a type that `write` makes.
fn with_entity(write: impl Fn(&mut Blob) -> u32) -> Vec<u8> {
    let mut blob = Blob::new();
    let id = write(&mut blob);
    let mut kernel = Kernel::with(&[]);
    *kernel.members("task_struct") = vec![("sched_task_group", Of::Word), ("se", Of::Id(id))];
    kernel.write(blob)
}

#[test]
fn a_type_defined_in_a_circle_is_malformed() {
    let circle = with_entity(|blob| {
        let other = blob.next() + 1;
        blob.record("a", kind::TYPEDEF, other, &[]);
        blob.record("b", kind::TYPEDEF, other - 1, &[])
    });
    malformed(&circle, "circle");
}

#[test]
fn a_type_that_is_not_there_is_malformed() {
    malformed(&with_entity(|_| 1_000_000), "no type 1000000");
    malformed(&with_entity(|_| u32::MAX), "no type 4294967295");
}

#[test]
fn a_member_beyond_the_end_of_its_struct_is_malformed() {
    let far = with_entity(|blob| {
        let names = [blob.name("cfs_rq"), blob.name("parent")];
        let members = [names[0], 1, u32::MAX - 7, names[1], 1, 0];
        blob.record("", kind::STRUCT | 2 << 8, 16, &members)
    });
    malformed(&far, "outside");
}

#[test]
fn a_struct_that_contains_itself_ends() {
    let nested = with_entity(|blob| {
        let own = blob.next();
        blob.record("", kind::STRUCT | 1 << 8, 8, &[0, own, 0])
    });
    let error = resolve(&nested, Version::V2).expect_err("no such member");
    assert!(error.to_string().contains("field cfs_rq in struct se"), "{error}");
}

#[test]
fn anonymous_structs_that_contain_the_next_twice_are_looked_into_once() {
    // 2^40 ways from the first to the last.
    let nested = with_entity(|blob| {
        let mut id = blob.record("", kind::STRUCT, 0, &[]);
        for _ in 0..40 {
            id = blob.record("", kind::STRUCT | 2 << 8, 0, &[0, id, 0, 0, id, 0]);
        }
        id
    });
    let error = resolve(&nested, Version::V2).expect_err("no such member");
    assert!(error.to_string().contains("field cfs_rq in struct se"), "{error}");
}

#[test]
fn counts_that_the_blob_cannot_hold_are_malformed() {
    for of in [kind::STRUCT, kind::UNION, kind::FUNC_PROTO] {
        malformed(&with_entity(|blob| blob.record("", of | 0xffff << 8 | KIND_FLAG, 8, &[])), "");
    }
    let mut blob = Kernel::with(&[]).write(Blob::new());
    for word in 1..6 {
        let kept: [u8; 4] = blob[4 * word..][..4].try_into().expect("four bytes");
        // The offset of the types, 0, may not be moved either.
        blob[4 * word..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let found = resolve(&blob, Version::V2);
        // Strings said to be longer than the blob are all there all the same.
        assert!(word == 5 || matches!(found, Err(BtfError::Malformed(_))), "word {word} of the header: {found:?}");
        blob[4 * word..][..4].copy_from_slice(&kept);
    }
}

#[test]
fn a_long_name_that_everything_bears_is_malformed() {
    let mut blob = Blob::new();
    let long = blob.name(&"a".repeat(1 << 16));
    // Half a gigabyte of names in 160 kB.
    let members: Vec<u32> = (0..8_000).flat_map(|_| [long, 1, 0]).collect();
    blob.record("", kind::STRUCT | 8_000 << 8, 8, &members);
    malformed(&Kernel::with(&[]).write(blob), "more often");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut blob = Kernel::with(&["task_struct.throttled", "rq.cfsb_csd"]).write(Blob::new());
        for (at, byte) in changes {
            let at = at.index(blob.len());
            blob[at] = byte;
        }
        blob.truncate(cut.map_or(blob.len(), |cut| cut.index(blob.len())));
        let _ = resolve(&blob, Version::V2);
    }
}
