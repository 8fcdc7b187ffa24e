//! `results/PREREG.md`: identifiers, thresholds and expectations as they stand in its last table. Thresholds stand nowhere else.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::digest;
use super::report::tables;

/// A side of a threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Threshold {
    /// `>= x`
    AtLeast(f64),
    /// `<= x`
    AtMost(f64),
}

impl Threshold {
    fn parse(text: &str) -> Option<Self> {
        let (side, number) = text.split_once(' ')?;
        let number = number.parse().ok()?;
        match side {
            ">=" => Some(Self::AtLeast(number)),
            "<=" => Some(Self::AtMost(number)),
            _ => None,
        }
    }

    /// Whether a figure is on the stated side.
    pub(crate) fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

/// One prediction.
#[derive(Clone, Debug)]
pub(crate) struct Prediction {
    /// Such as `P2.tail`.
    pub(crate) id: String,
    /// What is calculated, in words.
    pub(crate) figure: String,
    /// When it holds.
    pub(crate) threshold: Threshold,
    /// What was expected, in words.
    pub(crate) expected: String,
}

/// The text as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Prereg {
    /// SHA-256 of the file.
    pub(crate) digest: String,
    /// In the order of the table.
    pub(crate) predictions: Vec<Prediction>,
    plans: Vec<Plan>,
}

/// A row of the table of arms.
#[derive(Clone, Debug)]
struct Plan {
    arm: String,
    /// The cell that names its settings.
    settings: String,
    limits: Vec<String>,
    requests: u64,
}

impl Prereg {
    /// Limits and requests that a setting was announced with. Guests run the published plan.
    pub(crate) fn planned(&self, arm: &str, setting: &str) -> Option<(&[String], u64)> {
        let arm = if arm.starts_with("guest-") { "published" } else { arm };
        let rows: Vec<&Plan> = self.plans.iter().filter(|plan| plan.arm == arm).collect();
        // `split-T-GAP` stands for all that begin so.
        let family = setting.split('-').next().unwrap_or(setting);
        let named = |plan: &&&Plan| {
            [format!("`{setting}`"), format!("`{family}-T-GAP`")].iter().any(|name| plan.settings.contains(name))
        };
        let row = rows.iter().find(named).or_else(|| rows.first().filter(|_| rows.len() == 1))?;
        Some((&row.limits, row.requests))
    }
}

/// Rows of the table of arms; one without a name goes on with the arm before it.
fn plans(tables: &[Vec<Vec<String>>]) -> Vec<Plan> {
    let mut arm = String::new();
    let rows = tables.iter().find(|table| table.first().is_some_and(|head| head[0] == "arm"));
    rows.into_iter()
        .flatten()
        .skip(1)
        .filter_map(|row| {
            let [name, settings, limits, requests] = row.as_slice() else { return None };
            if !name.is_empty() {
                arm = name.trim_matches('`').to_owned();
            }
            Some(Plan {
                arm: arm.clone(),
                settings: settings.clone(),
                limits: limits.split(' ').map(str::to_owned).collect(),
                requests: requests.parse().ok()?,
            })
        })
        .collect()
}

/// Reads the file.
///
/// # Errors
/// It cannot be read, or a row of its table is not a prediction.
pub(crate) fn read(path: &Path) -> Result<Prereg> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let tables = tables(&text);
    let table = tables.iter().find(|table| table.first().is_some_and(|head| head[0] == "id"));
    let table = table.with_context(|| format!("{} has no table of predictions", path.display()))?;
    let predictions = table.iter().skip(1).map(|row| {
        let [id, figure, threshold, expected] = row.as_slice() else {
            bail!("{}: not four cells: {row:?}", path.display());
        };
        let threshold = Threshold::parse(threshold)
            .with_context(|| format!("{}: {id}: {threshold:?} is not `>= x` or `<= x`", path.display()))?;
        Ok(Prediction { id: id.clone(), figure: figure.clone(), threshold, expected: expected.clone() })
    });
    let predictions: Vec<Prediction> = predictions.collect::<Result<_>>()?;
    ensure!(!predictions.is_empty(), "{} predicts nothing", path.display());
    Ok(Prereg { digest: digest::hex(text.as_bytes()), predictions, plans: plans(&tables) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_of_each_setting_is_found() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results/PREREG.md");
        let prereg = read(&path).expect("the predictions are there");
        let planned = |arm, setting| prereg.planned(arm, setting).map(|(limits, n)| (limits.join(" "), n));
        let grid = "100m 200m 400m 800m 1600m unlimited".to_owned();
        assert_eq!(planned("grid", "nested"), Some((grid.clone(), 400)));
        assert_eq!(planned("guest-6.1", "nested"), Some((grid, 40)));
        assert_eq!(planned("gap", "10s"), Some(("100m".to_owned(), 20)));
        assert_eq!(planned("phase", "flat"), Some(("100m 200m 400m".to_owned(), 100)));
        assert_eq!(planned("fanout", "whole-8-1s"), Some(("800m 1600m".to_owned(), 20)));
        assert_eq!(planned("burst", "40ms"), Some(("400m".to_owned(), 40)));
        assert_eq!(planned("burst", "80ms"), None);
        assert_eq!(planned("no such arm", "nested"), None);
    }

    #[test]
    fn thresholds_are_read_with_their_side() {
        assert_eq!(Threshold::parse(">= 0.95"), Some(Threshold::AtLeast(0.95)));
        assert_eq!(Threshold::parse("<= 2"), Some(Threshold::AtMost(2.0)));
        assert_eq!((Threshold::parse("> 2"), Threshold::parse(">= x"), Threshold::parse("2")), (None, None, None));
        assert!(Threshold::AtLeast(8.0).holds(8.0) && !Threshold::AtLeast(8.0).holds(7.99));
        assert!(Threshold::AtMost(0.2).holds(0.2) && !Threshold::AtMost(0.2).holds(f64::NAN));
    }
}
