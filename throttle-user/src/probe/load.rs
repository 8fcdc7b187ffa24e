//! The object's programs: which there are, what each is for, and what is lost where one cannot be had.
//!
//! Owns the table of hooks, loading and attaching. Required is a hook without which something that is said could be wrong; without
//! an optional one less is known, and what is not known is said to be unknown.

use aya::{
    Btf, BtfError, Ebpf, EbpfLoader,
    programs::{BtfTracePoint, ProgramError},
};
use throttle_ebpf::config::Config;
use zerocopy::IntoBytes;

use super::{KernelLayout, ObserverPlan, ProbeError, own::OwnName};
use crate::event::{Era, HookReport, HookState};

/// A program of the object and its tracepoint.
#[derive(Clone, Copy, Debug)]
struct Hook {
    program: &'static str,
    tracepoint: &'static str,
    without: &'static str,
}

const fn hook(name: &'static str, without: &'static str) -> Hook {
    Hook { program: name, tracepoint: name, without }
}

/// Only from 6.5 on, and of use only where other CPUs are released by a call (6.3+). One says nothing without the other.
const RELEASES: [Hook; 2] = [hook("csd_function_entry", RELEASES_LOST), hook("csd_function_exit", RELEASES_LOST)];
const RELEASES_LOST: &str =
    "the end of a throttle on another CPU than the timer's is known no better than by the next switch there";

const MOVES: [Hook; 1] = [hook(
    "cgroup_attach_task",
    "a thread that goes to a cgroup that is not observed is not seen to leave: its state is unknown from its last event on",
)];

const REQUIRED: [Hook; 6] = [
    hook("hrtimer_expire_entry", "no period has a beginning"),
    hook("hrtimer_expire_exit", "no period has an end, and no throttle"),
    hook("sched_wakeup", "sleep, waiting and throttles that begin with a wakeup cannot be told apart"),
    hook("sched_wakeup_new", "a new thread's wait for its first turn is not seen"),
    hook("sched_migrate_task", "a thread that waits would be looked for on the wrong CPU"),
    hook("sched_process_exit", "a thread that has ended would be taken for one that sleeps"),
];

const SWITCHES_LOST: &str = "nothing is known of any thread";
/// By the position of `prev` among the arguments.
const SWITCH: Hook = hook("sched_switch", SWITCHES_LOST);
const SWITCH_STATE_FIRST: Hook =
    Hook { program: "sched_switch_state_first", tracepoint: "sched_switch", without: SWITCHES_LOST };

/// Where the self-check runs, see [`super::own`].
const OWN: Hook = Hook {
    program: "own_group",
    tracepoint: "sched_process_exit",
    without: "the probe cannot be checked against this process's own cgroup",
};

/// The object in the kernel; nothing is attached yet.
pub(super) struct Loaded {
    pub(super) ebpf: Ebpf,
    btf: Btf,
}

/// What became of the hooks.
#[derive(Debug)]
pub struct Survey {
    /// Each hook, in the order in which they are attached.
    pub hooks: Vec<HookReport>,
    /// The first required one that failed: nothing can be observed.
    pub broken: Option<ProbeError>,
}

/// Loads and attaches every program, and lets go of all again.
///
/// # Errors
/// [`ProbeError`] when it does not even come to the programs: a map or the object itself is refused.
pub fn survey(kernel: &KernelLayout) -> Result<Survey, ProbeError> {
    let plan = ObserverPlan { ring_bytes: 4_096, ..ObserverPlan::default() };
    Ok(Loaded::load(&plan, kernel, OwnName::new())?.attach(kernel))
}

