//! Live progress: a bar with the time left on a terminal, a line a limit elsewhere.

use std::{
    cell::Cell,
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    cgroup::CpuLimit,
    request::RequestSpan,
    run::SweepPlan,
    time::{DurationNs, MonoNs, now},
};

/// Start and end of a limit besides its requests: server, observer, two waits for quiet.
const AROUND: DurationNs = DurationNs::from_millis(2_500);

/// Progress of a sweep.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    /// Expected length of each limit.
    expected: Vec<(CpuLimit, DurationNs)>,
    per_limit: u64,
    current: Cell<Option<(CpuLimit, MonoNs, u64)>>,
}

impl Progress {
    /// For a plan; `quiet` shows nothing.
    pub(super) fn new(plan: &SweepPlan, quiet: bool) -> Self {
        let total = plan.requests * plan.limits.len() as u64;
        let bar = (!quiet && stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template("{prefix:>10} [{bar:30}] {pos}/{len} requests, {msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let expected = plan.limits.iter().map(|&limit| (limit, expected(plan, limit))).collect();
        Self { bar, quiet, expected, per_limit: plan.requests, current: Cell::new(None) }
    }

    /// A limit begins.
    pub(super) fn limit(&self, limit: CpuLimit) {
        self.current.set(Some((limit, now(), 0)));
        let left = self.left();
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(limit.to_string());
                bar.set_message(left);
            }
            None if !self.quiet => super::super::exit::tell(format_args!("limit {limit}: {left}")),
            None => {}
        }
    }

    /// A request was answered.
    pub(super) fn answered(&self, _span: &RequestSpan) {
        if let Some((limit, since, count)) = self.current.get() {
            self.current.set(Some((limit, since, count + 1)));
        }
        if let Some(bar) = &self.bar {
            bar.inc(1);
            bar.set_message(self.left());
        }
    }

    /// The sweep is over.
    pub(super) fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Time left, from what this limit took so far and what the limits after it are expected to take.
    fn left(&self) -> String {
        let Some((limit, since, count)) = self.current.get() else { return String::new() };
        let mut later = self.expected.iter().skip_while(|(other, _)| *other != limit);
        let this = later.next().map_or(DurationNs::ZERO, |&(_, length)| length);
        let this = match now().since(since).0.checked_div(count) {
            Some(each) => DurationNs(each * self.per_limit.saturating_sub(count)),
            None => this,
        };
        let left = this + later.map(|&(_, length)| length).sum();
        let seconds = left.0.div_ceil(1_000_000_000);
        format!("about {}:{:02} left", seconds / 60, seconds % 60)
    }
}

/// What a limit will roughly take: work stretched to the limit's pace, and the gap.
fn expected(plan: &SweepPlan, limit: CpuLimit) -> DurationNs {
    let parallel = u64::from(plan.threads.min(2));
    let work = plan.work_ns.0
        * u64::from(plan.streams.max(1))
        * if plan.mode == crate::request::FanOut::Whole { u64::from(plan.threads) } else { 1 };
    let wall = match limit {
        CpuLimit::Millicpu(milli) => (work * 1_000 / u64::from(milli)).max(work / parallel),
        CpuLimit::Unlimited => work / parallel,
    };
    DurationNs((wall + plan.gap_ns.0) * plan.requests / u64::from(plan.streams.max(1))) + AROUND
}
