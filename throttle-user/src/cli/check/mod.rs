//! `throttle check`: the facts of this machine, and a live test of the observer.

mod self_test;
pub(super) mod spin;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;

use super::{
    exit::{Exit, OrExit, Verdict, print},
    run::Signals,
};
use crate::{
    cgroup::Hierarchy,
    check::{
        self, Report, Section, groups::Groups, hooks, kernel::Kernel, rights::Rights, scheduler::Scheduler, text::text,
    },
    probe::{self, KernelLayout, Observer, ObserverPlan, ProbeError, Survey, prerequisites},
};

/// Say what can be observed on this machine, and what each missing thing costs.
///
/// Reads facts, loads and attaches every hook, compares its own cgroup as the probe sees it with the real one, and at last
/// spins for 200 ms in a scratch cgroup with 1 ms of CPU time each 100 ms: what was observed of that must be what the kernel
/// counted. Takes a few seconds. Without root it says as much as it can find out.
///
/// Exit code: 0 everything can be observed; 1 less than that; 2 nothing, or bad usage; 130 interrupted.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Print the facts as JSON.
    #[arg(long)]
    json: bool,
    /// Make no cgroup and spin nowhere; what that would have shown is then not known.
    #[arg(long)]
    no_self_test: bool,
    /// Cgroup to work in, absolute or relative to the cpu controller's mount [default: near this process].
    #[arg(long, value_name = "CGROUP", conflicts_with = "no_self_test")]
    parent: Option<PathBuf>,
}

/// Runs the verb.
pub(super) fn run(args: &CheckArgs) -> Verdict {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().or_exit(Exit::CannotRun)?;
    let report = runtime.block_on(async {
        let mut signals = Signals::listen().or_exit(Exit::CannotRun)?;
        let report = report(args, &mut signals).await;
        match signals.first() {
            None => Ok(report),
            Some(signal) => Err(anyhow!("interrupted by {signal}; nothing is left behind")).or_exit(Exit::Interrupted),
        }
    })?;
    if args.json {
        let text = serde_json::to_string_pretty(&report).context("the facts as JSON").or_exit(Exit::BrokeOff)?;
        print(format_args!("{text}\n"))?;
    } else {
        print(format_args!("{}", text(&report)))?;
    }
    Ok(match report.verdict {
        check::Verdict::Full => Exit::Done,
        check::Verdict::Degraded => Exit::NotRight,
        check::Verdict::Cannot => Exit::CannotObserve,
    })
}

async fn report(args: &CheckArgs, signals: &mut Signals) -> Report {
    let hierarchy = Hierarchy::find();
    let layout = match &hierarchy {
        // What BTF says depends on the version of the hierarchy, and without one there is nothing to observe anyway.
        Err(_) => Err("not looked at without a cpu controller".to_owned()),
        Ok(hierarchy) => prerequisites::layout(hierarchy.version).map_err(|error| error.to_string()),
    };
    let kernel = Kernel::read(layout);
    let rights = Rights::read();
    let mut sections =
        vec![kernel.section(), rights.section(), Groups::read(&hierarchy).section(), Scheduler::read().section()];
    match (&hierarchy, &kernel.btf, rights.missing()) {
        _ if !kernel.is_built => sections.extend(nothing("there is no eBPF object")),
        (_, _, Some(missing)) => sections.extend(nothing(&format!("{missing} is missing"))),
        (Ok(hierarchy), Ok((_, layout)), None) => {
            sections.extend(tried(args, hierarchy, layout, signals).await);
        }
        _ => sections.extend(nothing("the kernel is not known well enough")),
    }
    Report::new(sections)
}

/// Nothing can be loaded.
fn nothing(because: &str) -> [Section; 2] {
    [hooks::not_tried(because), check::self_test::not_made(&format!("not made, because {because}"))]
}

/// Loads, attaches, compares, and spins.
async fn tried(args: &CheckArgs, hierarchy: &Hierarchy, layout: &KernelLayout, signals: &mut Signals) -> [Section; 2] {
    let surveyed = probe::survey(layout);
    let works = matches!(surveyed, Ok(Survey { broken: None, .. }));
    let checked = works.then(|| own_cgroup(hierarchy, layout));
    let sees = matches!(checked, Some(Ok(_)));
    let probe = hooks::section(&surveyed, checked);
    let test = if args.no_self_test {
        check::self_test::not_made("left out")
    } else if !sees {
        check::self_test::not_made("not made, because the probe does not work")
    } else {
        match self_test::run(hierarchy, layout, args.parent.clone(), signals).await {
            Ok(run) => check::self_test::section(&run),
            Err(why) => check::self_test::failed(&why),
        }
    };
    [probe, test]
}

/// An observer that records nothing starts only if the probe does not see this process where it is not.
fn own_cgroup(hierarchy: &Hierarchy, layout: &KernelLayout) -> Result<hooks::Checked, ProbeError> {
    let observer = Observer::start(&ObserverPlan::default(), layout, hierarchy, |_| {})?;
    let checked = observer.unchecked().map_or(Ok(()), |why| Err(why.to_owned()));
    observer.stop()?;
    Ok(checked)
}
