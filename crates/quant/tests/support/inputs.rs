//! The inputs of `make_goldens.py`, made again.

use sha2::{Digest, Sha256};

pub(crate) const ROWS: usize = 4;
pub(crate) const WIDTH: usize = 1536;
pub(crate) const RANDOM_BLOCKS: usize = 512;

/// SplitMix64 outputs keyed by the FNV-1a hash of `label`.
pub(crate) fn stream(label: &str) -> impl Iterator<Item = u64> {
    let mut state = label.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

pub(crate) fn random_bytes(label: &str, count: usize) -> Vec<u8> {
    stream(label)
        .flat_map(u64::to_le_bytes)
        .take(count)
        .collect()
}

pub(crate) fn gaussian(label: &str, count: usize) -> Vec<f32> {
    let mut words = stream(label);
    let sum = |word: u64| {
        (0..4)
            .map(|i| i64::from((word >> (16 * i)) as u16))
            .sum::<i64>()
    };
    let mut one = || {
        let total: i64 = words.by_ref().take(3).map(sum).sum();
        (total - 12 * 32768) as f32 / 65536.0
    };
    (0..count).map(|_| one()).collect()
}

pub(crate) fn heavy(label: &str, count: usize) -> Vec<f32> {
    gaussian(label, count).iter().map(|g| g * g * g).collect()
}

pub(crate) fn edges(label: &str, count: usize) -> Vec<f32> {
    let mut x = gaussian(label, count);
    for (i, row) in x.chunks_exact_mut(256).enumerate() {
        edge_row(i, row);
    }
    x
}

fn edge_row(i: usize, row: &mut [f32]) {
    match i {
        0 => row.fill(0.0),
        1 => row.fill(1.0),
        2 => row.fill(-1.0),
        3 => row[1..].fill(0.0),
        4 => row.iter_mut().for_each(|v| *v = v.abs()),
        5 => row.iter_mut().for_each(|v| *v = -v.abs()),
        6 => row[7] = 1000.0,
        7 => row.iter_mut().step_by(2).for_each(|v| *v = 0.0),
        8 => row.iter_mut().for_each(|v| *v *= 2f32.powi(-40)),
        9 => row.iter_mut().for_each(|v| *v *= 2f32.powi(-70)),
        10 => row.iter_mut().for_each(|v| *v *= 1024.0),
        11 => row.iter_mut().for_each(|v| *v = v.round_ties_even()),
        12 => row[..128].fill(0.0),
        13 => row
            .iter_mut()
            .enumerate()
            .for_each(|(j, v)| *v = if j % 3 == 0 { -0.5 } else { 0.5 }),
        14 => row.iter_mut().for_each(|v| *v = *v * 0.01 + 1.0),
        15 => row.iter_mut().for_each(|v| *v = *v * 0.01 - 1.0),
        _ => {}
    }
}

pub(crate) fn real() -> Vec<f32> {
    let bytes = include_bytes!("../goldens/minilm_f16.bin");
    bytes
        .as_chunks::<2>()
        .0
        .iter()
        .map(|&b| half::f16::from_le_bytes(b).to_f32())
        .collect()
}

pub(crate) fn shape(name: &str) -> Vec<f32> {
    let label = format!("quantise {name}");
    match name {
        "gaussian" => gaussian(&label, ROWS * WIDTH),
        "heavy" => heavy(&label, ROWS * WIDTH),
        "edges" => edges(&label, ROWS * WIDTH),
        "real" => real(),
        _ => panic!("no input shape {name}"),
    }
}

pub(crate) fn importance(count: usize) -> Vec<f32> {
    let weight = |(i, word): (usize, u64)| {
        let u = (word >> 48) as f32 / 65536.0;
        if i % 97 == 0 { 0.0 } else { u * u * u * 64.0 }
    };
    stream("importance")
        .take(count)
        .enumerate()
        .map(weight)
        .collect()
}

pub(crate) fn digest(data: &[u8]) -> String {
    Sha256::digest(data)[..16]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Digest of the bits, all NaNs alike.
pub(crate) fn value_digest(values: &[f32]) -> String {
    let canonical = |v: &f32| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() };
    let bytes: Vec<u8> = values
        .iter()
        .map(canonical)
        .flat_map(u32::to_le_bytes)
        .collect();
    digest(&bytes)
}
