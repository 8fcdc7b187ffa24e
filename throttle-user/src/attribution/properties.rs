//! Shares of requests against the truth of a simulated kernel, whole and with a lost record.

use proptest::prelude::*;

use super::{Attribution, RequestShare, Shares};
use crate::{
    event::CgroupId,
    request::{ServerSpan, WorkerSpan},
    time::{DurationNs, MonoNs},
    timeline::{
        Timeline,
        interval::Span,
        properties::an_event,
        simulated::{BEGIN, CONTAINER, POD, Rules, SIDECAR, Simulated, Truth, config, plans, setting},
        thread::{Segment, State},
    },
};

/// A request served by these threads in this window.
fn request(window: Span, threads: &[u32]) -> ServerSpan {
    let worker = |(index, &tid): (usize, &u32)| WorkerSpan {
        tid,
        started_ns: window.start,
        // The last thread finishes last.
        finished_ns: if index + 1 == threads.len() {
            window.end
        } else {
            MonoNs(window.start.0.midpoint(window.end.0))
        },
        cpu_time_ns: DurationNs::ZERO,
    };
    ServerSpan {
        accepted_ns: window.start,
        started_ns: window.start,
        finished_ns: window.end,
        work_ns: DurationNs::ZERO,
        workers: threads.iter().enumerate().map(worker).collect(),
    }
}

/// Time of a CPU's stretch in which a level was marked there, as it truly was and as far as it was shown.
fn marked(truth: &Truth, level: CgroupId, cpu: u32, span: Span) -> DurationNs {
    truth
        .throttles
        .iter()
        .filter(|throttle| (throttle.cgroup, throttle.cpu) == (level, cpu))
        .map(|throttle| throttle.span(MonoNs(u64::MAX)).clip(span).length())
        .sum()
}

/// The shares of a thread's window by the truth; what lies outside of its life is unknown.
fn true_shares(truth: &Truth, segments: &[Segment], leaf: CgroupId, window: Span) -> Shares {
    let mut shares = Shares::default();
    for segment in segments {
        let span = segment.span.clip(window);
        match segment.state {
            State::Running { .. } => shares.on_cpu_ns += span.length(),
            State::Waiting { .. } => shares.runqueue_ns += span.length(),
            State::Blocked => shares.blocked_ns += span.length(),
            State::Unknown => shares.unknown_ns += span.length(),
            State::Throttled { cpu } => {
                let own = marked(truth, leaf, cpu, span);
                shares.throttled_own_ns += own;
                shares.throttled_ancestor_ns += span.length() - own;
            }
        }
    }
    shares.unknown_ns = window.length() - shares.total();
    shares
}

fn window(of: (u64, u64), length: u64) -> Span {
    let at = |permille: u64| MonoNs(BEGIN.0 + length * permille / 1_000);
    Span::new(at(of.0.min(of.1)), at(of.0.max(of.1)))
}

fn sums(share: &RequestShare) -> Result<(), TestCaseError> {
    prop_assert_eq!(share.shares.total(), share.wall_ns);
    prop_assert!(share.throttled_both_ns <= share.shares.throttled_own_ns);
    for worker in &share.workers {
        prop_assert_eq!(worker.shares.total(), worker.wall_ns);
    }
    if let Some(periods) = share.periods {
        prop_assert!(share.throttled_periods <= periods);
    }
    Ok(())
}

