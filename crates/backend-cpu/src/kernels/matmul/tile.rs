//! The inner loops: one panel times a few columns.
//!
//! Per 32-block the products are exact integers; one float operation sequence per block, in K
//! order, makes every output the same whatever else the tile computes:
//! `y = fma(scale * int - min * sum, d, y)`.
//!
//! Integer sums start at [`OFFSET`], so that their bits are those of the float `OFFSET + int`, and
//! `scale * int` is `fma(OFFSET + int, scale, -OFFSET * scale)`: one operation instead of a conversion and a product,
//! and the same bits where scales have so few digits that `OFFSET * scale` is exact: [`Panel::OFFSET`].
#![allow(unsafe_code)]

use std::ops::Range;

use super::panel::Panel;
use super::simd::{ROWS, Simd, Task};
use crate::memory::LINE_BYTES;
use crate::tuning::Fetch;

/// Most activation rows that are interleaved, and most columns of a tile.
pub(crate) const TILE_COLS: usize = 12;

/// 1.5 · 2^23: adding an integer below 2^22 in magnitude changes the low bits of its float by that integer.
pub(crate) const OFFSET: f32 = 12_582_912.0;
/// What an integer sum starts at.
pub(crate) const OFFSET_BITS: i32 = OFFSET.to_bits() as i32;

/// Rows of tile `t` of `rows` rows: no more tiles than there must be, whose widths differ by one at most. Narrow tiles
/// take as long as wider ones, since every sum waits for itself.
pub(crate) fn tile_rows(rows: usize, t: usize) -> Range<usize> {
    let tiles = rows.div_ceil(TILE_COLS);
    t * rows / tiles..(t + 1) * rows / tiles
}

/// The tile that row `row` of `rows` is in.
pub(crate) fn tile_of(rows: usize, row: usize) -> usize {
    ((row + 1) * rows.div_ceil(TILE_COLS) - 1) / rows
}

/// Columns of the next pass, for `left` columns in even passes of up to `most`.
pub(super) fn even(left: usize, most: usize) -> usize {
    left.div_ceil(left.div_ceil(most))
}

/// Runs `$go!(COLUMNS)` with the number of columns as a literal.
macro_rules! for_width {
    ($cols:expr, $go:ident) => {
        match $cols {
            1 => $go!(1),
            2 => $go!(2),
            3 => $go!(3),
            4 => $go!(4),
            5 => $go!(5),
            6 => $go!(6),
            7 => $go!(7),
            8 => $go!(8),
            9 => $go!(9),
            10 => $go!(10),
            11 => $go!(11),
            _ => $go!(12),
        }
    };
}
pub(super) use for_width;

/// Quantised columns, interleaved: element `(x, c)` of each table lies at `x * width + c`.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// Quads of four signed bytes, or of four words.
    pub(crate) codes: *const i8,
    /// Scale per 32-block.
    pub(crate) scales: *const f32,
    /// Where integer sums start, per scale of the weights: [`OFFSET_BITS`] minus bias times the sum of codes.
    pub(crate) starts: *const i32,
    /// Sums of codes, per scale of the weights.
    pub(crate) sums: *const f32,
    /// Interleaved columns.
    pub(crate) width: usize,
}

impl Columns {
    /// The columns from `c` on.
    #[inline(always)]
    pub(crate) unsafe fn from<P: Panel>(self, c: usize) -> Self {
        // SAFETY: the caller stays below `width`. Tables that a format does not use may be dangling.
        Self {
            codes: self.codes.wrapping_add(P::COLUMN_BYTES / 8 * c),
            scales: self.scales.wrapping_add(c),
            starts: self.starts.wrapping_add(c),
            sums: self.sums.wrapping_add(c),
            width: self.width,
        }
    }
}

/// Some chunks of a panel.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) panel: *const u8,
    pub(crate) chunks: usize,
    /// Whether results so far are added to.
    pub(crate) goes_on: bool,
    /// How a stored panel is fetched ahead.
    pub(crate) fetch: Fetch,
    /// What is fetched while an unpacked panel is at work.
    pub(crate) next: Next,
}

