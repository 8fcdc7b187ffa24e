//! Lost records: counted exactly, and what they touch is marked.

use throttle_user::{
    attribution::Attribution,
    cgroup::Nesting,
    event::CgroupId,
    request::{ServerSpan, WorkerSpan},
    time::DurationNs,
    timeline::period::records,
};

use crate::observed::{Bench, Look, finish, limited, one_at_a_time, start};

#[test]
fn kernel_loss_is_counted_exactly_and_marks_what_it_touches() {
    let _turn = one_at_a_time();
    let bench = Bench::new(Nesting::Flat);
    let levels = bench.levels();
    limited(150, 100).write(&levels[0].1).expect("a limit");
    let look = Look { ring_bytes: 4_096, ..Look::default() };
    let seen = bench.observe(&levels, look, || finish(start("storm 30000", &levels[0].1)));
    assert!(seen.losses.total() > 0, "the ring held everything: {:?}", seen.losses);
    for cpu in &seen.losses.cpus {
        let received: Vec<_> = seen.events.iter().filter(|event| event.cpu == cpu.cpu).collect();
        let lost: u64 = cpu.lost.iter().map(|(_, count)| count).sum();
        assert_eq!(cpu.tried - received.len() as u64, lost, "{cpu:?}");
        for (kind, produced) in &cpu.produced {
            let received = received.iter().filter(|event| event.what.kind() == kind).count() as u64;
            let lost = cpu.lost.iter().find(|(lost, _)| lost == kind).map_or(0, |(_, count)| *count);
            assert_eq!(produced - received, lost, "{kind}: {cpu:?}");
        }
        assert_eq!(cpu.produced.iter().map(|(_, count)| count).sum::<u64>(), cpu.tried);
    }
    let in_gaps: u64 = seen.timeline.gaps.iter().map(|gap| u64::from(gap.lost)).sum();
    assert_eq!(in_gaps, seen.losses.total());
    for gap in &seen.timeline.gaps {
        let of_cpu: Vec<_> = seen.events.iter().filter(|event| event.cpu == gap.cpu).collect();
        let ends = gap.span.end == seen.timeline.end() || of_cpu.iter().any(|event| event.at == gap.span.end);
        assert!(ends, "{gap:?} ends at no record");
    }
    // A request served through a gap is incomplete, and so is each period a gap lies in.
    let gap = seen.timeline.gaps.iter().max_by_key(|gap| gap.lost).expect("a gap");
    let leaf = CgroupId(levels[0].1.id().expect("an id"));
    let attribution = Attribution::new(&seen.timeline, &seen.setting, &leaf);
    let (&tid, _) = seen.timeline.threads.iter().max_by_key(|(_, line)| line.segments.len()).expect("a thread");
    let worker =
        WorkerSpan { tid, started_ns: gap.span.start, finished_ns: gap.span.end, cpu_time_ns: DurationNs::ZERO };
    let request = ServerSpan {
        accepted_ns: gap.span.start,
        started_ns: gap.span.start,
        finished_ns: gap.span.end,
        work_ns: DurationNs::ZERO,
        workers: vec![worker],
    };
    let share = attribution.explain(&request).expect("it has a worker");
    assert!(!share.complete);
    assert_eq!(share.shares.total(), share.wall_ns);
    let touched = records(&seen.timeline, &seen.setting, leaf);
    let touched: Vec<_> =
        touched.iter().filter(|period| period.start_ns < gap.span.end && gap.span.start < period.end_ns).collect();
    assert!(touched.iter().all(|period| !period.complete), "{touched:?}");
}
