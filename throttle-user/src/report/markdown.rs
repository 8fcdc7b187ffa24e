//! `report.md`: the run for a reader in a hurry.

use std::fmt::Write as _;

use super::table;
use crate::{
    cgroup::{Nesting, Version},
    request::FanOut,
    run::{record::Head, summary::RunSummary},
};

/// Renders the report.
#[must_use]
pub fn render(head: &Head, summary: &RunSummary) -> String {
    let mut text = String::from("# CPU limits and the latency of one request stream\n\n");
    // Writing to a String cannot fail.
    let _ = write_body(&mut text, head, summary);
    text
}

fn write_body(text: &mut String, head: &Head, summary: &RunSummary) -> std::fmt::Result {
    let (plan, machine) = (&head.plan, &head.environment);
    let mode = match (plan.threads, plan.mode) {
        (1, _) => "one thread each".to_owned(),
        (threads, FanOut::Split) => format!("split over {threads} threads"),
        (threads, FanOut::Whole) => format!("the whole of it on each of {threads} threads"),
    };
    writeln!(
        text,
        "{} requests of {} ms CPU time at each limit, {mode}; {} stream(s), closed loop with a gap of {} ms (latency leaves out the \
         wait a fixed schedule would have seen){}{}. {}; period {} ms, burst {} ms.\n",
        plan.requests,
        plan.work_ns.as_millis_f64(),
        plan.streams,
        plan.gap_ns.as_millis_f64(),
        match plan.spread_ns.as_millis_f64() {
            0.0 => String::new(),
            spread => format!(", each lengthened by a part of {spread} ms that differs from request to request"),
        },
        match plan.background {
            None => String::new(),
            Some(times) => format!("; all CPUs kept busy from a group beside, of {times} times the weight"),
        },
        match plan.nesting {
            Nesting::Nested => "Pod and container both limited, as the kubelet does",
            Nesting::Flat => "Only the container limited",
        },
        millis(plan.period_us),
        millis(plan.burst_us),
    )?;
    writeln!(
        text,
        "Kernel {} ({} era), {} CPUs, cgroup {}, HZ {}.\n",
        machine.kernel,
        machine.era,
        machine.cpus,
        match machine.cgroup_version {
            Version::V1 => "v1",
            Version::V2 => "v2",
        },
        machine.hz.map_or_else(|| "not readable".to_owned(), |hz| hz.to_string()),
    )?;
    text.push_str(&table::markdown(summary));
    text.push('\n');
    text.push_str(&table::intervals(summary));
    for requirement in head.requirements.iter().filter(|requirement| !requirement.met) {
        writeln!(text, "- Requirement missed: {} (found: {}).", requirement.name, requirement.found)?;
    }
    text.push_str(
        "\nWall time is the server's own: first start to last finish of a request's workers. Throttled time per request is the \
         union over levels along the critical path; \"own level\" is out of quota itself (an ancestor may be as well), \"ancestor only\" is \
         what the container's own counter cannot show. The model is a simulation of the quota levels fed with each request's \
         measured CPU time and phase; \"inside\" counts requests within its bracket.\n",
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "display of a few microseconds")]
fn millis(us: u64) -> f64 {
    us as f64 / 1e3
}
