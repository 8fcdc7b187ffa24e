//! What limits did over the last seconds, from the periods that ended in them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Census, Member, Recent};
pub use crate::event::CgroupId;
use crate::{
    time::{DurationNs, MonoNs},
    timeline::{
        interval::{Span, Spans, Steps},
        live::LivePeriod,
    },
};

/// One cgroup over a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Path below the cpu controller's mount, empty = the mount itself; absent = the mount does not show it.
    pub cgroup: Option<String>,
    /// kernfs id.
    pub cgroup_id: CgroupId,
    /// Quota; absent = no limit.
    pub quota_us: Option<u64>,
    /// Period; absent = the group has no such files, or is out of sight.
    pub period_us: Option<u64>,
    /// CPU time that left the pool over what it was given for the window; 1 = all of it. What CPUs hold of a slice counts as well.
    /// Absent = no limit, or not known of any part of the window.
    pub drawn_over_quota: Option<f64>,
    /// Time on CPU over the same. Absent also where threads are not followed.
    pub used_over_quota: Option<f64>,
    /// Periods that ended, as the kernel counts them; a group that rests has none. Absent = no limit.
    pub periods: Option<u64>,
    /// Those at whose end some CPU was out of this quota. Absent = no limit.
    pub exhausted: Option<u64>,
    /// Time in which some CPU was out of this quota, ms for each second. Absent = no limit.
    pub out_ms_per_s: Option<f64>,
    /// Time in which some CPU was out of an ancestor's quota and none of this one's, ms for each second.
    pub above_ms_per_s: f64,
    /// Time in which some thread was held by any of them, ms for each second. Absent = threads are not followed.
    pub held_ms_per_s: Option<f64>,
    /// Median, over the periods in which it ran out, of the time until it did. Absent = it never did.
    pub exhausted_after_p50_ns: Option<DurationNs>,
    /// Most CPUs out of this quota at once: at least so many had run in parallel. Absent = no limit.
    pub peak_cpus_out: Option<u32>,
    /// Most threads on CPU at once. Absent = threads are not followed.
    pub peak_parallelism: Option<u32>,
    /// Idle CPU time while threads were held, ms for each second. Absent = threads are not followed, or idle CPUs not recorded.
    pub denied_idle_ms_per_s: Option<f64>,
    /// False: of some period something is not known.
    pub complete: bool,
}

impl Rates {
    /// Exhausted share of the periods; absent = none ended, or no limit.
    #[must_use]
    pub fn exhausted_share(&self) -> Option<f64> {
        let (exhausted, periods) = (self.exhausted?, self.periods?);
        #[expect(clippy::cast_precision_loss, reason = "counts of periods")]
        (periods > 0).then(|| exhausted as f64 / periods as f64)
    }

    /// Time in which this quota or one above was out on some CPU, ms for each second.
    #[must_use]
    pub fn any_ms_per_s(&self) -> f64 {
        self.out_ms_per_s.unwrap_or(0.0) + self.above_ms_per_s
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Periods that ended in it count.
    pub window: Span,
    /// Also cgroups without a limit of their own.
    pub all: bool,
    /// Threads are followed: of a group that rested it is known that nothing ran.
    pub followed: bool,
}

/// Of the cgroups that are there and have a limit, or of all, by path.
#[must_use]
pub fn rates(census: &Census, recent: &Recent, wanted: Wanted) -> Vec<Rates> {
    let Wanted { window, all, followed } = wanted;
    let mut periods: BTreeMap<CgroupId, Vec<&LivePeriod>> = BTreeMap::new();
    for period in
        recent.iter().filter(|period| window.start < period.record.end_ns && period.record.end_ns <= window.end)
    {
        periods.entry(period.record.cgroup).or_default().push(period);
    }
    let out: BTreeMap<CgroupId, Spans> = periods.iter().map(|(&id, periods)| (id, out(periods))).collect();
    let look = Look { census, periods, out, window, followed };
    let there = census.members().filter(|(_, member)| member.gone.is_none() && (all || member.is_limited()));
    let mut rates: Vec<Rates> = there.map(|(id, member)| look.rates(id, member)).collect();
    rates.sort_by(|one, other| one.cgroup.cmp(&other.cgroup));
    rates
}

/// When some CPU was out of quota.
fn out(periods: &[&LivePeriod]) -> Spans {
    let throttles = periods.iter().flat_map(|period| &period.record.throttles);
    Spans::union(throttles.map(|throttle| Span::new(throttle.start_ns, throttle.end_ns)))
}

struct Look<'a> {
    census: &'a Census,
    periods: BTreeMap<CgroupId, Vec<&'a LivePeriod>>,
    out: BTreeMap<CgroupId, Spans>,
    window: Span,
    followed: bool,
}

