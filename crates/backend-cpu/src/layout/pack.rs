//! File bytes into panels.
#![allow(unsafe_code)]

mod blocks;

use std::ops::Range;

use tokkata_core::DType;
use tokkata_quant::dequantize;

use self::blocks::{Blocks, Quads};
use super::scheme::{self, BLOCK, Codes, PANEL_ROWS, Scheme};
use super::{Format, Matrix, Segment, Shared, Source};

/// Bytes that a worker reads at once: few enough to stay in its cache.
const READ_BYTES: usize = 512 << 10;

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
/// Nobody else touches these panels' memory, which starts at `memory` and holds zeros.
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
                pack_panel(
                    segment,
                    matrix.k,
                    Rows {
                        raw: rows,
                        row_bytes,
                    },
                    to,
                );
            }
        }
    }
    Ok(())
}

/// Packs `count` rows from row `first` of a segment's bytes into a panel of zeros.
pub(super) fn panel(
    segment: &Segment,
    k: usize,
    (bytes, first, count): (&[u8], usize, usize),
    to: &mut [u8],
) {
    let row_bytes = segment
        .dtype
        .row_bytes(k)
        .expect("checked when the matrix was planned");
    let raw = &bytes[first * row_bytes..(first + count) * row_bytes];
    pack_panel(segment, k, Rows { raw, row_bytes }, to);
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

/// Up to sixteen rows of file bytes.
#[derive(Clone, Copy)]
struct Rows<'a> {
    raw: &'a [u8],
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    fn each(self) -> impl Iterator<Item = (usize, &'a [u8])> {
        self.raw.chunks_exact(self.row_bytes.max(1)).enumerate()
    }
}

/// Fills a panel of zeros; missing rows stay zero, which every format reads as finite.
fn pack_panel(segment: &Segment, k: usize, rows: Rows<'_>, to: &mut [u8]) {
    match (segment.format, segment.dtype) {
        (Format::Float, dtype) => floats(dtype, k, rows, to),
        (Format::Blocks, dtype) => file_blocks(dtype, rows, to),
        (Format::Chunks, DType::Q4_0) => {
            chunks::<blocks::Q4_0>(DType::Q4_0, scheme::Q4_0, rows, to);
        }
        (Format::Chunks, DType::Q4_1) => {
            chunks::<blocks::Q4_1>(DType::Q4_1, scheme::Q4_1, rows, to);
        }
        (Format::Chunks, DType::Q5_0) => {
            chunks::<blocks::Q5_0>(DType::Q5_0, scheme::Q5_0, rows, to);
        }
        (Format::Chunks, DType::Q5_1) => {
            chunks::<blocks::Q5_1>(DType::Q5_1, scheme::Q5_1, rows, to);
        }
        (Format::Chunks, DType::Q8_0) => {
            chunks::<blocks::Q8_0>(DType::Q8_0, scheme::Q8_0, rows, to);
        }
        (Format::Chunks, DType::IQ4_NL) => {
            chunks::<blocks::IQ4_NL>(DType::IQ4_NL, scheme::IQ4_NL, rows, to);
        }
        (Format::Chunks, DType::MXFP4) => {
            chunks::<blocks::MXFP4>(DType::MXFP4, scheme::MXFP4, rows, to);
        }
        (Format::Chunks, DType::Q2_K) => {
            chunks::<blocks::Q2_K>(DType::Q2_K, scheme::Q2_K, rows, to);
        }
        (Format::Chunks, DType::Q3_K) => {
            chunks::<blocks::Q3_K>(DType::Q3_K, scheme::Q3_K, rows, to);
        }
        (Format::Chunks, DType::Q4_K) => {
            chunks::<blocks::Q4_K>(DType::Q4_K, scheme::Q4_K, rows, to);
        }
        (Format::Chunks, DType::Q5_K) => {
            chunks::<blocks::Q5_K>(DType::Q5_K, scheme::Q5_K, rows, to);
        }
        (Format::Chunks, DType::Q6_K) => {
            chunks::<blocks::Q6_K>(DType::Q6_K, scheme::Q6_K, rows, to);
        }
        (Format::Chunks, DType::IQ4_XS) => {
            chunks::<blocks::IQ4_XS>(DType::IQ4_XS, scheme::IQ4_XS, rows, to);
        }
        (Format::Chunks, other) => unreachable!("{other} has no chunks"),
    }
}

