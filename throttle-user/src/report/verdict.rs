//! Verdicts in words, for 80 columns: the cause, the level, the limit that would have been enough, each with its evidence, and
//! what is not known.

use serde::Serialize;

use super::{
    command::{level_name, ms},
    paint::head,
};
use crate::{
    cgroup::{CpuLimit, MIN_MILLICPU},
    run::{
        need::Need,
        picture::Shares,
        verdict::{Cause, LevelShare, LimitVerdict, NotKnown, RequestVerdict, RunVerdict},
    },
    time::DurationNs,
};

/// A verdict in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Words {
    /// On what.
    pub heading: String,
    /// A name, such as `cause`, and what is said of it; an empty name continues the one before.
    pub lines: Vec<(String, String)>,
}

/// Of a request.
#[must_use]
pub fn request(verdict: &RequestVerdict) -> Words {
    let wall = verdict.wall_ns;
    let mut lines = Words::new(&format!("Verdict on request {} of limit {}", verdict.request, verdict.limit));
    lines.line("cause", &cause(verdict.cause, &verdict.shares, wall));
    if verdict.shares.throttled() != DurationNs::ZERO {
        lines.line("level", &levels(&verdict.levels, verdict.unnamed_ns));
    }
    if verdict.cause != Cause::NotMeasured {
        lines.line("evidence", &evidence(verdict));
    }
    lines.enough(verdict.need.as_ref(), verdict.period_us, verdict.shares.throttled(), "while it ran");
    lines.not_known(&verdict.not_known);
    lines
}

/// Of a limit.
#[must_use]
pub fn limit(verdict: &LimitVerdict) -> Words {
    let mut lines = Words::new(&format!("Verdict on limit {}", verdict.limit));
    let held = verdict.shares.throttled();
    lines.line(
        "cause",
        &if verdict.requests == 0 && verdict.cause == Cause::Throttled {
            let held = verdict.held_wall_ns.map_or_else(|| "?".to_owned(), ms);
            format!("throttled: no request was answered, but threads were held for {held} ms")
        } else if verdict.requests == 0 && verdict.cause == Cause::Work {
            "none: no request was answered, and no thread was held".to_owned()
        } else {
            cause(verdict.cause, &verdict.shares, verdict.wall_ns)
        },
    );
    if verdict.cause != Cause::NotMeasured {
        lines.line("evidence", &limit_evidence(verdict));
    }
    lines.enough(verdict.need.as_ref(), verdict.period_us, held, "");
    lines.not_known(&verdict.not_known);
    lines
}

/// Of a run.
#[must_use]
pub fn run(verdict: &RunVerdict) -> Words {
    let mut lines = Words::new("Verdict on the run");
    for limit in &verdict.limits {
        lines.line(&limit.limit.to_string(), &in_short(limit));
    }
    if !verdict.not_run.is_empty() {
        lines.line("not run", &listed(&verdict.not_run));
    }
    lines.line("by trial", &by_trial(verdict));
    if let Some((least, most)) = verdict.enough_millicores {
        let floor = |millicores: u64| millicores.max(u64::from(MIN_MILLICPU));
        let (least, most) = (floor(least), floor(most));
        let range = if least == most { format!("{most}m") } else { format!("from {least}m to {most}m") };
        let held = if verdict.contradicting.is_empty() {
            String::new()
        } else {
            format!("; yet requests were held at {}: it is not enough for all", listed(&verdict.contradicting))
        };
        lines.line("enough", &format!("{range}, calculated from what ran at each limit{held}"));
    }
    lines
}

fn in_short(limit: &LimitVerdict) -> String {
    let LimitVerdict { cause, requests, throttled_requests, shares, wall_ns, .. } = limit;
    let what = match cause {
        Cause::NotMeasured => return "not measured: there are no events of it".to_owned(),
        Cause::Work => "on CPU nearly all the time",
        Cause::Throttled => "throttled",
        Cause::RunQueue => "waited for a CPU",
        Cause::Asleep => "asleep",
        Cause::Unknown => "not known",
    };
    if *requests == 0 {
        return format!("{what}; no request was answered");
    }
    let kernel = if limit.kernel_agrees { "" } else { "; the kernel's counters do not say the same" };
    let share = match throttled_requests {
        0 => String::new(),
        _ => format!(", for {} of their wall time", percent(shares.throttled(), *wall_ns)),
    };
    format!("{what}; {throttled_requests} of {requests} requests held{share}{kernel}")
}

