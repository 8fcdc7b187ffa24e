//! How many tests ran, read from what the test harness prints.

use std::fmt;
use std::ops::AddAssign;

/// Tests of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Ran and held.
    pub(crate) passed: u64,
    /// Of these, the ones that failed at first and held when they were run again.
    pub(crate) again: u64,
    /// Ran and did not.
    pub(crate) failed: u64,
    /// Marked `#[ignore]`, hence not run.
    pub(crate) skipped: u64,
}

impl Counts {
    /// Adds up the closing lines of all harnesses in `output`:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s`.
    /// Filtered tests are not counted: they belong to another tier.
    pub(crate) fn read(output: &str) -> Self {
        let mut counts = Self::default();
        for line in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
            // The verdict ends with the first ". ", what follows are "number word" pairs.
            let Some((_, pairs)) = line.split_once(". ") else { continue };
            for pair in pairs.split("; ") {
                match pair.split_once(' ') {
                    Some((number, "passed")) => counts.passed += number.parse().unwrap_or(0),
                    Some((number, "failed")) => counts.failed += number.parse().unwrap_or(0),
                    Some((number, "ignored")) => counts.skipped += number.parse().unwrap_or(0),
                    _ => {}
                }
            }
        }
        counts
    }

    /// Tests that ran.
    pub(crate) fn ran(self) -> u64 {
        self.passed + self.failed
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.again += other.again;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, ", self.passed)?;
        if self.again > 0 {
            write!(f, "{} of them at the second try, ", self.again)?;
        }
        write!(f, "{} failed, {} skipped", self.failed, self.skipped)
    }
}

/// Names of the tests that failed, from the lists that harnesses close with:
///
/// ```text
/// failures:
///     module::name
/// ```
pub(crate) fn failed(output: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut lines = output.lines();
    while lines.any(|line| line == "failures:") {
        let list = lines.by_ref().map_while(|line| line.strip_prefix("    ").filter(|name| !name.contains(' ')));
        names.extend(list);
    }
    names
}

/// Names of the tests in the harness's terse list (`time::tests::clocks_run_forward: test`).
pub(crate) fn listed(output: &str) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).collect()
}

/// Whether the test's function, not a module around it, has a name that starts with `prefix`.
pub(crate) fn is_named(path: &str, prefix: &str) -> bool {
    path.rsplit("::").next().is_some_and(|name| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_of_all_harnesses_add_up() {
        let output = "running 4 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n\n\
            test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n";
        assert_eq!(Counts::read(output), Counts { passed: 8, again: 0, failed: 2, skipped: 1 });
    }

    #[test]
    fn the_names_of_failed_tests_are_those_of_the_closing_lists() {
        let output = "running 2 tests\ntest a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n    note: not me\n\n\
            failures:\n    a::b\n    c\n\ntest result: FAILED. 0 passed; 2 failed; 0 ignored\nfailures:\n    d\n";
        assert_eq!(failed(output), ["a::b", "c", "d"]);
        assert_eq!(failed("test a ... ok\n"), Vec::<&str>::new());
    }

    #[test]
    fn a_test_that_prints_something_similar_adds_nothing() {
        assert_eq!(Counts::read("my test result: ok. 3 passed; 0 failed\ntest result: odd\n"), Counts::default());
    }

    #[test]
    fn only_the_start_of_the_function_name_counts() {
        assert!(is_named("kernel_counts_agree", "kernel_"));
        assert!(is_named("probe::tests::kernel_counts_agree", "kernel_"));
        assert!(!is_named("kernel_facts::tests::eras_are_told_apart", "kernel_"));
        assert!(!is_named("tests::reads_the_kernel_version", "kernel_"));
    }

    #[test]
    fn the_list_holds_tests_only() {
        assert_eq!(listed("a::b: test\nc: benchmark\n\n2 tests, 1 benchmark\nd: test\n"), ["a::b", "d"]);
    }
}
