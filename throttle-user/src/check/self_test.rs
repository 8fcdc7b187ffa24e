//! The live test: a thread spins under the smallest limit there is, and what the observer says of it must be what the kernel counted.

use super::{Fact, Section};
use crate::run::{
    agree::{Agreement, Check, Quantity},
    command::CommandRun,
};

const ABOUT: &str = "self-test";

/// Judges the run.
#[must_use]
pub fn section(run: &CommandRun) -> Section {
    let ended = run.levels.iter().filter_map(|level| level.observed.as_ref()).map(|observed| observed.edges).sum();
    Section::new(ABOUT, vec![throttles(ended), agreement(&run.checks, &run.agreement)])
}

/// The test could not be made.
#[must_use]
pub fn failed(why: &str) -> Section {
    let costs = format!("{why}; `throttle run` and `throttle sweep` would fail likewise");
    Section::new(ABOUT, vec![Fact::less("scratch groups", "could not be used", costs)])
}

/// The test was not to be made, or there is no use in making it.
#[must_use]
pub fn not_made(because: &str) -> Section {
    let why = format!("{because}: whether what is observed agrees with the kernel's counters is not known");
    Section::new(ABOUT, vec![Fact::unknown("throttles", why)])
}

fn throttles(ended: u64) -> Fact {
    const NAME: &str = "throttles";
    match ended {
        0 => Fact::fatal(
            NAME,
            "none seen to its end",
            "a thread spun for 200 ms under a limit of 10m, and no throttle was seen",
        ),
        1 => Fact::good(NAME, "1 seen from beginning to end"),
        more => Fact::good(NAME, format!("{more} seen from beginning to end")),
    }
}

fn agreement(checks: &[Check], agreement: &Agreement) -> Fact {
    const NAME: &str = "by the kernel's counters";
    match agreement {
        Agreement::Agrees => {
            let found = [Quantity::Periods, Quantity::ThrottledPeriods, Quantity::ThrottledTime]
                .into_iter()
                .filter_map(|quantity| checks.iter().find(|check| check.quantity == quantity));
            Fact::good(NAME, found.map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        }
        Agreement::Differs { because } => Fact::less(NAME, "differs", because.join("; ")),
        Agreement::NotCompared { because } => Fact::unknown(NAME, because),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cgroup::LevelName, check::Grade, time::DurationNs};

    #[test]
    fn a_spin_without_a_throttle_means_that_nothing_can_be_observed() {
        assert_eq!(throttles(0).grade, Grade::Fatal);
        assert_eq!(throttles(2), Fact::good("throttles", "2 seen from beginning to end"));
    }

    #[test]
    fn both_sides_are_shown_and_a_difference_costs_something() {
        let ms = DurationNs::from_millis;
        let checks = [
            Check::exact(Quantity::Periods, LevelName::Container, 5, 5),
            Check::exact(Quantity::ThrottledPeriods, LevelName::Container, 3, 3),
            Check::throttled(Quantity::ThrottledTime, LevelName::Container, ms(290), ms(290), 3),
        ];
        let good = agreement(&checks, &Agreement::Agrees);
        assert_eq!(good.grade, Grade::Good);
        assert_eq!(good.found.lines().count(), 3, "{}", good.found);
        assert!(good.found.starts_with("container periods: observed 5, kernel 5\n"), "{}", good.found);
        let differs = agreement(&checks, &Agreement::Differs { because: vec!["a".to_owned(), "b".to_owned()] });
        assert_eq!((differs.grade, differs.costs.as_deref()), (Grade::Less, Some("a; b")));
        let not = agreement(&[], &Agreement::NotCompared { because: "lost".to_owned() });
        assert_eq!(not.grade, Grade::Unknown);
    }
}