impl Loaded {
    /// Creates the maps; programs are loaded as they are attached.
    pub(super) fn load(plan: &ObserverPlan, kernel: &KernelLayout, own: OwnName) -> Result<Self, ProbeError> {
        let config = Config {
            default_detail: plan.unlisted.wire(),
            idle: plan.idle.into(),
            unlimited: plan.unlimited.into(),
            log: plan.log.into(),
            own_name: own.words(),
        };
        let ebpf = EbpfLoader::new()
            .override_global("LAYOUT", kernel.layout.as_bytes(), true)
            .override_global("CONFIG", config.as_bytes(), true)
            .override_global("AYA_LOG_LEVEL", &u8::from(plan.log).wrapping_mul(u8::MAX), false)
            .map_max_entries("EVENTS", plan.ring_bytes)
            .load(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/throttle-probe")))
            .map_err(|error| ProbeError::Load(Box::new(error)))?;
        Ok(Self { ebpf, btf: Btf::from_sys_fs()? })
    }

    /// Attaches all hooks, `sched_switch` last: all others are there for what a switch starts.
    pub(super) fn attach(&mut self, kernel: &KernelLayout) -> Survey {
        let mut hooks = Vec::new();
        if kernel.facts.era == Era::Direct {
            hooks.extend(RELEASES.iter().map(|hook| hook.report(false, HookState::NotNeeded)));
        } else if kernel.facts.csd_tracepoints {
            hooks.extend(self.attach_optional(&RELEASES));
        } else {
            hooks.extend(RELEASES.iter().map(|hook| hook.report(false, HookState::Absent)));
        }
        hooks.extend(self.attach_optional(&MOVES));
        let switch = if kernel.switch_prev_arg == 2 { SWITCH_STATE_FIRST } else { SWITCH };
        let mut broken = None;
        for hook in REQUIRED.into_iter().chain([switch]) {
            let attached = self.attach_one(hook);
            hooks.push(hook.report(true, state(&attached)));
            broken = broken.or(attached.err());
        }
        Survey { hooks, broken }
    }

    /// Attaches the self-check's program.
    pub(super) fn attach_own(&mut self) -> Result<(), ProbeError> {
        self.attach_one(OWN)
    }

    /// Takes the self-check's program out of the kernel.
    pub(super) fn unload_own(&mut self) {
        self.unload(OWN);
    }

    /// All of one feature, or none.
    fn attach_optional(&mut self, feature: &[Hook]) -> Vec<HookReport> {
        let attached: Vec<_> = feature.iter().map(|&hook| (hook, self.attach_one(hook))).collect();
        let missing = attached.iter().find(|(_, attached)| attached.is_err()).map(|(hook, _)| hook.tracepoint);
        attached
            .into_iter()
            .map(|(hook, attached)| match (missing, &attached) {
                (Some(wants), Ok(())) => {
                    self.unload(hook);
                    hook.report(false, HookState::Unused { wants })
                }
                _ => hook.report(false, state(&attached)),
            })
            .collect()
    }

    fn attach_one(&mut self, hook: Hook) -> Result<(), ProbeError> {
        let Hook { program, tracepoint, without } = hook;
        let failed = |step| move |source| ProbeError::Program { tracepoint, step, without, source: Box::new(source) };
        let program: &mut BtfTracePoint =
            self.ebpf.program_mut(program).ok_or(ProbeError::Foreign(program))?.try_into().map_err(failed("used"))?;
        program.load(tracepoint, &self.btf).map_err(failed("loaded"))?;
        program.attach().map_err(failed("attached"))?;
        Ok(())
    }

    fn unload(&mut self, hook: Hook) {
        let program = self.ebpf.program_mut(hook.program).map(<&mut BtfTracePoint>::try_from);
        if let Some(Ok(program)) = program {
            // Not loaded is as good as unloaded.
            let _ = program.unload();
        }
    }
}

impl Hook {
    fn report(self, is_required: bool, state: HookState) -> HookReport {
        HookReport { tracepoint: self.tracepoint, is_required, without: self.without, state }
    }
}

fn state(attached: &Result<(), ProbeError>) -> HookState {
    match attached {
        Ok(()) => HookState::Attached,
        Err(ProbeError::Program { source, .. })
            if matches!(**source, ProgramError::Btf(BtfError::UnknownBtfTypeName { .. })) =>
        {
            HookState::Absent
        }
        Err(ProbeError::Program { step, source, .. }) => HookState::Failed { step, cause: in_a_line(source) },
        Err(error) => HookState::Failed { step: "found", cause: error.to_string() },
    }
}

/// What the kernel said without the verifier's log, but for the log's last word on the program.
fn in_a_line(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let last = log.lines().map(str::trim).rfind(|line| !line.is_empty() && !is_statistics(line));
            last.map_or_else(|| io_error.to_string(), |last| format!("{io_error}: {last}"))
        }
        error => error.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

/// What the verifier says after its verdict (`kernel/bpf/verifier.c`, `print_verification_stats`).
fn is_statistics(line: &str) -> bool {
    ["processed ", "verification time ", "stack depth "].iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cgroup::Hierarchy, probe::prerequisites};

    /// A tracepoint that this program does not use: its name is as long as that of `cgroup_attach_task`, and it has one argument.
    const SPARE: &str = "btf_trace_sched_process_free\0";
    const WANTED: &str = "btf_trace_cgroup_attach_task\0";

    fn kernel() -> KernelLayout {
        let version = Hierarchy::find().expect("a cpu controller").version;
        prerequisites::kernel_layout(version).expect("a kernel that can be observed, and the right to")
    }

