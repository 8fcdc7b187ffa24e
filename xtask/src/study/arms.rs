//! The arms of the study, as PREREG.md lists them: what each asks, and how each of its settings is run.

use std::time::Duration;

/// An arm.
#[derive(Clone, Debug)]
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    /// What it asks, for a reader.
    pub(crate) question: &'static str,
    pub(crate) settings: Vec<Setting>,
}

/// One sweep of an arm.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) name: String,
    limits: &'static [&'static str],
    requests: u64,
    gap_ms: u64,
    /// What else `throttle sweep` is told.
    more: Vec<String>,
    threads: u64,
    whole: bool,
    period_ms: u64,
}

const GRID: &[&str] = &["100m", "200m", "400m", "800m", "1600m", "unlimited"];

impl Setting {
    fn new(name: impl Into<String>, limits: &'static [&'static str], requests: u64) -> Self {
        let name = name.into();
        Self { name, limits, requests, gap_ms: 200, more: vec![], threads: 1, whole: false, period_ms: 100 }
    }

    fn gap(self, gap_ms: u64) -> Self {
        Self { gap_ms, ..self }
    }

    fn with(mut self, words: &[&str]) -> Self {
        self.more.extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    fn fan_out(self, threads: u64, mode: &'static str) -> Self {
        let more = ["--threads".to_owned(), threads.to_string(), "--mode".to_owned(), mode.to_owned()];
        Self { threads, whole: mode == "whole", more: [self.more, more.to_vec()].concat(), ..self }
    }

    fn period(self, period_ms: u64) -> Self {
        let more = ["--period".to_owned(), format!("{period_ms}ms")];
        Self { period_ms, more: [self.more, more.to_vec()].concat(), ..self }
    }

    /// Arguments of `throttle sweep`, without `--out`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut words =
            vec!["--limits".to_owned(), self.limits.join(","), "--requests".to_owned(), self.requests.to_string()];
        words.extend(["--gap".to_owned(), format!("{}ms", self.gap_ms)]);
        words.extend(self.more.clone());
        words
    }

    /// About how long it takes.
    pub(crate) fn expected(&self) -> Duration {
        let each = |limit: &&str| {
            let threads = if self.whole { self.threads } else { 1 };
            // Two CPUs share what several threads burn.
            let work_ms = if threads > 1 { 30 * threads } else { 60 };
            let parallel = self.threads.min(2);
            let quota_us = limit.strip_suffix('m').and_then(|number| number.parse::<u64>().ok()).unwrap_or(10_000)
                * self.period_ms
                / parallel;
            let waits = (work_ms * 1_000).div_ceil(quota_us.max(1)).saturating_sub(1);
            let wall_ms = work_ms + waits * self.period_ms.saturating_sub(quota_us / 1_000);
            4_000 + self.requests * (wall_ms + self.gap_ms)
        };
        Duration::from_millis(self.limits.iter().map(each).sum())
    }
}

