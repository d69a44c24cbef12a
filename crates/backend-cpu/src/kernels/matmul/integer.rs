//! Drivers for quantised weights.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use tokkata_core::DType;
use tokkata_quant::{Layout, Unpacked};

use super::panel::{Loose, Panel, WORD_CODES, Words, loose_bytes, loosen, widen};
use super::simd::{ROWS, Simd, Task};
use super::tile::{
    Columns, Next, OFFSET_BITS, On, Stretch, TILE_COLS, Tile, by_column, even, for_width,
};
use super::{Activations, Job, Out, Scratch, panel, with_panel};
use crate::kernels::{Kernel, MOST_SINGLE};
use crate::layout::{BLOCK, Format, PanelAt, Segment};
use crate::memory::LINE_BYTES;
use crate::tuning::Fetch;

/// # Safety
/// The processor has set `S`; the panels hold chunks of `P`; the activations have the matrix's K.
pub(super) unsafe fn run<S: Simd, P: Panel>(job: Job<'_>) {
    let streams = job.kernel.streams(job.x.rows());
    let words = S::WORDS && !streams && P::QUADS == 0;
    let bias = if words { 0 } else { P::BIAS };
    prepare(job.x, P::SUBS, (OFFSET_BITS, bias), P::MINS, job.scratch);
    // SAFETY: passed on.
    unsafe {
        if streams || streams_twice::<S, P>(&job) {
            stream::<S, P>(job);
        } else if words {
            widened::<S, P>(job);
        } else if P::QUADS == 0 && P::SUBS == 1 && P::BYTES / P::BLOCKS > 512 && !S::MATRIX {
            // Codes are stored as they are used: nothing to gain by unpacking.
            let form = Form {
                blocks: blocks::<P>(&job),
                bytes: job.matrix.segment(job.panels[0].segment).panel_bytes,
                subs: P::SUBS,
                words: false,
            };
            grouped(job, form, None, passes::<S, P>);
        } else {
            unpacked::<S, P>(job);
        }
    }
}

/// Whether stored panels meet whole tiles, so that unpacking them for each of two is less work than keeping them unpacked.
fn streams_twice<S: Simd, P: Panel>(job: &Job<'_>) -> bool {
    let whole = S::WIDE_STREAM_COLS > S::STREAM_COLS && most::<S, P>() >= TILE_COLS;
    job.kernel.wide && whole && P::QUADS > 0 && job.x.tiles() <= 2
}

/// Unpacks a panel of `blocks` blocks: to words where the set multiplies those.
unsafe fn unpack<S: Simd, P: Panel>((from, blocks): (*const u8, usize), to: *mut u8, fetch: Fetch) {
    let task = Unpack::<P> {
        from,
        chunks: blocks / P::BLOCKS,
        to,
        fetch,
        format: PhantomData,
    };
    // SAFETY: the panel holds its chunks, and the caller made room.
    unsafe { S::vectorize(On(task, PhantomData::<S>)) };
}

/// What a panel looks like when it is used.
#[derive(Clone, Copy, Debug)]
struct Form {
    blocks: usize,
    /// Bytes of all blocks.
    bytes: usize,
    /// Scales per block.
    subs: usize,
    /// Codes are words.
    words: bool,
}

impl Form {
    /// Panels of `P`, unpacked.
    fn loose<P: Panel>(job: &Job<'_>) -> Self {
        let blocks = blocks::<P>(job);
        Form {
            blocks,
            bytes: blocks * loose_bytes(P::SUBS, P::MINS),
            subs: P::SUBS,
            words: false,
        }
    }

    /// So many blocks of words.
    fn words<const SUBS: usize>(blocks: usize) -> Self {
        Form {
            blocks,
            bytes: blocks * Words::<SUBS>::BYTES,
            subs: SUBS,
            words: true,
        }
    }
}

/// 32-blocks of a panel of `P`.
fn blocks<P: Panel>(job: &Job<'_>) -> usize {
    job.matrix.segment(job.panels[0].segment).panel_bytes / P::BYTES * P::BLOCKS
}