/// Memory that is wanted later, fetched a few lines per block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) at: *const u8,
    pub(crate) lines: usize,
}

impl Next {
    /// Nothing.
    pub(crate) const NONE: Self = Next {
        at: std::ptr::null(),
        lines: 0,
    };

    /// `bytes` bytes from `at` on, over `blocks` blocks.
    pub(crate) fn over(at: *const u8, bytes: usize, blocks: usize) -> Self {
        let lines = bytes.div_ceil(LINE_BYTES).div_ceil(blocks.max(1));
        Next { at, lines }
    }

    /// What is left after `blocks` blocks.
    pub(crate) fn after(self, blocks: usize) -> Self {
        let at = self.at.wrapping_add(blocks * self.lines * LINE_BYTES);
        Next { at, ..self }
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: a hint, which no address makes fail.
            unsafe { S::prefetch_second(self.at) };
            self.at = self.at.wrapping_add(LINE_BYTES);
        }
    }
}

/// Fetches `lines` lines as far ahead of `at` as `fetch` says.
#[inline(always)]
pub(super) unsafe fn ahead<S: Simd>(fetch: Fetch, at: *const u8, lines: usize) {
    let (level, ahead_bytes) = match fetch {
        Fetch::Nothing => (0, 0),
        Fetch::First(bytes) => (1, bytes),
        Fetch::Second(bytes) => (2, bytes),
    };
    let at = at.wrapping_add(ahead_bytes);
    // SAFETY: hints, which no address makes fail.
    unsafe {
        match hidden(level) {
            0 => {}
            1 => {
                for line in 0..lines {
                    S::prefetch_first(at.wrapping_add(LINE_BYTES * line));
                }
            }
            _ => {
                for line in 0..lines {
                    S::prefetch_second(at.wrapping_add(LINE_BYTES * line));
                }
            }
        }
    }
}

/// `level`, of which the compiler does not know that it stays the same: it would compile each loop for all.
#[inline(always)]
fn hidden(mut level: usize) -> usize {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) level, options(pure, nomem, nostack, preserves_flags));
    }
    level
}

/// A stretch of a panel times `C` columns.
#[derive(Clone)]
pub(crate) struct Tile<P, const C: usize> {
    pub(crate) part: Stretch,
    pub(crate) columns: Columns,
    pub(crate) out: *mut [f32; ROWS],
    pub(crate) format: std::marker::PhantomData<P>,
}

/// Lets a task name its instruction set.
pub(crate) struct On<S, T>(pub(crate) T, pub(crate) std::marker::PhantomData<S>);

impl<S: Simd, P: Panel, const C: usize> Task for On<S, Tile<P, C>> {
    #[inline(always)]
    unsafe fn run(self) {
        let Tile {
            part,
            mut columns,
            out,
            ..
        } = self.0;
        let Stretch {
            mut panel,
            chunks,
            goes_on,
            fetch,
            mut next,
        } = part;
        // SAFETY: the panel holds `chunks` chunks, the columns as many blocks, `out` `C` entries.
        unsafe {
            let mut y = [S::zero(); C];
            for (c, y) in y.iter_mut().enumerate() {
                if goes_on {
                    *y = S::floats(out.add(c).cast());
                } else if C > kept::<S, P>() {
                    S::store(out.add(c).cast(), *y);
                }
            }
            for _ in 0..chunks {
                for i in 0..P::BLOCKS {
                    // Unpacked panels are in the second-level cache already.
                    if P::BLOCKS > 1 {
                        let bytes = P::BYTES / P::BLOCKS;
                        ahead::<S>(fetch, panel.wrapping_add(i * bytes), bytes / LINE_BYTES);
                    } else {
                        next.step::<S>();
                    }
                    let sums = Sums {
                        kept: (C <= kept::<S, P>()).then_some(&mut y),
                        out,
                    };
                    if by_column::<S, P>() && C > 1 {
                        block_by_column::<S, P, C>(panel, i, columns, out);
                    } else {
                        block::<S, P, C>(panel, i, columns, sums);
                    }
                    columns = columns.after::<S, P>(1);
                }
                panel = S::step(panel, P::BYTES);
            }
            for (c, &y) in y.iter().enumerate() {
                if C <= kept::<S, P>() {
                    S::store(out.add(c).cast(), y);
                }
            }
        }
    }
}

