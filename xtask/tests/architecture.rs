//! Enforces ARCHITECTURE.md, "Data flows one way": which module of throttle-user may import which.

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use sources::{Import, SourceFile, root};

/// What a module may import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    /// Every module.
    All,
    /// These modules. `wire` is the lib of throttle-ebpf.
    Only(&'static [&'static str]),
}

use May::{All, Only};

/// The same table, row by row, as in ARCHITECTURE.md.
const TABLE: &[(&str, May)] = &[
    ("time", Only(&[])),
    ("event", Only(&["time"])),
    ("cgroup", Only(&["time"])),
    ("kubernetes", Only(&["time"])),
    ("probe", Only(&["wire", "event", "time", "cgroup"])),
    ("timeline", Only(&["event", "time", "cgroup"])),
    ("node", Only(&["timeline", "cgroup", "event", "time"])),
    ("exporter", Only(&["node", "kubernetes", "timeline", "event", "time"])),
    ("request", Only(&["time"])),
    ("stats", Only(&[])),
    ("attribution", Only(&["timeline", "event", "request", "time"])),
    ("workload", Only(&["request", "time"])),
    ("client", Only(&["request", "time"])),
    ("model", Only(&["timeline", "event", "request", "time", "stats"])),
    ("run", Only(&["timeline", "event", "attribution", "request", "cgroup", "time", "stats", "model"])),
    ("report", Only(&["run", "node", "request", "cgroup", "stats", "time"])),
    ("check", Only(&["probe", "run", "cgroup", "event", "time"])),
    ("cli", All),
];

/// The only module that may name aya, by any of its crates' names.
const KERNEL_SIDE: &str = "probe";
/// Modules that must not know the observer, not even through others.
const OBSERVED_SIDE: [&str; 2] = ["workload", "client"];

fn may_import(module: &str, imported: &str) -> Result<(), String> {
    let Some((_, may)) = TABLE.iter().find(|(name, _)| *name == module) else {
        return Err(format!("module `{module}` is not in the table"));
    };
    let allowed = match may {
        All => imported == "wire" || TABLE.iter().any(|(name, _)| *name == imported),
        Only(modules) => imported == module || modules.contains(&imported),
    };
    if allowed { Ok(()) } else { Err(format!("`{module}` may not import `{imported}`")) }
}

/// What is wrong with one file; nothing, if it keeps to the table.
fn violations(file: &SourceFile) -> Vec<String> {
    let mut found = Vec::new();
    for import in &file.imports {
        let verdict = match import {
            Import::Aya(name) if file.module != KERNEL_SIDE => Err(format!("only `{KERNEL_SIDE}` may name `{name}`")),
            Import::Aya(_) => Ok(()),
            // lib.rs declares the modules and main.rs calls `cli`: neither has a row.
            Import::Module(_) if file.module == "lib" => Ok(()),
            Import::Module(name) if file.module == "main" => may_import("cli", name),
            Import::Module(name) => may_import(&file.module, name),
        };
        found.extend(verdict.err().map(|why| format!("{}: {why}", file.path)));
    }
    found
}

#[test]
fn architecture_every_module_imports_only_what_the_table_allows() {
    let files = sources::of_throttle_user();
    assert!(files.iter().any(|file| file.module == "time"), "the sources of throttle-user were not found");
    let found: Vec<String> = files.iter().flat_map(violations).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn architecture_every_module_has_a_row() {
    let rows: BTreeSet<&str> = TABLE.iter().map(|(name, _)| *name).collect();
    let modules: BTreeSet<String> = sources::of_throttle_user().into_iter().map(|file| file.module).collect();
    let stray: Vec<_> = modules
        .iter()
        .filter(|name| !rows.contains(name.as_str()) && !["lib", "main"].contains(&name.as_str()))
        .collect();
    assert!(
        stray.is_empty(),
        "not in the table: {stray:?}; say what they own and may import, here and in ARCHITECTURE.md"
    );
}

#[test]
fn architecture_the_document_has_the_same_table() {
    let path = root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).expect("ARCHITECTURE.md is there");
    let mut documented = Vec::new();
    for line in text.lines().skip_while(|line| !line.starts_with("| module ")).skip(2) {
        let Some(cells) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else { break };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let [module, _owns, may_import] = cells[..] else { panic!("not three cells: {line}") };
        documented.push((module.trim_matches('`').to_owned(), may_import.to_owned()));
    }
    let enforced: Vec<(String, String)> = TABLE
        .iter()
        .map(|(module, may)| {
            let may = match may {
                All => "all".to_owned(),
                Only([]) => "-".to_owned(),
                Only(modules) => modules.join(", "),
            };
            ((*module).to_owned(), may)
        })
        .collect();
    assert_eq!(documented, enforced, "ARCHITECTURE.md and TABLE differ");
}