impl Look<'_> {
    fn rates(&self, id: CgroupId, member: &Member) -> Rates {
        let periods = self.periods.get(&id).map_or(&[][..], Vec::as_slice);
        let quota_us = member.bandwidth.and_then(|bandwidth| bandwidth.quota.us());
        let limited = quota_us.is_some();
        let nothing = Spans::default();
        let own = self.out.get(&id).unwrap_or(&nothing);
        let above = self.census.path(id).into_iter().skip(1).filter_map(|above| self.out.get(&above));
        let above = Spans::union(above.flat_map(Spans::iter)).minus(own);
        let sum = |of: fn(&LivePeriod) -> Option<DurationNs>| -> Option<DurationNs> {
            match periods {
                [] => self.followed.then_some(DurationNs::ZERO),
                periods => periods.iter().map(|period| of(period)).sum(),
            }
        };
        let mut times: Vec<DurationNs> = periods.iter().filter_map(|period| period.record.exhausted_after_ns).collect();
        times.sort_unstable();
        let throttles = periods.iter().flat_map(|period| &period.record.throttles);
        let peak = Steps::depth(throttles.map(|throttle| Span::new(throttle.start_ns, throttle.end_ns)));
        let whole = Span::new(MonoNs(0), MonoNs(u64::MAX));
        Rates {
            cgroup: member.path.clone(),
            cgroup_id: id,
            quota_us,
            period_us: member.bandwidth.map(|bandwidth| bandwidth.period_us),
            drawn_over_quota: self.drawn(member, periods),
            used_over_quota: self
                .given(member, DurationNs::ZERO)
                .zip(sum(|period| period.record.used_ns))
                .map(|(given, used)| used.as_millis_f64() / given.as_millis_f64()),
            periods: limited.then(|| periods.iter().map(|period| period.boundary.periods).sum()),
            exhausted: limited.then(|| {
                periods.iter().filter(|period| period.boundary.throttled()).map(|period| period.boundary.periods).sum()
            }),
            out_ms_per_s: limited.then(|| self.per_second(own.total())),
            above_ms_per_s: self.per_second(above.total()),
            held_ms_per_s: sum(|period| period.record.held_wall_ns).map(|held| self.per_second(held)),
            // The middle one, or of two the earlier, as quantiles are everywhere.
            exhausted_after_p50_ns: times.get(times.len().saturating_sub(1) / 2).copied(),
            peak_cpus_out: limited.then(|| peak.within(whole).map(|(_, count)| count).max().unwrap_or(0)),
            peak_parallelism: match periods {
                [] => self.followed.then_some(0),
                periods => periods.iter().filter_map(|period| period.record.peak_parallelism).max(),
            },
            denied_idle_ms_per_s: sum(|period| period.record.denied_idle_ns).map(|denied| self.per_second(denied)),
            complete: periods.iter().all(|period| period.record.complete),
        }
    }

    /// Quota for the window less a part of it that is not known; `None` = no limit, or nothing is left.
    fn given(&self, member: &Member, unknown: DurationNs) -> Option<DurationNs> {
        let bandwidth = member.bandwidth?;
        let quota = u128::from(bandwidth.quota.us()?);
        let known = u128::from(self.window.length().saturating_sub(unknown).0);
        let given = known * quota / u128::from(bandwidth.period_us.max(1));
        u64::try_from(given).ok().filter(|given| *given > 0).map(DurationNs)
    }

    fn drawn(&self, member: &Member, periods: &[&LivePeriod]) -> Option<f64> {
        let unknown = periods.iter().filter(|period| period.drawn_ns.is_none());
        let unknown = unknown.map(|period| period.record.end_ns.since(period.record.start_ns)).sum();
        let given = self.given(member, unknown)?;
        let drawn: i64 = periods.iter().filter_map(|period| period.drawn_ns).sum();
        Some(DurationNs(u64::try_from(drawn).unwrap_or(0)).as_millis_f64() / given.as_millis_f64())
    }

    fn per_second(&self, length: DurationNs) -> f64 {
        length.as_millis_f64() * 1e3 / self.window.length().as_millis_f64().max(1e-6)
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::{
        cgroup::{Bandwidth, Change, Group, Quota, Version, tree::Node},
        node::Bounds,
        timeline::{
            boundary::Boundary,
            period::{PeriodRecord, PeriodThrottle},
        },
    };

    fn ms(at: u64) -> MonoNs {
        MonoNs(at * 1_000_000)
    }

    fn census(limits: [Option<u64>; 2]) -> Census {
        let mut census = Census::new(Bounds { counted: 10, grace: DurationNs::from_millis(1_000) });
        let groups = [(1, None, "", None), (2, Some(1), "pod", limits[0]), (3, Some(2), "pod/c", limits[1])];
        for (id, parent, path, quota) in groups {
            let group = Group::new(Version::V2, Path::new("/mount").join(path));
            let quota = quota.map_or(Quota::Unlimited, Quota::Us);
            let bandwidth = Some(Bandwidth { quota, period_us: 100_000, burst_us: 0 });
            let node = Node { group, path: path.into(), id, parent, bandwidth };
            census.change(&Change::Added(node), MonoNs(0));
        }
        census
    }

    /// A period of a cgroup that ends at `end`, out of quota on these CPUs from then to then.
    fn period(cgroup: u64, end: u64, out: &[(u32, u64, u64)], drawn_ns: Option<i64>) -> Arc<LivePeriod> {
        let throttle = |&(cpu, from, to): &(u32, u64, u64)| PeriodThrottle {
            cpu,
            start_ns: ms(from),
            end_ns: ms(to),
            released_by: None,
        };
        let count = u32::try_from(out.len()).expect("few");
        let period = DurationNs::from_millis(100);
        let record = PeriodRecord {
            cgroup: CgroupId(cgroup),
            index: 0,
            start_ns: ms(end - 100),
            end_ns: ms(end),
            periods: 1,
            quota_ns: Some(DurationNs::from_millis(20)),
            period_ns: period,
            burst_ns: DurationNs::ZERO,
            used_ns: None,
            exhausted_after_ns: out.iter().map(|(_, from, _)| ms(*from).since(ms(end - 100))).min(),
            peak_parallelism: None,
            throttles: out.iter().map(throttle).collect(),
            throttled_wall_ns: DurationNs::ZERO,
            held_wall_ns: None,
            fully_held_ns: None,
            denied_idle_ns: None,
            complete: true,
        };
        let boundary = Boundary {
            due: ms(end),
            entry: ms(end),
            exit: ms(end),
            periods: 1,
            quota: Some(DurationNs::from_millis(20)),
            period,
            burst: DurationNs::ZERO,
            pool_left: DurationNs::ZERO,
            throttled_cpus: count,
            marked_cpus: count,
            truncated: false,
            active: true,
            inferred: false,
            kernel: None,
        };
        Arc::new(LivePeriod { record, boundary, drawn_ns })
    }

    fn of(periods: &[Arc<LivePeriod>], limits: [Option<u64>; 2], all: bool) -> Vec<Rates> {
        let mut recent = Recent::new(1 << 20);
        periods.iter().for_each(|period| recent.push(Arc::clone(period)));
        let window = Span::new(ms(1_000), ms(2_000));
        rates(&census(limits), &recent, Wanted { window, all, followed: false })
    }

    #[test]
    fn time_out_of_quota_is_a_union_over_cpus_and_levels_are_not_added() {
        let found = of(
            &[
                period(2, 1_100, &[(0, 1_040, 1_100)], Some(20_000_000)),
                period(3, 1_100, &[(0, 1_020, 1_080), (1, 1_050, 1_100)], Some(20_000_000)),
                period(3, 1_200, &[], Some(5_000_000)),
                // Before the window and after it.
                period(3, 1_000, &[(0, 950, 1_000)], Some(20_000_000)),
                period(3, 2_100, &[(0, 2_000, 2_100)], Some(20_000_000)),
            ],
            [Some(20_000), Some(20_000)],
            false,
        );
        let [pod, container] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((pod.cgroup.as_deref(), container.cgroup.as_deref()), (Some("pod"), Some("pod/c")));
        assert_eq!(
            (container.periods, container.exhausted, container.exhausted_share()),
            (Some(2), Some(1), Some(0.5))
        );
        assert_eq!((container.out_ms_per_s, container.above_ms_per_s), (Some(80.0), 0.0));
        assert_eq!((pod.out_ms_per_s, pod.any_ms_per_s()), (Some(60.0), 60.0));
        assert_eq!((container.peak_cpus_out, pod.peak_cpus_out), (Some(2), Some(1)));
        assert_eq!(container.exhausted_after_p50_ns, Some(DurationNs::from_millis(20)));
        // 25 of the 200 ms that ten periods have.
        assert_eq!(container.drawn_over_quota, Some(0.125));
        assert_eq!((container.used_over_quota, container.held_ms_per_s), (None, None));
    }

    #[test]
    fn no_limit_not_measured_and_nothing_are_three_things() {
        let found = of(&[period(2, 1_500, &[(0, 1_450, 1_500)], None)], [Some(20_000), None], true);
        let [root, pod, container] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((root.quota_us, root.periods, root.drawn_over_quota), (None, None, None));
        assert_eq!((container.quota_us, container.out_ms_per_s, container.above_ms_per_s), (None, None, 50.0));
        // What left the pool in its only period is not known, and that it rested else is.
        assert_eq!((pod.periods, pod.drawn_over_quota), (Some(1), Some(0.0)));
        let quiet = of(&[], [Some(20_000), Some(20_000)], false);
        assert!(quiet.iter().all(|rates| rates.out_ms_per_s == Some(0.0) && rates.exhausted == Some(0)));
        assert!(quiet.iter().all(|rates| rates.exhausted_after_p50_ns.is_none() && rates.exhausted_share().is_none()));
    }
}
