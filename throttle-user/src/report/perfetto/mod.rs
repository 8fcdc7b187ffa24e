//! A trace for Perfetto (ui.perfetto.dev, trace_processor): tracks of requests, levels, threads and CPUs, counters of each level's
//! quota, and flows from a request to the throttles that held it.
//!
//! Time is `CLOCK_MONOTONIC`, tied to the wall clock at the limit's beginning.

mod track;
mod wire;

use std::collections::BTreeMap;

use prost::Message as _;

use super::{
    command::{level_name, ms},
    paint::Kind,
};
use crate::{
    run::{
        levelled::LevelledPeriod,
        picture::{CpuDoing, Doing, LevelPicture, LimitPicture, RequestPicture, Shares, Span, Stretch},
    },
    time::{DurationNs, MonoNs},
};
use track::{Note, Writer};

/// The trace of some limits.
#[must_use]
pub fn trace(limits: &[LimitPicture]) -> Vec<u8> {
    let mut writer = Writer::default();
    for limit in limits {
        writer.clock(limit.clock);
        draw(&mut writer, limit);
    }
    writer.finish().encode_to_vec()
}

fn draw(writer: &mut Writer, limit: &LimitPicture) {
    let root = writer.group(None, &format!("limit {}", limit.limit));
    let flows = Flows::of(limit);
    requests(writer, root, limit, &flows);
    for (index, level) in limit.levels.iter().enumerate() {
        levels(writer, root, (index, level), &flows);
    }
    let threads = writer.group(Some(root), "threads");
    for lane in &limit.threads {
        let track = writer.track(Some(threads), &format!("thread {}", lane.tid));
        for stretch in &lane.course {
            state(writer, track, limit, stretch);
        }
    }
    let cpus = writer.group(Some(root), "CPUs");
    for lane in &limit.cpu_lanes {
        let track = writer.track(Some(cpus), &format!("CPU {}", lane.cpu));
        for (span, doing) in &lane.course {
            let name = match doing {
                CpuDoing::Thread { tid } => format!("thread {tid}"),
                CpuDoing::Other => "other".to_owned(),
                CpuDoing::Unknown => "unknown".to_owned(),
                // A stretch of nothing is drawn as nothing.
                CpuDoing::Idle => continue,
            };
            writer.slice(track, "cpu", &name, *span, &[], &[]);
        }
    }
    if !limit.gaps.is_empty() {
        let gaps = writer.group(Some(root), "lost records");
        for gap in &limit.gaps {
            let track = writer.track(Some(gaps), &format!("CPU {}", gap.cpu));
            writer.slice(track, "gap", "records lost", gap.span, &[], &[("records", Note::Count(gap.lost.into()))]);
        }
    }
}

