//! Four loads that an alarm on throttled periods judges wrongly, run through the simulation: two it exaggerates, two it hides.

use crate::model::alarm::{Eye, Replay, Rule, replay};
use crate::model::bandwidth::Bandwidth;
use crate::model::chain::{Chain, Piece};
use crate::model::history::History;
use crate::model::nested::{Charging, DEFAULT_SLICE, Level, Tick};
use crate::model::poller::{Housekeeping, Poller};
use crate::model::prometheus::Edition;
use crate::model::sight::{Query, sight};
use crate::time::{DurationNs, MonoNs};

const BASE: MonoNs = MonoNs(40_000_000_000_000);
const MINUTE: u64 = 60_000;
const SECOND: DurationNs = ms(1_000);

const fn ms(length: u64) -> DurationNs {
    DurationNs::from_millis(length)
}

/// A group of `quota_ms` each 100 ms whose first boundary comes after `boundary_ms`, under a kernel of 250 Hz.
struct Group {
    chain: Chain,
    pieces: Vec<Piece>,
}

impl Group {
    fn new(quota_ms: u64, boundary_ms: u64) -> Self {
        let bandwidth = Bandwidth::new(ms(quota_ms), ms(100)).expect("valid");
        let tick = Tick { length: ms(4), to_first: DurationNs(1_700_000) };
        let charging = Charging { slice: Some(DEFAULT_SLICE), tick: Some(tick) };
        Self { chain: Chain::new(&[Level::full(bandwidth, ms(boundary_ms))], &charging), pieces: vec![] }
    }

    fn request(&mut self, at_ms: u64, work_ms: u64) {
        self.chain.sleep_until(ms(at_ms));
        self.pieces.push(self.chain.work(ms(work_ms)));
    }

    fn spike(&mut self, at_ms: u64, length_ms: u64) {
        self.chain.sleep_until(ms(at_ms));
        self.pieces.push(self.chain.burn_until(ms(at_ms + length_ms)));
    }

    fn until(mut self, end_ms: u64) -> History {
        self.chain.sleep_until(ms(end_ms));
        History::simulated(&self.chain, &self.pieces, BASE)
    }
}

/// Scrapes twice a minute, the agent the kubelet's.
fn prometheus(edition: Edition) -> Eye {
    let exporter = Poller { housekeeping: None, scrape_ns: ms(30_000), offset_ns: ms(11_300), seed: 1 };
    Eye::Prometheus { agent: Poller { housekeeping: Some(Housekeeping::KUBELET), ..exporter }, exporter, edition }
}

fn fires_for_ever(replay: &Replay, history: &History, from_ms: u64) {
    assert_eq!(replay.firings.len(), 1, "{replay:?}");
    assert!(replay.firings[0].start <= history.span.start + ms(from_ms), "{replay:?}");
    assert_eq!(replay.firings[0].end, history.span.end);
}

fn never_fires(history: &History, rule: &Rule) {
    for eye in [Eye::Exact, prometheus(Edition::From3), prometheus(Edition::UpTo2_50)] {
        assert_eq!(replay(history, 0, rule, &eye).firings, [], "{} through {eye:?}", rule.name);
    }
}

#[test]
fn a_request_each_ten_seconds_at_400m_fires_for_ever() {
    let hour = |boundary_ms| {
        let mut group = Group::new(40, boundary_ms);
        (0..360).for_each(|request| group.request(request * 10_000, 60));
        group.until(60 * MINUTE)
    };
    // Every request starts at the same point of the period. One that is throttled counts a period that ends throttled, the one in
    // which it ends and an idle one: a third. If the boundary comes so early that the first period was over before, four: a quarter,
    // which is not above the threshold. If the boundary splits it into parts of at most a quota, it is not throttled.
    let mut shares = [0; 3];
    for boundary_ms in (5..=100).step_by(10) {
        let history = hour(boundary_ms);
        let seen = replay(&history, 0, &Rule::cpu_throttling_high(), &Eye::Exact);
        let is = |share: f64| seen.highest.is_some_and(|highest| (highest - share).abs() < 1e-9);
        let (third, quarter) = (is(1.0 / 3.0), is(0.25));
        assert_eq!(history.jobs[100].lost() > DurationNs::ZERO, third || quarter, "{seen:?}");
        if third {
            fires_for_ever(&seen, &history, 16 * MINUTE);
            let polled = replay(&history, 0, &Rule::cpu_throttling_high(), &prometheus(Edition::From3));
            fires_for_ever(&polled, &history, 18 * MINUTE);
            fires_for_ever(&replay(&history, 0, &Rule::three_windows(), &Eye::Exact), &history, 16 * MINUTE);
        } else {
            assert_eq!(seen.firings, []);
        }
        shares[usize::from(third) + 2 * usize::from(quarter)] += 1;
        let used = history.used_ns.at(history.span.end);
        assert_eq!(used, 360 * ms(60).0, "0.6 % of one CPU");
        never_fires(&history, &Rule::time_lost());
    }
    assert_eq!(shares, [2, 6, 2], "none, a third and a quarter of the periods throttled, of ten phases");
}