    /// The kernel's BTF with names changed.
    fn renamed(names: &[(&str, &str)]) -> Btf {
        let mut blob = std::fs::read(prerequisites::KERNEL_BTF).expect("the kernel's BTF");
        for (from, to) in names {
            let at = blob.windows(from.len()).position(|window| window == from.as_bytes());
            let at = at.unwrap_or_else(|| panic!("{from:?} is not in the kernel's BTF"));
            blob[at..at + from.len()].copy_from_slice(to.as_bytes());
        }
        Btf::parse(&blob, aya::Endianness::default()).expect("still BTF")
    }

    fn surveyed(btf: Btf) -> Survey {
        let plan = ObserverPlan { ring_bytes: 4_096, ..ObserverPlan::default() };
        let kernel = kernel();
        let mut loaded = Loaded::load(&plan, &kernel, OwnName::new()).expect("the object loads");
        loaded.btf = btf;
        loaded.attach(&kernel)
    }

    fn of<'a>(survey: &'a Survey, tracepoint: &str) -> &'a HookReport {
        survey.hooks.iter().find(|hook| hook.tracepoint == tracepoint).expect("a report for every hook")
    }

    #[test]
    fn kernel_every_hook_that_this_kernel_has_is_attached() {
        let survey = survey(&kernel()).expect("the object loads");
        assert!(survey.broken.is_none(), "{:?}", survey.broken);
        assert_eq!(survey.hooks.len(), 10);
        let missing: Vec<_> = survey.hooks.iter().filter(|hook| hook.is_missing()).collect();
        assert!(missing.iter().all(|hook| hook.state == HookState::Absent), "{missing:#?}");
    }

    #[test]
    fn kernel_an_optional_hook_that_is_absent_disables_only_itself() {
        let survey = surveyed(renamed(&[(WANTED, "btf_trace_Cgroup_attach_task\0")]));
        assert!(survey.broken.is_none(), "{:?}", survey.broken);
        assert_eq!(of(&survey, "cgroup_attach_task").state, HookState::Absent);
        assert_eq!(of(&survey, "sched_switch").state, HookState::Attached);
    }

    #[test]
    fn kernel_an_optional_hook_that_the_verifier_refuses_disables_only_itself_and_says_why() {
        // The program now goes to a tracepoint that does not pass what it reads.
        let survey = surveyed(renamed(&[(WANTED, "btf_trace_Cgroup_attach_task\0"), (SPARE, WANTED)]));
        assert!(survey.broken.is_none(), "{:?}", survey.broken);
        let HookState::Failed { step: "loaded", cause } = &of(&survey, "cgroup_attach_task").state else {
            panic!("{:?}", survey.hooks)
        };
        // "func 'X' doesn't have 4-th argument" or "invalid bpf_context access off=16", in one line.
        assert!(cause.starts_with("Permission denied (os error 13): ") && !cause.contains('\n'), "{cause}");
        assert!(survey.hooks.iter().filter(|hook| hook.is_required).all(|hook| hook.state == HookState::Attached));
    }

    #[test]
    fn kernel_a_required_hook_that_is_absent_is_named_with_what_is_lost() {
        let survey = surveyed(renamed(&[("btf_trace_sched_wakeup_new\0", "btf_trace_Sched_wakeup_new\0")]));
        assert_eq!(of(&survey, "sched_wakeup_new").state, HookState::Absent);
        let said = survey.broken.expect("nothing can be observed").to_string();
        assert!(said.contains("sched_wakeup_new") && said.contains("first turn"), "{said}");
    }

    #[test]
    fn kernel_half_of_a_pair_is_not_used() {
        let facts = kernel().facts;
        if facts.csd_tracepoints && facts.era != Era::Direct {
            let survey = surveyed(renamed(&[("btf_trace_csd_function_exit\0", "btf_trace_Csd_function_exit\0")]));
            assert!(survey.broken.is_none(), "{:?}", survey.broken);
            assert_eq!(of(&survey, "csd_function_exit").state, HookState::Absent);
            assert_eq!(of(&survey, "csd_function_entry").state, HookState::Unused { wants: "csd_function_exit" });
        } else {
            let survey = survey(&kernel()).expect("the object loads");
            let releases = RELEASES.map(|hook| of(&survey, hook.tracepoint).state.clone());
            let expected = if facts.era == Era::Direct { HookState::NotNeeded } else { HookState::Absent };
            assert_eq!(releases, [expected.clone(), expected]);
        }
    }
}