impl Columns {
    /// What follows `blocks` blocks.
    #[inline(always)]
    pub(super) fn after<S: Simd, P: Panel>(self, blocks: usize) -> Self {
        let entries = blocks * self.width;
        Self {
            codes: S::step(self.codes, P::COLUMN_BYTES * entries),
            scales: S::step(self.scales, entries),
            starts: S::step(self.starts, P::SUBS * entries),
            sums: S::step(self.sums, P::SUBS * entries),
            width: self.width,
        }
    }
}

/// Most columns whose results stay in registers from block to block.
const fn kept<S: Simd, P: Panel>() -> usize {
    if by_column::<S, P>() {
        1
    } else if P::BLOCKS > 1 && P::SUBS == 1 && P::QUADS < 8 {
        S::KEPT_STORED_COLS
    } else {
        S::KEPT_COLS
    }
}

/// Results so far: in registers, or where they will be read, if registers are few.
struct Sums<'a, S: Simd, const C: usize> {
    kept: Option<&'a mut [S::Floats; C]>,
    out: *mut [f32; ROWS],
}

impl<S: Simd, const C: usize> Sums<'_, S, C> {
    /// Adds `a * b` to column `c`.
    #[inline(always)]
    unsafe fn add(&mut self, c: usize, a: S::Floats, b: S::Floats) {
        // SAFETY: the column exists.
        unsafe {
            if let Some(kept) = &mut self.kept {
                kept[c] = S::fma(a, b, kept[c]);
            } else {
                let to = self.out.add(c).cast();
                S::store(to, S::fma(a, b, S::floats(to)));
            }
        }
    }
}

#[inline(always)]
unsafe fn block<S: Simd, P: Panel, const C: usize>(
    chunk: *const u8,
    i: usize,
    columns: Columns,
    mut y: Sums<'_, S, C>,
) {
    // SAFETY: as the tile promises.
    unsafe {
        let first = products::<S, P, C>(chunk, i, columns, 0);
        let chunk = if P::PAIRED {
            S::later(chunk, &first[0])
        } else {
            chunk
        };
        let factors = P::factors::<S>(chunk, i);
        let less = S::splat(&-OFFSET);
        let base = S::mul(factors.scale[0], less);
        let scaled = |ints: S::Ints| {
            if P::OFFSET {
                S::fma(S::float_bits(ints), factors.scale[0], base)
            } else {
                S::mul(S::floats_of(ints), factors.scale[0])
            }
        };
        // Sums of one half become floats before those of the other are begun: registers are few.
        let mut both = [S::zero(); C];
        if P::SUBS == 2 {
            for c in 0..C {
                both[c] = scaled(first[c]);
            }
            let second = products::<S, P, C>(chunk, i, columns, 1);
            for c in 0..C {
                let ints = if P::OFFSET {
                    S::add(S::float_bits(second[c]), less)
                } else {
                    S::floats_of(second[c])
                };
                both[c] = S::fma(ints, factors.scale[1], both[c]);
            }
        }
        let second_sums = S::step(columns.sums, columns.width);
        for c in 0..C {
            let mut t = if P::SUBS == 2 {
                both[c]
            } else {
                scaled(first[c])
            };
            if P::MINS {
                t = S::fnma(factors.min[0], S::splat(columns.sums.add(c)), t);
            }
            if P::MINS && P::SUBS == 2 {
                t = S::fnma(factors.min[1], S::splat(second_sums.wrapping_add(c)), t);
            }
            y.add(c, t, S::splat(columns.scales.add(c)));
        }
    }
}

