//! The state as OpenMetrics, or as Prometheus text for those who ask for that.
//!
//! Three throttled times, never one: summed over CPUs, in which some CPU was throttled, in which nothing could run. A series that was not
//! measured is not there.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use super::{
    rows::name,
    state::{Exporter, State},
};
use crate::{
    event::{CgroupId, KINDS},
    node::{Histogram, Member, Totals},
    time::{DurationNs, MonoNs, now},
};

/// Media type of OpenMetrics text.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Media type of Prometheus text.
pub const PROMETHEUS: &str = prometheus_text::CONTENT_TYPE;

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// [`OPEN_METRICS`]
    OpenMetrics,
    /// [`PROMETHEUS`]
    Prometheus,
}

impl Format {
    /// By what a client accepts.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// Its media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => OPEN_METRICS,
            Self::Prometheus => PROMETHEUS,
        }
    }
}

/// All metrics of a daemon.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// Of an exporter, as it is when asked.
    #[must_use]
    pub fn of(exporter: &Arc<Exporter>) -> Self {
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix("throttle").register_collector(Box::new(Node(Arc::clone(exporter))));
        registry.sub_registry_with_prefix("process").register_collector(Box::new(Process(Arc::clone(exporter))));
        Self(registry)
    }

    /// The text.
    ///
    /// # Errors
    /// Never for a string; the library's encoder can fail for other writers.
    pub fn text(&self, format: Format) -> Result<String, fmt::Error> {
        let mut out = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut out, &self.0)?,
            Format::Prometheus => prometheus_text::encode(&mut out, &self.0)?,
        }
        Ok(out)
    }
}

struct Node(Arc<Exporter>);
struct Process(Arc<Exporter>);

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Node")
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Process")
    }
}

/// Labels of a cgroup: empty where the name is not known or does not apply.
type Labels = [(&'static str, String); 5];

struct Row<'a> {
    labels: Labels,
    member: &'a Member,
}

impl Collector for Node {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.state();
        let now = now();
        let rows: Vec<Row<'_>> = state
            .census
            .members()
            .filter(|(_, member)| member.is_limited() || member.totals.is_some())
            .map(|(id, member)| Row { labels: labels(id, member, &state), member })
            .collect();
        counters(&mut encoder, &rows)?;
        histograms(&mut encoder, &rows)?;
        gauges(&mut encoder, &rows, now)?;
        own(&mut encoder, &state, &rows)
    }
}

fn labels(id: CgroupId, member: &Member, state: &State) -> Labels {
    let name = name(id, Some(member), &state.pods);
    [
        ("namespace", name.namespace.unwrap_or_default()),
        ("pod", name.pod.unwrap_or_default()),
        ("container", name.container.unwrap_or_default()),
        ("level", name.level.as_str().to_owned()),
        ("cgroup", format!("/{}", name.path)),
    ]
}

/// A counter of a cgroup.
struct Counter {
    name: &'static str,
    help: &'static str,
    value: fn(&Totals) -> Option<Value>,
}

enum Value {
    Count(u64),
    Seconds(DurationNs),
}

const COUNTERS: [Counter; 9] = [
    Counter {
        name: "periods",
        help: "CFS periods that ended, as the kernel counts nr_periods",
        value: |totals| Some(Value::Count(totals.periods)),
    },
    Counter {
        name: "throttled_periods",
        help: "CFS periods at whose end some CPU was throttled, as the kernel counts nr_throttled",
        value: |totals| Some(Value::Count(totals.throttled_periods)),
    },
    Counter {
        name: "incomplete_periods",
        help: "CFS periods of which something is not known because records were lost",
        value: |totals| Some(Value::Count(totals.incomplete_periods)),
    },
    Counter {
        name: "throttled_cpu",
        help: "Throttled time by the cgroup's own quota, summed over CPUs, as the kernel counts throttled_time",
        value: |totals| Some(Value::Seconds(totals.throttled_cpus)),
    },
    Counter {
        name: "throttled_wall",
        help: "Wall time in which some CPU was throttled by the cgroup's own quota",
        value: |totals| Some(Value::Seconds(totals.throttled_wall)),
    },
    Counter {
        name: "fully_throttled",
        help: "Wall time in which threads were held by a limit and none of the cgroup ran; only where threads are followed",
        value: |totals| totals.fully_throttled.map(Value::Seconds),
    },
    Counter {
        name: "cpu_drawn",
        help: "CPU time taken from the quota; a CPU may hold up to 5 ms of it that it has not used yet",
        value: |totals| Some(Value::Seconds(totals.drawn)),
    },
    Counter {
        name: "cpu_used",
        help: "Time on CPU in the counted periods; only where threads are followed",
        value: |totals| totals.used.map(Value::Seconds),
    },
    Counter {
        name: "denied_idle_cpu",
        help: "CPU time that was idle on the node while threads were held; only where threads are followed",
        value: |totals| totals.denied_idle.map(Value::Seconds),
    },
];

