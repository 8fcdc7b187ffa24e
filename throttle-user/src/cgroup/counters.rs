//! `cpu.stat` and `cpu.stat.local` of a group, kept in the kernel's own names and units.
//!
//! Owns parsing, the typed view of the counters this project relies on, and the difference of two readings. What each counter counts
//! is decided by the kernel (`kernel/sched/core.c`, `cpu_cfs_stat_show`, `cpu_extra_stat_show`, `throttled_time_self`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::group::{Group, GroupError};
use super::hierarchy::Version;
use crate::time::{self, DurationNs, MonoNs};

/// Pairs of one file: the kernel's name (`nr_periods`, `throttled_usec`, …) and its value in the kernel's unit.
pub type Pairs = BTreeMap<String, u64>;

/// Counters of one group: a reading, or the growth between two readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Decides which names the accessors look for: v1 counts in ns, v2 in us.
    pub version: Version,
    /// `cpu.stat`.
    pub stat: Pairs,
    /// `cpu.stat.local`; `None` on kernels before 6.6, which have no such file.
    pub local: Option<Pairs>,
}

/// One reading of a group's counters. The two files are read one after the other: their true instants lie between the two stamps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Id of the group, to notice when it was recreated.
    pub cgroup_id: u64,
    /// Before the first file was opened.
    pub read_from_ns: MonoNs,
    /// After the last file was read.
    pub read_until_ns: MonoNs,
    /// The values.
    #[serde(flatten)]
    pub figures: Figures,
}

/// A line of a counter file is not what the kernel writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line:?} is not {expected}")]
pub struct PairError {
    /// The line.
    pub line: String,
    /// What was expected.
    pub expected: &'static str,
}

/// Two readings have no difference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The group is another one.
    #[error(
        "the cgroup was removed and made anew between two readings (id {before} became {after}); its counters began again from 0"
    )]
    Recreated {
        /// Id at the first reading.
        before: u64,
        /// Id at the second.
        after: u64,
    },
    /// A counter shrank.
    #[error(
        "counter {name} went back from {before} to {after} between two readings; were they taken in this order, of one group?"
    )]
    WentBack {
        /// The kernel's name of it.
        name: String,
        /// Value at the first reading.
        before: u64,
        /// Value at the second.
        after: u64,
    },
}

impl Counters {
    /// Reads the counters of `group` now.
    ///
    /// # Errors
    /// [`GroupError`]; [`GroupError::Odd`] names the line that does not parse.
    pub fn read(group: &Group) -> Result<Self, GroupError> {
        let odd = |file: &str, error: PairError| GroupError::Odd {
            path: group.path().join(file),
            text: error.line,
            expected: error.expected,
        };
        let cgroup_id = group.id()?;
        let read_from_ns = time::now();
        let stat = group.read("cpu.stat")?;
        let local = group.read_if_there("cpu.stat.local")?;
        let read_until_ns = time::now();
        let stat = parse(&stat).map_err(|error| odd("cpu.stat", error))?;
        let local = local.map(|text| parse(&text)).transpose().map_err(|error| odd("cpu.stat.local", error))?;
        Ok(Self { cgroup_id, read_from_ns, read_until_ns, figures: Figures { version: group.version(), stat, local } })
    }

    /// How much each counter grew from `self` to `later`. A name that only one of the readings has is left out.
    ///
    /// # Errors
    /// [`DeltaError`] when the readings are of two groups, or a counter shrank.
    pub fn delta(&self, later: &Self) -> Result<Figures, DeltaError> {
        if self.cgroup_id != later.cgroup_id {
            return Err(DeltaError::Recreated { before: self.cgroup_id, after: later.cgroup_id });
        }
        let (before, after) = (&self.figures, &later.figures);
        let local = before.local.as_ref().zip(after.local.as_ref());
        Ok(Figures {
            version: after.version,
            stat: growth(&before.stat, &after.stat)?,
            local: local.map(|(before, after)| growth(before, after)).transpose()?,
        })
    }
}

impl Figures {
    /// Period timer expiries while a quota was set: periods with activity, and one idle one each time the timer stopped.
    #[must_use]
    pub fn nr_periods(&self) -> Option<u64> {
        self.stat.get("nr_periods").copied()
    }

