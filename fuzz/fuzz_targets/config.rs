//! Settings of model directories, beside the tensors of tiny checkpoints of every family.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};

#[path = "../../crates/conformance/tests/it/config/exercise.rs"]
mod exercise;
#[path = "../../crates/formats/tests/it/mutate_json.rs"]
mod mutate_json;
#[path = "../structured.rs"]
mod structured;

use exercise::Checkpoints;

static CHECKPOINTS: LazyLock<Checkpoints> = LazyLock::new(Checkpoints::new);

fuzz_target!(|data: &[u8]| {
    CHECKPOINTS.exercise(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mutant = mutant(&data[..size], seed);
    structured::replace(data, size, max_size, mutant)
});

/// Other settings for the same tensors, now and then those of another family.
fn mutant(input: &[u8], seed: u32) -> Option<Vec<u8>> {
    let (name, text) = exercise::parts(input)?;
    let configs = &CHECKPOINTS.configs;
    let (other, donor) = configs.iter().nth(seed as usize / 64 % configs.len())?;
    match seed % 32 {
        0 => return None,
        1 => return Some(format!("{other}\0{donor}").into_bytes()),
        _ => {}
    }
    let settings = mutate_json::mutate(text, donor, u64::from(seed))?;
    Some([name.as_bytes(), b"\0", &settings].concat())
}
