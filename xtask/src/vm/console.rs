//! What a guest's console says: how far its script came, and whether the kernel survived it.

/// Lines of the script begin with this, wherever in a line of the console they start.
pub(crate) const MARK: &str = "@@ ";
/// The script's last line, written when the results are out.
pub(crate) const DONE: &str = "@@ done";

/// How a guest came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The script ran to its end.
    Done,
    /// The kernel died: the first line that says so.
    Crashed(String),
    /// Neither; what it was doing.
    Cut(String),
}

/// Lines the kernel prints only when something is badly wrong (kernel/panic.c, arch/x86/kernel/dumpstack.c, traps.c).
const DEATHS: [&str; 6] = [
    "Kernel panic",
    "Oops:",
    "BUG: unable to handle",
    "general protection fault",
    "kernel BUG at",
    "PANIC: double fault",
];

impl End {
    /// Reads a whole console.
    pub(crate) fn read(console: &str) -> Self {
        let crash = console.lines().find(|line| DEATHS.iter().any(|death| line.contains(death)));
        if let Some(line) = crash {
            return Self::Crashed(line.trim().to_owned());
        }
        let mut doing = "booting".to_owned();
        for line in console.lines() {
            let Some((_, mark)) = line.split_once(MARK) else { continue };
            let mark = mark.trim_end();
            if format!("{MARK}{mark}") == DONE {
                return Self::Done;
            }
            if let Some(step) = mark.strip_prefix("begin ") {
                doing = format!("running {step}");
            } else if let Some(step) = mark.strip_prefix("end ") {
                doing = format!("past {step}");
            }
        }
        Self::Cut(doing)
    }
}

/// The end of a console, for people.
pub(crate) fn last_lines(console: &str, count: usize) -> String {
    let lines: Vec<&str> = console.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTED: &str = "[    0.5] printk: console\r\n@@ begin sweep\r\n[    9.1] clocksource: odd@@ end sweep 0\r\n";

    #[test]
    fn a_script_that_reached_its_end_is_done() {
        assert_eq!(End::read(&format!("{BOOTED}@@ done\r\n[   30.1] reboot: Power down\r\n")), End::Done);
    }

    #[test]
    fn a_guest_cut_off_says_what_it_was_doing() {
        assert_eq!(End::read(""), End::Cut("booting".to_owned()));
        assert_eq!(End::read(&BOOTED[..60]), End::Cut("running sweep".to_owned()));
        assert_eq!(End::read(BOOTED), End::Cut("past sweep 0".to_owned()));
    }

    #[test]
    fn a_dead_kernel_is_told_from_a_test_that_fails_and_a_test_that_talks_of_panics() {
        let oops =
            "@@ begin sweep\r\n[   12.0] Oops: 0002 [#1] PREEMPT SMP\r\n[   12.1] Kernel panic - not syncing\r\n";
        assert_eq!(End::read(oops), End::Crashed("[   12.0] Oops: 0002 [#1] PREEMPT SMP".to_owned()));
        let panicked = "thread 'kernel_a' panicked at tests/kernel_a.rs:1:1:\r\n@@ done\r\n";
        assert_eq!(End::read(panicked), End::Done);
    }

    #[test]
    fn the_last_lines_are_without_blanks() {
        assert_eq!(last_lines("a\r\n\r\nb\r\nc\r\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }
}