/// Wide codes of `P`, unpacked to words.
unsafe fn widened<S: Simd, P: Panel>(job: Job<'_>) {
    let (form, fetch) = (Form::words::<1>(blocks::<P>(&job)), job.kernel.fetch);
    let loosen: Loosen<'_> = &|from, to| {
        // SAFETY: `grouped` made room.
        unsafe { unpack::<S, P>((from, form.blocks), to, fetch) };
    };
    // SAFETY: passed on.
    unsafe { grouped(job, form, Some(loosen), passes::<S, Words<1>>) };
}

/// Chooses the unpacked form of `P`.
unsafe fn unpacked<S: Simd, P: Panel>(job: Job<'_>) {
    let (form, fetch) = (Form::loose::<P>(&job), job.kernel.fetch);
    let loosen: Loosen<'_> = &|from, to| {
        // SAFETY: `grouped` made room.
        unsafe { unpack::<S, P>((from, form.blocks), to, fetch) };
    };
    let pass = match (P::SUBS, P::MINS, P::QUADS) {
        (1, false, 0) if S::MATRIX => passes::<S, Loose<1, false, 0, 1, true>>,
        (1, false, _) if S::MATRIX => passes::<S, Loose<1, false, 8, 1, true>>,
        (1, true, _) if S::MATRIX => passes::<S, Loose<1, true, 8, 0, true>>,
        (_, false, _) if S::MATRIX => passes::<S, Loose<2, false, 8, 1, true>>,
        (_, true, _) if S::MATRIX => passes::<S, Loose<2, true, 8, 0, true>>,
        (1, false, 8) => passes::<S, Loose<1, false, 8, 1>>,
        (1, false, 4) => passes::<S, Loose<1, false, 4, 1>>,
        (1, false, _) => passes::<S, Loose<1, false, 0, 1>>,
        (1, true, 8) => passes::<S, Loose<1, true, 8, 0>>,
        (1, true, _) => passes::<S, Loose<1, true, 4, 0>>,
        (_, false, 8) => passes::<S, Loose<2, false, 8, 1>>,
        (_, false, _) => passes::<S, Loose<2, false, 2, 1>>,
        (_, true, _) => passes::<S, Loose<2, true, 8, 0>>,
    };
    // SAFETY: passed on.
    unsafe { grouped(job, form, Some(loosen), pass) };
}

/// A panel to multiply, and what is fetched meanwhile.
#[derive(Clone, Copy)]
struct Operand {
    panel: *const u8,
    blocks: usize,
    /// Most columns of one pass.
    most: usize,
    fetch: Fetch,
    next: Next,
}

/// Multiplies a panel with a tile of columns.
type Pass = unsafe fn(Operand, Columns, &mut Out);

/// Writes the unpacked form of a panel.
type Loosen<'a> = &'a dyn Fn(*const u8, *mut u8);

struct Unpack<P> {
    from: *const u8,
    chunks: usize,
    to: *mut u8,
    fetch: Fetch,
    format: PhantomData<P>,
}

impl<S: Simd, P: Panel> Task for On<S, Unpack<P>> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: as the fields promise.
        unsafe {
            let Unpack {
                from,
                chunks,
                to,
                fetch,
                ..
            } = self.0;
            if S::WORDS && P::QUADS == 0 {
                widen::<S, P>((from, chunks), to, fetch);
            } else if S::MATRIX {
                loosen::<S, P, true>((from, chunks), to, fetch);
            } else {
                loosen::<S, P, false>((from, chunks), to, fetch);
            }
        }
    }
}

