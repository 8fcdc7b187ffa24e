//! From what a guest left behind to how it went.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::binaries::TestBinary;
use super::console::End;
use super::guest::KERNEL;
use super::qemu::{Boot, Mode};
use super::study::{RUN, STUDY, Study};
use crate::counts::Counts;

/// How a guest went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// `uname -r` in the guest; none: it did not get so far.
    pub(crate) kernel: Option<String>,
    /// Tests of the kernel tier, and one for the study.
    pub(crate) counts: Counts,
    /// What is wrong; nothing: all held.
    pub(crate) problems: Vec<String>,
}

impl Verdict {
    /// Whether all ran and held.
    pub(crate) fn held(&self) -> bool {
        self.problems.is_empty() && self.counts.failed == 0 && self.counts.ran() > 0
    }

    /// A guest that said nothing but this.
    fn of_nothing(problem: String) -> Self {
        Self { problems: vec![problem], ..Self::default() }
    }
}

/// Whether to boot again: only for a kernel that died, and only where another run can go another way.
pub(crate) fn again(boot: &Boot, mode: Mode) -> bool {
    mode == Mode::Smp && matches!(boot.end, End::Crashed(_))
}

/// Unpacks the guest's results into `out` and judges them.
///
/// # Errors
/// The results cannot be unpacked.
pub(crate) fn judge(
    boot: &Boot,
    mode: Mode,
    tests: &[TestBinary],
    study: Option<Study>,
    out: &Path,
) -> Result<Verdict> {
    if let Some(problem) = cut_short(boot) {
        return Ok(Verdict::of_nothing(problem));
    }
    boot.unpack(out)?;
    let text = |name: String| fs::read_to_string(out.join(name)).ok();
    let step = |name: &str| Step { output: text(format!("{name}.out")), code: text(format!("{name}.code")) };

    let mut verdict =
        Verdict { kernel: text(KERNEL.to_owned()).map(|release| release.trim().to_owned()), ..Verdict::default() };
    for test in tests {
        step(&test.name).judge(&test.name, test.names.len() as u64, &mut verdict);
    }
    let Some(study) = study else { return Ok(verdict) };
    // 1 says that something is not right; in real time the figures decide how far off is too far.
    let mut sweep = step(STUDY);
    if mode == Mode::Smp && sweep.code.as_deref().map(str::trim) == Some("1") {
        sweep.code = Some("0".to_owned());
    }
    let mut problems: Vec<String> = sweep.failure(STUDY).into_iter().collect();
    match study.problems(&out.join(RUN), mode) {
        Ok(found) => problems.extend(found),
        Err(error) => problems.push(format!("{error:#}")),
    }
    if problems.is_empty() {
        verdict.counts.passed += 1;
    } else {
        verdict.counts.failed += 1;
    }
    verdict.problems.extend(problems);
    Ok(verdict)
}

/// Why there is nothing to judge.
pub(crate) fn cut_short(boot: &Boot) -> Option<String> {
    let seconds = boot.took.as_secs();
    match &boot.end {
        End::Done if boot.timed_out => Some(format!("did its work, but did not end within {seconds} s")),
        End::Done => None,
        End::Crashed(line) => Some(format!("the kernel died: {line}")),
        End::Cut(doing) if boot.timed_out => Some(format!("not done after {seconds} s: {doing}")),
        End::Cut(doing) => Some(format!("QEMU ended early: {doing}")),
    }
}

/// A step of the guest's script as it left it.
struct Step {
    output: Option<String>,
    code: Option<String>,
}

impl Step {
    /// Counts the tests of a binary that was to run `expected` of them.
    fn judge(&self, name: &str, expected: u64, verdict: &mut Verdict) {
        let counts = Counts::read(self.output.as_deref().unwrap_or_default());
        verdict.counts += counts;
        if counts.failed > 0 {
            verdict.problems.push(format!("{name}: {counts}"));
        } else if let Some(failure) = self.failure(name) {
            verdict.problems.push(failure);
        } else if counts.ran() + counts.skipped != expected {
            verdict.problems.push(format!("{name}: {} tests ran of {expected}", counts.ran()));
        }
    }

    /// Says so if it did not end well.
    fn failure(&self, name: &str) -> Option<String> {
        match self.code.as_deref().map(str::trim) {
            Some("0") => None,
            Some(code) => Some(format!("{name} ended with {code}")),
            None => Some(format!("{name} did not run")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn boot(end: End, timed_out: bool) -> Boot {
        Boot {
            end,
            timed_out,
            took: Duration::from_secs(180),
            console: String::new(),
            log: "console".into(),
            results: "tar".into(),
        }
    }

    fn judged(output: &str, code: Option<&str>, expected: u64) -> Verdict {
        let mut verdict = Verdict::default();
        let step = Step { output: Some(output.to_owned()), code: code.map(str::to_owned) };
        step.judge("kernel_x", expected, &mut verdict);
        verdict
    }

    const THREE: &str =
        "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.00s\n";

    #[test]
    fn a_guest_that_did_not_reach_its_end_is_a_failure_that_says_where_it_was() {
        let cut = cut_short(&boot(End::Cut("running sweep".to_owned()), true));
        assert_eq!(cut.as_deref(), Some("not done after 180 s: running sweep"));
        assert!(cut_short(&boot(End::Cut("booting".to_owned()), false)).is_some());
        assert!(cut_short(&boot(End::Done, true)).is_some());
        assert_eq!(cut_short(&boot(End::Done, false)), None);
        assert!(!Verdict::of_nothing("x".to_owned()).held());
    }

    #[test]
    fn only_a_dead_kernel_with_two_cpus_gets_another_try() {
        let crashed = boot(End::Crashed("Oops: 0002".to_owned()), false);
        assert!(again(&crashed, Mode::Smp));
        assert!(!again(&crashed, Mode::Icount), "instructions are counted: it would die again");
        assert!(!again(&boot(End::Done, false), Mode::Smp));
        assert!(!again(&boot(End::Cut("booting".to_owned()), true), Mode::Smp));
    }

    #[test]
    fn tests_that_ran_and_held_are_counted() {
        let verdict = judged(THREE, Some("0\n"), 3);
        assert_eq!((verdict.counts.passed, verdict.problems.as_slice()), (3, &[][..]));
        assert!(verdict.held());
    }

    #[test]
    fn a_guest_that_ran_no_test_or_too_few_has_failed() {
        assert!(!Verdict::default().held());
        assert_eq!(judged("", None, 3).problems, ["kernel_x did not run"]);
        assert_eq!(judged("", Some("0\n"), 3).problems, ["kernel_x: 0 tests ran of 3"]);
        assert_eq!(judged(THREE, Some("0\n"), 4).problems, ["kernel_x: 3 tests ran of 4"]);
    }

    #[test]
    fn a_binary_that_broke_off_is_named_with_its_code() {
        assert_eq!(judged("running 3 tests\n", Some("134\n"), 3).problems, ["kernel_x ended with 134"]);
        let failed = THREE.replace("ok. 3 passed; 0 failed", "FAILED. 2 passed; 1 failed");
        assert_eq!(judged(&failed, Some("101\n"), 3).problems, ["kernel_x: 2 passed, 1 failed, 0 skipped"]);
    }
}
