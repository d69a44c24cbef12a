//! Dequantised blocks against digests of llama.cpp's results.

#[path = "support/inputs.rs"]
#[allow(dead_code)]
mod inputs;

use inputs::{RANDOM_BLOCKS, random_bytes, value_digest};
use tokkata_core::DType;
use tokkata_quant::{Layout, QuantError, Unpacked, dequantize, dequantize_vec};

fn block_input(dtype: DType, case: &str) -> Vec<u8> {
    let size = dtype.block_bytes();
    match case {
        "all" => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        "random" => random_bytes(&format!("{dtype} random"), RANDOM_BLOCKS * size),
        "constant" => (0..=255).flat_map(|v| vec![v; size]).collect(),
        "sweep" => sweep(dtype),
        _ => panic!("no case {case}"),
    }
}

/// A tame block with every byte value at every place in turn.
fn sweep(dtype: DType) -> Vec<u8> {
    let mut base = random_bytes(&format!("{dtype} sweep"), dtype.block_bytes());
    base.iter_mut().for_each(|byte| *byte &= 0x3b);
    let mut all = Vec::with_capacity(base.len() * base.len() * 256);
    for place in 0..base.len() {
        for value in 0..=255 {
            let at = all.len() + place;
            all.extend_from_slice(&base);
            all[at] = value;
        }
    }
    all
}

#[test]
fn every_format_has_llama_cpp_bits() {
    let mut wrong = Vec::new();
    for line in include_str!("goldens/dequantise.txt").lines() {
        let [name, case, expected] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("malformed golden {line}");
        };
        let dtype = DType::from_name(name).expect("a known type");
        let data = block_input(dtype, case);
        let elems = data.len() / dtype.block_bytes() * dtype.block_elems();
        let values = dequantize_vec(dtype, &data, elems).expect("whole blocks");
        if value_digest(&values) != expected {
            wrong.push(format!("{name} {case}"));
        }
    }
    assert!(wrong.is_empty(), "differ from llama.cpp: {wrong:?}");
}

#[test]
fn goldens_cover_every_block_format() {
    let goldens = include_str!("goldens/dequantise.txt");
    // llama.cpp has no routine that reads Q8_1 back.
    for dtype in DType::ALL
        .iter()
        .filter(|t| t.is_quantised() && **t != DType::Q8_1)
    {
        assert!(
            goldens.contains(&format!("{dtype} sweep ")),
            "{dtype} has no golden"
        );
    }
}

#[test]
fn q8_1_is_scale_times_byte() {
    let data = random_bytes("Q8_1 random", 36 * 64);
    let values = dequantize_vec(DType::Q8_1, &data, 32 * 64).expect("whole blocks");
    for (block, values) in data.chunks_exact(36).zip(values.chunks_exact(32)) {
        let d = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        let expected: Vec<f32> = block[4..].iter().map(|&q| d * f32::from(q as i8)).collect();
        assert_eq!(value_digest(values), value_digest(&expected));
    }
}

#[test]
fn plain_numbers_convert() {
    let mut one = [0.0];
    for (dtype, bytes, expected) in [
        (DType::F32, 1.5f32.to_le_bytes().to_vec(), 1.5),
        (DType::F64, (-2.5f64).to_le_bytes().to_vec(), -2.5),
        (DType::I8, vec![0x80], -128.0),
        (DType::I16, (-3i16).to_le_bytes().to_vec(), -3.0),
        (
            DType::I32,
            16_777_217i32.to_le_bytes().to_vec(),
            16_777_216.0,
        ),
        (DType::I64, i64::MIN.to_le_bytes().to_vec(), -9.223_372e18),
    ] {
        dequantize(dtype, &bytes, &mut one).expect("one element");
        assert_eq!(one[0], expected, "{dtype}");
    }
}

#[test]
fn unpacked_blocks_follow_the_formula() {
    for &dtype in DType::ALL {
        let Some(layout) = Layout::of(dtype) else {
            continue;
        };
        let block = &random_bytes(&format!("{dtype} unpack"), layout.bytes())[..];
        let values = dequantize_vec(dtype, block, layout.elems()).expect("one block");
        let mut u = Unpacked::new();
        layout.unpack(block, &mut u).expect("one block");
        let formula = |e: usize| {
            let s = e / layout.sub_elems();
            u.scale(s) * f32::from(u.codes[e]) - u.min(s)
        };
        let expected: Vec<f32> = (0..layout.elems()).map(formula).collect();
        assert_eq!(value_digest(&values), value_digest(&expected), "{dtype}");
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let mut out = [0.0; 48];
    let partial = QuantError::PartialBlock {
        dtype: DType::Q4_0,
        block: 32,
        elems: 48,
    };
    assert_eq!(dequantize(DType::Q4_0, &[0; 27], &mut out), Err(partial));
    let short = dequantize(DType::Q4_0, &[0; 17], &mut out[..32]).unwrap_err();
    assert_eq!(
        short.to_string(),
        "32 elements of Q4_0 take 18 bytes, found 17"
    );
    for &dtype in DType::ALL {
        let elems = dtype.block_elems();
        let mut out = vec![0.0; elems];
        for length in [0, dtype.block_bytes() - 1, dtype.block_bytes() + 1] {
            assert!(
                dequantize(dtype, &vec![0; length], &mut out).is_err(),
                "{dtype} {length}"
            );
            assert!(
                dequantize_vec(dtype, &vec![0; length], usize::MAX).is_err(),
                "{dtype}"
            );
        }
    }
}
