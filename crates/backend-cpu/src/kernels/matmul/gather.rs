//! Single rows out of panels: token embeddings of a tied table.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use half::{bf16, f16};
use tokkata_core::DType;

use super::integer::{AnyLoose, take_apart};
use super::panel::{self, Panel, loose_bytes, loosen};
use super::simd::{ROWS, Simd, Task};
use super::tile::On;
use super::{Scratch, with_panel};
use crate::layout::{BLOCK, Format, Matrix};
use crate::tuning::Fetch;

pub(super) fn row<S: Simd>(
    matrix: &Matrix,
    (row, fetch): (usize, Fetch),
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let (index, row) = matrix.locate(row);
    let segment = matrix.segment(index);
    let (local, r) = (row / ROWS, row % ROWS);
    let start = matrix.start().expect("mapped rows are read as they are");
    let from = start.wrapping_add(matrix.panel_of(index, local).byte);
    macro_rules! chunks {
        ($panel:ty) => {
            unpacked::<S, $panel>((from, fetch), r, scratch, out)
        };
    }
    // SAFETY: the panel holds `out.len()` columns in the segment's format; `S` is the kernel's set.
    unsafe {
        match segment.format {
            Format::Float => floats(segment.dtype, from, r, out),
            Format::Chunks => with_panel!(segment.dtype, chunks),
            Format::Blocks => {
                let blocks = out.len().div_ceil(BLOCK);
                scratch.loose.resize(blocks * loose_bytes(2, false));
                take_apart::<AnyLoose>(segment.dtype, from, out.len(), scratch.loose.as_mut_ptr());
                pick(&scratch.loose, (2, false, 128), r, out);
            }
        }
    }
}

unsafe fn floats(dtype: DType, from: *const u8, r: usize, out: &mut [f32]) {
    for (k, value) in out.iter_mut().enumerate() {
        // SAFETY: as `row`; every address is aligned for its type.
        *value = unsafe {
            match dtype {
                DType::F16 => f16::from_bits(*from.cast::<u16>().add(k * ROWS + r)).to_f32(),
                DType::BF16 => {
                    bf16::from_bits(*from.cast::<u16>().add((k / 2 * ROWS + r) * 2 + k % 2))
                        .to_f32()
                }
                _ => *from.cast::<f32>().add(k * ROWS + r),
            }
        };
    }
}

unsafe fn unpacked<S: Simd, P: Panel>(
    (from, fetch): (*const u8, Fetch),
    r: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let chunks = out.len().div_ceil(P::BLOCKS * BLOCK);
    scratch
        .loose
        .resize(chunks * P::BLOCKS * loose_bytes(P::SUBS, P::MINS));
    let to = scratch.loose.as_mut_ptr();
    let task = Whole::<P> {
        from,
        chunks,
        to,
        fetch,
        format: PhantomData,
    };
    // SAFETY: as `row`; the scratch has room for the panel's unpacked form.
    unsafe { S::vectorize(On(task, PhantomData::<S>)) };
    pick(&scratch.loose, (P::SUBS, P::MINS, P::BIAS), r, out);
}

struct Whole<P> {
    from: *const u8,
    chunks: usize,
    to: *mut u8,
    fetch: Fetch,
    format: PhantomData<P>,
}

impl<S: Simd, P: Panel> Task for On<S, Whole<P>> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: as the fields promise.
        unsafe {
            let Whole {
                from,
                chunks,
                to,
                fetch,
                ..
            } = self.0;
            loosen::<S, P, false>((from, chunks), to, fetch);
        }
    }
}

/// Row `r` of unpacked 32-blocks with `(subs, mins, bias)`.
fn pick(loose: &[u8], (subs, mins, bias): (usize, bool, i32), r: usize, out: &mut [f32]) {
    let blocks = loose.chunks_exact(loose_bytes(subs, mins));
    let float = |at: &[u8]| f32::from_le_bytes([at[0], at[1], at[2], at[3]]);
    for (block, values) in blocks.zip(out.chunks_mut(BLOCK)) {
        for (e, value) in values.iter_mut().enumerate() {
            let sub = e / (BLOCK / subs);
            let code = i32::from(block[64 * (e / 4) + 4 * r + e % 4]) - bias;
            let run = |n: usize| float(&block[512 + 64 * n + 4 * r..]);
            let min = if mins { run(subs + sub) } else { 0.0 };
            *value = run(sub) * code as f32 - min;
        }
    }
}
