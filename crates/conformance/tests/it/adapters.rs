//! Adapters of whole models on every device.

use tokkata_conformance::golden::Golden;
use tokkata_conformance::{adapters, attaching, devices};

/// Joined and split projections, experts, products by head, recurrent mixers, tied and untied heads, vectors.
const NAMES: [&str; 12] = [
    "llama",
    "qwen3",
    "gemma3",
    "phi3",
    "qwen3moe",
    "deepseek2",
    "falcon-h1",
    "mamba2",
    "rwkv7",
    "qwen3next",
    "bert",
    "gptneox",
];

#[test]
fn adapters_add_to_every_product_what_they_say() {
    let folder = tempfile::tempdir().expect("a folder");
    for device in devices() {
        adapters::verify(device.as_ref(), &NAMES, folder.path(), 11);
    }
}

#[test]
fn adapters_come_and_go_while_works_are_under_way() {
    for device in devices() {
        let fault = attaching::verify(device.as_ref());
        assert_eq!(fault, Ok(()), "{}", device.name());
    }
}

#[test]
fn the_oracle_was_asked_too() {
    let folder = Golden::folder();
    let unasked = |name: &&&str| {
        let golden = Golden::read(&folder, name).expect("golden");
        golden.adapted.is_empty()
    };
    // The oracle's table of GELU is coarser than what agrees; bert's own rows come from one without it.
    assert_eq!(NAMES.iter().filter(unasked).collect::<Vec<_>>(), [&"bert"]);
}
