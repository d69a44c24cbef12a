use super::*;

/// Bytes with every value somewhere.
fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 151 + i / 256 * 7) as u8).collect()
}

fn packed_row(dtype: DType, row: &[u8]) -> Vec<u32> {
    let size = packed(dtype).unwrap();
    let elems = row.len() / dtype.block_bytes() * dtype.block_elems();
    let mut out = vec![0xAAAA_AAAA; elems.div_ceil(size.elems) * size.words];
    pack(dtype, row, &mut out);
    out
}

#[test]
fn every_block_format_is_packed_in_about_its_size() {
    for &dtype in DType::ALL {
        let kernels =
            Layout::of(dtype).is_some() || matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let Some(size) = packed(dtype) else {
            assert!(!kernels, "{dtype}");
            continue;
        };
        let file = dtype.row_bytes(size.elems).unwrap();
        let more = if dtype == DType::Q6_K { 16 } else { 4 };
        assert!(4 * size.words < file + more, "{dtype}: {size:?}");
        assert!(!is_wide(dtype) || size.words.is_multiple_of(4), "{dtype}");
    }
}

#[test]
fn what_lacks_is_zeros() {
    for &dtype in DType::ALL {
        let Some(size) = packed(dtype) else { continue };
        let whole = dtype.row_bytes(2 * size.elems).unwrap();
        let part = dtype.row_bytes(size.elems).unwrap() + dtype.block_bytes();
        let mut row = bytes(part);
        let found = packed_row(dtype, &row);
        row.resize(whole, 0);
        let mut want = packed_row(dtype, &row);
        want.truncate(found.len());
        assert_eq!(found, want, "{dtype}");
    }
}

#[test]
fn neighbours_share_words() {
    let mut block = vec![0, 0x3C];
    // Weights 0 to 15 are low nibbles, 16 to 31 high ones.
    block.extend((0..16).map(|i: u8| i | (15 - i) << 4));
    let words = packed_row(DType::Q4_0, &block);
    assert_eq!(words[..4], [0x3C00, 0, 0, 0]);
    assert_eq!(
        words[4..8],
        [0x7362_5140, 0xFBEA_D9C8, 0x8C9D_AEBF, 0x0415_2637]
    );
    let mut block = bytes(18);
    block[2..].fill(0b1110_0100);
    let words = packed_row(DType::Q2_0, &block);
    assert_eq!(words[2..6], [0xFFAA_5500; 4]);
}

#[test]
fn tables_lie_one_behind_the_other() {
    let (words, places) = tables();
    let sizes = [
        128,
        256,
        512,
        128,
        256,
        1024,
        256,
        EXP.len(),
        LN.len(),
        LN_LN.len(),
    ];
    let mut at = 0;
    for ((name, place), size) in places.iter().zip(sizes) {
        assert_eq!(*place, at, "{name}");
        at += size as u32;
    }
    assert_eq!((words.len(), places.len()), (at as usize, 10));
}

#[test]
fn no_weight_is_larger_than_its_bound() {
    let mut seen = 0;
    for &dtype in DType::ALL {
        for turn in 0..64 {
            let mut row: Vec<u8> = (0..8 * dtype.block_bytes())
                .map(|i| (i * 97 + turn * 31 + i / 7 * (turn + 1)) as u8)
                .collect();
            let Some(most) = bound(dtype, &row) else {
                break;
            };
            // Scales that are no numbers are another test's.
            if !most.is_finite() {
                continue;
            }
            seen += 1;
            let mut x = vec![0.0; 8 * dtype.block_elems()];
            tokkata_quant::dequantize(dtype, &row, &mut x).expect("whole blocks");
            let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            assert!(largest <= most, "{dtype}: {largest} of {most}");
            row.fill(0);
            assert_eq!(bound(dtype, &row), Some(0.0), "{dtype}");
        }
    }
    assert!(seen > 100, "{seen}");
}
