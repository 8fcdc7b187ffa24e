//! What runs inside a guest: its root and the script that is its init.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::binaries::Binaries;
use super::console::{DONE, MARK};
use super::initramfs::Archive;
use super::study::Study;

/// Statically linked, of Debian's package busybox-static.
pub(crate) const BUSYBOX: &str = "/usr/bin/busybox";

/// Names of what a guest hands out, below the folder of its results.
pub(crate) const KERNEL: &str = "kernel";
/// Seconds between a look at what hangs and the time limit.
const PATIENCE: u64 = 40;
/// The study's step, and the folder of its run.
pub(crate) const STUDY: &str = "sweep";
pub(crate) const RUN: &str = "run";

/// The root of a guest that runs the study and all of `binaries`' tests, and is ended after `limit`.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn root(binaries: &Binaries, study: &Study, limit: Duration) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut root = Archive::default();
    for folder in ["dev", "proc", "sys", "tmp", "bin", "tests"] {
        root.folder(folder);
    }
    root.program("bin/busybox", &read(Path::new(BUSYBOX))?);
    // Where cargo has it, which is where tests look for it (CARGO_BIN_EXE_throttle), and where a person would.
    root.program(&binaries.throttle.to_string_lossy(), &read(&binaries.throttle)?);
    root.link("bin/throttle", &binaries.throttle.to_string_lossy());
    for test in &binaries.tests {
        root.program(&format!("tests/{}", test.name), &read(&test.path)?);
    }
    root.program("init", init(binaries, study, limit).as_bytes());
    Ok(root.finish())
}

/// The script. The root is memory already, and may hold files below any folder: nothing is mounted over `/tmp`. Every step
/// leaves `<step>.out` and `<step>.code`; at the end all results go out through the second serial port.
fn init(binaries: &Binaries, study: &Study, limit: Duration) -> String {
    let sweep = format!("step {STUDY} sh -c 'throttle {} --out {RUN} > {STUDY}.json'", study.arguments().join(" "));
    let tests = binaries.tests.iter().map(|test| {
        let names = test.names.join(" ");
        format!("step {name} /tests/{name} --test-threads=1 --exact {names}", name = test.name)
    });
    let steps: Vec<String> = std::iter::once(sweep).chain(tests).collect();
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
# Shortly before the end of our time, whoever hangs is shown; a guest that does not even get here is dead itself.
{{
    sleep {patience}
    echo '{MARK}still at it:'
    ps -o pid,ppid,stat,args
    for task in /proc/[0-9]*/task/*; do
        case $(cat $task/comm) in *throttle*|kernel_*|ring|sh|sleep) head -n 9 $task/comm $task/stack;; esac
    done
}} &
mkdir /tmp/results && cd /tmp/results
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
        patience = limit.as_secs().saturating_sub(PATIENCE)
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::binaries::TestBinary;
    use super::*;

    #[test]
    fn the_script_runs_the_study_and_exactly_the_tests_that_are_named() {
        let test = TestBinary {
            name: "kernel_cgroup".to_owned(),
            path: PathBuf::new(),
            names: vec!["kernel_a".to_owned(), "kernel_b".to_owned()],
        };
        let binaries = Binaries { throttle: PathBuf::from("/t/throttle"), tests: vec![test] };
        let script = init(&binaries, &Study::quick(), Duration::from_secs(240));
        assert!(script.contains("\nstep sweep sh -c 'throttle sweep --quiet --json --requests "), "{script}");
        assert!(
            script.contains("\nstep kernel_cgroup /tests/kernel_cgroup --test-threads=1 --exact kernel_a kernel_b\n"),
            "{script}"
        );
        assert!(script.contains("\necho '@@ done'\n") && script.contains("\n    sleep 200\n"), "{script}");
    }
}