/// A track a stream, for requests of one stream follow each other; what each did is nested in it.
fn requests(writer: &mut Writer, root: u64, limit: &LimitPicture, flows: &Flows) {
    let parent = writer.group(Some(root), "requests");
    let mut streams: Vec<u32> = limit.requests.iter().map(|request| request.line.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    for stream in streams {
        let track = writer.track(Some(parent), &format!("stream {stream}"));
        for request in limit.requests.iter().filter(|request| request.line.stream == stream) {
            let window = window(request);
            let name = format!("request {}", request.line.request);
            let ids = flows.from(request.line.request);
            writer.begin(track, "request", &name, window.start, ids, &notes(request));
            for stretch in &request.course {
                state(writer, track, limit, stretch);
            }
            writer.end(track, window.end);
        }
    }
}

fn window(request: &RequestPicture) -> Span {
    Span::new(request.line.started_ns, request.line.finished_ns)
}

fn notes(request: &RequestPicture) -> Vec<(&'static str, Note)> {
    let share = &request.line.share;
    let shares: &Shares = &share.shares;
    let mut notes = vec![("wall_ms", Note::Ms(share.wall_ns)), ("cpu_time_ms", Note::Ms(share.cpu_time_ns))];
    notes.extend(Kind::ALL.map(|kind| (kind.field(), Note::Ms(kind.share(shares)))));
    notes.extend(share.periods.map(|periods| ("periods", Note::Count(periods.into()))));
    notes.push(("throttled_periods", Note::Count(share.throttled_periods.into())));
    notes.extend(share.phase_ns.map(|phase| ("phase_ms", Note::Ms(phase))));
    notes.push(("complete", Note::Text(if share.complete { "yes" } else { "no" }.to_owned())));
    notes
}

/// What a thread did for a while.
fn state(writer: &mut Writer, track: u64, limit: &LimitPicture, stretch: &Stretch) {
    let name = match stretch.doing {
        Doing::OnCpu { cpu } => format!("running on CPU {cpu}"),
        Doing::Throttled { levels, .. } => {
            let names = limit.names(levels).map(level_name).collect::<Vec<_>>();
            if names.is_empty() { "throttled".to_owned() } else { format!("throttled by {}", names.join("+")) }
        }
        Doing::Waiting { cpu } => format!("waiting for CPU {cpu}"),
        Doing::Blocked => "blocked".to_owned(),
        Doing::Unknown => "unknown".to_owned(),
    };
    writer.slice(track, "state", &name, stretch.span, &[], &[]);
}

/// A level: its periods, its counters, and when it was out of quota on each CPU.
fn levels(writer: &mut Writer, root: u64, (index, level): (usize, &LevelPicture), flows: &Flows) {
    let name = match level.name {
        Some(_) => level_name(level.name).to_owned(),
        None => format!("cgroup {} above", level.cgroup.0),
    };
    let parent = writer.group(Some(root), &name);
    if !level.periods.is_empty() {
        let track = writer.track(Some(parent), "periods");
        for period in &level.periods {
            let span = Span::new(period.period.start_ns, period.period.end_ns);
            let name = format!("period {}", period.period.index);
            writer.slice(track, "period", &name, span, &[], &period_notes(period));
        }
        quota(writer, parent, level);
    }
    let mut cpus: Vec<u32> = level.out.iter().map(|out| out.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    for cpu in cpus {
        let track = writer.track(Some(parent), &format!("out of quota, CPU {cpu}"));
        for (place, out) in level.out.iter().enumerate().filter(|(_, out)| out.cpu == cpu) {
            writer.slice(track, "throttle", "out of quota", out.span, flows.to(index, place), &[]);
        }
    }
}

fn period_notes(period: &LevelledPeriod) -> Vec<(&'static str, Note)> {
    let LevelledPeriod { period, out, out_wall_ns } = period;
    let mut notes = vec![("out_wall_ms", Note::Ms(*out_wall_ns))];
    notes.extend(period.used_ns.map(|used| ("used_ms", Note::Ms(used))));
    notes.extend(period.quota_ns.map(|quota| ("quota_ms", Note::Ms(quota))));
    notes.extend(period.exhausted_after_ns.map(|after| ("exhausted_after_ms", Note::Ms(after))));
    notes.extend(period.held_wall_ns.map(|held| ("held_wall_ms", Note::Ms(held))));
    notes.extend(period.denied_idle_ns.map(|denied| ("denied_idle_ms", Note::Ms(denied))));
    notes.extend(period.peak_parallelism.map(|peak| ("peak_parallelism", Note::Count(peak.into()))));
    if !out.is_empty() {
        let levels: Vec<String> =
            out.iter().map(|level| format!("{} after {} ms", level_name(level.level), ms(level.after_ns))).collect();
        notes.push(("out", Note::Text(levels.join(", "))));
    }
    notes.push(("complete", Note::Text(if period.complete { "yes" } else { "no" }.to_owned())));
    notes
}

/// Samples of a counter over a whole quota, and most of them in a period.
const STEPS: u64 = 20;
const MOST_STEPS: u64 = 1_000;

/// CPU used since the period began, and what of the quota that leaves. What the kernel has in its pools differs by slices that
/// CPUs have taken and not used.
fn quota(writer: &mut Writer, parent: u64, level: &LevelPicture) {
    let used = writer.counter(Some(parent), "CPU used in the period", "ms");
    let left = writer.counter(Some(parent), "quota left", "ms");
    for period in &level.periods {
        let span = Span::new(period.period.start_ns, period.period.end_ns);
        let Some((quota, whole)) = period.period.quota_ns.zip(period.period.used_ns) else { continue };
        let step = DurationNs((quota.0 / STEPS).max(whole.0 / MOST_STEPS).max(1));
        for (at, so_far) in usage(level, span, step) {
            writer.count(used, at, so_far.as_millis_f64());
            writer.count(left, at, quota.as_millis_f64() - so_far.as_millis_f64());
        }
    }
}

/// CPU time that the threads under a level used since a span's start, at its start and wherever another `step` of it is used or a
/// thread stops.
fn usage(level: &LevelPicture, span: Span, step: DurationNs) -> Vec<(MonoNs, DurationNs)> {
    let mut samples = vec![(span.start, DurationNs::ZERO)];
    let mut used = DurationNs::ZERO;
    let mut next = step;
    for (part, running) in level.running(span) {
        let rate = u64::from(running);
        let before = used;
        let after = used + DurationNs(part.length().0.saturating_mul(rate));
        while next < after {
            let into = next.saturating_sub(before).0 / rate.max(1);
            samples.push((part.start + DurationNs(into), next));
            next += step;
        }
        used = after;
        samples.push((part.end, used));
    }
    samples
}

/// Numbers of flows: one for each pair of a request and a throttle that held it.
struct Flows {
    /// Those that leave a request.
    from: BTreeMap<u64, Vec<u64>>,
    /// Those that arrive at a throttle: level, and its place there.
    to: BTreeMap<(usize, usize), Vec<u64>>,
}

impl Flows {
    fn of(limit: &LimitPicture) -> Self {
        let (mut from, mut to): (BTreeMap<_, Vec<u64>>, BTreeMap<_, Vec<u64>>) = Default::default();
        // Limits follow each other in time, so flows of another one have other numbers.
        let mut number = limit.window.start.0;
        for request in &limit.requests {
            for throttle in limit.held_by(request) {
                number = number.wrapping_add(1);
                from.entry(request.line.request).or_default().push(number);
                to.entry(throttle).or_default().push(number);
            }
        }
        Self { from, to }
    }

    fn from(&self, request: u64) -> &[u64] {
        self.from.get(&request).map_or(&[], Vec::as_slice)
    }

    fn to(&self, level: usize, place: usize) -> &[u64] {
        self.to.get(&(level, place)).map_or(&[], Vec::as_slice)
    }
}
