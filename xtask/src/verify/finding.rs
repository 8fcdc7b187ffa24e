//! What a check found wrong: which file, which figure, what stands there and what it should be.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One figure that is not what the raw files give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file it stands in.
    pub(crate) file: PathBuf,
    /// Which figure.
    pub(crate) figure: String,
    /// As it stands there.
    pub(crate) stored: String,
    /// As it was recomputed.
    pub(crate) computed: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, figure, stored, computed } = self;
        write!(f, "{}: {figure}: stored {stored}, computed {computed}", file.display())
    }
}

/// Compares figures of one file and keeps what differs.
#[derive(Debug)]
pub(crate) struct Checker {
    file: PathBuf,
    compared: u64,
    findings: Vec<Finding>,
}

impl Checker {
    /// For a file.
    pub(crate) fn of(file: &Path) -> Self {
        Self { file: file.to_owned(), compared: 0, findings: Vec::new() }
    }

    /// How many figures were compared.
    pub(crate) fn compared(&self) -> u64 {
        self.compared
    }

    /// What differs.
    pub(crate) fn findings(self) -> Vec<Finding> {
        self.findings
    }

    /// Two texts or values that must be the same.
    pub(crate) fn same(&mut self, figure: impl fmt::Display, stored: impl fmt::Display, computed: impl fmt::Display) {
        let (stored, computed) = (stored.to_string(), computed.to_string());
        self.compared += 1;
        if stored != computed {
            self.differs(figure, stored, computed);
        }
    }

    /// A JSON value that must be exactly this one; a missing member is `null`.
    pub(crate) fn exact(&mut self, figure: impl fmt::Display, stored: &Value, computed: impl Into<Value>) {
        let computed = computed.into();
        self.compared += 1;
        if *stored != computed {
            self.differs(figure, stored.to_string(), computed.to_string());
        }
    }

    /// A length in ns that may be off by `within`.
    pub(crate) fn near(&mut self, figure: impl fmt::Display, stored: &Value, computed: u64, within: u64) {
        self.compared += 1;
        if stored.as_u64().is_none_or(|stored| stored.abs_diff(computed) > within) {
            self.differs(figure, stored.to_string(), format!("{computed} within {within}"));
        }
    }

    /// A ratio; reading its decimal text back may change the last bit.
    pub(crate) fn ratio(&mut self, figure: impl fmt::Display, stored: &Value, computed: Option<f64>) {
        self.compared += 1;
        let same = match (stored.as_f64(), computed) {
            (None, None) => stored.is_null(),
            (Some(stored), Some(computed)) => (stored - computed).abs() <= 2.0 * f64::EPSILON * computed.abs(),
            _ => false,
        };
        if !same {
            let computed = computed.map_or_else(|| "null".to_owned(), |computed| computed.to_string());
            self.differs(figure, stored.to_string(), computed);
        }
    }

    /// Something that must hold.
    pub(crate) fn holds(
        &mut self,
        holds: bool,
        figure: impl fmt::Display,
        stored: impl fmt::Display,
        wanted: impl fmt::Display,
    ) {
        self.compared += 1;
        if !holds {
            self.differs(figure, stored.to_string(), wanted.to_string());
        }
    }

    fn differs(&mut self, figure: impl fmt::Display, stored: String, computed: String) {
        self.findings.push(Finding { file: self.file.clone(), figure: figure.to_string(), stored, computed });
    }
}
