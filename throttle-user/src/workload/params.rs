//! What a request asks for: the query of `GET /burn`, checked.
//!
//! Owns names, ranges and the error texts. Pure: pairs of strings in, parameters or an error that names the parameter
//! out.

use serde::Serialize;

use crate::request::{FanOut, WorkSpec};
use crate::time::DurationNs;

/// Least and most CPU time a request may ask for.
pub const WORK_MIN: DurationNs = DurationNs::from_micros(1);
/// See [`WORK_MIN`].
pub const WORK_MAX: DurationNs = DurationNs::from_millis(600_000);

/// What a request gets that does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BurnDefaults {
    /// CPU time.
    pub work_ns: DurationNs,
    /// Worker threads.
    pub threads: u32,
    /// How they share the work.
    pub fan_out: FanOut,
}

/// One request's parameters, complete and within range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurnParams {
    work: DurationNs,
    threads: u32,
    fan_out: FanOut,
}

/// A parameter that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("parameter {parameter}={given:?} cannot be used: want {want}")]
pub struct ParamError {
    /// Its name as given.
    pub parameter: String,
    /// Its value as given.
    pub given: String,
    /// What would be accepted.
    pub want: String,
}

impl BurnParams {
    /// Checks the pairs of a query against a server with `workers` threads.
    ///
    /// # Errors
    /// [`ParamError`] for the first unknown name, repeated name, malformed value or value out of range.
    pub fn parse(pairs: &[(String, String)], defaults: &BurnDefaults, workers: u32) -> Result<Self, ParamError> {
        let mut asked = WorkSpec::default();
        for (name, value) in pairs {
            let refuse = |want: String| ParamError { parameter: name.clone(), given: value.clone(), want };
            let repeated = match name.as_str() {
                "work_ms" => asked.work_ns.replace(parse_work(value).ok_or_else(|| refuse(work_range()))?).is_some(),
                "threads" => asked
                    .threads
                    .replace(parse_threads(value, workers).ok_or_else(|| refuse(threads_range(workers)))?)
                    .is_some(),
                "mode" => asked.fan_out.replace(value.parse().map_err(|_| refuse(mode_range()))?).is_some(),
                _ => return Err(refuse("one of the parameters work_ms, threads, mode".to_owned())),
            };
            if repeated {
                return Err(refuse("each parameter once".to_owned()));
            }
        }
        Ok(Self {
            work: asked.work_ns.unwrap_or(defaults.work_ns),
            threads: asked.threads.unwrap_or(defaults.threads),
            fan_out: asked.fan_out.unwrap_or(defaults.fan_out),
        })
    }

    /// CPU time for each worker. Split parts differ by at most 1 ns and sum to the work exactly.
    #[must_use]
    pub fn parts(&self) -> Vec<DurationNs> {
        let (work, threads) = (self.work.0, u64::from(self.threads));
        (0..threads)
            .map(|worker| match self.fan_out {
                FanOut::Whole => self.work,
                FanOut::Split => DurationNs(work / threads + u64::from(worker < work % threads)),
            })
            .collect()
    }
}

/// Milliseconds, whole or fractional, to the nanosecond.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "NaN and what is out of range are refused before the cast"
)]
fn parse_work(text: &str) -> Option<DurationNs> {
    let ns = text.parse::<f64>().ok()? * 1e6;
    let range = WORK_MIN.as_millis_f64() * 1e6..=WORK_MAX.as_millis_f64() * 1e6;
    range.contains(&ns).then(|| DurationNs(ns.round() as u64))
}

fn parse_threads(text: &str, workers: u32) -> Option<u32> {
    text.parse().ok().filter(|threads| (1..=workers).contains(threads))
}

fn work_range() -> String {
    format!(
        "milliseconds of CPU time from {} to {}, such as 60 or 0.5",
        WORK_MIN.as_millis_f64(),
        WORK_MAX.as_millis_f64()
    )
}

fn threads_range(workers: u32) -> String {
    format!("a whole number from 1 to {workers}, the worker threads this server was started with")
}

fn mode_range() -> String {
    "split (each thread burns its part of the work) or whole (each thread burns all of it)".to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEFAULTS: BurnDefaults =
        BurnDefaults { work_ns: DurationNs::from_millis(60), threads: 1, fan_out: FanOut::Split };

    fn parse(query: &[(&str, &str)]) -> Result<BurnParams, ParamError> {
        let pairs: Vec<_> = query.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        BurnParams::parse(&pairs, &DEFAULTS, 4)
    }

    #[test]
    fn what_is_not_said_is_the_servers_default() {
        assert_eq!(parse(&[]), Ok(BurnParams { work: DEFAULTS.work_ns, threads: 1, fan_out: FanOut::Split }));
    }

    #[test]
    fn fractions_of_a_millisecond_are_kept() {
        assert_eq!(parse(&[("work_ms", "0.0015")]).map(|p| p.parts()), Ok(vec![DurationNs(1_500)]));
    }

    #[test]
    fn whole_gives_each_worker_all_of_it() {
        let parts = parse(&[("work_ms", "60"), ("threads", "3"), ("mode", "whole")]).map(|p| p.parts());
        assert_eq!(parts, Ok(vec![DurationNs::from_millis(60); 3]));
    }

    #[test]
    fn a_bad_value_is_refused_with_its_name_and_range() {
        let bad = [
            ("work_ms", "0"),
            ("work_ms", "-1"),
            ("work_ms", "NaN"),
            ("work_ms", "inf"),
            ("work_ms", "600001"),
            ("work_ms", ""),
            ("work_ms", "60ms"),
            ("threads", "0"),
            ("threads", "5"),
            ("threads", "1.5"),
            ("mode", "both"),
            ("work", "60"),
        ];
        for (name, value) in bad {
            let error = parse(&[(name, value)]).expect_err(value);
            assert_eq!((error.parameter.as_str(), error.given.as_str()), (name, value));
        }
        let text = parse(&[("threads", "5")]).expect_err("only 4 workers").to_string();
        assert!(text.contains("threads=\"5\"") && text.contains("from 1 to 4"), "{text}");
        let text = parse(&[("work_ms", "x")]).expect_err("not a number").to_string();
        assert!(text.contains("from 0.001 to 600000"), "{text}");
    }

    #[test]
    fn a_parameter_given_twice_is_refused() {
        assert_eq!(parse(&[("mode", "split"), ("mode", "split")]).expect_err("twice").parameter, "mode");
    }

    proptest! {
        #[test]
        fn split_parts_sum_to_the_work_and_differ_by_at_most_a_nanosecond(
            ns in WORK_MIN.0..=WORK_MAX.0, threads in 1_u32..=64
        ) {
            let parts = BurnParams { work: DurationNs(ns), threads, fan_out: FanOut::Split }.parts();
            prop_assert_eq!(parts.iter().copied().sum::<DurationNs>(), DurationNs(ns));
            let (least, most) = (parts.iter().min(), parts.iter().max());
            prop_assert!(most.zip(least).is_some_and(|(most, least)| most.0 - least.0 <= 1));
        }

        #[test]
        fn what_the_client_asks_is_what_the_server_reads(ns in WORK_MIN.0..=WORK_MAX.0, threads in 1_u32..=4) {
            let spec = WorkSpec { work_ns: Some(DurationNs(ns)), threads: Some(threads), fan_out: Some(FanOut::Whole) };
            let query = spec.query();
            let pairs: Vec<_> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
            prop_assert_eq!(
                parse(&pairs),
                Ok(BurnParams { work: DurationNs(ns), threads, fan_out: FanOut::Whole })
            );
        }
    }
}