/// K-major elements; bfloat16 in pairs along K.
fn floats(dtype: DType, k: usize, rows: Rows<'_>, to: &mut [u8]) {
    match dtype {
        DType::F16 => interleave::<2>(rows, to, |k, r| (k * PANEL_ROWS + r) * 2),
        DType::BF16 => {
            interleave::<2>(rows, to, |k, r| (k / 2 * PANEL_ROWS + r) * 4 + k % 2 * 2);
        }
        DType::F32 => interleave::<4>(rows, to, |k, r| (k * PANEL_ROWS + r) * 4),
        _ => {
            let mut values = vec![0.0; k];
            for (r, row) in rows.each() {
                dequantize(dtype, row, &mut values).expect("rows have their type's length");
                for (i, value) in values.iter().enumerate() {
                    to[(i * PANEL_ROWS + r) * 4..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}

/// K positions that are interleaved before the next row's: their lines stay in cache.
const K_RUN: usize = 64;

#[inline(always)]
fn interleave<const N: usize>(
    rows: Rows<'_>,
    to: &mut [u8],
    place: impl Fn(usize, usize) -> usize,
) {
    for first in (0..rows.row_bytes / N).step_by(K_RUN) {
        for (r, row) in rows.each() {
            let elements = row[first * N..].as_chunks::<N>().0;
            for (i, element) in elements.iter().take(K_RUN).enumerate() {
                to[place(first + i, r)..][..N].copy_from_slice(element);
            }
        }
    }
}

/// The rows' blocks with the same position next to each other.
fn file_blocks(dtype: DType, rows: Rows<'_>, to: &mut [u8]) {
    let bytes = dtype.block_bytes();
    for (r, row) in rows.each() {
        for (b, block) in row.chunks_exact(bytes).enumerate() {
            to[(b * PANEL_ROWS + r) * bytes..][..bytes].copy_from_slice(block);
        }
    }
}

#[inline(never)]
fn chunks<B: Blocks>(dtype: DType, scheme: Scheme, rows: Rows<'_>, to: &mut [u8]) {
    let (bytes, runs) = (dtype.block_bytes(), dtype.block_elems() / BLOCK);
    let per_chunk = scheme.blocks / runs;
    for (c, chunk) in to.chunks_exact_mut(scheme.bytes()).enumerate() {
        for (r, row) in rows.each() {
            let from = &row[(c * per_chunk * bytes).min(row.len())..];
            for (b, block) in from.chunks_exact(bytes).take(per_chunk).enumerate() {
                B::factors(block, b, r, chunk);
                for i in 0..runs {
                    let at = scheme.codes_at(b * runs + i) + 4 * r;
                    place(scheme.codes, B::quads(block, i), &mut chunk[at..]);
                }
            }
        }
    }
}

/// Writes one row's codes of a 32-block: words at a stride of a line.
#[inline(always)]
fn place(kind: Codes, q: Quads, to: &mut [u8]) {
    match kind {
        Codes::Eight => {
            for (i, quad) in q.into_iter().enumerate() {
                put(to, i, quad);
            }
        }
        Codes::Four => nibbles(q, to),
        Codes::Five => {
            nibbles(q, to);
            put(to, 4, plane::<1, 4>(q, 0));
        }
        Codes::Six => {
            nibbles(q, to);
            put(to, 4, plane::<2, 4>(q, 0));
            put(to, 5, plane::<2, 4>(q, 4));
        }
        Codes::Two => {
            put(to, 0, plane::<2, 0>(q, 0));
            put(to, 1, plane::<2, 0>(q, 4));
        }
        Codes::Three => {
            put(to, 0, plane::<2, 0>(q, 0));
            put(to, 1, plane::<2, 0>(q, 4));
            put(to, 2, plane::<1, 2>(q, 0));
        }
    }
}

#[inline(always)]
fn put(to: &mut [u8], line: usize, word: u32) {
    let to: &mut [u8; 4] = (&mut to[64 * line..][..4]).try_into().expect("four bytes");
    *to = word.to_le_bytes();
}

/// Lines of two quads each: the low nibbles of quad `2j` below those of quad `2j + 1`.
#[inline(always)]
fn nibbles(q: Quads, to: &mut [u8]) {
    for j in 0..4 {
        put(
            to,
            j,
            q[2 * j] & 0x0f0f_0f0f | (q[2 * j + 1] & 0x0f0f_0f0f) << 4,
        );
    }
}

/// `BITS` bits of each code, from bit `FROM` on, of the `8 / BITS` quads from `first` on.
#[inline(always)]
fn plane<const BITS: usize, const FROM: usize>(q: Quads, first: usize) -> u32 {
    let mask = (0xff >> (8 - BITS)) * 0x0101_0101;
    let mut plane = 0;
    for i in 0..8 / BITS {
        plane |= ((q[first + i] >> FROM) & mask) << (BITS * i);
    }
    plane
}
