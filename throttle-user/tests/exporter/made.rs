//! A state made by hand, and requests to it.

use std::{path::Path, sync::Arc};

use throttle_user::{
    cgroup::{Bandwidth, Change, Group, Quota, Version, tree::Node},
    event::{CgroupId, CpuLosses, HookReport, HookState, KernelCounters, Losses},
    exporter::{Exporter, Listening, ProcessFigures, ProgramFigures, routes::router},
    node::{Bounds, Census, Recent},
    time::{DurationNs, MonoNs, now},
    timeline::{
        boundary::Boundary,
        level::{EndedBy, Throttle},
        live::{Finished, LiveCounts, LivePeriod},
        period::{PeriodRecord, PeriodThrottle},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub(crate) const CONTAINER: CgroupId = CgroupId(30);
pub(crate) const UID: &str = "2688e3e2-f165-486c-bff5-6f7628d67bec";
pub(crate) const ID: &str = "4099efc546c793999b14d176eb7b0b046cbfd42d719d0d2f2c8e24203d64dd13";

const MS: u64 = 1_000_000;

/// A pod and its container with 20 ms a period, and a slice without a limit.
pub(crate) fn exporter() -> Arc<Exporter> {
    let bounds = Bounds { counted: 100, grace: DurationNs::from_millis(60_000) };
    let exporter = Arc::new(Exporter::new(Census::new(bounds), Recent::new(1 << 20)));
    let limited = Bandwidth { quota: Quota::Us(20_000), period_us: 100_000, burst_us: 0 };
    let pod = format!("kubepods/burstable/pod{UID}");
    let tree = [
        (1, None, String::new(), None),
        (2, Some(1), "system.slice".to_owned(), Some(Bandwidth::UNLIMITED)),
        (20, Some(1), pod.clone(), Some(limited)),
        (CONTAINER.0, Some(20), format!("{pod}/{ID}"), Some(limited)),
    ];
    let mut state = exporter.state();
    for (id, parent, path, bandwidth) in tree {
        let group = Group::new(Version::V2, Path::new("/sys/fs/cgroup").join(&path));
        state.census.change(&Change::Added(Node { group, path: path.into(), id, parent, bandwidth }), now());
    }
    state.own.since = Some(now());
    state.walked = true;
    drop(state);
    exporter
}

/// The `index`th period of the container: out of quota after 20 ms, on one CPU, to its end.
pub(crate) fn period(index: u64, followed: bool) -> LivePeriod {
    let (start, end) = (MonoNs(index * 100 * MS), MonoNs((index + 1) * 100 * MS));
    let out = MonoNs(start.0 + 20 * MS);
    let measured = |ms: u64| followed.then(|| DurationNs(ms * MS));
    let record = PeriodRecord {
        cgroup: CONTAINER,
        index,
        start_ns: start,
        end_ns: end,
        periods: 1,
        quota_ns: Some(DurationNs(20 * MS)),
        period_ns: DurationNs(100 * MS),
        burst_ns: DurationNs::ZERO,
        used_ns: measured(20),
        exhausted_after_ns: Some(DurationNs(20 * MS)),
        peak_parallelism: followed.then_some(1),
        throttles: vec![PeriodThrottle { cpu: 0, start_ns: out, end_ns: end, released_by: Some(EndedBy::Period) }],
        throttled_wall_ns: DurationNs(80 * MS),
        held_wall_ns: measured(80),
        fully_held_ns: measured(80),
        denied_idle_ns: measured(70),
        complete: true,
    };
    let boundary = Boundary {
        due: end,
        entry: end,
        exit: end,
        periods: 1,
        quota: Some(DurationNs(20 * MS)),
        period: DurationNs(100 * MS),
        burst: DurationNs::ZERO,
        pool_left: DurationNs::ZERO,
        throttled_cpus: 1,
        marked_cpus: 1,
        truncated: false,
        active: true,
        inferred: false,
        kernel: Some(KernelCounters { nr_periods: 1, nr_throttled: 1, throttled_time: DurationNs(80 * MS) }),
    };
    LivePeriod { record, boundary, drawn_ns: Some(20_000_000) }
}

/// Periods and their throttles are over.
pub(crate) fn finished(periods: impl IntoIterator<Item = LivePeriod>) -> Finished {
    let periods: Vec<LivePeriod> = periods.into_iter().collect();
    let throttle = |period: &LivePeriod| {
        let span = &period.record.throttles[0];
        Throttle {
            cgroup: CONTAINER,
            cpu: 0,
            marked: span.start_ns,
            start: Some(span.start_ns),
            end: Some(span.end_ns),
            ended_by: Some(EndedBy::Period),
            complete: true,
        }
    };
    Finished { throttles: periods.iter().map(throttle).collect(), periods }
}

pub(crate) fn tell(exporter: &Exporter, periods: impl IntoIterator<Item = LivePeriod>) {
    exporter.finished(finished(periods), now(), LiveCounts::default(), 0);
}

/// With everything measured that can be.
pub(crate) fn full() -> Arc<Exporter> {
    let exporter = exporter();
    tell(&exporter, [period(0, true), period(1, true), period(2, true)]);
    let mut state = exporter.state();
    let program = |name: &str| ProgramFigures { program: name.to_owned(), cost: Some((DurationNs(5_000), 7)) };
    state.own.programs = vec![program("sched_switch"), program("sched_wakeup")];
    let hook = |tracepoint, state| HookReport { tracepoint, is_required: false, without: "less is known", state };
    state.own.hooks = vec![hook("cgroup_attach_task", HookState::Absent), hook("sched_switch", HookState::Attached)];
    let cpu = CpuLosses {
        cpu: 0,
        tried: 9,
        produced: vec![("period".into(), 9)],
        lost: vec![("period".into(), 2)],
        truncated: 0,
    };
    state.own.losses = Some(Losses { cpus: vec![cpu], undecoded: 0 });
    state.own.process = Some(ProcessFigures {
        cpu: DurationNs(1_500_000_000),
        resident_bytes: 9 << 20,
        started_realtime_ns: 1_700_000_000_000_000_000,
    });
    drop(state);
    exporter
}

/// Serves on a free port.
pub(crate) async fn serve(exporter: &Arc<Exporter>) -> String {
    let listening = Listening::on(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let address = listening.address().to_string();
    tokio::spawn(listening.serve(router(Arc::clone(exporter))));
    address
}

/// Status, head and body of a request.
pub(crate) async fn get(address: &str, path: &str, accept: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("read");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_owned(), body.to_owned())
}