/// Whether columns take turns with half a block, whose codes stay in registers: two sums a block of all columns would not.
/// Minima are more than registers have room for.
pub(super) const fn by_column<S: Simd, P: Panel>() -> bool {
    S::BY_COLUMN && P::SUBS == 2 && P::QUADS > 0 && !P::MINS && !P::WORDS && !P::PAIRED
}

/// As [`block`], where columns take turns with half of its codes, with results in memory.
#[inline(always)]
unsafe fn block_by_column<S: Simd, P: Panel, const C: usize>(
    chunk: *const u8,
    i: usize,
    columns: Columns,
    out: *mut [f32; ROWS],
) {
    // SAFETY: as the tile promises.
    unsafe {
        let factors = P::factors::<S>(chunk, i);
        let less = S::splat(&-OFFSET);
        let base = S::mul(factors.scale[0], less);
        for sub in 0..2 {
            let (q0, q1) = P::pair::<S>(chunk, i, 2 * sub);
            let (q2, q3) = P::pair::<S>(chunk, i, 2 * sub + 1);
            let mut column = columns;
            // The compiler would take several columns at once, for which registers are too few.
            for c in 0..hidden(C) {
                let ints = half::<S, P>([q0, q1, q2, q3], column, sub);
                let parked = out.add(TILE_COLS + c).cast();
                if sub == 0 {
                    let t = if P::OFFSET {
                        S::fma(S::float_bits(ints), factors.scale[0], base)
                    } else {
                        S::mul(S::floats_of(ints), factors.scale[0])
                    };
                    S::store(parked, t);
                } else {
                    let ints = if P::OFFSET {
                        S::add(S::float_bits(ints), less)
                    } else {
                        S::floats_of(ints)
                    };
                    let t = S::fma(ints, factors.scale[1], S::floats(parked));
                    let to = out.add(c).cast();
                    S::store(to, S::fma(t, S::splat(column.scales), S::floats(to)));
                }
                column = column.from::<P>(1);
            }
        }
    }
}

/// Integer products of half a block with the first of `columns`.
#[inline(always)]
unsafe fn half<S: Simd, P: Panel>(codes: [S::Codes; 4], columns: Columns, sub: usize) -> S::Ints {
    // SAFETY: as the tile promises.
    unsafe {
        let start = if P::OFFSET { OFFSET_BITS } else { 0 };
        let mut sum = if P::BIAS == 0 {
            S::splat_int(&start)
        } else {
            S::splat_int(columns.starts.add(sub * columns.width))
        };
        let at = |q: usize| columns.codes.add(4 * (4 * sub + q) * columns.width);
        let group = if P::QUADS < 4 { 2 } else { 4 };
        for g in 0..4 / group {
            let first = g * group;
            let mut n = S::narrow_first(S::narrow_start(sum), codes[first], at(first));
            for q in 1..group {
                n = S::narrow_dot(n, codes[first + q], at(first + q));
            }
            sum = S::narrow_end(sum, n);
        }
        sum
    }
}