/// Group and number of every thread of a simulation.
fn threads(simulated: &Simulated, timeline: &Timeline, leaf: CgroupId) -> Vec<u32> {
    let of = |(&thread, line): (&u32, &crate::timeline::thread::ThreadLine)| {
        line.was_in(|group| group == leaf).then_some(thread)
    };
    let threads: Vec<u32> = timeline.threads.iter().filter_map(of).collect();
    assert!(threads.iter().all(|thread| simulated.truth.threads.contains_key(thread)));
    threads
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn shares_are_the_true_ones_and_sum_to_the_window(plan in plans(true), part in (0u64..1_100, 0u64..1_100)) {
        let simulated = Simulated::of(&plan);
        let timeline = Timeline::build(simulated.events.clone(), &simulated.setting);
        let window = window(part, plan.length);
        for leaf in [CONTAINER, SIDECAR] {
            let attribution = Attribution::new(&timeline, &simulated.setting, &leaf);
            for thread in threads(&simulated, &timeline, leaf) {
                let share = attribution.explain(&request(window, &[thread])).expect("it has a worker");
                sums(&share)?;
                let expected = true_shares(&simulated.truth, &simulated.truth.threads[&thread], leaf, window);
                prop_assert_eq!(share.shares, expected);
                prop_assert_eq!(share.complete, expected.unknown_ns == DurationNs::ZERO);
            }
        }
    }

    #[test]
    fn a_fan_out_is_complete_only_if_all_its_workers_are(plan in plans(true), part in (0u64..1_100, 0u64..1_100)) {
        let simulated = Simulated::of(&plan);
        let timeline = Timeline::build(simulated.events.clone(), &simulated.setting);
        let threads = [threads(&simulated, &timeline, CONTAINER), threads(&simulated, &timeline, SIDECAR)].concat();
        prop_assume!(!threads.is_empty());
        let attribution = Attribution::new(&timeline, &simulated.setting, &CONTAINER);
        let share = attribution.explain(&request(window(part, plan.length), &threads)).expect("it has workers");
        sums(&share)?;
        prop_assert_eq!(Some(&share.critical_tid), threads.last());
        let unknown = share.workers.iter().any(|worker| worker.shares.unknown_ns > DurationNs::ZERO);
        prop_assert_eq!(share.complete, !unknown);
    }

    #[test]
    fn a_request_that_a_lost_record_touches_is_incomplete_and_the_others_are_right(
        plan in plans(true), part in (0u64..1_000, 0u64..1_000), lost in any::<prop::sample::Index>()
    ) {
        let simulated = Simulated::of(&plan);
        prop_assume!(simulated.events.len() > 2);
        let mut events = simulated.events.clone();
        let gone = events.remove(lost.index(events.len()));
        let timeline = Timeline::build(events, &simulated.setting);
        prop_assert!(!timeline.gaps.is_empty());
        let window = window(part, plan.length);
        for leaf in [CONTAINER, SIDECAR] {
            let attribution = Attribution::new(&timeline, &simulated.setting, &leaf);
            for thread in threads(&simulated, &timeline, leaf) {
                let share = attribution.explain(&request(window, &[thread])).expect("it has a worker");
                sums(&share)?;
                let touched = timeline.gaps.iter().any(|gap| gap.span.start < window.end && window.start < gap.span.end);
                prop_assert!(!(touched && share.complete));
                let expected = true_shares(&simulated.truth, &simulated.truth.threads[&thread], leaf, window);
                // A thread whose end was not seen sleeps for ever.
                let end = simulated.truth.threads[&thread].last().map_or(window.start, |last| last.span.end);
                let dead = Span::new(end, MonoNs(u64::MAX)).clip(window).length();
                if share.complete && dead == DurationNs::ZERO {
                    prop_assert_eq!(share.shares, expected);
                }
                // What is known is never more than the truth of it.
                let known = [share.shares.on_cpu_ns, share.shares.throttled(), share.shares.runqueue_ns, share.shares.blocked_ns];
                let most = [expected.on_cpu_ns, expected.throttled(), expected.runqueue_ns, expected.blocked_ns + dead];
                prop_assert!(known.iter().zip(&most).all(|(known, most)| known <= most), "{known:?} {most:?} lost {gone:?}\n{:?}\n{:?}\n{}", timeline.threads[&thread], simulated.truth.threads[&thread], crate::timeline::properties::shown(&simulated.events));
            }
        }
    }

    #[test]
    fn of_any_records_at_all_the_shares_sum_to_the_window(
        events in prop::collection::vec(an_event(), 0..60),
        rules in prop::sample::select(&[Rules::Direct, Rules::AsyncQueued, Rules::Task][..]),
        at in (0u64..2_500, 0u64..2_500),
    ) {
        let setting = setting(rules);
        let timeline = Timeline::build(events, &setting);
        let window = Span::new(MonoNs(at.0.min(at.1)), MonoNs(at.0.max(at.1)));
        // One more than the records know.
        let threads: Vec<u32> = timeline.threads.keys().copied().chain([1]).collect();
        for leaf in [CONTAINER, SIDECAR, POD] {
            let attribution = Attribution::new(&timeline, &setting, &leaf);
            for threads in threads.chunks(1).chain([&threads[..]]) {
                sums(&attribution.explain(&request(window, threads)).expect("it has a worker"))?;
            }
        }
    }
}
