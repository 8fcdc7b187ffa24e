//! The probe in the kernel: its maps, its hooks, and whether what it reads is right.

use super::{Fact, Grade, Section};
use crate::{
    event::{HookReport, HookState},
    probe::{ProbeError, Survey},
};

const ABOUT: &str = "probe";

/// The probe's view of this process's cgroup is the right one, or why there is nothing to compare it with.
pub type Checked = Result<(), String>;

/// Judges what became of the object and its hooks.
#[must_use]
pub fn section(surveyed: &Result<Survey, ProbeError>, checked: Option<Result<Checked, ProbeError>>) -> Section {
    let survey = match surveyed {
        Ok(survey) => survey,
        Err(error) => {
            let why = format!("{error}; without them nothing can be recorded");
            return Section::new(ABOUT, vec![Fact::fatal("ring buffer and maps", "refused", why)]);
        }
    };
    let mut facts = vec![Fact::good("ring buffer and maps", "can be made")];
    facts.extend(survey.hooks.iter().map(hook));
    facts.extend(checked.map(|checked| own_cgroup(&checked)));
    Section::new(ABOUT, facts)
}

/// Nothing could be loaded; the section says so instead of being left out.
#[must_use]
pub fn not_tried(because: &str) -> Section {
    let fact = Fact::unknown("hooks", format!("not tried, because {because}"));
    Section::new(ABOUT, vec![fact])
}

fn hook(report: &HookReport) -> Fact {
    let grade = match (&report.state, report.is_required) {
        (HookState::Attached, _) => Grade::Good,
        (HookState::NotNeeded, _) => Grade::Plain,
        (_, false) => Grade::Less,
        (_, true) => Grade::Fatal,
    };
    let costs = report.is_missing().then(|| format!("without it {}", report.without));
    Fact::new(report.tracepoint, report.state.to_string(), grade, costs)
}

fn own_cgroup(checked: &Result<Checked, ProbeError>) -> Fact {
    const NAME: &str = "own cgroup by the probe";
    match checked {
        Ok(Ok(())) => Fact::good(NAME, "the one this process is in"),
        Ok(Err(why)) => Fact::unknown(NAME, why),
        Err(error @ (ProbeError::OwnPlace(_) | ProbeError::OwnGroup(_))) => Fact::unknown(NAME, error.to_string()),
        Err(error) => Fact::fatal(NAME, "not to be trusted", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(is_required: bool, state: HookState) -> HookReport {
        HookReport { tracepoint: "sched_x", is_required, without: "x is not seen", state }
    }

    #[test]
    fn an_optional_hook_costs_its_feature_and_a_required_one_everything() {
        let failed = || HookState::Failed { step: "loaded", cause: "Permission denied".to_owned() };
        let fact = hook(&report(false, failed()));
        assert_eq!((fact.grade, fact.found.as_str()), (Grade::Less, "could not be loaded: Permission denied"));
        assert_eq!(fact.costs.as_deref(), Some("without it x is not seen"));
        assert_eq!(hook(&report(true, failed())).grade, Grade::Fatal);
        let not_needed = hook(&report(false, HookState::NotNeeded));
        assert_eq!((not_needed.grade, not_needed.costs), (Grade::Plain, None));
        assert_eq!(hook(&report(false, HookState::Unused { wants: "sched_y" })).grade, Grade::Less);
    }

    #[test]
    fn wrong_offsets_are_fatal_and_an_own_cgroup_out_of_sight_is_unknown() {
        let wrong = ProbeError::WrongOffsets { seen: 1, above: 0, own: 2, path: "/cg".into() };
        assert_eq!(own_cgroup(&Err(wrong)).grade, Grade::Fatal);
        let gone = crate::cgroup::GroupError::Gone { path: "/cg".into() };
        assert_eq!(own_cgroup(&Err(ProbeError::OwnGroup(gone))).grade, Grade::Unknown);
        assert_eq!(own_cgroup(&Ok(Err("out of sight".to_owned()))).grade, Grade::Unknown);
        assert_eq!(own_cgroup(&Ok(Ok(()))).grade, Grade::Good);
    }

    #[test]
    fn maps_that_are_refused_are_the_whole_section() {
        let refused = section(&Err(ProbeError::Foreign("EVENTS")), None);
        assert_eq!(refused.facts.len(), 1);
        assert_eq!(refused.facts[0].grade, Grade::Fatal);
    }
}
