//! Every shared template against Jinja2's outcome for every conversation of the grid.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use tokkata_text::template::{ChatRequest, ChatTemplate, Clock};

const NOW: &str = "2025-07-26T09:05:03";

/// The shared test data, or `None` after saying what is skipped.
fn test_data(what: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TOKKATA_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let path = root.join(what);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "CI lacks the test data {what}"
    );
    println!("skipped: no {what} in the test data");
    None
}

fn conversations() -> Vec<(String, ChatRequest)> {
    let grid: serde_json::Map<String, Json> =
        serde_json::from_str(include_str!("template/conversations.json"))
            .expect("the grid is JSON");
    let read = |(name, request)| {
        let mut request: ChatRequest = serde_json::from_value(request).expect("a request");
        request.now = Clock::parse(NOW);
        (name, request)
    };
    grid.into_iter().map(read).collect()
}

fn outcome(template: &ChatTemplate, request: &ChatRequest) -> String {
    match template.render(request) {
        Ok(rendered) => {
            let digest = Sha256::digest(rendered.text().as_bytes());
            digest[..4]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        }
        Err(_) => "error".to_owned(),
    }
}

fn expected() -> BTreeMap<&'static str, Vec<&'static str>> {
    let lines = include_str!("template/expected.tsv").lines();
    lines
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, all)| (name, all.split(' ').collect()))
        .collect()
}

#[test]
fn renders_what_jinja2_renders() {
    let Some(folder) = test_data("templates") else {
        return;
    };
    let grid = conversations();
    let mut differences = Vec::new();
    for (name, outcomes) in expected() {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).expect(name);
        let template =
            ChatTemplate::parse(&source).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(outcomes.len(), grid.len(), "{name}");
        for ((conversation, request), expected) in grid.iter().zip(outcomes) {
            let found = outcome(&template, request);
            if found != expected {
                differences.push(format!(
                    "{name} @ {conversation}: {found}, Jinja2 {expected}"
                ));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