/// Integer products of sub-block `sub` of a 32-block with every column.
#[inline(always)]
unsafe fn products<S: Simd, P: Panel, const C: usize>(
    chunk: *const u8,
    i: usize,
    columns: Columns,
    sub: usize,
) -> [S::Ints; C] {
    // SAFETY: as the tile promises.
    unsafe {
        let start = if P::OFFSET { OFFSET_BITS } else { 0 };
        let mut sums = [S::splat_int(&start); C];
        // Read again at the end of the first group where registers are few; a set uses them at one of the two places.
        let mut again = None;
        let biased = P::BIAS != 0 && !(P::QUADS == 0 && S::SIGNED_WIDE);
        if biased && !P::PAIRED {
            let starts = S::step(columns.starts, sub * columns.width);
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = S::splat_int(starts.add(c));
            }
            again = (C > kept::<S, P>()).then_some(starts);
        }
        let pairs = 4 / P::SUBS;
        if P::WORDS {
            let quads = 2 * pairs;
            let mut a = S::step(columns.codes, 8 * sub * quads * columns.width);
            for q in sub * quads..(sub + 1) * quads {
                S::word_quad(&mut sums, chunk.wrapping_add(128 * q), a);
                a = S::step(a, 8 * columns.width);
            }
        } else if P::PAIRED {
            let zero = S::splat_int(&0);
            let mut of_pairs = [zero; 4];
            let mut a = S::step(columns.codes, 8 * sub * pairs * columns.width);
            macro_rules! pair {
                ($j:literal) => {
                    if $j < pairs {
                        let b = S::step(a, 4 * columns.width);
                        let pair = chunk.wrapping_add(128 * (sub * pairs + $j));
                        if P::QUADS == 0 {
                            S::matrix_pair::<C, true>(&mut of_pairs, pair, [a, b]);
                        } else {
                            S::matrix_pair::<C, false>(&mut of_pairs, pair, [a, b]);
                        }
                        a = S::step(b, 4 * columns.width);
                    }
                };
            }
            pair!(0);
            pair!(1);
            pair!(2);
            pair!(3);
            let _ = a;
            if biased {
                let starts = S::step(columns.starts, sub * columns.width);
                let starts = S::later(starts, &of_pairs[0]);
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = S::splat_int(starts.add(c));
                }
            }
            S::matrix_end(&mut sums, of_pairs);
        } else if P::QUADS == 0 {
            wide::<S, P, C>(chunk, i, columns, (sub * pairs, pairs), again, &mut sums);
        } else {
            let group = if P::QUADS / 2 < pairs {
                P::QUADS / 2
            } else {
                pairs
            };
            for g in 0..pairs / group {
                let range = (sub * pairs + g * group, group);
                narrow::<S, P, C>(chunk, i, columns, range, again.take(), &mut sums);
            }
        }
        sums
    }
}

macro_rules! groups {
    ($($(#[$doc:meta])* $name:ident: $start:ident, $dot:ident, $first_dot:ident, $quad:ident, $end:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        unsafe fn $name<S: Simd, P: Panel, const C: usize>(
            chunk: *const u8,
            i: usize,
            columns: Columns,
            (first, count): (usize, usize),
            starts: Option<*const i32>,
            sums: &mut [S::Ints; C],
        ) {
            // SAFETY: as the tile promises.
            unsafe {
                let mut n = [S::$start(sums[0]); C];
                for c in 1..C {
                    n[c] = S::$start(sums[c]);
                }
                let mut a = S::step(columns.codes, 8 * first * columns.width);
                macro_rules! quad {
                    ($codes:ident, $first:expr) => {
                        // One column has registers enough; of two scales a block, sums are few and short.
                        if C > 1 && $first {
                            for (c, n) in n.iter_mut().enumerate() {
                                *n = S::$first_dot(*n, $codes, a.add(4 * c));
                            }
                        } else if C > 1 && P::SUBS == 1 {
                            S::$quad(&mut n, $codes, a);
                        } else {
                            for (c, n) in n.iter_mut().enumerate() {
                                *n = S::$dot(*n, $codes, a.add(4 * c));
                            }
                        }
                    };
                }
                macro_rules! pair {
                    ($j:literal) => {
                        if $j < count {
                            let (low, high) = P::pair::<S>(chunk, i, first + $j);
                            quad!(low, $j == 0);
                            a = S::step(a, 4 * columns.width);
                            quad!(high, false);
                            a = S::step(a, 4 * columns.width);
                        }
                    };
                }
                // Loops over many columns would not be unrolled.
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
                let _ = a;
                if let Some(starts) = starts {
                    let starts = S::later(starts, &n[0]);
                    for c in 0..C {
                        sums[c] = S::splat_int(starts.add(c));
                    }
                }
                for c in 0..C {
                    sums[c] = S::$end(sums[c], n[c]);
                }
            }
        }
    )*};
}

groups! {
    /// Adds the products of the pairs `(first, count)` of quads, as one narrow group.
    narrow: narrow_start, narrow_dot, narrow_first, narrow_quad, narrow_end;
    /// As [`narrow`], for codes of eight bits.
    wide: wide_start, wide_dot, wide_first, wide_quad, wide_end;
}
