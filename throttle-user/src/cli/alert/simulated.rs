//! A load to be simulated instead of a recorded one.

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{
    cgroup::{CpuLimit, DEFAULT_PERIOD_US},
    cli::args,
    model::{
        bandwidth::Bandwidth,
        chain::Chain,
        history::History,
        nested::{Charging, DEFAULT_SLICE, Level, Tick},
    },
    time::{DurationNs, MonoNs},
};

/// One thread under one limit: work now and then, and if wanted a trickle beside.
#[derive(Clone, Debug, Args)]
pub(super) struct Load {
    /// Simulate a group of this limit instead of reading a run.
    #[arg(long, value_name = "LIMIT", conflicts_with = "dir", requires = "every")]
    limit: Option<CpuLimit>,
    /// CPU time of each piece of work, however long it takes.
    #[arg(long, value_parser = args::some_duration, value_name = "TIME", requires = "limit", conflicts_with = "busy")]
    work: Option<DurationNs>,
    /// Or its length, however much it gets.
    #[arg(long, value_parser = args::some_duration, value_name = "TIME", requires = "limit")]
    busy: Option<DurationNs>,
    /// From one piece of work to the next.
    #[arg(long, value_parser = args::some_duration, value_name = "TIME", requires = "limit")]
    every: Option<DurationNs>,
    /// CPU time used each 100 ms in between.
    #[arg(long, value_parser = args::some_duration, value_name = "TIME", requires = "limit")]
    trickle: Option<DurationNs>,
    /// First boundary of the period, from the beginning.
    #[arg(long, default_value = "50ms", value_parser = args::some_duration, value_name = "TIME", requires = "limit")]
    boundary: DurationNs,
}

/// A trickle comes so often.
const TRICKLE: DurationNs = DurationNs::from_millis(100);
/// A kernel of 250 Hz.
const TICK: DurationNs = DurationNs::from_millis(4);
/// Where the simulated time begins: not at 0, before which windows reach.
const BASE: MonoNs = MonoNs(86_400_000_000_000);

impl Load {
    /// What is simulated, in words, and its history over `length`; `None` = no limit was given.
    pub(super) fn history(&self, length: DurationNs) -> Result<Option<(String, History)>> {
        let (Some(limit), Some(every)) = (self.limit, self.every) else { return Ok(None) };
        let set = limit.bandwidth(DEFAULT_PERIOD_US, 0)?;
        let quota = set.quota.us().context("--limit unlimited throttles nothing; give a limit such as 250m")?;
        let us = DurationNs::from_micros;
        let bandwidth = Bandwidth::new(us(quota), us(set.period_us))?;
        ensure!(self.work.is_some() || self.busy.is_some(), "give the work with --work TIME, or with --busy TIME");
        let tick = Some(Tick { length: TICK, to_first: DurationNs(TICK.0 / 2) });
        let charging = Charging { slice: Some(DEFAULT_SLICE), tick };
        let mut chain = Chain::new(&[Level::full(bandwidth, self.boundary)], &charging);
        let mut pieces = Vec::new();
        let mut begin = DurationNs::ZERO;
        while begin < length {
            chain.sleep_until(begin);
            let next = (begin + every).min(length);
            match (self.work, self.busy) {
                (Some(work), _) => pieces.push(chain.work(work)),
                (None, Some(busy)) => pieces.push(chain.burn_until(begin + busy)),
                (None, None) => {}
            }
            // The trickle keeps to its own beat, from the end of the work on.
            let mut at = begin;
            while let Some(trickle) = self.trickle.filter(|_| at < next) {
                if at >= chain.now() {
                    chain.sleep_until(at);
                    pieces.push(chain.work(trickle));
                }
                at += TRICKLE;
            }
            begin = next;
        }
        chain.sleep_until(length);
        let ms = |length: DurationNs| length.as_millis_f64();
        let work = match (self.work, self.busy) {
            (Some(work), _) => format!("{} ms of work", ms(work)),
            (None, busy) => format!("busy for {} ms", busy.map_or(0.0, ms)),
        };
        let beside =
            self.trickle.map_or_else(String::new, |trickle| format!(", and {} ms of work each 100 ms", ms(trickle)));
        Ok(Some((
            format!("{limit}, {work} each {} s{beside}", ms(every) / 1e3),
            History::simulated(&chain, &pieces, BASE),
        )))
    }
}