#[test]
fn a_burst_of_two_seconds_a_minute_beside_a_trickle_never_fires() {
    let mut group = Group::new(25, 37);
    for minute in 0..60 {
        let start = minute * MINUTE;
        (0..580).for_each(|period| group.request(start + period * 100, 1));
        group.spike(start + 58_000, 2_000);
    }
    let history = group.until(60 * MINUTE);
    let counted = history.levels[0].periods.at(history.span.end);
    assert!((35_990..=36_010).contains(&counted), "600 counted periods a minute: {counted}");
    let exact = replay(&history, 0, &Rule::cpu_throttling_high(), &Eye::Exact);
    let share = exact.highest.expect("a share");
    assert!((0.03..0.037).contains(&share), "{share}");
    never_fires(&history, &Rule::cpu_throttling_high());
    never_fires(&history, &Rule::three_windows());
    // Three quarters of each burst are lost.
    let lost = history.held.total();
    assert!(lost > ms(60 * 1_400) && lost < ms(60 * 1_600), "{lost:?}");
    for eye in [Eye::Exact, prometheus(Edition::From3)] {
        fires_for_ever(&replay(&history, 0, &Rule::time_lost(), &eye), &history, 8 * MINUTE);
    }
}

#[test]
fn a_spike_of_50_ms_each_five_minutes_at_250m_fires_at_167_microcores() {
    let spiky = |boundary_ms| {
        let mut group = Group::new(25, boundary_ms);
        (0..12).for_each(|spike| group.spike(spike * 5 * MINUTE + 20_000, 50));
        group.until(60 * MINUTE)
    };
    let history = spiky(83);
    let spike = &history.jobs[3];
    assert!(spike.harmed() && spike.span.length() > ms(50), "held at its end, it ends with the period: {spike:?}");
    // Not throttled a spike would use 167 microcores on average; throttled it is half of that.
    let micro = |ns: u64| ns * 1_000_000 / history.span.length().0;
    assert_eq!(micro(12 * ms(50).0), 166);
    let used = micro(history.used_ns.at(history.span.end));
    assert!((83..100).contains(&used), "{used} of the 250,000 the limit allows");
    for rule in [Rule::cpu_throttling_high(), Rule::three_windows()] {
        let seen = replay(&history, 0, &rule, &Eye::Exact);
        fires_for_ever(&seen, &history, 16 * MINUTE);
        assert_eq!(seen.highest, Some(1.0 / 3.0));
    }
    // A range of Prometheus 3 holds ten samples 30 s apart, of which nothing between the last one before it and the first one in it
    // counts: a spike each five minutes is in none of them for a tenth of the time, and the alarm starts anew.
    let polled = replay(&history, 0, &Rule::cpu_throttling_high(), &prometheus(Edition::From3));
    assert_eq!(polled.firings, []);
    assert!(polled.active * 10 >= polled.evaluations * 6, "{polled:?}");
    // Where the boundary leaves more than a quota before it, the spike counts four periods, of which one is throttled: a quarter,
    // which is not above the threshold.
    let split = spiky(15);
    assert!(split.jobs[3].lost() > DurationNs::ZERO);
    let seen = replay(&split, 0, &Rule::cpu_throttling_high(), &Eye::Exact);
    assert_eq!((seen.highest, &seen.firings[..]), (Some(0.25), &[][..]));
    never_fires(&history, &Rule::time_lost());
}

