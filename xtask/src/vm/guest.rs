//! What runs inside a guest: its root and the script that is its init.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::binaries::Binaries;
use super::console::{DONE, MARK};
use super::initramfs::Archive;

/// Statically linked, of Debian's package busybox-static.
pub(crate) const BUSYBOX: &str = "/usr/bin/busybox";

/// The file with the guest's `uname -r`, below the folder of its results.
pub(crate) const KERNEL: &str = "kernel";
/// Seconds between a look at what hangs and the time limit.
const PATIENCE: u64 = 40;
/// Where a guest puts what it hands out, and below it what tests keep of a case that fails.
const RESULTS: &str = "/tmp/results";
const KEPT: &str = "kept";

/// A command of the guest's script. It leaves `<name>.out` and `<name>.code`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// For the shell, in the folder of the results.
    pub(crate) command: String,
}

/// The root of a guest that takes `steps` with `binaries`, and is ended after `limit`.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn root(binaries: &Binaries, steps: &[Step], limit: Duration) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut root = Archive::default();
    for folder in ["dev", "proc", "sys", "tmp", "bin", "tests"] {
        root.folder(folder);
    }
    root.program("bin/busybox", &read(Path::new(BUSYBOX))?);
    // Where cargo has it, which is where tests look for it (CARGO_BIN_EXE_throttle), and where a person would.
    root.program(&binaries.throttle.to_string_lossy(), &read(&binaries.throttle)?);
    root.link("bin/throttle", &binaries.throttle.to_string_lossy());
    // Where tests keep files (CARGO_TARGET_TMPDIR).
    if let Some(kept) = kept(&binaries.throttle) {
        root.link(&kept.to_string_lossy(), &format!("{RESULTS}/{KEPT}"));
    }
    for test in &binaries.tests {
        root.program(&format!("tests/{}", test.name), &read(&test.path)?);
    }
    root.program("init", init(steps, limit).as_bytes());
    Ok(root.finish())
}

/// `<target directory>/<triple>/tmp`; an executable is in `<target directory>/<triple>/<profile>`.
fn kept(executable: &Path) -> Option<PathBuf> {
    Some(executable.ancestors().nth(2)?.join("tmp"))
}

/// `word` as one word for the shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The script. The root is memory already, and may hold files below any folder: nothing is mounted over `/tmp`. At the end all
/// results go out through the second serial port.
fn init(steps: &[Step], limit: Duration) -> String {
    let steps: Vec<String> =
        steps.iter().map(|step| format!("step {} sh -c {}", step.name, quoted(&step.command))).collect();
    format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TMPDIR=/tmp RUST_BACKTRACE=1
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tracefs trace /sys/kernel/tracing
mount -t cgroup2 cgroup /sys/fs/cgroup
ifconfig lo up
# As systemd leaves it.
echo +cpu > /sys/fs/cgroup/cgroup.subtree_control
# Shortly before the end of our time, whoever hangs is shown; a guest that does not even get here is dead itself. Where idle
# time is skipped, one that hangs has much more of it.
{{
    case $THROTTLE_GUEST in smp) sleep {patience};; *) sleep {idle};; esac
    echo '{MARK}still at it:'
    ps -o pid,ppid,stat,args
    for task in /proc/[0-9]*/task/*; do
        case $(cat $task/comm) in *throttle*|kernel_*|ring|sh|sleep) head -n 9 $task/comm $task/stack;; esac
    done
}} &
mkdir -p {RESULTS}/{KEPT} && cd {RESULTS}
uname -r > {KERNEL}
step() {{
    name=$1
    shift
    echo \"{MARK}begin $name\"
    {{ \"$@\"; echo $? > $name.code; }} 2>&1 | tee $name.out
    echo \"{MARK}end $name $(cat $name.code)\"
}}
{steps}
stty -F /dev/ttyS1 raw
tar -cf /dev/ttyS1 .
echo '{DONE}'
poweroff -f
",
        steps = steps.join("\n"),
        patience = limit.as_secs().saturating_sub(PATIENCE),
        idle = limit.as_secs() * 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_takes_its_steps_in_order_and_sends_the_results_before_it_says_that_it_is_done() {
        let step = |name: &str, command: &str| Step { name: name.to_owned(), command: command.to_owned() };
        let steps = [step("sweep", "throttle sweep > sweep.json"), step("kernel_a", "/tests/a --exact 'x'")];
        let script = init(&steps, Duration::from_secs(240));
        let at = |text: &str| script.find(text).unwrap_or_else(|| panic!("no {text:?} in {script}"));
        let order = [
            "\nstep sweep sh -c 'throttle sweep > sweep.json'\n",
            "\nstep kernel_a sh -c '/tests/a --exact '\\''x'\\'''\n",
            "\ntar -cf /dev/ttyS1 .",
            "\necho '@@ done'\n",
        ];
        assert!(order.map(at).is_sorted(), "{script}");
        at("smp) sleep 200;;");
    }

    #[test]
    fn what_tests_keep_lies_where_their_target_directory_has_its_tmp() {
        assert_eq!(kept(Path::new("/t/x86/vm/throttle")), Some(PathBuf::from("/t/x86/tmp")));
        assert_eq!(kept(Path::new("/")), None);
    }
}
