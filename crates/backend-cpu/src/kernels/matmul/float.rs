//! Drivers and inner loops for float weights: `f32` products, four partial sums per output.
//!
//! Partial sum `j` runs over the K positions that are `j` modulo 4, in order; the output is
//! `(p0 + p1) + (p2 + p3)`. So a single row has four independent chains, and many rows take the
//! chains one after the other.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use tokkata_core::DType;

use super::simd::{ROWS, Simd, Task};
use super::tile::{On, ahead, even, for_width};
use super::{Job, Out};
use crate::memory::LINE_BYTES;
use crate::tuning::Fetch;

/// Rows up to which stored panels are converted in registers.
const STREAM_ROWS: usize = 4;

/// A stored float type.
trait Element: Copy {
    /// Bytes of four K positions of a panel.
    const BYTES: usize;
    unsafe fn four<S: Simd>(p: *const u8) -> [S::Floats; 4];
}

#[derive(Clone, Copy)]
struct Single;
#[derive(Clone, Copy)]
struct Half;
#[derive(Clone, Copy)]
struct Bfloat;

impl Element for Single {
    const BYTES: usize = 256;
    #[inline(always)]
    unsafe fn four<S: Simd>(p: *const u8) -> [S::Floats; 4] {
        // SAFETY: the caller gives four K positions.
        unsafe {
            let p = p.cast::<f32>();
            [
                S::floats(p),
                S::floats(p.add(16)),
                S::floats(p.add(32)),
                S::floats(p.add(48)),
            ]
        }
    }
}

impl Element for Half {
    const BYTES: usize = 128;
    #[inline(always)]
    unsafe fn four<S: Simd>(p: *const u8) -> [S::Floats; 4] {
        // SAFETY: the caller gives four K positions.
        unsafe {
            [
                S::halves(p),
                S::halves(p.add(32)),
                S::halves(p.add(64)),
                S::halves(p.add(96)),
            ]
        }
    }
}

impl Element for Bfloat {
    const BYTES: usize = 128;
    #[inline(always)]
    unsafe fn four<S: Simd>(p: *const u8) -> [S::Floats; 4] {
        // SAFETY: the caller gives four K positions.
        unsafe {
            let (a, b) = S::bfloat_pairs(p);
            let (c, d) = S::bfloat_pairs(p.add(64));
            [a, b, c, d]
        }
    }
}

/// # Safety
/// The processor has set `S`; the panels hold `dtype`; the activations have the matrix's K.
pub(super) unsafe fn run<S: Simd>(job: Job<'_>, dtype: DType) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F16 => typed::<S, Half>(job),
            DType::BF16 => typed::<S, Bfloat>(job),
            _ => typed::<S, Single>(job),
        }
    }
}

unsafe fn typed<S: Simd, E: Element>(job: Job<'_>) {
    // SAFETY: passed on.
    unsafe {
        if job.x.rows() <= STREAM_ROWS {
            stream::<S, E>(job);
        } else {
            grouped::<S, E>(job);
        }
    }
}

/// Interleaved columns: four runs of `run` positions, one per K position modulo 4.
#[derive(Clone, Copy)]
struct Columns {
    values: *const f32,
    run: usize,
    width: usize,
}

unsafe fn stream<S: Simd, E: Element>(job: Job<'_>) {
    let Job {
        matrix,
        start,
        x,
        kernel,
        panels,
        epilogue,
        ..
    } = job;
    let (rows, groups) = (x.rows(), matrix.k().div_ceil(4));
    let columns = Columns {
        values: x.floats(0).as_ptr(),
        run: x.padded_k() / 4,
        width: rows,
    };
    let mut out = Out::new();
    for &panel in panels {
        let from = start.wrapping_add(panel.byte);
        for c in 0..rows.div_ceil(2) {
            let (first, count) = (2 * c, (rows - 2 * c).min(2));
            // SAFETY: passed on; columns `first..first + count` exist.
            unsafe {
                let columns = Columns {
                    values: columns.values.add(first),
                    ..columns
                };
                let to = out.0[first..].as_mut_ptr();
                if count == 1 {
                    let task = Streamed::<E, 1> {
                        from,
                        groups,
                        columns,
                        to,
                        fetch: kernel.fetch_for(rows, 1),
                        element: PhantomData,
                    };
                    S::vectorize(On(task, PhantomData::<S>));
                } else {
                    let task = Streamed::<E, 2> {
                        from,
                        groups,
                        columns,
                        to,
                        fetch: kernel.fetch_for(rows, 1),
                        element: PhantomData,
                    };
                    if S::WHOLE_GROUPED_COLS >= 2 {
                        S::vectorize(On(task, PhantomData::<S>));
                    } else {
                        S::Low::vectorize(On(task.clone(), PhantomData::<S::Low>));
                        S::High::vectorize(On(task, PhantomData::<S::High>));
                    }
                }
            }
        }
        epilogue.tile(0..rows, panel.row..panel.row + panel.rows, &out.0[..rows]);
    }
}

/// A stored panel times `C` columns, all four partial sums at once.
#[derive(Clone)]
struct Streamed<E, const C: usize> {
    from: *const u8,
    groups: usize,
    columns: Columns,
    to: *mut [f32; ROWS],
    fetch: Fetch,
    element: PhantomData<E>,
}