#[test]
fn a_total_throttle_shorter_than_twelve_and_a_half_minutes_never_fires() {
    let throttled_for = |seconds: u64| {
        let mut group = Group::new(25, 37);
        let (begin, end) = (20 * MINUTE, 20 * MINUTE + seconds * 1_000);
        (0..begin / 100).for_each(|period| group.request(period * 100, 1));
        group.spike(begin, end - begin);
        (end / 100 + 1..60 * MINUTE / 100).for_each(|period| group.request(period * 100, 1));
        group.until(60 * MINUTE)
    };
    let short = throttled_for(12 * 60 + 20);
    never_fires(&short, &Rule::cpu_throttling_high());
    let long = replay(&throttled_for(13 * 60), 0, &Rule::cpu_throttling_high(), &Eye::Exact);
    assert_eq!(long.firings.len(), 1, "{long:?}");
    // Three windows are sooner: two whole ones and a quarter of another at either end.
    assert_eq!(replay(&throttled_for(7 * 60), 0, &Rule::three_windows(), &Eye::Exact).firings, []);
    assert_eq!(replay(&throttled_for(9 * 60), 0, &Rule::three_windows(), &Eye::Exact).firings.len(), 1);
    for eye in [Eye::Exact, prometheus(Edition::From3)] {
        let lost = replay(&short, 0, &Rule::time_lost(), &eye);
        let [firing] = lost.firings[..] else { panic!("{lost:?}") };
        let from = firing.start.since(short.span.start);
        assert!(from > ms(20 * MINUTE) && from <= ms(24 * MINUTE), "{lost:?}");
        assert!(lost.lost_while_firing_ns.0 * 10 > lost.lost_ns.0 * 6, "{lost:?}");
    }
}

#[test]
fn usage_shows_the_average_and_never_the_spikes() {
    // 80 ms spikes each second without any limit in their way.
    let mut group = Group::new(90, 95);
    (0..1_800).for_each(|spike| group.spike(spike * 1_000 + 3, 80));
    let history = group.until(30 * MINUTE);
    let query = Query { window_ns: ms(2 * MINUTE), every_ns: ms(30_000), edition: Edition::From3 };
    let Eye::Prometheus { agent, .. } = prometheus(Edition::From3) else { panic!("polled") };
    let seen = sight(&history, 0, &agent, &query);
    let shown = seen.mean_cores_shown.expect("samples");
    assert!((shown - seen.mean_cores).abs() < 0.002 && (seen.mean_cores - 0.08).abs() < 1e-3, "{seen:?}");
    assert!(seen.peak_cores > 0.79 && seen.peak_cores_shown.expect("rates") < 0.1, "{seen:?}");
    assert_eq!((seen.held, seen.counted), (0, 0));
}

#[test]
fn every_throttled_spike_is_counted_and_shown_late() {
    let mut group = Group::new(25, 95);
    (0..1_800).for_each(|spike| group.spike(spike * 1_000 + 3, 50));
    let history = group.until(30 * MINUTE);
    let query = Query { window_ns: ms(2 * MINUTE), every_ns: ms(30_000), edition: Edition::From3 };
    let Eye::Prometheus { agent, exporter, .. } = prometheus(Edition::From3) else { panic!("polled") };
    let seen = sight(&history, 0, &agent, &query);
    assert_eq!((seen.held, seen.counted), (1_800, 1_800));
    let fresh = sight(&history, 0, &exporter, &query);
    let (late, sooner) = (seen.delay.expect("shown"), fresh.delay.expect("shown"));
    // A reading of the kubelet's is up to 20 s old as it is scraped, a scrape up to 30 s as it is asked for.
    assert!(late.max <= DurationNs(80 * SECOND.0) && sooner.max <= DurationNs(50 * SECOND.0), "{late:?} {sooner:?}");
    assert!(late.mean > sooner.mean, "{late:?} {sooner:?}");
    assert!(seen.shown > 1_700 && seen.shown <= seen.counted);
    assert!(seen.worst_increase_error.expect("evaluations") >= 1.0);
}
