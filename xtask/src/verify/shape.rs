//! What a quota makes of measured CPU times and phases: the closed form, and a simulation of tick, slice and leftover. Written apart
//! from throttle-user's model, to hold that and the measurement against.

use serde_json::Value;

use super::run::Run;

/// How close two medians of differently spread unknown amounts are, ns.
pub(crate) const ALIKE: u64 = 5_000_000;
/// Walls this close count as the same in [`distance`], ns.
const SIDEWAYS: u64 = 2_000_000;
/// What a queue keeps when its group sleeps (`min_cfs_rq_runtime`), and what the server may have used before a request's worker starts.
const LEFTOVER: u64 = 1_000_000;
const OVERHEAD: u64 = 1_000_000;
/// Simulations of each request, with the unknown amounts spread over their ranges.
const DRAWS: u64 = 16;

/// One thread's wall time under one quota by the closed form; `to_refill` in 1..=period. All in ns.
pub(crate) fn closed_form(cpu: u64, quota: u64, period: u64, to_refill: u64) -> u64 {
    if cpu <= quota || quota >= period {
        return cpu;
    }
    if to_refill >= quota {
        let whole = cpu.div_ceil(quota) - 2;
        return to_refill + whole * period + cpu - quota - whole * quota;
    }
    let waits = cpu.saturating_sub(to_refill).div_ceil(quota).saturating_sub(1);
    cpu + waits * (period - quota)
}

/// One level of the simulation.
#[derive(Clone, Copy)]
struct Level {
    quota: i64,
    period: i64,
    pool: i64,
    local: i64,
    refill_at: i64,
    out: bool,
}

impl Level {
    /// Fills the local pool up to a slice from the global one.
    fn draw(&mut self, slice: i64) {
        let taken = self.pool.min(slice - self.local).max(0);
        self.pool -= taken;
        self.local += taken;
    }

    fn refill(&mut self) {
        self.pool = self.quota;
        self.refill_at += self.period;
        if self.out {
            // Just enough to run, as `distribute_cfs_runtime` gives it.
            let taken = self.pool.min(1 - self.local).max(0);
            self.pool -= taken;
            self.local += taken;
            self.out = self.local <= 0;
        }
    }
}

/// Wall time of `cpu` through levels, charged at ticks `tick` apart from `first_tick` on.
fn simulate(cpu: i64, levels: &mut [Level], tick: i64, first_tick: i64, slice: i64) -> i64 {
    let (mut now, mut done, mut uncharged, mut next_tick) = (0, 0, 0, first_tick.max(1));
    levels.iter_mut().filter(|level| level.local <= 0).for_each(|level| level.draw(slice));
    loop {
        let refill = levels.iter().map(|level| level.refill_at).min().unwrap_or(i64::MAX);
        if levels.iter().any(|level| level.out) {
            now = refill.max(now);
            levels.iter_mut().filter(|level| level.refill_at <= now).for_each(Level::refill);
            while next_tick <= now {
                next_tick += tick;
            }
            continue;
        }
        let stop = (now + cpu - done).min(refill.max(now)).min(next_tick);
        (done, uncharged, now) = (done + stop - now, uncharged + stop - now, stop);
        if done >= cpu {
            return now;
        }
        levels.iter_mut().filter(|level| level.refill_at <= now).for_each(Level::refill);
        if now >= next_tick {
            next_tick += tick;
            for level in levels.iter_mut() {
                level.local -= uncharged;
                if level.local <= 0 {
                    level.draw(slice);
                    level.out = level.local <= 0;
                }
            }
            uncharged = 0;
        }
    }
}

/// Walls calculated for the requests of a limit, ascending; `None` where one thread with full pools is not what ran.
pub(crate) fn predicted(run: &Run, limit: &str) -> Option<Vec<u64>> {
    let (plan, machine) = (&run.head["plan"], &run.head["environment"]);
    let line = run.limit_line(limit)?;
    let alone = plan["threads"] == 1 && plan["streams"] == 1 && plan["background"].is_null() && line["burst_us"] == 0;
    if !alone || plan["gap_ns"].as_u64()? < line["period_us"].as_u64()? * 1_000 {
        return None;
    }
    let whole = |value: u64| i64::try_from(value).ok();
    let tick = whole(1_000_000_000_u64.checked_div(machine["hz"].as_u64()?)?)?;
    let slice = whole(machine["slice_us"].as_u64().unwrap_or(5_000) * 1_000)?;
    let quota = line["quota_us"].as_u64().map(|us| us * 1_000);
    let period = whole(line["period_us"].as_u64()? * 1_000)?;
    let mut walls = Vec::new();
    for request in run.request_lines(limit) {
        let cpu = whole(request["cpu_time_ns"].as_u64()?)?;
        let refills: Vec<Option<u64>> = request["to_refill_ns"]
            .as_array()?
            .iter()
            .take(line["levels"].as_array()?.len())
            .map(Value::as_u64)
            .collect();
        for draw in 0..DRAWS {
            let [tick_at, leftover, spent, unseen] = [0, 1, 2, 3].map(|amount| spread(draw, amount));
            let mut levels = Vec::new();
            for to_refill in refills.iter().filter(|_| quota.is_some()) {
                let quota = whole(quota?)?;
                let refill_at = to_refill.map_or(Some(part(period, unseen)), whole)?;
                let local = part(whole(LEFTOVER)?, leftover);
                let pool = (quota - part(whole(OVERHEAD)?, spent)).max(0);
                levels.push(Level { quota, period, pool, local, refill_at, out: false });
            }
            walls.push(u64::try_from(simulate(cpu, &mut levels, tick, part(tick, tick_at), slice)).ok()?);
        }
    }
    walls.sort_unstable();
    Some(walls)
}

