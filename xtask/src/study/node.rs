//! How busy the node is, by `/proc/stat`, and how much of it is ours.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// CPU time since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    busy: u64,
    idle: u64,
    stolen: u64,
    /// Of this process and the children it waited for, with theirs.
    ours: u64,
}

/// Shares of all CPU time between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    /// Of no use to anybody.
    pub(crate) idle: f64,
    /// Used by others than us.
    pub(crate) foreign: f64,
    /// Taken by a hypervisor.
    pub(crate) stolen: f64,
}

impl Node {
    /// Reads both files now.
    ///
    /// # Errors
    /// They cannot be read or are not what the kernel writes.
    pub(crate) fn read() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        Self::parse(&read("/proc/stat")?, &read("/proc/self/stat")?).context("/proc/stat or /proc/self/stat is odd")
    }

    fn parse(node: &str, own: &str) -> Option<Self> {
        let line = node.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().filter_map(|tick| tick.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks.as_slice() else { return None };
        // After the name in parentheses: utime, stime, cutime, cstime are the 12th to the 15th (proc_pid_stat(5)).
        let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let ours = own.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some(Self { busy: user + nice + system + irq + softirq, idle: idle + iowait, stolen, ours })
    }

    /// Shares from `self` to `later`; `None` if no time went by.
    #[expect(clippy::cast_precision_loss, reason = "ticks of a machine's life are far below 2^53")]
    pub(crate) fn until(&self, later: &Self) -> Option<Use> {
        let [busy, idle, stolen, ours] = [
            later.busy.saturating_sub(self.busy),
            later.idle.saturating_sub(self.idle),
            later.stolen.saturating_sub(self.stolen),
            later.ours.saturating_sub(self.ours),
        ];
        let all = busy + idle + stolen;
        let share = |part: u64| part as f64 / all as f64;
        (all > 0).then(|| Use { idle: share(idle), foreign: share(busy.saturating_sub(ours)), stolen: share(stolen) })
    }
}

/// Idle share of all CPUs over three seconds, and the load average of a minute.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn look() -> Result<(f64, f64)> {
    let before = Node::read()?;
    sleep(Duration::from_secs(3));
    let idle = before.until(&Node::read()?).map_or(0.0, |used| used.idle);
    let load = fs::read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
    let load = load.split(' ').next().and_then(|load| load.parse().ok()).context("/proc/loadavg is odd")?;
    Ok((idle, load))
}

/// Looks until the node is idle and its load low, for as long as `patience`; returns the last look.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn wait_for_quiet(idle_wanted: f64, load_wanted: f64, patience: Duration) -> Result<(f64, f64)> {
    let start = Instant::now();
    loop {
        let (idle, load) = look()?;
        if (idle >= idle_wanted && load < load_wanted) || start.elapsed() > patience || crate::interrupt::asked() {
            return Ok((idle, load));
        }
        eprintln!("study: waiting for a quiet machine: {:.0} % idle, load {load:.2}", idle * 100.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "42 (a) b) R 1 42 42 0 -1 4194304 100 200 0 0 7 3 20 10 20 0 1 0 500 1000 1 0";

    #[test]
    fn what_is_not_ours_is_foreign() {
        let before = Node::parse("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1\n", OWN).expect("it is well formed");
        assert_eq!(before, Node { busy: 200, idle: 1000, stolen: 0, ours: 40 });
        let later = Node { busy: 260, idle: 1130, stolen: 10, ours: 80 };
        assert_eq!(before.until(&later), Some(Use { idle: 0.65, foreign: 0.1, stolen: 0.05 }));
        assert_eq!(before.until(&before), None);
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        assert_eq!(Node::parse("intr 1\n", OWN), None);
        assert_eq!(Node::parse("cpu 1 2 3 4 5 6 7 8\n", "42 (x) R 1"), None);
    }
}