impl<S: Simd, E: Element, const C: usize> Task for On<S, Streamed<E, C>> {
    #[inline(always)]
    unsafe fn run(self) {
        let Streamed {
            from,
            groups,
            columns,
            to,
            fetch,
            ..
        } = self.0;
        let Columns { values, run, width } = columns;
        // SAFETY: as the fields promise: `groups` groups of four positions, `C` columns and results.
        unsafe {
            let mut sums = [[S::zero(); 4]; C];
            for g in 0..groups {
                let at = from.add(g * E::BYTES);
                ahead::<S>(fetch, at, E::BYTES / LINE_BYTES);
                let w = E::four::<S>(at);
                for (c, sums) in sums.iter_mut().enumerate() {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let x = S::splat(values.add((j * run + g) * width + c));
                        *sum = S::fma(w[j], x, *sum);
                    }
                }
            }
            for (c, [a, b, d, e]) in sums.into_iter().enumerate() {
                S::store(to.add(c).cast(), S::add(S::add(a, b), S::add(d, e)));
            }
        }
    }
}

unsafe fn grouped<S: Simd, E: Element>(job: Job<'_>) {
    let Job {
        matrix,
        start,
        x,
        kernel,
        panels,
        scratch,
        epilogue,
        ..
    } = job;
    let groups = matrix.k().div_ceil(4);
    let bytes = groups * 4 * ROWS * size_of::<f32>();
    let group = (kernel.group_bytes() / bytes / 2 * 2).max(2);
    scratch.loose.resize(group * bytes);
    let mut out = Out::new();
    for panels in panels.chunks(group) {
        for (&panel, to) in panels.iter().zip(scratch.loose.chunks_exact_mut(bytes)) {
            let from = start.wrapping_add(panel.byte);
            let to = to.as_mut_ptr().cast();
            let task = Convert::<E> {
                from,
                groups,
                to,
                element: PhantomData,
            };
            // SAFETY: passed on; `to` has room for the panel as floats.
            unsafe { S::vectorize(On(task, PhantomData::<S>)) };
        }
        for t in 0..x.tiles() {
            let rows = x.tile(t);
            let width = rows.len();
            let columns = Columns {
                values: x.floats(t).as_ptr(),
                run: x.padded_k() / 4,
                width,
            };
            for (&panel, from) in panels.iter().zip(scratch.loose.chunks_exact(bytes)) {
                // SAFETY: passed on; the panel was converted above.
                unsafe { passes::<S>(from.as_ptr().cast(), groups, columns, &mut out) };
                epilogue.tile(
                    rows.clone(),
                    panel.row..panel.row + panel.rows,
                    &out.0[..width],
                );
            }
        }
    }
}

/// A stored panel into four runs of `f32`, one per K position modulo 4.
struct Convert<E> {
    from: *const u8,
    groups: usize,
    to: *mut f32,
    element: PhantomData<E>,
}

impl<S: Simd, E: Element> Task for On<S, Convert<E>> {
    #[inline(always)]
    unsafe fn run(self) {
        let Convert {
            from, groups, to, ..
        } = self.0;
        for g in 0..groups {
            // SAFETY: as the fields promise.
            unsafe {
                for (j, &w) in E::four::<S>(from.add(g * E::BYTES)).iter().enumerate() {
                    S::store(to.add((j * groups + g) * ROWS), w);
                }
            }
        }
    }
}

unsafe fn passes<S: Simd>(panel: *const f32, groups: usize, columns: Columns, out: &mut Out) {
    let mut c = 0;
    while c < columns.width {
        let cols = even(columns.width - c, S::FLOAT_COLS);
        // SAFETY: passed on; `c` is below the width.
        unsafe {
            let columns = Columns {
                values: columns.values.add(c),
                ..columns
            };
            one_pass::<S>(cols, (panel, groups), columns, out.0[c..].as_mut_ptr());
        }
        c += cols;
    }
}

/// Runs the inner loop for `cols` columns.
unsafe fn one_pass<S: Simd>(
    cols: usize,
    (panel, groups): (*const f32, usize),
    columns: Columns,
    to: *mut [f32; ROWS],
) {
    macro_rules! go {
        ($cols:literal) => {{
            // Counts that the set never asks for are not compiled.
            if $cols <= S::FLOAT_COLS {
                let task = Tile::<$cols> {
                    panel,
                    groups,
                    columns,
                    to,
                };
                // SAFETY: passed on.
                unsafe { S::vectorize(On(task, PhantomData::<S>)) }
            }
        }};
    }
    for_width!(cols, go);
}

/// A converted panel times `C` columns, one partial sum after the other.
struct Tile<const C: usize> {
    panel: *const f32,
    groups: usize,
    columns: Columns,
    to: *mut [f32; ROWS],
}

impl<S: Simd, const C: usize> Task for On<S, Tile<C>> {
    #[inline(always)]
    unsafe fn run(self) {
        let Tile {
            panel,
            groups,
            columns,
            to,
        } = self.0;
        let Columns { values, run, width } = columns;
        // SAFETY: as the fields promise.
        unsafe {
            let mut pairs = [[S::zero(); C]; 2];
            for (p, pair) in pairs.iter_mut().enumerate() {
                let mut sums = [[S::zero(); C]; 2];
                for (i, sums) in sums.iter_mut().enumerate() {
                    let j = 2 * p + i;
                    let mut w = panel.add(j * groups * ROWS);
                    let mut x = values.add(j * run * width);
                    for _ in 0..groups {
                        let weights = S::floats(w);
                        for (c, sum) in sums.iter_mut().enumerate() {
                            *sum = S::fma(weights, S::splat(x.add(c)), *sum);
                        }
                        w = S::step(w, ROWS);
                        x = S::step(x, width);
                    }
                }
                for c in 0..C {
                    pair[c] = S::add(sums[0][c], sums[1][c]);
                }
            }
            for (c, (&a, &b)) in pairs[0].iter().zip(&pairs[1]).enumerate() {
                S::store(to.add(c).cast(), S::add(a, b));
            }
        }
    }
}