    /// Of those, periods at whose end some CPU of the group was throttled.
    #[must_use]
    pub fn nr_throttled(&self) -> Option<u64> {
        self.stat.get("nr_throttled").copied()
    }

    /// Throttled time by this group's own quota, summed over CPUs; closed intervals only.
    #[must_use]
    pub fn throttled(&self) -> Option<DurationNs> {
        self.length(&self.stat, "throttled_time", "throttled_usec")
    }

    /// Periods in which burst was used (5.14 and later; counted from `burst_time` on).
    #[must_use]
    pub fn nr_bursts(&self) -> Option<u64> {
        self.stat.get("nr_bursts").copied()
    }

    /// CPU time handed out beyond the quota.
    #[must_use]
    pub fn burst(&self) -> Option<DurationNs> {
        self.length(&self.stat, "burst_time", "burst_usec")
    }

    /// Time throttled by this group's quota or any ancestor's, summed over CPUs; closed intervals only. `None` before 6.6.
    #[must_use]
    pub fn throttled_local(&self) -> Option<DurationNs> {
        self.length(self.local.as_ref()?, "throttled_time", "throttled_usec")
    }

    /// CPU time used. On v2 only: v1 keeps it in `cpuacct`, a controller of its own.
    #[must_use]
    pub fn usage(&self) -> Option<DurationNs> {
        self.length(&self.stat, "", "usage_usec")
    }

    /// The value of `v1_name` (ns) or `v2_name` (us), whichever the version has.
    fn length(&self, pairs: &Pairs, v1_name: &str, v2_name: &str) -> Option<DurationNs> {
        match self.version {
            Version::V1 => pairs.get(v1_name).copied().map(DurationNs),
            Version::V2 => pairs.get(v2_name)?.checked_mul(1_000).map(DurationNs),
        }
    }
}

/// Parses `name value` lines as `seq_printf` writes them.
///
/// # Errors
/// [`PairError`] on anything else: another shape, a value that is no u64 or overflows as ns, a name twice, a last line without its end.
pub fn parse(text: &str) -> Result<Pairs, PairError> {
    let mut pairs = Pairs::new();
    for line in text.split_inclusive('\n') {
        let error = |expected| PairError { line: line.trim_end().to_owned(), expected };
        let whole = line.strip_suffix('\n').ok_or_else(|| error("a whole line"))?;
        let (name, value) = whole.split_once(' ').ok_or_else(|| error("a name, a space and a number"))?;
        let named = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        if !named || !digits {
            return Err(error("a name, a space and a number"));
        }
        let value: u64 = value.parse().map_err(|_| error("a number of 64 bits"))?;
        if name.ends_with("_usec") && value.checked_mul(1_000).is_none() {
            return Err(error("a number of microseconds that fits 64 bits as nanoseconds"));
        }
        if pairs.insert(name.to_owned(), value).is_some() {
            return Err(error("a name that comes once"));
        }
    }
    Ok(pairs)
}