/// A number in 0..65536 that covers the range evenly as `draw` counts up, differently for each amount.
fn spread(draw: u64, amount: u64) -> i64 {
    // Fractions of the square roots of 2, 3, 5 and 7, in 2^16 parts.
    const STEPS: [u64; 4] = [27_146, 47_976, 15_471, 42_318];
    let step = STEPS[usize::try_from(amount).unwrap_or(0) % STEPS.len()];
    i64::try_from((draw * step + 32_768) % 65_536).unwrap_or(0)
}

fn part(range: i64, parts: i64) -> i64 {
    range * parts / 65_536
}

/// Largest difference of the two cumulative shares, where walls within 2 ms count as the same. Both ascend and hold something.
pub(crate) fn distance(one: &[u64], other: &[u64]) -> f64 {
    let ahead = |these: &[u64], those: &[u64]| {
        let ends = these.iter().enumerate().filter(|(index, wall)| these.get(index + 1) != Some(wall));
        ends.map(|(index, wall)| {
            let below = those.partition_point(|that| *that <= wall + SIDEWAYS);
            share(index + 1, these.len()) - share(below, those.len())
        })
        .fold(0.0, f64::max)
    };
    ahead(one, other).max(ahead(other, one))
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_closed_form_gives_the_known_walls() {
        // 60 ms at 100m, refill after 40 ms: 10 ms, then four whole periods, then the last 10 ms.
        assert_eq!(closed_form(60 * MS, 10 * MS, 100 * MS, 40 * MS), 450 * MS);
        assert_eq!(closed_form(60 * MS, 40 * MS, 100 * MS, 30 * MS), 60 * MS);
        assert_eq!(closed_form(60 * MS, 40 * MS, 100 * MS, 50 * MS), 70 * MS);
        assert_eq!(closed_form(60 * MS, 80 * MS, 100 * MS, 50 * MS), 60 * MS);
    }

    #[test]
    fn the_simulation_is_the_closed_form_up_to_a_tick_away_from_the_edges() {
        let ms = |value: i64| value * 1_000_000;
        for to_refill in [20, 40, 70, 99] {
            let level =
                Level { quota: ms(25), period: ms(100), pool: ms(25), local: 0, refill_at: ms(to_refill), out: false };
            let wall = simulate(ms(60), &mut [level], ms(4), ms(2), ms(5));
            let closed = closed_form(60 * MS, 25 * MS, 100 * MS, to_refill.unsigned_abs() * MS);
            assert!(wall.unsigned_abs().abs_diff(closed) <= 5 * MS, "refill after {to_refill}: {wall} for {closed}");
        }
    }

    #[test]
    fn two_levels_go_on_at_the_later_refill() {
        let level = |refill_at: i64| Level {
            quota: 20_000_000,
            period: 100_000_000,
            pool: 20_000_000,
            local: 0,
            refill_at: refill_at * 1_000_000,
            out: false,
        };
        let alone = simulate(57_000_000, &mut [level(35)], 1_000_000, 500_000, 5_000_000);
        let both = simulate(57_000_000, &mut [level(35), level(60)], 1_000_000, 500_000, 5_000_000);
        assert_eq!((both - alone) / 1_000_000, 25);
    }

    #[test]
    fn distance_is_the_largest_step_between_two_sets() {
        assert!(distance(&[10 * MS, 20 * MS], &[11 * MS, 19 * MS]).abs() < 1e-9);
        assert!((distance(&[10 * MS, 20 * MS], &[10 * MS, 40 * MS]) - 0.5).abs() < 1e-9);
        assert!((distance(&[60 * MS; 4], &[90 * MS; 3]) - 1.0).abs() < 1e-9);
    }
}