#[test]
fn architecture_imports_form_no_cycle_and_each_points_to_an_earlier_row() {
    for (row, (module, may)) in TABLE.iter().enumerate() {
        let Only(modules) = may else { continue };
        for imported in modules.iter().filter(|imported| **imported != "wire") {
            let earlier = TABLE[..row].iter().any(|(name, _)| name == imported);
            assert!(earlier, "`{module}` imports `{imported}`, which does not stand above it");
        }
    }
}

#[test]
fn architecture_the_observed_side_cannot_reach_the_observer() {
    let direct: BTreeMap<&str, &[&str]> = TABLE
        .iter()
        .filter_map(|(module, may)| match may {
            All => None,
            Only(modules) => Some((*module, *modules)),
        })
        .collect();
    for module in OBSERVED_SIDE {
        let mut reached = BTreeSet::from([module]);
        let mut open = vec![module];
        while let Some(next) = open.pop() {
            let imports = direct.get(next).copied().unwrap_or_default();
            open.extend(imports.iter().copied().filter(|imported| reached.insert(*imported)));
        }
        assert!(!reached.contains(KERNEL_SIDE) && !reached.contains("wire"), "`{module}` reaches {reached:?}");
    }
}

/// The rules must bite: each of these files breaks one.
#[test]
fn architecture_forbidden_imports_are_found_however_they_are_written() {
    for (module, text) in [
        ("workload", "use crate::probe::Observer;"),
        ("workload", "use crate::{time::MonoNs, probe};"),
        ("client", "fn f() { let _ = crate::probe::load(); }"),
        ("client", "fn f() { println!(\"{}\", crate::probe::load()); }"),
        ("time", "mod tests { use super::super::event::Event; }"),
        ("timeline", "use super::probe::Observer;"),
        ("timeline", "use throttle_ebpf::Record;"),
        ("report", "use throttle_user::timeline::Timeline;"),
        ("timeline", "use aya::Ebpf;"),
        ("cli", "use aya_log::EbpfLogger;"),
        ("cli", "use crate::no_such_module::X;"),
    ] {
        assert!(!violations(&sources::parse(&format!("{module}.rs"), text)).is_empty(), "{module}: {text}");
    }
}

#[test]
fn architecture_allowed_imports_are_left_alone() {
    for (path, text) in [
        ("workload.rs", "use crate::request::ServerSpan; /* crate::probe */ // crate::probe\n"),
        ("probe/load.rs", "use super::decode; use aya::Ebpf; use throttle_ebpf::Record;"),
        ("probe.rs", "mod tests { use super::load; }"),
        ("client.rs", "fn f() -> &'static str { \"crate::probe\" }"),
        ("cli/sweep.rs", "use crate::{probe, run::Plan};"),
        ("main.rs", "use throttle_user::cli;"),
        ("lib.rs", "pub mod probe;"),
        ("time.rs", "pub(crate) fn f() {}"),
    ] {
        assert_eq!(violations(&sources::parse(path, text)), Vec::<String>::new(), "{path}: {text}");
    }
}

/// The verifier must not share code with what it verifies.
#[test]
fn architecture_the_verifier_shares_no_code_with_throttle_user() {
    let manifest = fs::read_to_string(root().join("xtask/Cargo.toml")).expect("the manifest is there");
    assert!(
        !manifest.contains("throttle-user") && !manifest.contains("throttle-ebpf"),
        "xtask depends on what it verifies"
    );
    let mut files = 0;
    for entry in fs::read_dir(root().join("xtask/src/verify")).expect("the verifier is there") {
        let path = entry.expect("the entry can be read").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        files += 1;
        let text = fs::read_to_string(&path).expect("the file can be read");
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let stray =
                ["throttle_user", "crate::", "#[path", "throttle-user/src"].iter().find(|stray| code.contains(**stray));
            assert_eq!(stray, None, "{} line {}: {line}", path.display(), number + 1);
        }
    }
    assert!(files > 10, "the verifier's files were not found");
}