fn counters(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>]) -> fmt::Result {
    for Counter { name, help, value } in COUNTERS {
        let value = |row: &Row<'_>| row.member.totals.as_deref().and_then(value);
        let values: Vec<(&Labels, Value)> = rows.iter().filter_map(|row| Some((&row.labels, value(row)?))).collect();
        let Some((_, first)) = values.first() else { continue };
        let unit = matches!(first, Value::Seconds(_)).then_some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
        for (labels, value) in &values {
            let mut metric = family.encode_family(*labels)?;
            match value {
                Value::Count(count) => metric.encode_counter::<NoLabelSet, _, u64>(count, None)?,
                Value::Seconds(length) => metric.encode_counter::<NoLabelSet, _, u64>(&seconds(*length), None)?,
            }
        }
    }
    Ok(())
}

fn histograms(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>]) -> fmt::Result {
    type Of = fn(&Totals) -> &Histogram;
    let families: [(&str, &str, Of); 2] = [
        ("throttle_duration", "Length of each throttle of one CPU by the cgroup's own quota", |totals| {
            &totals.throttles
        }),
        ("exhaustion", "Time from a period's start to its first throttle, of the periods that had one", |totals| {
            &totals.exhaustion
        }),
    ];
    for (name, help, of) in families {
        let counted: Vec<_> = rows.iter().filter_map(|row| Some((row, row.member.totals.as_deref()?))).collect();
        if counted.is_empty() {
            continue;
        }
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (row, totals) in counted {
            let histogram = of(totals);
            let buckets: Vec<(f64, u64)> =
                histogram.buckets().map(|(bound, count)| (bound.map_or(f64::INFINITY, seconds), count)).collect();
            let mut metric = family.encode_family(&row.labels)?;
            metric.encode_histogram::<NoLabelSet>(seconds(histogram.sum()), histogram.count(), &buckets, None)?;
        }
    }
    Ok(())
}

fn gauges(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>], now: MonoNs) -> fmt::Result {
    let us = |us: u64| seconds(DurationNs::from_micros(us));
    let quota = |member: &Member| member.bandwidth.and_then(|limit| limit.quota.us()).map(us);
    let period = |member: &Member| member.bandwidth.map(|limit| us(limit.period_us));
    let burst = |member: &Member| member.bandwidth.filter(|_| member.is_limited()).map(|limit| us(limit.burst_us));
    gauge(encoder, "quota", "CPU time a period; no limit, no series", Some(Unit::Seconds), rows, quota)?;
    gauge(encoder, "period", "Length of a period", Some(Unit::Seconds), rows, period)?;
    gauge(encoder, "burst", "CPU time that may be saved up beyond the quota", Some(Unit::Seconds), rows, burst)?;
    let peak = |member: &Member| Some(f64::from(member.totals.as_deref()?.peak_parallelism.at(now)?));
    let help = "Most threads on CPU at once in the last one to two minutes; only where threads are followed";
    gauge(encoder, "peak_parallelism", help, None, rows, peak)?;
    let peak = |member: &Member| Some(f64::from(member.totals.as_deref()?.peak_throttled_cpus.at(now)?));
    let help = "Most CPUs throttled at once by the cgroup's own quota in the last one to two minutes";
    gauge(encoder, "peak_throttled_cpus", help, None, rows, peak)
}