fn growth(before: &Pairs, after: &Pairs) -> Result<Pairs, DeltaError> {
    before
        .iter()
        .filter_map(|(name, before)| Some((name, *before, *after.get(name)?)))
        .map(|(name, before, after)| match after.checked_sub(before) {
            Some(grown) => Ok((name.clone(), grown)),
            None => Err(DeltaError::WentBack { name: name.clone(), before, after }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V2_STAT: &str = include_str!("../../tests/data/cgroup/v2-container.cpu.stat");

    fn reading(version: Version, id: u64, stat: &str, local: Option<&str>) -> Counters {
        let pairs = |text| parse(text).expect("parses");
        Counters {
            cgroup_id: id,
            read_from_ns: MonoNs(1),
            read_until_ns: MonoNs(2),
            figures: Figures { version, stat: pairs(stat), local: local.map(pairs) },
        }
    }

    #[test]
    fn a_recorded_v2_file_is_read_in_nanoseconds() {
        let figures = reading(Version::V2, 1, V2_STAT, Some("throttled_usec 7\n")).figures;
        assert_eq!(figures.stat.len(), 8);
        assert_eq!(figures.nr_periods(), Some(3_941));
        assert_eq!(figures.nr_throttled(), Some(3_822));
        assert_eq!(figures.throttled(), Some(DurationNs(548_889_406_000)));
        assert_eq!(figures.usage(), Some(DurationNs(79_262_303_000)));
        assert_eq!(figures.throttled_local(), Some(DurationNs(7_000)));
        assert_eq!((figures.nr_bursts(), figures.burst()), (Some(0), Some(DurationNs(0))));
    }

    #[test]
    fn v1_counts_nanoseconds_and_has_no_usage() {
        let text = "nr_periods 7\nnr_throttled 3\nthrottled_time 123456789\nnr_bursts 0\nburst_time 0\n";
        let figures = reading(Version::V1, 1, text, None).figures;
        assert_eq!(figures.throttled(), Some(DurationNs(123_456_789)));
        assert_eq!((figures.usage(), figures.throttled_local()), (None, None));
    }

    #[test]
    fn an_absent_counter_is_none_not_zero() {
        let figures = reading(Version::V2, 1, "usage_usec 5\n", Some("")).figures;
        assert_eq!((figures.nr_periods(), figures.throttled(), figures.throttled_local()), (None, None, None));
        assert_eq!(figures.usage(), Some(DurationNs(5_000)));
    }

    #[test]
    fn odd_lines_are_errors_that_show_the_line() {
        for text in ["nr_periods\n", "nr_periods x\n", " 3\n", "a  3\n", "a -3\n", "a +3\n", "a 1\na 1\n", "a 1", "\n"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(
            parse("a 18446744073709551616\n").expect_err("too great").to_string().contains("a 18446744073709551616")
        );
        assert!(parse("b_usec 18446744073709551615\n").is_err());
    }

    #[test]
    fn a_delta_is_the_growth_of_what_both_readings_have() {
        let before = reading(Version::V1, 9, "nr_periods 7\nnr_throttled 3\nthrottled_time 100\n", None);
        let after = reading(
            Version::V1,
            9,
            "nr_periods 9\nnr_throttled 3\nthrottled_time 160\nnew 4\n",
            Some("throttled_time 1\n"),
        );
        let grown = before.delta(&after).expect("a delta");
        assert_eq!(
            (grown.nr_periods(), grown.nr_throttled(), grown.throttled()),
            (Some(2), Some(0), Some(DurationNs(60)))
        );
        assert_eq!((grown.local, grown.stat.get("new")), (None, None));
    }

    #[test]
    fn a_recreated_group_is_noticed_by_its_id_and_a_shrunk_counter_by_name() {
        let old = reading(Version::V1, 9, "nr_periods 7\n", None);
        assert_eq!(
            old.delta(&reading(Version::V1, 10, "nr_periods 9\n", None)),
            Err(DeltaError::Recreated { before: 9, after: 10 })
        );
        let error = old.delta(&reading(Version::V1, 9, "nr_periods 6\n", None)).expect_err("went back");
        assert_eq!(error, DeltaError::WentBack { name: "nr_periods".to_owned(), before: 7, after: 6 });
    }

    #[test]
    fn a_stored_reading_is_read_back() {
        let reading = reading(Version::V2, u64::MAX, V2_STAT, Some("throttled_usec 7\n"));
        let json = serde_json::to_string(&reading).expect("serializes");
        assert!(json.contains("\"throttled_usec\":548889406"), "{json}");
        assert_eq!(serde_json::from_str::<Counters>(&json).expect("parses"), reading);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z_0-9 \n.\\-é]{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_the_kernel_would_print_is_read_back(pairs in proptest::collection::btree_map("[a-z_]{1,12}", 0..u64::MAX / 1_000, 0..8)) {
            let text: String = pairs.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
            prop_assert_eq!(parse(&text), Ok(pairs));
        }

        #[test]
        fn a_delta_added_to_the_earlier_reading_gives_the_later_one(a in 0_u64..1 << 40, grown in 0_u64..1 << 40) {
            let text = |value: u64| format!("nr_periods {value}\n");
            let (before, after) = (reading(Version::V2, 1, &text(a), None), reading(Version::V2, 1, &text(a + grown), None));
            prop_assert_eq!(before.delta(&after).expect("a delta").nr_periods(), Some(grown));
        }
    }
}
