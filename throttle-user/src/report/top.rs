//! The rows of limited cgroups as a table, and their order.

use crate::{node::Rates, time::DurationNs};

/// By what rows are ordered, the largest first but for times and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Time out of quota, its own or one above.
    Out,
    /// Exhausted share of the periods.
    Exhausted,
    /// Share of the quota used, or drawn from the pool where that is not measured.
    Used,
    /// Time until it ran out, the shortest first.
    After,
    /// Most threads on CPU at once, or CPUs out where that is not measured.
    Parallel,
    /// Idle CPU denied.
    Denied,
    /// Path.
    Name,
}

impl Key {
    /// In a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Out => "time out of quota",
            Self::Exhausted => "periods out",
            Self::Used => "quota used",
            Self::After => "time until out",
            Self::Parallel => "parallelism",
            Self::Denied => "idle CPU denied",
            Self::Name => "path",
        }
    }
}

/// Orders rows; what was not measured, or does not apply, comes last.
pub fn sort(rows: &mut [Rates], key: Key) {
    let number = |row: &Rates| -> Option<f64> {
        match key {
            Key::Out => Some(row.any_ms_per_s()),
            Key::Exhausted => row.exhausted_share(),
            Key::Used => row.used_over_quota.or(row.drawn_over_quota),
            Key::After => row.exhausted_after_p50_ns.map(|after| -after.as_millis_f64()),
            Key::Parallel => row.peak_parallelism.or(row.peak_cpus_out).map(f64::from),
            Key::Denied => row.denied_idle_ms_per_s,
            Key::Name => None,
        }
    };
    let place = |row: &Rates| number(row).unwrap_or(f64::NEG_INFINITY);
    rows.sort_by(|one, other| place(other).total_cmp(&place(one)).then_with(|| one.cgroup.cmp(&other.cgroup)));
}

/// Heads of the columns in two lines, and their widths. After the last one comes the cgroup's path.
const HEADS: [(&str, &str, usize); 10] = [
    ("", "quota ms", 9),
    ("", "used", 5),
    ("periods", "out", 12),
    ("out", "ms/s", 6),
    ("", "level", 5),
    ("held", "ms/s", 6),
    ("until", "out ms", 6),
    ("threads", "at once", 7),
    ("CPUs", "out", 4),
    ("idle", "denied", 6),
];

/// Width of all columns before the path.
pub const FIGURES: usize = 9 + 5 + 12 + 6 + 5 + 6 + 6 + 7 + 4 + 6 + HEADS.len();

/// A row's cells: `-` does not apply, `?` was not measured.
fn cells(row: &Rates) -> [String; 10] {
    let dash = || "-".to_owned();
    let unknown = || "?".to_owned();
    let ms = |us: u64| DurationNs::from_micros(us).as_millis_f64();
    let limited = row.quota_us.is_some();
    let level = match (row.out_ms_per_s.unwrap_or(0.0) > 0.0, row.above_ms_per_s > 0.0) {
        (true, true) => "both",
        (true, false) => "own",
        (false, true) => "above",
        (false, false) => "-",
    };
    let periods = match (row.exhausted, row.periods, row.exhausted_share()) {
        (Some(exhausted), Some(periods), Some(share)) => format!("{exhausted}/{periods} {:.0}%", share * 100.0),
        (Some(exhausted), Some(periods), None) => format!("{exhausted}/{periods}"),
        _ => dash(),
    };
    let share = |share: f64| format!("{:.0}%", share * 100.0);
    [
        match (row.quota_us, row.period_us) {
            (Some(quota), Some(period)) => format!("{}/{}", ms(quota), ms(period)),
            _ => "no limit".to_owned(),
        },
        match (row.used_over_quota, row.drawn_over_quota) {
            (Some(used), _) => share(used),
            // What left the pool is more than what was used.
            (None, Some(drawn)) => format!("<{}", share(drawn)),
            (None, None) if limited => unknown(),
            (None, None) => dash(),
        },
        periods,
        format!("{:.0}{}", row.any_ms_per_s(), if row.complete { "" } else { "!" }),
        level.to_owned(),
        row.held_ms_per_s.map_or_else(unknown, |held| format!("{held:.0}")),
        row.exhausted_after_p50_ns.map_or_else(dash, |after| format!("{:.1}", after.as_millis_f64())),
        row.peak_parallelism.map_or_else(unknown, |threads| threads.to_string()),
        row.peak_cpus_out.map_or_else(dash, |cpus| cpus.to_string()),
        row.denied_idle_ms_per_s.map_or_else(unknown, |denied| format!("{denied:.0}")),
    ]
}