#[expect(clippy::needless_pass_by_value, reason = "a unit is made where the metric is named")]
fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    rows: &[Row<'_>],
    value: impl Fn(&Member) -> Option<f64>,
) -> fmt::Result {
    let values: Vec<(&Labels, f64)> = rows.iter().filter_map(|row| Some((&row.labels, value(row.member)?))).collect();
    if values.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    for (labels, value) in values {
        family.encode_family(labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// The daemon itself.
fn own(encoder: &mut DescriptorEncoder<'_>, state: &State, rows: &[Row<'_>]) -> fmt::Result {
    let own = &state.own;
    encoder
        .encode_descriptor("build", "Version of the program", None, MetricType::Info)?
        .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
    let programs = own.programs.iter().map(|program| ([("program", program.program.as_str())], 1.0));
    labelled(encoder, "program_attached", "eBPF programs that are attached", None, MetricType::Gauge, programs)?;
    let lost = own.hooks.iter().map(|hook| ([("tracepoint", hook.tracepoint)], f64::from(u8::from(hook.is_missing()))));
    let help = "1 for a tracepoint that would tell more on this kernel and cannot be used";
    labelled(encoder, "hook_missing", help, None, MetricType::Gauge, lost)?;
    let cost = |of: fn(&(DurationNs, u64)) -> f64| {
        own.programs
            .iter()
            .filter_map(move |program| Some(([("program", program.program.as_str())], of(program.cost.as_ref()?))))
    };
    let help = "Time that eBPF programs ran, as the kernel counts it while it is asked to";
    labelled(encoder, "program_run", help, Some(Unit::Seconds), MetricType::Counter, cost(|(time, _)| seconds(*time)))?;
    let help = "Times that eBPF programs ran, as the kernel counts it while it is asked to";
    labelled(encoder, "program_runs", help, None, MetricType::Counter, cost(|(_, runs)| count(*runs)))?;
    if let Some(losses) = &own.losses {
        // Zero where there was none yet, on a node without a limited group say.
        let mut kinds: BTreeMap<&str, (u64, u64)> = KINDS.into_iter().map(|kind| (kind, (0, 0))).collect();
        for cpu in &losses.cpus {
            cpu.produced.iter().for_each(|(kind, produced)| kinds.entry(kind).or_default().0 += produced);
            cpu.lost.iter().for_each(|(kind, lost)| kinds.entry(kind).or_default().1 += lost);
        }
        let tried = kinds.iter().map(|(kind, (tried, _))| ([("kind", *kind)], count(*tried)));
        labelled(encoder, "records", "Records that the probe tried to write", None, MetricType::Counter, tried)?;
        let lost = kinds.iter().map(|(kind, (_, lost))| ([("kind", *kind)], count(*lost)));
        let help = "Records lost because the ring buffer was full";
        labelled(encoder, "records_lost", help, None, MetricType::Counter, lost)?;
        let truncated: u64 = losses.cpus.iter().map(|cpu| cpu.truncated).sum();
        single(encoder, "timer_runs_truncated", "Timer runs with more throttled CPUs than are listed", truncated)?;
        single(encoder, "records_undecoded", "Records that were read and not understood", losses.undecoded)?;
    }
    let live = &own.live;
    single(encoder, "gaps", "Stretches of a CPU's records with some missing", live.gaps)?;
    single(encoder, "records_missing", "Records missing from the CPUs' sequences", live.lost)?;
    single(encoder, "records_late", "Records that came after later ones had been taken in", live.late)?;
    single(encoder, "untraced", "Tracepoints that must have fired and did not", live.untraced)?;
    single(encoder, "contradicted", "Timer runs that came after they had been taken for untraced", live.contradicted)?;
    let help = "Periods of cgroups that are not counted because there was no room";
    single(encoder, "periods_refused", help, state.census.refused().periods)?;
    let counted = rows.iter().filter(|row| row.member.totals.is_some()).count();
    let limited = rows.iter().filter(|row| row.member.is_limited()).count();
    let known = state.census.members().count();
    let states = [("known", known), ("limited", limited), ("counted", counted)];
    let states = states.into_iter().map(|(state, cgroups)| ([("state", state)], count(cgroups as u64)));
    labelled(encoder, "cgroups", "Cgroups, by what is known of them", None, MetricType::Gauge, states)?;
    let names = ["api", "api_silent", "paths"];
    let names = names.map(|source| ([("source", source)], f64::from(u8::from(source == state.names.as_str()))));
    let help =
        "1 for where names of pods come from: the API server, the API server that does not answer now, paths alone";
    labelled(encoder, "names", help, None, MetricType::Gauge, names.into_iter())?;
    plain(encoder, "pods", "Pods whose names are known", None, count(state.pods.len() as u64))?;
    let help = "1 if inotify watches ran out, and part of the tree is only walked from time to time";
    plain(encoder, "watch_partial", help, None, f64::from(u8::from(own.partial_watch)))?;
    plain(encoder, "events_waiting", "Events that wait for others before them", None, count(own.waiting as u64))?;
    let help = "Memory of the periods that are kept";
    plain(encoder, "recent", help, Some(Unit::Bytes), count(state.recent.bytes() as u64))
}

#[expect(clippy::needless_pass_by_value, reason = "a unit is made where the metric is named")]
fn labelled<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    kind: MetricType,
    values: impl Iterator<Item = ([(&'a str, &'a str); 1], f64)>,
) -> fmt::Result {
    let values: Vec<_> = values.collect();
    if values.is_empty() {
        return Ok(());
    }
    let counter = matches!(kind, MetricType::Counter);
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
    for (labels, value) in values {
        let mut metric = family.encode_family(&labels)?;
        if counter {
            metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        } else {
            metric.encode_gauge(&value)?;
        }
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "a unit is made where the metric is named")]
fn plain(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, unit: Option<Unit>, value: f64) -> fmt::Result {
    encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?.encode_gauge(&value)
}

fn single(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(process) = self.0.state().own.process else { return Ok(()) };
        let cpu = seconds(process.cpu);
        encoder
            .encode_descriptor("cpu", "CPU time of this process", Some(&Unit::Seconds), MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&cpu, None)?;
        encoder
            .encode_descriptor(
                "resident_memory",
                "Resident memory of this process",
                Some(&Unit::Bytes),
                MetricType::Gauge,
            )?
            .encode_gauge(&count(process.resident_bytes))?;
        let help = "Start of this process since 1970";
        encoder
            .encode_descriptor("start_time", help, Some(&Unit::Seconds), MetricType::Gauge)?
            .encode_gauge(&seconds(DurationNs(process.started_realtime_ns)))
    }
}

#[expect(clippy::cast_precision_loss, reason = "samples are floating point numbers; 2^53 ns are a hundred days")]
fn seconds(length: DurationNs) -> f64 {
    length.0 as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "samples are floating point numbers")]
fn count(count: u64) -> f64 {
    count as f64
}
