//! Our observations beside the kernel's own counters. The two sides come from different sources: ours from edges and
//! boundaries, the kernel's from files read before and after.

use serde::{Deserialize, Serialize};

use crate::{cgroup::LevelName, time::DurationNs};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Period rolls against `nr_periods`.
    Periods,
    /// Boundaries with a throttled CPU against `nr_throttled`.
    ThrottledPeriods,
    /// CPU-summed time throttled by the level's own quota against `throttled_time`/`throttled_usec`, ns.
    ThrottledTime,
    /// CPU-summed time throttled by any level against `cpu.stat.local`, ns.
    ThrottledByAnyLevel,
    /// The worst worker's time on CPU against its own `CLOCK_THREAD_CPUTIME_ID`, ns.
    OnCpu,
}

impl Quantity {
    fn words(self) -> &'static str {
        match self {
            Self::Periods => "periods",
            Self::ThrottledPeriods => "throttled periods",
            Self::ThrottledTime => "own throttled time",
            Self::ThrottledByAnyLevel => "time throttled by any level",
            Self::OnCpu => "time on CPU of one worker",
        }
    }

    fn is_time(self) -> bool {
        match self {
            Self::Periods | Self::ThrottledPeriods => false,
            Self::ThrottledTime | Self::ThrottledByAnyLevel | Self::OnCpu => true,
        }
    }
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What.
    pub quantity: Quantity,
    /// Of which level; `None` = of the requests' workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<LevelName>,
    /// Observed.
    pub observed: u64,
    /// The kernel's.
    pub kernel: u64,
    /// Largest difference that counts as agreement.
    pub tolerance: u64,
}

impl Check {
    /// Counts must be equal.
    #[must_use]
    pub fn exact(quantity: Quantity, level: LevelName, observed: u64, kernel: u64) -> Self {
        Self { quantity, level: Some(level), observed, kernel, tolerance: 0 }
    }

    /// Throttled time: 0.1 % of the kernel's figure or 50 us for each of our edges, whichever is more.
    #[must_use]
    pub fn throttled(
        quantity: Quantity,
        level: LevelName,
        observed: DurationNs,
        kernel: DurationNs,
        edges: u64,
    ) -> Self {
        let tolerance = (kernel.0 / 1_000).max(50_000 * edges);
        Self { quantity, level: Some(level), observed: observed.0, kernel: kernel.0, tolerance }
    }

    /// Time on CPU: 0.1 % and 100 us.
    #[must_use]
    pub fn on_cpu(observed: DurationNs, own_clock: DurationNs) -> Self {
        let tolerance = own_clock.0 / 1_000 + 100_000;
        Self { quantity: Quantity::OnCpu, level: None, observed: observed.0, kernel: own_clock.0, tolerance }
    }

    /// Difference of the two sides.
    #[must_use]
    pub fn difference(&self) -> u64 {
        self.observed.abs_diff(self.kernel)
    }

    /// Whether the two sides agree.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.difference() <= self.tolerance
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.level {
            Some(LevelName::Container) => f.write_str("container ")?,
            Some(LevelName::Pod) => f.write_str("pod ")?,
            None => {}
        }
        let words = self.quantity.words();
        if self.quantity.is_time() {
            let ms = |ns: u64| DurationNs(ns).as_millis_f64();
            let (observed, kernel) = (ms(self.observed), ms(self.kernel));
            let (off, within) = (ms(self.difference()), ms(self.tolerance));
            write!(
                f,
                "{words}: observed {observed:.3} ms, kernel {kernel:.3} ms, {off:.3} ms apart (within {within:.3})"
            )
        } else {
            write!(f, "{words}: observed {}, kernel {}", self.observed, self.kernel)
        }
    }
}

/// Whether all of a limit's figures agree with the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Agreement {
    /// All comparisons hold and nothing was lost.
    Agrees,
    /// Some do not.
    Differs {
        /// Each one that does not, in words.
        because: Vec<String>,
    },
    /// They could not be compared.
    NotCompared {
        /// Why, in words.
        because: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_must_be_equal_and_times_within_the_stated_distance() {
        assert!(Check::exact(Quantity::Periods, LevelName::Pod, 7, 7).agrees());
        assert!(!Check::exact(Quantity::Periods, LevelName::Pod, 7, 8).agrees());
        let time = |observed, kernel, edges| {
            let ms = DurationNs::from_micros;
            Check::throttled(Quantity::ThrottledTime, LevelName::Container, ms(observed), ms(kernel), edges)
        };
        assert!(time(1_000_000, 1_001_001, 0).agrees());
        assert!(!time(1_000_000, 1_002_000, 0).agrees());
        assert!(time(1_000, 1_100, 2).agrees());
        assert!(!time(1_000, 1_101, 2).agrees());
        assert!(!Check::on_cpu(DurationNs::from_micros(60_161), DurationNs::from_micros(60_000)).agrees());
        assert!(Check::on_cpu(DurationNs::from_micros(60_160), DurationNs::from_micros(60_000)).agrees());
    }

    #[test]
    fn a_difference_is_told_with_both_sides() {
        let text = Check::exact(Quantity::ThrottledPeriods, LevelName::Container, 3, 4).to_string();
        assert_eq!(text, "container throttled periods: observed 3, kernel 4");
    }
}
