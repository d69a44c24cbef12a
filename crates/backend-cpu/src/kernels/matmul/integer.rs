//! Drivers for quantised weights.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use tokkata_core::DType;
use tokkata_quant::{Layout, Unpacked};

use super::panel::{Loose, Panel, loose_bytes, loosen};
use super::simd::{ROWS, Simd, Task};
use super::tile::{Columns, On, TILE_COLS, Tile};
use super::{Activations, GROUP_BYTES, Job, Out, PanelAt, Scratch};
use crate::layout::{BLOCK, Matrix};

/// Rows up to which stored panels are streamed for every pass instead of being unpacked first.
const STREAM_ROWS: usize = 8;

/// # Safety
/// The processor has set `S`; the panels hold chunks of `P`; the activations have the matrix's K.
pub(super) unsafe fn run<S: Simd, P: Panel<S>>(job: Job<'_>) {
    prepare(job.x, P::SUBS, P::BIAS, P::MINS, job.scratch);
    // SAFETY: passed on.
    unsafe {
        if job.x.rows() <= STREAM_ROWS {
            stream::<S, P>(job);
        } else if P::QUADS == 0 && P::SUBS == 1 && P::BYTES / P::BLOCKS > 512 {
            // Codes are stored as they are used: nothing to gain by unpacking.
            let bytes = job.matrix.segment(job.panels[0].segment).panel_bytes;
            grouped::<S, P>(job, bytes, None);
        } else {
            unpacked::<S, P>(job);
        }
    }
}

/// Chooses the unpacked form of `P`.
unsafe fn unpacked<S: Simd, P: Panel<S>>(job: Job<'_>) {
    let loosen: Loosen<'_> = &|matrix, panel, to| {
        let from = matrix.at(panel);
        let chunks = matrix.segment(panel.segment).panel_bytes / P::BYTES;
        // SAFETY: the panel holds its chunks, and `grouped` made room.
        unsafe {
            S::vectorize(On(
                Unpack::<P> {
                    from,
                    chunks,
                    to,
                    format: PhantomData,
                },
                PhantomData::<S>,
            ));
        };
    };
    let stored = job.matrix.segment(job.panels[0].segment).panel_bytes;
    let bytes = stored / P::BYTES * P::BLOCKS * loose_bytes(P::SUBS, P::MINS);
    let loosen = Some(loosen);
    // SAFETY: passed on. `quads` is a constant of `P`; only wanted cases are compiled in.
    unsafe {
        match (P::SUBS, P::MINS, P::QUADS) {
            (1, false, 8) => grouped::<S, Loose<1, false, 8, 1>>(job, bytes, loosen),
            (1, false, 4) => grouped::<S, Loose<1, false, 4, 1>>(job, bytes, loosen),
            (1, false, _) => grouped::<S, Loose<1, false, 0, 1>>(job, bytes, loosen),
            (1, true, 8) => grouped::<S, Loose<1, true, 8, 0>>(job, bytes, loosen),
            (1, true, _) => grouped::<S, Loose<1, true, 4, 0>>(job, bytes, loosen),
            (_, false, 8) => grouped::<S, Loose<2, false, 8, 1>>(job, bytes, loosen),
            (_, false, _) => grouped::<S, Loose<2, false, 2, 1>>(job, bytes, loosen),
            (_, true, _) => grouped::<S, Loose<2, true, 8, 0>>(job, bytes, loosen),
        }
    }
}

/// Writes the unpacked form of a panel.
type Loosen<'a> = &'a dyn Fn(&Matrix, PanelAt, *mut u8);

struct Unpack<P> {
    from: *const u8,
    chunks: usize,
    to: *mut u8,
    format: PhantomData<P>,
}

impl<S: Simd, P: Panel<S>> Task for On<S, Unpack<P>> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: as the fields promise.
        unsafe { loosen::<S, P>(self.0.from, self.0.chunks, self.0.to) }
    }
}

