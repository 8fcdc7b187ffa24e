//! Whether tests of the kernel tier can run on this machine, and if not, why.

use std::fs;
use std::path::Path;

use crate::cpu_cgroup::Hierarchy;

/// Bits of the effective capability set (include/uapi/linux/capability.h).
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// The first thing that keeps kernel tests from running here; none: they can.
pub(crate) fn obstacle() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    decide(&status, Path::new("/sys/kernel/btf/vmlinux").is_file(), Hierarchy::find().is_some())
}

/// `status` is the text of `/proc/self/status` (proc_pid_status(5)).
fn decide(status: &str, has_btf: bool, has_cpu_controller: bool) -> Option<String> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // Real, effective, saved, filesystem uid.
    let uid = field("Uid:").and_then(|ids| ids.split_whitespace().nth(1)).unwrap_or("unknown");
    let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| capabilities & (1 << bit) != 0;
    if uid != "0" {
        Some(format!("not root (uid {uid})"))
    } else if !(has(CAP_SYS_ADMIN) || has(CAP_BPF) && has(CAP_PERFMON)) {
        Some("no CAP_BPF and CAP_PERFMON".to_owned())
    } else if !has_btf {
        Some("the kernel has no BTF (/sys/kernel/btf/vmlinux, CONFIG_DEBUG_INFO_BTF)".to_owned())
    } else if !has_cpu_controller {
        Some("no cgroup hierarchy has the cpu controller".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "Name:\txtask\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn root_with_everything_can() {
        assert_eq!(decide(ROOT, true, true), None);
    }

    #[test]
    fn the_effective_uid_counts() {
        let status = ROOT.replace("0\t0\t0\t0", "0\t1000\t0\t0");
        assert_eq!(decide(&status, true, true).as_deref(), Some("not root (uid 1000)"));
    }

    #[test]
    fn root_of_a_container_without_capabilities_cannot() {
        let status = ROOT.replace("000001ffffffffff", "00000000a80425fb");
        assert_eq!(decide(&status, true, true).as_deref(), Some("no CAP_BPF and CAP_PERFMON"));
    }

    #[test]
    fn bpf_and_perfmon_do_without_sys_admin() {
        let status = ROOT.replace("000001ffffffffff", "000000c000000000");
        assert_eq!(decide(&status, true, true), None);
    }

    #[test]
    fn a_missing_btf_or_controller_is_named() {
        assert!(decide(ROOT, false, true).is_some_and(|why| why.contains("BTF")));
        assert!(decide(ROOT, true, false).is_some_and(|why| why.contains("cpu controller")));
        assert!(decide("", true, true).is_some_and(|why| why.contains("unknown")));
    }
}
