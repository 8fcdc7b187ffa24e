//! The observer against the running kernel's own counters, case by case, each bracketed by two readings with quiet before and
//! after. Needs root, the cpu controller and a kernel with BTF; without them these tests fail.

mod edges;
mod kprobes;
mod limits;
mod loss;
mod moves;
mod observed;
mod own;
mod parity;
mod roles;

/// What the tests start this binary for, in a process of its own: a role, and the group to play it in.
#[test]
#[ignore = "started by the other tests as a process of its own"]
fn workload() {
    roles::play();
}