/// Derives, from the sums of codes, where integer sums start and what minima are multiplied with.
fn prepare(x: &Activations, subs: usize, bias: i32, mins: bool, scratch: &mut Scratch) {
    let per_row = x.padded_k() / BLOCK * subs;
    scratch
        .starts
        .resize(if bias == 0 { 0 } else { x.rows() * per_row });
    scratch
        .sums
        .resize(if mins { x.rows() * per_row } else { 0 });
    for t in 0..x.tiles() {
        let width = x.width(t);
        let range = t * TILE_COLS * per_row..(t * TILE_COLS + width) * per_row;
        if bias != 0 {
            combine(
                x.sums(t),
                width,
                subs,
                &mut scratch.starts[range.clone()],
                |s| -bias * s,
            );
        }
        if mins {
            combine(x.sums(t), width, subs, &mut scratch.sums[range], |s| {
                s as f32
            });
        }
    }
}

/// Maps the sums of 16 codes, or those of 32 when there is one scale per block.
fn combine<T>(sums: &[i32], width: usize, subs: usize, to: &mut [T], f: impl Fn(i32) -> T) {
    if subs == 2 {
        for (to, &sum) in to.iter_mut().zip(sums) {
            *to = f(sum);
        }
        return;
    }
    for (to, sums) in to.chunks_exact_mut(width).zip(sums.chunks_exact(2 * width)) {
        for (c, to) in to.iter_mut().enumerate() {
            *to = f(sums[c] + sums[width + c]);
        }
    }
}

fn columns(x: &Activations, scratch: &Scratch, t: usize, subs: usize) -> Columns {
    let first = t * TILE_COLS * (x.padded_k() / BLOCK) * subs;
    let starts = scratch.starts.get(first..).unwrap_or(&[]);
    let sums = scratch.sums.get(first..).unwrap_or(&[]);
    Columns {
        codes: x.codes(t).as_ptr(),
        scales: x.scales(t).as_ptr(),
        starts: starts.as_ptr(),
        sums: sums.as_ptr(),
        width: x.width(t),
    }
}

/// Few rows: one pass over the stored panels.
unsafe fn stream<S: Simd, P: Panel<S>>(job: Job<'_>) {
    let columns = columns(job.x, job.scratch, 0, P::SUBS);
    let Job {
        matrix,
        x,
        panels,
        epilogue,
        ..
    } = job;
    let mut out = Out::new();
    for &panel in panels {
        let chunks = matrix.segment(panel.segment).panel_bytes / P::BYTES;
        // SAFETY: passed on.
        unsafe { passes::<S, P>(matrix.at(panel), chunks, columns, &mut out) };
        let cols = panel.row..panel.row + panel.rows;
        epilogue.tile(0..x.rows(), cols, &out.0[..x.rows()]);
    }
}

/// Many rows: groups of panels, in the form `U` of `bytes` bytes, stay in cache while tiles pass over
/// them. Groups are even, so that they hold both panels of alternating parts.
unsafe fn grouped<S: Simd, U: Panel<S>>(job: Job<'_>, bytes: usize, loosen: Option<Loosen<'_>>) {
    let Job {
        matrix,
        x,
        panels,
        scratch,
        epilogue,
    } = job;
    let group = (GROUP_BYTES / bytes / 2 * 2).max(2);
    scratch
        .loose
        .resize(if loosen.is_some() { group * bytes } else { 0 });
    let mut out = Out::new();
    for panels in panels.chunks(group) {
        if let Some(loosen) = loosen {
            for (panel, to) in panels.iter().zip(scratch.loose.chunks_exact_mut(bytes)) {
                loosen(matrix, *panel, to.as_mut_ptr());
            }
        }
        for t in 0..x.tiles() {
            let columns = columns(x, scratch, t, U::SUBS);
            let rows = t * TILE_COLS..t * TILE_COLS + columns.width;
            for (i, &panel) in panels.iter().enumerate() {
                let stored = matrix.at(panel);
                let from = if loosen.is_some() {
                    scratch.loose[i * bytes..].as_ptr()
                } else {
                    stored
                };
                // SAFETY: passed on; unpacked panels were written above.
                unsafe { passes::<S, U>(from, bytes / U::BYTES, columns, &mut out) };
                let outputs = panel.row..panel.row + panel.rows;
                epilogue.tile(rows.clone(), outputs, &out.0[..rows.len()]);
            }
        }
    }
}

