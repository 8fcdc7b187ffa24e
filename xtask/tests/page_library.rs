//! The library that is put into every page: the bytes that its README states, of the version that its lockfile names.

use std::{fs, path::Path};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../throttle-user/assets/echarts").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(name: &str) -> Value {
    serde_json::from_str(&read(name)).expect("JSON")
}

#[test]
fn the_library_of_the_page_is_the_one_that_its_readme_states() {
    let digest = Sha256::digest(read("echarts.min.js")).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let readme = read("README.md");
    assert!(readme.contains(&digest), "echarts.min.js is {digest}: build it anew, and state its digest in README.md");
}

#[test]
fn readme_banner_and_lockfile_name_one_version_and_the_licences_are_beside_it() {
    let wanted = json("package.json")["dependencies"]["echarts"].as_str().expect("a version").to_owned();
    assert!(wanted.starts_with(|first: char| first.is_ascii_digit()), "a range is no version: {wanted}");
    let locked = &json("package-lock.json")["packages"]["node_modules/echarts"];
    assert_eq!(locked["version"], wanted);
    assert!(locked["integrity"].as_str().is_some_and(|digest| digest.starts_with("sha512-")), "{locked}");
    let named = format!("Apache ECharts {wanted}");
    assert!(read("README.md").contains(&named));
    let library = read("echarts.min.js");
    let banner = library.lines().next().expect("a line");
    assert!(banner.starts_with("/*!") && banner.contains(&named), "{banner}");
    for (file, licence) in [
        ("LICENSE", "Apache License"),
        ("NOTICE", "Apache ECharts"),
        ("LICENSE-zrender", "BSD 3-Clause"),
        ("LICENSE-tslib", "Permission to use, copy, modify"),
    ] {
        assert!(read(file).contains(licence), "{file}: {licence}");
    }
}