/// Derives, from the sums of codes, where integer sums start and what minima are multiplied with, unless the scratch
/// has that still.
fn prepare(
    x: &Activations,
    subs: usize,
    (offset, bias): (i32, i32),
    mins: bool,
    scratch: &mut Scratch,
) {
    let derived = Some((x.stamp(), subs, (offset, bias), mins));
    if scratch.derived == derived {
        return;
    }
    scratch.derived = derived;
    let per_row = x.padded_k() / BLOCK * subs;
    scratch
        .starts
        .resize(if bias == 0 { 0 } else { x.rows() * per_row });
    scratch
        .sums
        .resize(if mins { x.rows() * per_row } else { 0 });
    for t in 0..x.tiles() {
        let rows = x.tile(t);
        let (width, range) = (rows.len(), rows.start * per_row..rows.end * per_row);
        if bias != 0 {
            combine(
                x.sums(t),
                width,
                subs,
                &mut scratch.starts[range.clone()],
                |s| offset - bias * s,
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

fn columns(x: &Activations, scratch: &Scratch, t: usize, form: Form) -> Columns {
    let rows = x.tile(t);
    let first = rows.start * (x.padded_k() / BLOCK) * form.subs;
    let starts = scratch.starts.get(first..).unwrap_or(&[]);
    let sums = scratch.sums.get(first..).unwrap_or(&[]);
    Columns {
        codes: if form.words {
            x.words(t).as_ptr().cast()
        } else {
            x.codes(t).as_ptr()
        },
        scales: x.scales(t).as_ptr(),
        starts: starts.as_ptr(),
        sums: sums.as_ptr(),
        width: rows.len(),
    }
}

/// Few rows: one pass over the stored panels for each tile. Pairs hold both panels of alternating parts.
unsafe fn stream<S: Simd, P: Panel>(job: Job<'_>) {
    let form = Form::loose::<P>(&job);
    let Job {
        matrix,
        start,
        x,
        kernel,
        panels,
        scratch,
        epilogue,
    } = job;
    let of = |t| (x.tile(t), columns(x, scratch, t, form));
    // There are no more than two.
    let tiles = [of(0), of(x.tiles() - 1)];
    let mut out = Out::new();
    for pair in panels.chunks(2) {
        for (t, (rows, columns)) in tiles.iter().take(x.tiles()).enumerate() {
            for &panel in pair {
                let operand = Operand {
                    panel: start.wrapping_add(panel.byte),
                    blocks: matrix.segment(panel.segment).panel_bytes / P::BYTES * P::BLOCKS,
                    most: stored_most::<S, P>(kernel),
                    fetch: match t {
                        0 => kernel.fetch_for(x.rows(), MOST_SINGLE),
                        _ => Fetch::Nothing,
                    },
                    next: Next::NONE,
                };
                // SAFETY: passed on.
                unsafe { passes::<S, P>(operand, *columns, &mut out) };
                let cols = panel.row..panel.row + panel.rows;
                epilogue.tile(rows.clone(), cols, &out.0[..rows.len()]);
            }
        }
    }
}

/// Many rows: groups of panels stay in cache while tiles pass over them. Groups are even, so that they hold both panels
/// of alternating parts.
unsafe fn grouped(job: Job<'_>, form: Form, loosen: Option<Loosen<'_>>, pass: Pass) {
    let Job {
        matrix,
        start,
        x,
        kernel,
        panels: panels_of,
        scratch,
        epilogue,
    } = job;
    let Form { blocks, bytes, .. } = form;
    let group = (kernel.group_bytes() / bytes / 2 * 2).max(2);
    scratch
        .loose
        .resize(if loosen.is_some() { group * bytes } else { 0 });
    let mut out = Out::new();
    for (g, panels) in panels_of.chunks(group).enumerate() {
        if let Some(loosen) = loosen {
            for (panel, to) in panels.iter().zip(scratch.loose.chunks_exact_mut(bytes)) {
                loosen(start.wrapping_add(panel.byte), to.as_mut_ptr());
            }
        }
        let stored = matrix.segment(panels[0].segment).panel_bytes;
        let rest = &panels_of[g * group + panels.len()..];
        let mut ahead = Ahead::new(rest, stored, panels.len() * x.tiles());
        for t in 0..x.tiles() {
            let columns = columns(x, scratch, t, form);
            let rows = x.tile(t);
            for (i, &panel) in panels.iter().enumerate() {
                let stored = start.wrapping_add(panel.byte);
                let operand = Operand {
                    panel: match loosen {
                        Some(_) => scratch.loose[i * bytes..].as_ptr(),
                        None => stored,
                    },
                    blocks,
                    most: TILE_COLS,
                    fetch: kernel.fetch,
                    next: ahead.next(start, blocks),
                };
                // SAFETY: passed on; unpacked panels were written above.
                unsafe { pass(operand, columns, &mut out) };
                let outputs = panel.row..panel.row + panel.rows;
                epilogue.tile(rows.clone(), outputs, &out.0[..rows.len()]);
            }
        }
    }
}

/// Stored panels that are wanted next, fetched little by little while others are at work.
struct Ahead {
    /// The first byte that is not yet asked for.
    at: usize,
    end: usize,
    /// Bytes per pass.
    share: usize,
}

impl Ahead {
    /// The first of `panels`, of `bytes` bytes each, over `passes` passes.
    fn new(panels: &[PanelAt], bytes: usize, passes: usize) -> Self {
        let wanted = &panels[..panels.len().min(AHEAD_PANELS)];
        let at = wanted.first().map_or(0, |p| p.byte);
        let end = wanted.last().map_or(0, |p| p.byte + bytes);
        let share = end.saturating_sub(at).div_ceil(passes);
        Ahead { at, end, share }
    }

    /// What the next pass, over so many blocks, fetches.
    fn next(&mut self, start: *const u8, blocks: usize) -> Next {
        let bytes = self.share.min(self.end.saturating_sub(self.at));
        let next = Next::over(start.wrapping_add(self.at), bytes, blocks);
        self.at += bytes
            .next_multiple_of(LINE_BYTES)
            .max(next.lines * blocks * LINE_BYTES);
        next
    }
}

/// Panels that are fetched ahead at most: more would leave the second-level cache before they are used.
const AHEAD_PANELS: usize = 8;

/// Bytes of a panel that stay in the first-level cache, with as much of the columns, while several passes go over them.
const STRETCH: usize = 20 << 10;

/// One panel times a tile, in as few passes as the set's registers allow.
unsafe fn passes<S: Simd, P: Panel>(operand: Operand, columns: Columns, out: &mut Out) {
    let Operand {
        panel,
        blocks,
        most: limit,
        fetch,
        next,
    } = operand;
    let (most, chunks) = (most::<S, P>().min(limit), blocks / P::BLOCKS);
    let stretches = if columns.width > most.min(whole::<S, P>()) {
        (chunks * P::BYTES).div_ceil(STRETCH)
    } else {
        1
    };
    for s in 0..stretches {
        let range = s * chunks / stretches..(s + 1) * chunks / stretches;
        let columns = columns.after::<S, P>(range.start * P::BLOCKS);
        let mut next = next.after(range.start);
        let mut c = 0;
        while c < columns.width {
            let cols = even(columns.width - c, most);
            // SAFETY: passed on; `c` is below the width.
            unsafe {
                let to = out.0[c..].as_mut_ptr();
                let part = Stretch {
                    panel: panel.add(range.start * P::BYTES),
                    chunks: range.len(),
                    goes_on: s > 0,
                    fetch,
                    next,
                };
                one_pass::<S, P>(cols, part, columns.from::<P>(c), to);
            }
            c += cols;
            next = Next::NONE;
        }
    }
}

/// Runs the inner loop for `cols` columns.
unsafe fn one_pass<S: Simd, P: Panel>(
    cols: usize,
    part: Stretch,
    columns: Columns,
    out: *mut [f32; ROWS],
) {
    macro_rules! go {
        ($cols:literal) => {{
            let tile = Tile::<P, $cols> {
                part,
                columns,
                out,
                format: PhantomData,
            };
            // Counts that the set never asks for are not compiled.
            if $cols <= most::<S, P>() {
                // SAFETY: passed on.
                unsafe {
                    if $cols <= whole::<S, P>() {
                        S::vectorize(On(tile, PhantomData::<S>));
                    } else {
                        S::Low::vectorize(On(tile.clone(), PhantomData::<S::Low>));
                        S::High::vectorize(On(tile, PhantomData::<S::High>));
                    }
                }
            }
        }};
    }
    for_width!(cols, go);
}

/// Whether a block's narrow products are one sum, or those of words.
const fn in_one_sum<P: Panel>() -> bool {
    P::WORDS || P::SUBS == 1 && P::QUADS == 8
}

/// Most columns of one pass over all rows.
const fn whole<S: Simd, P: Panel>() -> usize {
    if by_column::<S, P>() {
        TILE_COLS
    } else if in_one_sum::<P>() {
        S::WHOLE_COLS
    } else {
        S::WHOLE_GROUPED_COLS
    }
}

/// Most columns of one pass over stored panels.
fn stored_most<S: Simd, P: Panel>(kernel: Kernel) -> usize {
    let unpacked = P::BYTES / P::BLOCKS <= 512 && P::QUADS > 0;
    if unpacked && !kernel.wide {
        S::STREAM_COLS
    } else {
        most::<S, P>()
    }
}

/// Most columns of one pass.
const fn most<S: Simd, P: Panel>() -> usize {
    let (loose, stored) = (P::BLOCKS == 1, P::BYTES / P::BLOCKS > 512);
    let most = if P::PAIRED {
        S::LOOSE_COLS
    } else if !loose && !stored && P::QUADS > 0 {
        S::WIDE_STREAM_COLS
    } else if P::QUADS == 0 {
        S::WIDE_COLS
    } else if in_one_sum::<P>() {
        S::LOOSE_COLS
    } else {
        S::GROUPED_COLS
    };
    if by_column::<S, P>() {
        if loose { TILE_COLS } else { S::STREAM_COLS }
    } else if P::SUBS == 2 && most > S::PAIR_COLS {
        S::PAIR_COLS
    } else {
        most
    }
}

pub(super) type AnyLoose = Loose<2, false, 0, 1>;

/// Whether products of a segment's codes need more than sixteen bits.
pub(super) fn is_wide(segment: &Segment) -> bool {
    macro_rules! wide {
        ($panel:ty) => {
            <$panel>::QUADS == 0
        };
    }
    match segment.format {
        Format::Float => false,
        Format::Blocks => true,
        Format::Chunks => with_panel!(segment.dtype, wide),
    }
}

/// Formats without chunks: their blocks are taken apart whenever a panel is used.
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn run_blocks<S: Simd>(job: Job<'_>, dtype: DType) {
    let k = job.matrix.k();
    let words = S::WORDS && !job.kernel.streams(job.x.rows());
    let bias = if words { 0 } else { 128 };
    prepare(job.x, 2, (0, bias), false, job.scratch);
    let blocks = k.div_ceil(BLOCK);
    let loose = Form {
        blocks,
        bytes: blocks * loose_bytes(2, false),
        subs: 2,
        words: false,
    };
    // SAFETY: passed on; `grouped` makes room for a panel's unpacked form.
    unsafe {
        if words {
            let loosen: Loosen<'_> = &|from, to| take_apart::<Words<2>>(dtype, from, k, to);
            let pass = passes::<S, Words<2>>;
            grouped(job, Form::words::<2>(blocks), Some(loosen), pass);
        } else if S::MATRIX {
            type Paired = Loose<2, false, 0, 1, true>;
            let loosen: Loosen<'_> = &|from, to| take_apart::<Paired>(dtype, from, k, to);
            grouped(job, loose, Some(loosen), passes::<S, Paired>);
        } else {
            let loosen: Loosen<'_> = &|from, to| take_apart::<AnyLoose>(dtype, from, k, to);
            grouped(job, loose, Some(loosen), passes::<S, AnyLoose>);
        }
    }
}

/// Unpacks a panel of file blocks into blocks of [`AnyLoose`] or [`Words`].
pub(super) unsafe fn take_apart<L: Panel>(dtype: DType, from: *const u8, k: usize, to: *mut u8) {
    let layout = Layout::of(dtype).expect("the format has blocks");
    let mut u = Unpacked::new();
    let size = L::BYTES;
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
                place::<L>(&u, layout.sub_elems(), i, r, to);
            }
        }
    }
}

/// Row `r`'s part of 32-block `i`.
fn place<L: Panel>(u: &Unpacked, sub_elems: usize, i: usize, r: usize, to: &mut [u8]) {
    for (e, &code) in u.codes[BLOCK * i..BLOCK * (i + 1)].iter().enumerate() {
        if L::WORDS {
            let at = 64 * (e / 2) + 4 * r + 2 * (e % 2);
            to[at..at + 2].copy_from_slice(&i16::from(code).to_le_bytes());
        } else if L::PAIRED {
            to[128 * (e / 8) + 8 * r + e % 8] = code as u8;
        } else {
            to[64 * (e / 4) + 4 * r + e % 4] = code as u8 ^ 0x80;
        }
    }
    let scales = if L::WORDS { WORD_CODES } else { 512 };
    for half in 0..2 {
        let scale = u.scale((BLOCK * i + 16 * half) / sub_elems);
        to[scales + 64 * half + 4 * r..][..4].copy_from_slice(&scale.to_le_bytes());
    }
}
