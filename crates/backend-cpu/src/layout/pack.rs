//! File bytes into panels.
#![allow(unsafe_code)]

use std::ops::Range;

use half::f16;
use tokkata_core::DType;
use tokkata_quant::{Layout, Unpacked, dequantize};

use super::scheme::{self, BLOCK, Codes, PANEL_ROWS, SIX_BIT_PAIRS, Scheme};
use super::{Format, Matrix, PanelAt, Segment, Shared, Source};

/// Bytes that a worker reads at once.
const READ_BYTES: usize = 1 << 20;

/// The scheme of a format that is stored in chunks.
pub(super) fn scheme_of(dtype: DType) -> Option<Scheme> {
    Some(match dtype {
        DType::Q4_0 => scheme::Q4_0,
        DType::Q4_1 => scheme::Q4_1,
        DType::Q5_0 => scheme::Q5_0,
        DType::Q5_1 => scheme::Q5_1,
        DType::Q8_0 => scheme::Q8_0,
        DType::IQ4_NL => scheme::IQ4_NL,
        DType::MXFP4 => scheme::MXFP4,
        DType::Q2_K => scheme::Q2_K,
        DType::Q3_K => scheme::Q3_K,
        DType::Q4_K => scheme::Q4_K,
        DType::Q5_K => scheme::Q5_K,
        DType::Q6_K => scheme::Q6_K,
        DType::IQ4_XS => scheme::IQ4_XS,
        _ => return None,
    })
}

/// Reads and packs panels `range`.
///
/// # Safety
/// Nobody else touches these panels' memory, which starts at `memory`.
pub(super) unsafe fn panels(
    matrix: &Matrix,
    range: Range<usize>,
    source: &Source<'_>,
    memory: &Shared,
) -> std::io::Result<()> {
    let mut raw = Vec::new();
    for (index, segment) in matrix.segments.iter().enumerate() {
        let locals = locals_of(segment, &range);
        let row_bytes = segment
            .dtype
            .row_bytes(matrix.k)
            .expect("checked when the matrix was planned");
        let batch = (READ_BYTES / (row_bytes * PANEL_ROWS).max(1)).max(1);
        for first in locals.clone().step_by(batch) {
            let last = (first + batch).min(locals.end);
            let rows = first * PANEL_ROWS..(last * PANEL_ROWS).min(segment.rows);
            raw.resize(rows.len() * row_bytes, 0);
            source(index, rows, &mut raw)?;
            for (local, rows) in (first..last).zip(raw.chunks(row_bytes * PANEL_ROWS)) {
                let at = matrix.panel_of(index, local);
                // SAFETY: the panel lies inside the memory and belongs to this caller.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(memory.0.add(at.byte), segment.panel_bytes)
                };
                pack_panel(segment, at, matrix.k, rows, to);
            }
        }
    }
    Ok(())
}

/// The panels of a segment, by their number inside it, that fall into `range`.
fn locals_of(segment: &Segment, range: &Range<usize>) -> Range<usize> {
    let count = segment.rows.div_ceil(PANEL_ROWS);
    let local = |panel: usize| {
        panel
            .saturating_sub(segment.first_panel)
            .div_ceil(segment.stride)
            .min(count)
    };
    local(range.start)..local(range.end)
}

fn pack_panel(segment: &Segment, at: PanelAt, k: usize, raw: &[u8], to: &mut [u8]) {
    let row_bytes = raw.len() / at.rows;
    let row = |r: usize| {
        if r < at.rows {
            &raw[r * row_bytes..(r + 1) * row_bytes]
        } else {
            &[][..]
        }
    };
    let rows: [&[u8]; PANEL_ROWS] = std::array::from_fn(row);
    match segment.format {
        Format::Float => floats(segment.dtype, k, rows, to),
        Format::Blocks => blocks(segment.dtype, rows, to),
        Format::Chunks => chunks(segment.dtype, rows, to),
    }
}

