//! The facts for a terminal of 80 columns.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::{Fact, Grade, Report, Verdict};

const COLUMNS: u16 = 80;
/// Columns of the marks and of the names.
const MARK: u16 = 3;
const NAME: u16 = 26;

/// Renders the report. A fact is a line or more: mark, name, what was found; below it what it costs.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for section in &report.sections {
        text.push_str(&section.about);
        text.push('\n');
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
        for fact in &section.facts {
            table.add_row([mark(fact.grade).to_owned(), fact.name.clone(), cell(fact)]);
        }
        for (column, width) in [(0, MARK), (1, NAME)] {
            if let Some(column) = table.column_mut(column) {
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width))).set_padding((0, 1));
            }
        }
        if let Some(column) = table.column_mut(2) {
            column.set_padding((0, 0));
        }
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text.push_str(&closing(report));
    text
}

fn cell(fact: &Fact) -> String {
    match &fact.costs {
        None => fact.found.clone(),
        Some(costs) => format!("{}\n{costs}", fact.found),
    }
}

fn mark(grade: Grade) -> &'static str {
    match grade {
        Grade::Good => "ok",
        Grade::Plain => "",
        Grade::Unknown => "?",
        Grade::Less => "-",
        Grade::Fatal => "!!",
    }
}

fn closing(report: &Report) -> String {
    let facts = || report.sections.iter().flat_map(|section| &section.facts);
    let count = |grade| facts().filter(|fact| fact.grade == grade).count();
    match report.verdict {
        Verdict::Full => "full: everything can be observed here\n".to_owned(),
        Verdict::Degraded => format!(
            "degraded: {} missing (-), {} not known (?); what each costs stands beside it\n",
            count(Grade::Less),
            count(Grade::Unknown)
        ),
        Verdict::Cannot => {
            let names: Vec<&str> =
                facts().filter(|fact| fact.grade == Grade::Fatal).map(|fact| fact.name.as_str()).collect();
            format!("nothing can be observed here: {}\n", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Section;

    fn shown(facts: Vec<Fact>) -> String {
        text(&Report::new(vec![Section::new("kernel", facts)]))
    }

    #[test]
    fn each_fact_has_its_mark_and_below_it_what_it_costs_within_80_columns() {
        let long = "word ".repeat(40);
        let shown = shown(vec![
            Fact::good("CPUs online", "2"),
            Fact::plain("tick", "250 Hz"),
            Fact::less("cpu.stat.local", "absent", long.trim_end()),
            Fact::unknown("steal time", "no /proc"),
        ]);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "kernel",
                "ok CPUs online               2",
                "   tick                      250 Hz",
                "-  cpu.stat.local            absent",
            ]
        );
        assert!(lines[4].starts_with(&format!("{}word word", " ".repeat(29))), "{shown}");
        assert_eq!(lines.last(), Some(&"degraded: 1 missing (-), 1 not known (?); what each costs stands beside it"));
    }

    #[test]
    fn what_keeps_everything_from_being_observed_is_named_at_the_end() {
        let shown = shown(vec![Fact::fatal("BTF", "absent", "x"), Fact::fatal("CAP_BPF", "missing", "y")]);
        assert!(shown.ends_with("nothing can be observed here: BTF, CAP_BPF\n"), "{shown}");
    }
}