/// All native arms, in the order they are run: what leaves load behind comes last.
pub(crate) fn all() -> Vec<Arm> {
    let spread = ["--spread", "100ms"];
    let fan_out = |gap_ms: u64, gap: &'static str| {
        [("split", &["400m", "800m"][..]), ("whole", &["800m", "1600m"])].into_iter().flat_map(move |(mode, limits)| {
            [2, 4, 8].map(|threads| {
                Setting::new(format!("{mode}-{threads}-{gap}"), limits, 20).gap(gap_ms).fan_out(threads, mode)
            })
        })
    };
    vec![
        Arm {
            name: "published",
            question: "Does the published study's plan give its table on this machine?",
            settings: vec![Setting::new("nested", GRID, 40)],
        },
        Arm {
            name: "grid",
            question: "The published grid with enough requests for a 99th percentile: how does the tail grow, and what of it is throttling?",
            settings: vec![Setting::new("nested", GRID, 400)],
        },
        Arm {
            name: "gap",
            question: "Is one thread throttled far below its limit when requests are rare?",
            settings: vec![
                Setting::new("1s", &["100m", "200m", "400m"], 40).gap(1_000),
                Setting::new("5s", &["100m"], 20).gap(5_000),
                Setting::new("10s", &["100m"], 20).gap(10_000),
            ],
        },
        Arm {
            name: "phase",
            question: "What do one and two limited levels do to requests that start anywhere in the period?",
            settings: vec![
                Setting::new("nested", &["100m", "200m", "400m"], 100).with(&spread),
                Setting::new("flat", &["100m", "200m", "400m"], 100).with(&spread).with(&["--flat"]),
            ],
        },
        Arm {
            name: "offgrid",
            question: "Away from limits that divide the work, do CPU time and phase alone fix the latency?",
            settings: vec![
                Setting::new("flat", &["130m", "170m", "250m", "350m", "700m"], 100).with(&spread).with(&["--flat"]),
            ],
        },
        Arm {
            name: "fanout",
            question: "Is a request on several threads throttled far below its limit?",
            settings: fan_out(200, "200ms").chain(fan_out(1_000, "1s")).collect(),
        },
        Arm {
            name: "period",
            question: "What does a shorter period change?",
            settings: [10, 20, 50, 100]
                .map(|ms| Setting::new(format!("{ms}ms"), &["200m", "400m"], 40).period(ms))
                .to_vec(),
        },
        Arm {
            name: "burst",
            question: "What does burst (not set by Kubernetes) change?",
            settings: vec![
                Setting::new("none", &["200m", "400m"], 40),
                Setting::new("20ms", &["200m"], 40).with(&["--burst", "20ms"]),
                Setting::new("40ms", &["400m"], 40).with(&["--burst", "40ms"]),
            ],
        },
        Arm {
            name: "contended",
            question: "On a node without idle CPU, are throttling and waiting for a CPU told apart?",
            settings: vec![
                Setting::new("equal", &["200m", "400m", "unlimited"], 40).with(&["--background", "1"]),
                Setting::new("higher", &["200m", "400m", "unlimited"], 40).with(&["--background", "10"]),
            ],
        },
    ]
}

/// Arms that run in guests; their folders are brought in with `--from`.
pub(crate) fn guests() -> Vec<Arm> {
    [
        ("guest-6.1", "The published plan on kernel 6.1, where all groups' periods begin together"),
        ("guest-6.12", "The published plan on kernel 6.12, which throttles queues, not tasks"),
    ]
    .map(|(name, question)| Arm { name, question, settings: vec![Setting::new("nested", GRID, 40)] })
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_native_arms_fit_into_three_quarters_of_an_hour() {
        let total: Duration = all().iter().flat_map(|arm| &arm.settings).map(Setting::expected).sum();
        assert!(total < Duration::from_secs(50 * 60) && total > Duration::from_secs(30 * 60), "{total:?}");
    }

    #[test]
    fn every_arm_and_setting_stands_in_the_predictions_text() {
        let text = include_str!("../../../results/PREREG.md");
        for arm in all() {
            assert!(text.contains(&format!("| `{}` |", arm.name)), "{}", arm.name);
        }
        for setting in
            ["1s", "5s", "10s", "nested", "flat", "10ms", "20ms", "50ms", "100ms", "none", "40ms", "equal", "higher"]
        {
            assert!(text.contains(&format!("`{setting}`")), "{setting}");
        }
        let fanout = all().into_iter().find(|arm| arm.name == "fanout").expect("it is an arm");
        assert_eq!(fanout.settings.len(), 12);
        assert_eq!(fanout.settings[1].name, "split-4-200ms");
    }

    #[test]
    fn a_setting_becomes_flags_of_the_sweep() {
        let offgrid = all().into_iter().find(|arm| arm.name == "offgrid").expect("it is an arm");
        let words = offgrid.settings[0].arguments().join(" ");
        assert_eq!(words, "--limits 130m,170m,250m,350m,700m --requests 100 --gap 200ms --spread 100ms --flat");
    }
}