/// One panel times a tile, as many columns per pass as the set's registers hold.
#[inline(always)]
unsafe fn passes<S: Simd, P: Panel<S>>(
    panel: *const u8,
    chunks: usize,
    columns: Columns,
    out: &mut Out,
) {
    let mut c = 0;
    while c < columns.width {
        // SAFETY: passed on; `c` is below the width.
        unsafe {
            let left = (columns.width - c).min(most::<S, P>());
            c += one_pass::<S, P>(
                left,
                (panel, chunks),
                columns.from(c),
                out.0[c..].as_mut_ptr(),
            );
        }
    }
}

/// Runs the inner loop for `left` columns, or for as many as there is one for; returns how many.
unsafe fn one_pass<S: Simd, P: Panel<S>>(
    left: usize,
    (panel, chunks): (*const u8, usize),
    columns: Columns,
    out: *mut [f32; ROWS],
) -> usize {
    macro_rules! go {
        ($cols:literal) => {{
            let tile = Tile::<P, $cols> {
                panel,
                chunks,
                columns,
                out,
                format: PhantomData,
            };
            // Counts that the set never asks for are not compiled.
            if $cols <= most::<S, P>() {
                // SAFETY: passed on.
                unsafe { S::vectorize(On(tile, PhantomData::<S>)) }
            }
            $cols
        }};
    }
    match left {
        1 => go!(1),
        2 => go!(2),
        3 => go!(3),
        4 | 5 => go!(4),
        6 | 7 => go!(6),
        8..12 => go!(8),
        _ => go!(12),
    }
}

/// Most columns of one pass.
const fn most<S: Simd, P: Panel<S>>() -> usize {
    let (loose, stored) = (P::BLOCKS == 1, P::BYTES / P::BLOCKS > 512);
    if !loose && !stored {
        S::STREAM_COLS
    } else if P::QUADS == 0 {
        S::WIDE_COLS
    } else {
        S::LOOSE_COLS
    }
}

type AnyLoose = Loose<2, false, 0, 1>;

/// Formats without chunks: their blocks are taken apart whenever a panel is used.
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn run_blocks<S: Simd>(job: Job<'_>, dtype: DType) {
    prepare(job.x, 2, 128, false, job.scratch);
    let k = job.matrix.k();
    let loosen: Loosen<'_> = &|matrix, panel, to| {
        // SAFETY: `grouped` made room for the panel's unpacked form.
        unsafe { take_apart(dtype, matrix.at(panel), k, to) };
    };
    let bytes = k.div_ceil(BLOCK) * loose_bytes(2, false);
    // SAFETY: passed on.
    unsafe { grouped::<S, AnyLoose>(job, bytes, Some(loosen)) };
}

/// Unpacks a panel of file blocks into [`AnyLoose`] blocks.
pub(super) unsafe fn take_apart(dtype: DType, from: *const u8, k: usize, to: *mut u8) {
    let layout = Layout::of(dtype).expect("the format has blocks");
    let mut u = Unpacked::new();
    let size = loose_bytes(2, false);
    for b in 0..k / layout.elems() {
        for r in 0..ROWS {
            // SAFETY: the panel holds sixteen blocks per position.
            let block = unsafe {
                let at = (b * ROWS + r) * layout.bytes();
                std::slice::from_raw_parts(from.add(at), layout.bytes())
            };
            layout.unpack(block, &mut u).expect("one block");
            for i in 0..layout.elems() / BLOCK {
                let at = (b * layout.elems() / BLOCK + i) * size;
                // SAFETY: the caller made room for every 32-block.
                let to = unsafe { std::slice::from_raw_parts_mut(to.add(at), size) };
                place(&u, layout.sub_elems(), i, r, to);
            }
        }
    }
}

/// Row `r`'s part of 32-block `i`.
fn place(u: &Unpacked, sub_elems: usize, i: usize, r: usize, to: &mut [u8]) {
    for (e, code) in u.codes[BLOCK * i..BLOCK * (i + 1)].iter().enumerate() {
        to[64 * (e / 4) + 4 * r + e % 4] = *code as u8 ^ 0x80;
    }
    for half in 0..2 {
        let scale = u.scale((BLOCK * i + 16 * half) / sub_elems);
        to[512 + 64 * half + 4 * r..][..4].copy_from_slice(&scale.to_le_bytes());
    }
}