fn by_trial(verdict: &RunVerdict) -> String {
    let free = |limit: CpuLimit| match limit {
        CpuLimit::Unlimited => "only without a limit was none held".to_owned(),
        CpuLimit::Millicpu(_) => format!("no request was held from {limit} on"),
    };
    match (verdict.held_up_to, verdict.free_from) {
        (None, None) => "nothing: no limit has both answers and events".to_owned(),
        (None, Some(_)) => "no request was held at any limit tried".to_owned(),
        (Some(held), None) => format!("requests were held at {held}, the largest limit tried"),
        (Some(held), Some(from)) => format!("requests were held up to {held}; {}", free(from)),
    }
}

/// The cause with the figures it rests on.
fn cause(cause: Cause, shares: &Shares, wall: DurationNs) -> String {
    let of = |part: DurationNs| format!("{} of {} ms ({})", ms(part), ms(wall), percent(part, wall));
    match cause {
        Cause::NotMeasured => "not measured: there are no events".to_owned(),
        Cause::Work => format!("none: {} were spent on a CPU", of(shares.on_cpu_ns)),
        Cause::Throttled => {
            format!("throttled: for {} it was ready to run and a CPU limit held it", of(shares.throttled()))
        }
        Cause::RunQueue => {
            let taken = if shares.uncharged_ns == DurationNs::ZERO {
                String::new()
            } else {
                format!(", {} ms of it taken by interrupts or a hypervisor", ms(shares.uncharged_ns))
            };
            format!("no CPU: for {} it was ready to run and not held{taken}", of(shares.runqueue_ns))
        }
        Cause::Asleep => format!("asleep: for {} it waited for something else than a CPU", of(shares.blocked_ns)),
        Cause::Unknown => format!("not known: {} were not seen, and may hide another cause", of(shares.unknown_ns)),
    }
}

fn levels(levels: &[LevelShare], unnamed: DurationNs) -> String {
    let mut parts: Vec<String> = levels
        .iter()
        .map(|level| {
            let alone = match level.alone_ns {
                all if all == level.out_ns => ", and no other level was".to_owned(),
                DurationNs::ZERO => ", never alone".to_owned(),
                alone => format!(", alone for {} ms", ms(alone)),
            };
            format!("{} out of quota for {} ms of that{alone}", level_name(level.level), ms(level.out_ns))
        })
        .collect();
    if unnamed != DurationNs::ZERO {
        parts.push(format!("{} ms by a level that was not seen", ms(unnamed)));
    }
    parts.join("; ")
}

fn evidence(verdict: &RequestVerdict) -> String {
    let mut parts = Vec::new();
    if let Some(periods) = verdict.periods {
        let held = verdict.throttled_periods;
        parts.push(format!("held in {held} of the {periods} periods it crossed"));
    }
    let cpu = ms(verdict.cpu_time_ns);
    parts.push(match verdict.quota_us {
        None => format!("it used {cpu} ms of CPU, without a limit"),
        Some(quota_us) => {
            format!("it used {cpu} ms of CPU where the quota is {} ms each {} ms", us(quota_us), us(verdict.period_us))
        }
    });
    if verdict.longest_ns != DurationNs::ZERO {
        parts.push(format!("held for up to {} ms at a stretch", ms(verdict.longest_ns)));
    }
    parts.join("; ")
}

fn limit_evidence(verdict: &LimitVerdict) -> String {
    let mut parts = Vec::new();
    if verdict.requests > 0 {
        parts.push(format!("{} of {} requests were held", verdict.throttled_requests, verdict.requests));
    }
    for level in &verdict.levels {
        if let (Some(throttled), Some(periods), Some(_)) = (level.throttled, level.periods, verdict.quota_us) {
            parts.push(format!(
                "the {} ran out of quota in {throttled} of {periods} periods",
                level_name(Some(level.level))
            ));
        }
    }
    if let Some(used) = verdict.used_over_limit {
        parts.push(format!("used {:.0} % of the limit on average", used * 100.0));
    }
    match (verdict.held_wall_ns, verdict.denied_idle_ns) {
        (Some(held), Some(denied)) if held != DurationNs::ZERO => {
            parts.push(format!(
                "{} ms of idle CPU time denied while threads were held for {} ms",
                ms(denied),
                ms(held)
            ));
        }
        (Some(held), None) if held != DurationNs::ZERO => {
            parts.push(format!("threads held for {} ms; idle CPU time not measured", ms(held)));
        }
        _ => {}
    }
    if let Some((request, wall)) = verdict.slowest {
        parts.push(format!("slowest request {request}, {} ms", ms(wall)));
    }
    if verdict.kernel_agrees {
        parts.push("the kernel's counters agree".to_owned());
    }
    parts.join("; ")
}

