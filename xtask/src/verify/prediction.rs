//! The figures of the predictions, by the definitions of PREREG.md, from rows of all arms.

use super::row::{Request, Row};
use super::summary::ratio;

/// Utilisation of the limit below which throttling counts as far below it (P1).
const FAR_BELOW: f64 = 0.30;
const MS: u64 = 1_000_000;

/// The rows of the study.
#[derive(Debug)]
pub(crate) struct Study {
    /// Of every setting of every arm.
    pub(crate) rows: Vec<Row>,
}

impl Study {
    /// The figure of a prediction; `None` = its arms were not run, or it does not know the identifier.
    pub(crate) fn figure(&self, id: &str) -> Option<f64> {
        let low = ["100m", "200m", "400m"];
        match id {
            "P1a" => self.far_below(|row| row.arm == "grid"),
            "P1b.1s" => self.far_below(|row| row.arm == "gap" && row.setting == "1s"),
            "P1b.5s" => self.far_below(|row| row.arm == "gap" && row.setting == "5s"),
            "P1b.10s" => self.far_below(|row| row.arm == "gap" && row.setting == "10s"),
            "P1b.wall" => {
                let row = self.row("gap", "10s", "100m")?;
                Some(ratio(row.median()?, row.work))
            }
            "P1c.200ms" => self.far_below(|row| row.arm == "fanout" && row.setting.ends_with("-200ms")),
            "P1c.1s" => self.far_below(|row| row.arm == "fanout" && row.setting.ends_with("-1s")),
            "P2.tail" => {
                let row = self.grid("100m")?;
                Some(ratio(row.p99()?, row.work))
            }
            "P2.steps" => self.steps("grid", |tight, loose| {
                let (tight, loose) = (tight.p99_interval()?, loose.p99_interval()?);
                // An end that no value bounds meets everything.
                Some(tight.lower.zip(loose.upper).is_some_and(|(low, high)| low > high))
            }),
            "P2.flat" => {
                let p99 = |limit| self.grid(limit)?.p99();
                Some(ratio(p99("800m")?.max(p99("1600m")?), p99("unlimited")?))
            }
            "P2.guests" => {
                let guests: Vec<&str> = self.guests();
                let steps = guests
                    .iter()
                    .map(|arm| self.steps(arm, |tight, loose| Some(tight.walls().last()? > loose.walls().last()?)));
                steps.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
            }
            "P3.sum" => share(&self.grids(&low)?, |request| request.throttled),
            "P3.each" => {
                let rows = self.grids(&low)?;
                let inflated: Vec<&Request> =
                    rows.iter().flat_map(|row| &row.requests).filter(|request| inflation(request) >= 10 * MS).collect();
                let mostly = inflated.iter().filter(|request| 10 * request.throttled >= 9 * inflation(request)).count();
                (!inflated.is_empty()).then(|| ratio(mostly as u64, inflated.len() as u64))
            }
            "P3.queue" => share(&[self.row("contended", "equal", "unlimited")?], |request| request.runqueue),
            "P3.both" => {
                let row = [self.row("contended", "equal", "200m")?];
                Some(share(&row, |request| request.throttled)?.min(share(&row, |request| request.runqueue)?))
            }
            "P3.weight" => {
                let mean = |setting| {
                    let row = self.row("contended", setting, "unlimited")?;
                    Some(ratio(row.sum(|request| request.runqueue), row.n()))
                };
                Some(mean("higher")? / mean("equal")?)
            }
            "P4.idle" => self
                .grids(&low)?
                .iter()
                .map(|row| row.node_idle)
                .collect::<Option<Vec<_>>>()?
                .into_iter()
                .reduce(f64::min),
            "P4.use" => {
                let rows = self.grids(&low)?;
                rows.iter().map(|row| row.pod_cpus / ratio(row.node_cpus, 1)).reduce(f64::max)
            }
            "P5.under" => {
                let (container, _, union) = self.nested_sums()?;
                Some(1.0 - ratio(container, union))
            }
            "P5.often" => {
                let rows = self.nested();
                let often = rows.iter().filter_map(|row| under(row)).filter(|under| *under >= 0.02).count();
                (!rows.is_empty()).then(|| ratio(often as u64, rows.len() as u64))
            }
            "P5.adding" => {
                let (container, pod, union) = self.nested_sums()?;
                Some(ratio(container + pod, union))
            }
            "P5.flat" => {
                let flat = self.rows.iter().filter(|row| {
                    (row.arm == "phase" && row.setting == "flat" || row.arm == "offgrid") && up_to_400m(row)
                });
                flat.map(|row| under(row).map(f64::abs)).collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)
            }
            "P6.edge" => {
                self.over(["100m", "200m"].map(|limit| self.row("phase", "flat", limit)), Row::misses, f64::min)
            }
            "P6.off" => {
                let rows: Vec<Option<&Row>> = self.rows.iter().filter(|row| row.arm == "offgrid").map(Some).collect();
                self.over(rows, Row::misses, f64::max)
            }
            "P6.lock" => self.over(["100m", "200m"].map(|limit| self.grid(limit)), Row::lock, f64::min),
            "P6.spread" => {
                self.over(["100m", "200m"].map(|limit| self.row("phase", "flat", limit)), Row::lock, f64::max)
            }
            "P6.shift" => {
                let locked = self.grid("100m")?.median()?;
                let spread = self.row("phase", "nested", "100m")?.median()?;
                Some((ratio(locked, 1) - ratio(spread, 1)) / ratio(MS, 1))
            }
            "P7.inside" => {
                let rows = self.modelled();
                let inside = rows.iter().filter_map(|row| row.model).map(|(_, inside)| inside).sum();
                let n: u64 = rows.iter().map(|row| row.n()).sum();
                (n > 0).then(|| ratio(inside, n))
            }
            "P7.median" => {
                let rows = self.modelled();
                let close = rows.iter().filter(|row| {
                    let both = row.model.zip(row.median());
                    both.is_some_and(|((model, _), median)| 20 * model.abs_diff(median) <= median)
                });
                (!rows.is_empty()).then(|| ratio(close.count() as u64, rows.len() as u64))
            }
            "P7.shape" => {
                let mut rows: Vec<Option<&Row>> =
                    self.rows.iter().filter(|row| row.arm == "offgrid").map(Some).collect();
                rows.push(self.row("phase", "flat", "400m"));
                self.over(rows, Row::distance, f64::max)
            }
            "P7.burst" => throttled_requests(self.row("burst", "40ms", "400m")?),
            "P7.noburst" => throttled_requests(self.row("burst", "none", "400m")?),
            _ => None,
        }
    }

    fn row(&self, arm: &str, setting: &str, limit: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.arm == arm && row.setting == setting && row.limit == limit)
    }

    /// A row of an arm with a single setting.
    fn only(&self, arm: &str, limit: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.arm == arm && row.limit == limit)
    }

    fn grid(&self, limit: &str) -> Option<&Row> {
        self.only("grid", limit)
    }

    fn grids(&self, limits: &[&str]) -> Option<Vec<&Row>> {
        limits.iter().map(|limit| self.grid(limit)).collect()
    }

    fn guests(&self) -> Vec<&str> {
        let mut arms: Vec<&str> =
            self.rows.iter().map(|row| row.arm.as_str()).filter(|arm| arm.starts_with("guest-")).collect();
        arms.dedup();
        arms
    }

    /// Largest share of throttled periods among rows that use little of their limit; 0 if none does.
    fn far_below(&self, of: impl Fn(&Row) -> bool) -> Option<f64> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| of(row)).collect();
        let low = rows.iter().filter(|row| row.of_limit().is_some_and(|used| used < FAR_BELOW));
        (!rows.is_empty()).then(|| low.map(|row| row.throttled_periods()).fold(0.0, f64::max))
    }

    /// Of the three steps from 100m to 800m, those for which `higher` says so.
    fn steps(&self, arm: &str, higher: impl Fn(&Row, &Row) -> Option<bool>) -> Option<f64> {
        let pairs = [("100m", "200m"), ("200m", "400m"), ("400m", "800m")];
        let steps = pairs.iter().map(|(tight, loose)| higher(self.only(arm, tight)?, self.only(arm, loose)?));
        let steps: Vec<bool> = steps.collect::<Option<_>>()?;
        Some(ratio(steps.into_iter().filter(|higher| *higher).count() as u64, 1))
    }

    fn over<'a>(
        &self,
        rows: impl IntoIterator<Item = Option<&'a Row>>,
        of: impl Fn(&Row) -> Option<f64>,
        pick: fn(f64, f64) -> f64,
    ) -> Option<f64> {
        let values = rows.into_iter().map(|row| of(row?)).collect::<Option<Vec<f64>>>()?;
        values.into_iter().reduce(pick)
    }

    /// Nested, uncontended rows of one thread without burst, 100m to 400m, native.
    pub(crate) fn nested(&self) -> Vec<&Row> {
        let of = |row: &&Row| {
            let plain = row.nested && !row.contended && row.threads == 1 && row.burst == 0;
            plain && up_to_400m(row) && !row.arm.starts_with("guest-")
        };
        self.rows.iter().filter(of).collect()
    }

    /// Container's, pod's and union of them.
    fn nested_sums(&self) -> Option<(u64, u64, u64)> {
        let rows = self.nested();
        let sum = |of: fn(&Row) -> Option<u64>| rows.iter().map(|row| of(row)).sum::<Option<u64>>();
        let container = sum(|row| row.container.throttled)?;
        let pod = sum(|row| row.pod.as_ref()?.throttled)?;
        let union = sum(|row| row.container.any_level)?;
        (union > 0).then_some((container, pod, union))
    }

    /// Native, uncontended rows of one thread with a model.
    fn modelled(&self) -> Vec<&Row> {
        let of = |row: &&Row| row.model.is_some() && !row.contended && !row.arm.starts_with("guest-");
        self.rows.iter().filter(of).collect()
    }
}

/// Not the rows that hardly throttle: of 700m and above there is nothing to under-report.
fn up_to_400m(row: &Row) -> bool {
    super::summary::cpus(&row.limit).is_some_and(|cpus| cpus <= 0.4)
}

/// By how much the container's own counter says less than the union of levels.
pub(crate) fn under(row: &Row) -> Option<f64> {
    let union = row.container.any_level.filter(|&union| union > 0)?;
    Some(1.0 - ratio(row.container.throttled?, union))
}

fn inflation(request: &Request) -> u64 {
    request.wall.saturating_sub(request.on_cpu)
}

/// A part of the inflation, of sums over all requests of some rows.
fn share(rows: &[&Row], of: impl Fn(&Request) -> u64) -> Option<f64> {
    let whole: u64 = rows.iter().map(|row| row.sum(inflation)).sum();
    let part: u64 = rows.iter().map(|row| row.sum(&of)).sum();
    (whole > 0).then(|| ratio(part, whole))
}

fn throttled_requests(row: &Row) -> Option<f64> {
    let throttled = row.requests.iter().filter(|request| request.throttled >= MS).count();
    (row.n() > 0).then(|| ratio(throttled as u64, row.n()))
}
