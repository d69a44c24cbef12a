//! GGUF files: most changes keep the structure, the rest are the fuzzer's own.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

#[path = "../../crates/formats/tests/it/exercise.rs"]
#[allow(dead_code)]
mod exercise;
#[path = "../../crates/formats/tests/it/mutate.rs"]
mod mutate;

use mutate::{Edit, mutate};

fuzz_target!(|data: &[u8]| {
    exercise::exercise(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed.is_multiple_of(4) {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut bytes = data[..size].to_vec();
    let mut state = u64::from(seed);
    let edits: Vec<Edit> = (0..=seed % 3).map(|_| edit(&mut state)).collect();
    mutate(&mut bytes, &edits, max_size);
    data[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
});

/// The next edit of a splitmix64 sequence.
fn edit(state: &mut u64) -> Edit {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Edit {
        place: (z >> 48) as u16,
        action: z ^ (z >> 31),
    }
}