fn not_known(open: &NotKnown) -> String {
    match open {
        NotKnown::Time { unknown_ns, wall_ns } => {
            format!("what it did for {} ms ({} of the time)", ms(*unknown_ns), percent(*unknown_ns, *wall_ns))
        }
        NotKnown::Request { why } => why.to_string(),
        NotKnown::Requests { incomplete, answered } => {
            format!("part of what {incomplete} of the {answered} requests did")
        }
        NotKnown::Lost { events: 1 } => "what a lost record said".to_owned(),
        NotKnown::Lost { events } => format!("what {events} lost records said"),
        NotKnown::CutOff { .. } => "what came after the file of events was cut off".to_owned(),
        NotKnown::Differs { because } => {
            format!("which side is right where the kernel's counters differ: {}", because.join("; "))
        }
        NotKnown::NotCompared { because } => format!("whether the kernel's counters agree: {because}"),
        NotKnown::WhoWaited => "which thread waited for which, on which the limit needed depends".to_owned(),
        NotKnown::Hindered => {
            "what it would use if every thread had a CPU at once: the upper figure takes it that they do".to_owned()
        }
        NotKnown::Slices { threads, limit_millicores } => format!(
            "whether the quota reaches {threads} threads at once: each CPU takes a slice of 5 ms, so below \
             {limit_millicores}m some may be held all the same"
        ),
        NotKnown::WholeMachine { cpus } => {
            format!("what it would use on a larger machine: that is all of the {cpus} CPUs here")
        }
        NotKnown::LimitAbove => {
            "what the limit of a group above would hold if this one did not; it held threads as well".to_owned()
        }
        NotKnown::Failed { requests: 1 } => "what a request that was not answered would have used".to_owned(),
        NotKnown::Failed { requests } => format!("what {requests} requests that were not answered would have used"),
    }
}

/// `percent` of a whole, without a decimal.
pub(super) fn percent(part: DurationNs, whole: DurationNs) -> String {
    let percent = (u128::from(part.0) * 100 + u128::from(whole.0) / 2).checked_div(u128::from(whole.0)).unwrap_or(0);
    format!("{percent} %")
}

fn us(us: u64) -> String {
    format!("{}", DurationNs::from_micros(us).as_millis_f64())
}

fn listed(limits: &[CpuLimit]) -> String {
    limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Words {
    fn new(heading: &str) -> Self {
        Self { heading: heading.to_owned(), lines: vec![] }
    }

    fn line(&mut self, name: &str, words: &str) {
        self.lines.push((name.to_owned(), words.to_owned()));
    }

    /// For 80 columns: the names, and the words broken under each other beside them.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", head(&self.heading));
        for (name, words) in &self.lines {
            let first = format!("  {name:<10} ");
            let options = textwrap::Options::new(79).initial_indent(&first).subsequent_indent("             ");
            text.push_str(&textwrap::fill(words, options));
            text.push('\n');
        }
        text
    }

    /// The limit that would have been enough; `when`: over which time it was calculated.
    fn enough(&mut self, need: Option<&Need>, period_us: u64, held: DurationNs, when: &str) {
        let Some(need) = need else { return self.line("enough", "not known: nothing was observed") };
        let (low, high) = need.range();
        let floor = |millicores: u64| millicores.max(u64::from(MIN_MILLICPU));
        let (from, to) = (floor(low.limit_millicores), floor(high.limit_millicores));
        let would = match (held, when) {
            (DurationNs::ZERO, _) => "the container used up to".to_owned(),
            (_, "") => "without its throttled time the container would use up to".to_owned(),
            (_, when) => format!("without its throttled time the container would use, {when}, up to"),
        };
        let period = us(period_us);
        if from == to {
            self.line("enough", &format!("{to}m: {would} {} ms of CPU in any {period} ms", ms(high.quota)));
        } else {
            let (low, high) = (ms(low.quota), ms(high.quota));
            let used = if low == high { high } else { format!("{low} to {high}") };
            self.line("enough", &format!("from {from}m to {to}m: {would} {used} ms of CPU in any {period} ms"));
        }
    }

    fn not_known(&mut self, open: &[NotKnown]) {
        for (at, open) in open.iter().enumerate() {
            self.line(if at == 0 { "not known" } else { "" }, &not_known(open));
        }
    }
}
