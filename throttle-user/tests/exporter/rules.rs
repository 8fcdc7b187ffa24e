//! Rules and alerts name metrics that there are.

use std::{collections::BTreeSet, fs, path::Path};

use crate::made::{full, get, serve};

/// Words that begin like our metrics.
fn names(text: &str) -> BTreeSet<String> {
    let words =
        text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_' && character != ':');
    words.filter(|word| word.starts_with("throttle_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_metric_in_a_rule_is_told() {
    let (_, _, text) = get(&serve(&full()).await, "/metrics", "").await;
    let told = names(&text);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/components/monitoring");
    let rules = fs::read_to_string(folder.join("prometheusrule.yaml")).expect("the rules");
    let used = names(&rules);
    assert!(used.len() >= 6, "{used:?}");
    let unknown: Vec<_> = used.difference(&told).collect();
    assert!(unknown.is_empty(), "not told: {unknown:?}");
}
