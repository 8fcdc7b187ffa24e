//! What a machine offers an observer, fact by fact, and what each missing one costs.
//!
//! Owns the facts and what they come to. In each file reading stands beside judging; judging takes values and returns values.
//! Running anything is [`crate::cli`]'s.

pub mod groups;
pub mod hooks;
pub mod kernel;
pub mod rights;
pub mod scheduler;
pub mod self_test;
pub mod text;

use serde::{Deserialize, Serialize};

/// Version of [`Report`] as JSON. Changes when a reader of the former would misread the latter.
pub const SCHEMA: u32 = 1;

/// What a fact means for the observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// As it should be.
    Good,
    /// Neither good nor bad: worth knowing when figures are read.
    Plain,
    /// Could not be found out. Never taken for good or for zero.
    Unknown,
    /// Less can be said.
    Less,
    /// Nothing can be observed.
    Fatal,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What of, the same on every machine.
    pub name: String,
    /// What was found.
    pub found: String,
    /// What it means.
    pub grade: Grade,
    /// What is lost by it, and what to do; absent where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<String>,
}

/// Facts of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// What they are about.
    pub about: String,
    /// The facts.
    pub facts: Vec<Fact>,
}

/// What the facts come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything can be observed.
    Full,
    /// Less can be said, or it is not known whether.
    Degraded,
    /// Nothing can be observed.
    Cannot,
}

/// All facts of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`]
    pub schema: u32,
    /// What they come to.
    pub verdict: Verdict,
    /// The facts.
    pub sections: Vec<Section>,
}

impl Report {
    /// Judges the facts.
    #[must_use]
    pub fn new(sections: Vec<Section>) -> Self {
        let any = |grade| sections.iter().flat_map(|section| &section.facts).any(|fact| fact.grade == grade);
        let verdict = if any(Grade::Fatal) {
            Verdict::Cannot
        } else if any(Grade::Less) || any(Grade::Unknown) {
            Verdict::Degraded
        } else {
            Verdict::Full
        };
        Self { schema: SCHEMA, verdict, sections }
    }
}

impl Section {
    fn new(about: &str, facts: Vec<Fact>) -> Self {
        Self { about: about.to_owned(), facts }
    }
}

impl Fact {
    fn new(name: &str, found: impl Into<String>, grade: Grade, costs: Option<String>) -> Self {
        Self { name: name.to_owned(), found: found.into(), grade, costs }
    }

    fn good(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, found, Grade::Good, None)
    }

    fn plain(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, found, Grade::Plain, None)
    }

    /// Could not be found out; `why` says why, and what is not known for it.
    fn unknown(name: &str, why: impl Into<String>) -> Self {
        Self::new(name, "not measured", Grade::Unknown, Some(why.into()))
    }

    fn less(name: &str, found: impl Into<String>, costs: impl Into<String>) -> Self {
        Self::new(name, found, Grade::Less, Some(costs.into()))
    }

    fn fatal(name: &str, found: impl Into<String>, costs: impl Into<String>) -> Self {
        Self::new(name, found, Grade::Fatal, Some(costs.into()))
    }
}

/// The text of a small file of `/proc` or `/sys`, trimmed; `None` = not there, or not to be read.
fn line(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(grades: &[Grade]) -> Verdict {
        let facts = grades.iter().map(|&grade| Fact::new("x", "y", grade, None)).collect();
        Report::new(vec![Section::new("a", vec![]), Section::new("b", facts)]).verdict
    }

    #[test]
    fn the_worst_fact_decides_and_what_is_not_known_is_not_full() {
        assert_eq!(verdict(&[]), Verdict::Full);
        assert_eq!(verdict(&[Grade::Good, Grade::Plain]), Verdict::Full);
        assert_eq!(verdict(&[Grade::Good, Grade::Unknown]), Verdict::Degraded);
        assert_eq!(verdict(&[Grade::Less, Grade::Good]), Verdict::Degraded);
        assert_eq!(verdict(&[Grade::Less, Grade::Fatal, Grade::Unknown]), Verdict::Cannot);
    }
}
