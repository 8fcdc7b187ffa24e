//! A limit of a setting as the predictions see it: figures named in PREREG.md.

use serde_json::Value;

use super::quantile::{Interval, interval, nearest_rank};
use super::run::Run;
use super::shape;
use super::summary::{cpus, critical_work, ratio};

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) wall: u64,
    pub(crate) on_cpu: u64,
    pub(crate) throttled: u64,
    pub(crate) runqueue: u64,
    pub(crate) cpu: u64,
    /// To the container's next refill.
    pub(crate) to_refill: Option<u64>,
}

/// Growth of the kernel's counters of one level.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) periods: u64,
    pub(crate) throttled_periods: u64,
    /// ns
    pub(crate) throttled: Option<u64>,
    /// By any level, ns.
    pub(crate) any_level: Option<u64>,
}

/// One limit of a setting.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) arm: String,
    pub(crate) setting: String,
    pub(crate) limit: String,
    /// ns; `None` = no limit.
    pub(crate) quota: Option<u64>,
    pub(crate) period: u64,
    /// Of the critical path, ns.
    pub(crate) work: u64,
    pub(crate) threads: u64,
    pub(crate) nested: bool,
    pub(crate) burst: u64,
    pub(crate) contended: bool,
    pub(crate) requests: Vec<Request>,
    pub(crate) container: Counters,
    pub(crate) pod: Option<Counters>,
    pub(crate) pod_cpus: f64,
    pub(crate) node_cpus: u64,
    pub(crate) node_idle: Option<f64>,
    /// Model's median and requests inside its bracket.
    pub(crate) model: Option<(u64, u64)>,
    /// Walls by the verifier's own simulation, ascending.
    pub(crate) calculated: Option<Vec<u64>>,
}

impl Row {
    /// All rows of a setting.
    pub(crate) fn of(arm: &str, setting: &str, run: &Run) -> Vec<Self> {
        run.limits.iter().filter_map(|limit| Self::new(arm, setting, run, limit)).collect()
    }

    fn new(arm: &str, setting: &str, run: &Run, limit: &super::record::Limit) -> Option<Self> {
        let (line, summary, plan) = (run.limit_line(&limit.name)?, run.row(&limit.name)?, &run.head["plan"]);
        let number = |value: &Value| value.as_u64();
        let request = |request: &Value| {
            let field = |name: &str| request[name].as_u64();
            Some(Request {
                wall: field("wall_ns")?,
                on_cpu: field("on_cpu_ns")?,
                throttled: field("throttled_own_ns")? + field("throttled_ancestor_ns")?,
                runqueue: field("runqueue_ns")?,
                cpu: field("cpu_time_ns")?,
                to_refill: request["to_refill_ns"][0].as_u64(),
            })
        };
        let counters = |level: &super::record::Level| {
            Some(Counters {
                periods: level.count("nr_periods")?,
                throttled_periods: level.count("nr_throttled")?,
                throttled: level.throttled("stat"),
                any_level: level.throttled("local"),
            })
        };
        let elapsed = number(&line["elapsed_ns"]).filter(|&elapsed| elapsed > 0)?;
        let node_cpus = run.head["environment"]["cpus"].as_u64()?;
        let capacity = number(&line["throttled_wall_ns"])? * node_cpus;
        let model = &summary["model"];
        Some(Self {
            arm: arm.to_owned(),
            setting: setting.to_owned(),
            limit: limit.name.clone(),
            quota: limit.quota,
            period: limit.period,
            work: critical_work(plan)?,
            threads: plan["threads"].as_u64()?,
            nested: plan["nesting"] == "nested",
            burst: limit.burst,
            contended: !plan["background"].is_null(),
            requests: run.request_lines(&limit.name).map(request).collect::<Option<_>>()?,
            container: limit.levels.first().and_then(counters)?,
            pod: limit.levels.get(1).and_then(counters),
            pod_cpus: ratio(number(&line["pod_cpu_ns"])?, elapsed),
            node_cpus,
            node_idle: number(&line["node_idle_ns"]).filter(|_| capacity > 0).map(|idle| ratio(idle, capacity)),
            model: number(&model["p50_ns"]).zip(number(&model["inside"])),
            calculated: shape::predicted(run, &limit.name),
        })
    }

    /// `arm/setting limit`.
    pub(crate) fn name(&self) -> String {
        format!("{}/{} {}", self.arm, self.setting, self.limit)
    }

    pub(crate) fn n(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Wall times, ascending.
    pub(crate) fn walls(&self) -> Vec<u64> {
        let mut walls: Vec<u64> = self.requests.iter().map(|request| request.wall).collect();
        walls.sort_unstable();
        walls
    }

    pub(crate) fn median(&self) -> Option<u64> {
        nearest_rank(&self.walls(), 50)
    }

    pub(crate) fn p99(&self) -> Option<u64> {
        nearest_rank(&self.walls(), 99)
    }

    pub(crate) fn p99_interval(&self) -> Option<Interval> {
        interval(&self.walls(), 99)
    }

    /// CPU over limit; `None` = no limit.
    pub(crate) fn of_limit(&self) -> Option<f64> {
        cpus(&self.limit).map(|limit| self.pod_cpus / limit)
    }

    /// Share of throttled periods, of the level with more.
    pub(crate) fn throttled_periods(&self) -> f64 {
        let share = |counters: &Counters| match counters.periods {
            0 => 0.0,
            periods => ratio(counters.throttled_periods, periods),
        };
        share(&self.container).max(self.pod.as_ref().map_or(0.0, share))
    }

    /// Sum over requests.
    pub(crate) fn sum(&self, of: impl Fn(&Request) -> u64) -> u64 {
        self.requests.iter().map(of).sum()
    }

    /// Share of requests more than half a wait away from the closed form.
    pub(crate) fn misses(&self) -> Option<f64> {
        let quota = self.quota?;
        let misses = self.requests.iter().map(|request| {
            let waited = request.wall.saturating_sub(request.cpu + request.throttled);
            let closed = shape::closed_form(request.cpu, quota, self.period, request.to_refill?);
            Some((request.wall - waited).abs_diff(closed) > self.period.saturating_sub(quota) / 2)
        });
        let misses: Vec<bool> = misses.collect::<Option<_>>()?;
        Some(ratio(misses.iter().filter(|miss| **miss).count() as u64, misses.len().max(1) as u64))
    }

    /// Length of the mean unit vector of phases.
    pub(crate) fn lock(&self) -> Option<f64> {
        let angles: Vec<f64> = self
            .requests
            .iter()
            .map(|request| Some(std::f64::consts::TAU * ratio(request.to_refill?, self.period)))
            .collect::<Option<_>>()?;
        let (x, y) = angles.iter().fold((0.0, 0.0), |(x, y), angle| (x + angle.cos(), y + angle.sin()));
        Some(f64::hypot(x, y) / ratio(angles.len().max(1) as u64, 1))
    }

    /// Distance of measured walls, less what was neither used nor throttled, from the calculated ones.
    pub(crate) fn distance(&self) -> Option<f64> {
        let mut net: Vec<u64> = self
            .requests
            .iter()
            .map(|request| request.wall - request.wall.saturating_sub(request.cpu + request.throttled))
            .collect();
        net.sort_unstable();
        let calculated = self.calculated.as_ref()?;
        (!net.is_empty() && !calculated.is_empty()).then(|| shape::distance(&net, calculated))
    }
}