/// A row's figures, right-aligned side by side, and its path in so many characters; absent = whole.
#[must_use]
pub fn line(row: &Rates, width: Option<usize>) -> String {
    let columns = cells(row).into_iter().zip(HEADS);
    let figures: String = columns.map(|(cell, (_, _, width))| format!("{cell:>width$} ")).collect();
    let path = match row.cgroup.as_deref() {
        Some("") => "/".to_owned(),
        Some(path) => path.to_owned(),
        None => format!("(id {}, out of sight)", row.cgroup_id.0),
    };
    figures + &width.map_or(path.clone(), |width| shortened(&path, width))
}

/// Both lines of heads.
#[must_use]
pub fn heads() -> [String; 2] {
    let of = |pick: fn(&(&'static str, &'static str, usize)) -> &'static str| {
        HEADS.iter().map(|head| format!("{:>width$} ", pick(head), width = head.2)).collect::<String>()
    };
    [of(|head| head.0), of(|head| head.1) + "cgroup"]
}

/// The end of a path, which tells more than its beginning.
fn shortened(path: &str, width: usize) -> String {
    let length = path.chars().count();
    if length <= width {
        return path.to_owned();
    }
    let kept: String = path.chars().skip(length + 2 - width.min(length + 2)).collect();
    if width < 3 { String::new() } else { format!("..{kept}") }
}

/// The table as text; paths whole.
#[must_use]
pub fn text(rows: &[Rates]) -> String {
    let mut text = heads().map(|line| line.trim_end().to_owned() + "\n").concat();
    rows.iter().for_each(|row| text.push_str(&(line(row, None) + "\n")));
    if rows.is_empty() {
        text.push_str("no cgroup of this machine has a CPU limit\n");
    }
    if rows.iter().any(|row| !row.complete) {
        text.push_str("!: of some period something is not known, for records were lost\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::rates::CgroupId;

    fn row(cgroup: &str, out: Option<f64>) -> Rates {
        Rates {
            cgroup: Some(cgroup.to_owned()),
            cgroup_id: CgroupId(1),
            quota_us: out.map(|_| 20_000),
            period_us: Some(100_000),
            drawn_over_quota: None,
            used_over_quota: None,
            periods: out.map(|_| 0),
            exhausted: out.map(|_| 0),
            out_ms_per_s: out,
            above_ms_per_s: 0.0,
            held_ms_per_s: None,
            exhausted_after_p50_ns: None,
            peak_cpus_out: out.map(|_| 0),
            peak_parallelism: None,
            denied_idle_ms_per_s: None,
            complete: true,
        }
    }

    #[test]
    fn no_limit_not_measured_and_zero_are_three_different_words() {
        let limited = cells(&row("a", Some(0.0)));
        assert_eq!(limited, ["20/100", "?", "0/0", "0", "-", "?", "-", "?", "0", "?"].map(str::to_owned));
        let unlimited = cells(&row("b", None));
        assert_eq!(unlimited, ["no limit", "-", "-", "0", "-", "?", "-", "?", "-", "?"].map(str::to_owned));
        let measured = Rates {
            used_over_quota: Some(0.0),
            drawn_over_quota: Some(0.1),
            held_ms_per_s: Some(0.0),
            peak_parallelism: Some(0),
            denied_idle_ms_per_s: Some(0.0),
            complete: false,
            ..row("a", Some(412.34))
        };
        assert_eq!(
            cells(&measured),
            ["20/100", "0%", "0/0", "412!", "own", "0", "-", "0", "0", "0"].map(str::to_owned)
        );
        let drawn = Rates { drawn_over_quota: Some(0.5), ..row("a", Some(0.0)) };
        assert_eq!(cells(&drawn)[1], "<50%");
        assert!(text(&[measured]).ends_with("!: of some period something is not known, for records were lost\n"));
    }

    #[test]
    fn rows_are_ordered_by_the_key_with_what_is_not_measured_last() {
        let mut rows = [row("c", Some(1.0)), row("b", None), row("a", Some(30.0)), row("d", Some(1.0))];
        rows[0].denied_idle_ms_per_s = Some(5.0);
        let order = |rows: &mut [Rates], key| {
            sort(rows, key);
            rows.iter().filter_map(|row| row.cgroup.clone()).collect::<String>()
        };
        assert_eq!(order(&mut rows, Key::Out), "acdb");
        assert_eq!(order(&mut rows, Key::Denied), "cabd");
        assert_eq!(order(&mut rows, Key::Name), "abcd");
    }

    #[test]
    fn the_columns_are_as_wide_as_they_are_said_to_be() {
        assert!(heads().iter().all(|line| line.trim_end_matches("cgroup").chars().count() == FIGURES));
        let line = line(&row("kubepods/pod1/c", Some(0.0)), Some(8));
        assert_eq!(line.chars().count(), FIGURES + 8);
        assert!(line.ends_with("..pod1/c"), "{line}");
        assert_eq!(
            (shortened("abc", 3), shortened("abcd", 3), shortened("abcd", 2)),
            ("abc".into(), "..d".into(), "".into())
        );
    }
}