/// K-major elements; bfloat16 in pairs along K.
fn floats(dtype: DType, k: usize, rows: [&[u8]; PANEL_ROWS], to: &mut [u8]) {
    match dtype {
        DType::F16 => interleave::<2>(rows, to, |k, r| (k * PANEL_ROWS + r) * 2),
        DType::BF16 => {
            interleave::<2>(rows, to, |k, r| (k / 2 * PANEL_ROWS + r) * 4 + k % 2 * 2);
        }
        DType::F32 => interleave::<4>(rows, to, |k, r| (k * PANEL_ROWS + r) * 4),
        _ => {
            let mut values = vec![0.0; k];
            for (r, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
                dequantize(dtype, row, &mut values).expect("rows have their type's length");
                for (i, value) in values.iter().enumerate() {
                    to[(i * PANEL_ROWS + r) * 4..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}

#[inline(always)]
fn interleave<const N: usize>(
    rows: [&[u8]; PANEL_ROWS],
    to: &mut [u8],
    place: impl Fn(usize, usize) -> usize,
) {
    for (r, row) in rows.iter().enumerate() {
        for (i, element) in row.as_chunks::<N>().0.iter().enumerate() {
            to[place(i, r)..][..N].copy_from_slice(element);
        }
    }
}

/// The rows' blocks with the same position next to each other.
fn blocks(dtype: DType, rows: [&[u8]; PANEL_ROWS], to: &mut [u8]) {
    let bytes = dtype.block_bytes();
    for (r, row) in rows.iter().enumerate() {
        for (b, block) in row.chunks_exact(bytes).enumerate() {
            to[(b * PANEL_ROWS + r) * bytes..][..bytes].copy_from_slice(block);
        }
    }
}

/// One file block of each row, taken apart.
type Sixteen = [Unpacked; PANEL_ROWS];

fn chunks(dtype: DType, rows: [&[u8]; PANEL_ROWS], to: &mut [u8]) {
    let scheme = scheme_of(dtype).expect("the format is stored in chunks");
    let layout = Layout::of(dtype).expect("the format has blocks");
    let per_chunk = scheme.blocks * BLOCK / layout.elems();
    let mut unpacked: Sixteen = std::array::from_fn(|_| Unpacked::new());
    for (c, chunk) in to.chunks_exact_mut(scheme.bytes()).enumerate() {
        for b in 0..per_chunk {
            let at = (c * per_chunk + b) * layout.bytes();
            for (u, row) in unpacked.iter_mut().zip(rows) {
                match row.get(at..at + layout.bytes()) {
                    Some(block) => layout.unpack(block, u).expect("one block"),
                    None => blank(dtype, u),
                }
            }
            factors(dtype, &unpacked, b, chunk);
            for i in 0..layout.elems() / BLOCK {
                let block = b * layout.elems() / BLOCK + i;
                let at = scheme.codes_at(block);
                let part = std::array::from_fn(|r| {
                    std::array::from_fn(|e| stored_code(dtype, unpacked[r].codes[BLOCK * i + e]))
                });
                codes(
                    scheme.codes,
                    &part,
                    &mut chunk[at..at + scheme.codes.bytes()],
                );
            }
        }
    }
}

/// A block of zeros, as padding is.
fn blank(dtype: DType, u: &mut Unpacked) {
    *u = Unpacked::new();
    // Halves of zero and exponents of zero both give outputs that nobody reads or tiny scales
    // times zero codes.
    if dtype == DType::MXFP4 {
        u.d = f32::from_bits(0x20_0000);
    }
}

/// A code as its scheme stores it.
fn stored_code(dtype: DType, code: i8) -> u8 {
    let index = |table: &[u8; 16], bias: i16| {
        let value = (i16::from(code) + bias) as u8;
        table
            .iter()
            .position(|&v| v == value)
            .expect("a value of the table") as u8
    };
    match dtype {
        DType::Q4_0 => (code + 8) as u8,
        DType::Q5_0 => (code + 16) as u8,
        DType::Q6_K => (code + 32) as u8,
        DType::Q3_K => (code + 4) as u8,
        DType::Q8_0 => code as u8 ^ 0x80,
        DType::IQ4_NL | DType::IQ4_XS if code == 0 => 8, // only padding has no value of the table
        DType::IQ4_NL | DType::IQ4_XS => index(&scheme::IQ4_TABLE, 128),
        DType::MXFP4 => index(&scheme::FP4_TABLE, 12),
        _ => code as u8,
    }
}

/// Head and sub-block scales of file block `b` of a chunk.
fn factors(dtype: DType, from: &Sixteen, b: usize, chunk: &mut [u8]) {
    let head = scheme_of(dtype)
        .expect("the format is stored in chunks")
        .head;
    for (r, u) in from.iter().enumerate() {
        match dtype {
            DType::MXFP4 => chunk[16 * b + r] = exponent(u.d),
            DType::Q4_1 | DType::Q5_1 => {
                half(chunk, 32 * b, r, u.d);
                half(chunk, 64 + 32 * b, r, -u.dmin);
            }
            _ => half(chunk, 32 * b, r, u.d),
        }
        if matches!(dtype, DType::Q2_K | DType::Q4_K | DType::Q5_K) {
            half(chunk, 32, r, u.dmin);
        }
        sub_scales(dtype, u, r, &mut chunk[head..]);
    }
}

fn half(chunk: &mut [u8], at: usize, r: usize, value: f32) {
    chunk[at + 2 * r..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The E8M0 byte that stands for twice this power of two.
fn exponent(d: f32) -> u8 {
    match d.to_bits() >> 23 {
        0 => u8::from(d.to_bits() >= 0x40_0000),
        e => (e + 1) as u8,
    }
}

fn sub_scales(dtype: DType, u: &Unpacked, r: usize, to: &mut [u8]) {
    match dtype {
        DType::Q4_K | DType::Q5_K => {
            for i in 0..8 {
                six_bit_pair(&mut to[SIX_BIT_PAIRS * i..], r, u.scales[i], u.mins[i]);
            }
        }
        DType::Q3_K => {
            for i in 0..8 {
                let pair = [0, 1].map(|s| u.scales[2 * i + s] + 32);
                six_bit_pair(&mut to[SIX_BIT_PAIRS * i..], r, pair[0], pair[1]);
            }
        }
        DType::IQ4_XS => {
            for i in 0..4 {
                let pair = [0, 1].map(|s| u.scales[2 * i + s] + 32);
                six_bit_pair(&mut to[SIX_BIT_PAIRS * i..], r, pair[0], pair[1]);
            }
        }
        DType::Q6_K => (0..16).for_each(|s| to[16 * s + r] = u.scales[s] as u8),
        DType::Q2_K => (0..16).for_each(|s| to[16 * s + r] = (u.scales[s] | u.mins[s] << 4) as u8),
        _ => {}
    }
}

/// Row `r`'s share of sixteen pairs of six-bit numbers.
fn six_bit_pair(to: &mut [u8], r: usize, first: i32, second: i32) {
    to[r] = (first & 15 | (second & 15) << 4) as u8;
    let shift = 4 * (r % 2);
    let high = ((first >> 4 | (second >> 4) << 2) << shift) as u8;
    to[16 + r / 2] = to[16 + r / 2] & !(15 << shift) | high;
}

/// Codes of a 32-block, per row.
type Block = [[u8; BLOCK]; PANEL_ROWS];

fn codes(kind: Codes, from: &Block, to: &mut [u8]) {
    match kind {
        Codes::Eight => plane(from, to, 8, 0),
        Codes::Four => nibbles(from, to),
        Codes::Five => {
            nibbles(from, to);
            plane(from, &mut to[256..], 1, 4);
        }
        Codes::Six => {
            nibbles(from, to);
            plane(from, &mut to[256..], 2, 4);
        }
        Codes::Two => plane(from, to, 2, 0),
        Codes::Three => {
            plane(from, to, 2, 0);
            plane(from, &mut to[128..], 1, 2);
        }
    }
}

/// Lines of two quads each: the low nibbles of quad `2j` below those of quad `2j + 1`.
fn nibbles(from: &Block, to: &mut [u8]) {
    for (r, codes) in from.iter().enumerate() {
        for (e, code) in codes.iter().enumerate() {
            let (line, shift) = (e / 8, e / 4 % 2 * 4);
            let byte = &mut to[64 * line + 4 * r + e % 4];
            *byte = if shift == 0 {
                code & 15
            } else {
                *byte | code << 4
            };
        }
    }
}

/// Planes with `bits` bits of each code, from bit `first` on; `8 / bits` quads share a plane.
fn plane(from: &Block, to: &mut [u8], bits: usize, first: usize) {
    let quads = 8 / bits;
    to[..64 * 8 / quads].fill(0);
    for (r, codes) in from.iter().enumerate() {
        for (e, code) in codes.iter().enumerate() {
            let quad = e / 4;
            let value = (code >> first) & (0xff_u8 >> (8 - bits));
            to[64 * (quad / quads) + 4 * r + e % 4] |= value << (bits * (quad % quads));
        }
    }
}
