//! How each format's chunks turn into codes and float factors.
#![allow(unsafe_code)]

use super::simd::Simd;
use super::tile::ahead;
use crate::layout::scheme::{self, Codes, FP4_TABLE, IQ4_TABLE, SCALE_BIAS, SIX_BIT_PAIRS, Scheme};
use crate::memory::LINE_BYTES;
use crate::tuning::Fetch;

/// Factors of a 32-block; second entries are used by formats with a scale per 16 only.
pub(crate) struct Factors<S: Simd> {
    pub(crate) scale: [S::Floats; 2],
    pub(crate) min: [S::Floats; 2],
}

/// A format. Element = `scale * (code - BIAS) - min`.
///
/// # Safety
/// `chunk` points to a chunk of the format, `i` is a block of it and `j` is below 4.
pub(crate) trait Panel: Copy {
    /// 32-blocks per chunk.
    const BLOCKS: usize;
    /// Bytes per chunk.
    const BYTES: usize;
    /// Scales per 32-block: 1 or 2.
    const SUBS: usize;
    /// Whether minima are subtracted.
    const MINS: bool;
    /// What is subtracted from codes.
    const BIAS: i32;
    /// Quads that one narrow sum holds; 0 for wide codes, whose bias is 128.
    const QUADS: usize;
    /// Scales have at most 22 significant bits, so that sums may start at an offset.
    const OFFSET: bool = true;
    /// Codes are words, which columns are too.
    const WORDS: bool = false;
    /// Quads lie in pairs, row by row, for sets with [`Simd::MATRIX`].
    const PAIRED: bool = false;
    /// Bytes of a column's codes per 32-block.
    const COLUMN_BYTES: usize = if Self::WORDS { 64 } else { 32 };

    /// Quads `2j` and `2j + 1` of block `i`.
    unsafe fn pair<S: Simd>(chunk: *const u8, i: usize, j: usize) -> (S::Codes, S::Codes);
    unsafe fn factors<S: Simd>(chunk: *const u8, i: usize) -> Factors<S>;
}

/// Quads `2j` and `2j + 1` of the block of codes at `p`.
#[inline(always)]
unsafe fn unpack<S: Simd>(codes: Codes, p: *const u8, j: usize) -> (S::Codes, S::Codes) {
    // SAFETY: as the caller of `Panel::pair` promises.
    unsafe {
        match codes {
            Codes::Eight => (S::codes(p.add(128 * j)), S::codes(p.add(128 * j + 64))),
            Codes::Four => nibbles::<S>(p, j),
            Codes::Five => {
                let (low, high) = nibbles::<S>(p, j);
                let plane = S::codes(p.add(256));
                let fifth = |q| S::mask(shift_bit::<S>(plane, q, 4), 0x10);
                (S::or(low, fifth(2 * j)), S::or(high, fifth(2 * j + 1)))
            }
            Codes::Six => {
                let (low, high) = nibbles::<S>(p, j);
                let plane = S::codes(p.add(256 + 64 * (j / 2)));
                let top = |q| S::mask(shift_bit::<S>(plane, 2 * (q % 4), 4), 0x30);
                (S::or(low, top(2 * j)), S::or(high, top(2 * j + 1)))
            }
            Codes::Two => twos::<S>(p, j),
            Codes::Three => {
                let (low, high) = twos::<S>(p, j);
                let plane = S::codes(p.add(128));
                let third = |q| S::mask(shift_bit::<S>(plane, q, 2), 4);
                (S::or(low, third(2 * j)), S::or(high, third(2 * j + 1)))
            }
        }
    }
}

#[inline(always)]
unsafe fn nibbles<S: Simd>(p: *const u8, j: usize) -> (S::Codes, S::Codes) {
    // SAFETY: as the caller of `Panel::pair` promises.
    unsafe {
        let line = S::codes(p.add(64 * j));
        (S::mask(line, 15), S::mask(S::shr(line, 4), 15))
    }
}

#[inline(always)]
unsafe fn twos<S: Simd>(p: *const u8, j: usize) -> (S::Codes, S::Codes) {
    // SAFETY: as the caller of `Panel::pair` promises.
    unsafe {
        let plane = S::codes(p.add(64 * (j / 2)));
        let quad = |q: usize| S::mask(shift_bit::<S>(plane, 2 * (q % 4), 0), 3);
        (quad(2 * j), quad(2 * j + 1))
    }
}

/// Moves bit `from` of every byte to bit `to`.
#[inline(always)]
unsafe fn shift_bit<S: Simd>(v: S::Codes, from: usize, to: usize) -> S::Codes {
    // SAFETY: shifts touch no memory.
    unsafe {
        if from > to {
            S::shr(v, (from - to) as u32)
        } else if from < to {
            S::shl(v, (to - from) as u32)
        } else {
            v
        }
    }
}

/// One scale per block, no minima.
#[inline(always)]
unsafe fn plain<S: Simd>(scale: S::Floats) -> Factors<S> {
    // SAFETY: touches no memory.
    let min = [unsafe { S::zero() }; 2];
    Factors {
        scale: [scale; 2],
        min,
    }
}

macro_rules! panels {
    ($($(#[$doc:meta])* $name:ident: $subs:literal scales, mins $mins:literal, bias $bias:literal,
        $(table $table:ident,)? |$s:ident, $chunk:ident, $i:ident| $factors:block)*) => {$(
        $(#[$doc])*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Panel for $name {
            const BLOCKS: usize = scheme::$name.blocks;
            const BYTES: usize = scheme::$name.bytes();
            const SUBS: usize = $subs;
            const MINS: bool = $mins;
            const BIAS: i32 = $bias;
            const QUADS: usize = quads(scheme::$name, $bias);

            #[inline(always)]
            unsafe fn pair<$s: Simd>(chunk: *const u8, i: usize, j: usize) -> ($s::Codes, $s::Codes) {
                // SAFETY: the block's codes lie at this offset of the chunk.
                unsafe {
                    let p = chunk.add(scheme::$name.codes_at(i));
                    let pair = unpack::<$s>(scheme::$name.codes, p, j);
                    $(let pair = ($s::lookup(pair.0, &$table), $s::lookup(pair.1, &$table));)?
                    pair
                }
            }

            #[inline(always)]
            unsafe fn factors<$s: Simd>($chunk: *const u8, $i: usize) -> Factors<$s> {
                // SAFETY: heads and scales of block `i` lie at these offsets of the chunk.
                unsafe { $factors }
            }
        }
    )*};
}

/// Quads per narrow sum of a format; tables make codes wider than their storage.
const fn quads(scheme: Scheme, bias: i32) -> usize {
    match bias {
        128 => 0,
        12 => Codes::Five.quads_per_sum(),
        _ => scheme.codes.quads_per_sum(),
    }
}

panels! {
    /// Scale, nibble less 8.
    Q4_0: 1 scales, mins false, bias 8, |S, chunk, i| { plain(S::halves(chunk.add(32 * i))) }
    /// Scale, offset, nibble.
    Q4_1: 1 scales, mins true, bias 0, |S, chunk, i| { scale_and_offset(chunk, i) }
    /// Scale, five bits less 16.
    Q5_0: 1 scales, mins false, bias 16, |S, chunk, i| { plain(S::halves(chunk.add(32 * i))) }
    /// Scale, offset, five bits.
    Q5_1: 1 scales, mins true, bias 0, |S, chunk, i| { scale_and_offset(chunk, i) }
    /// Scale, byte.
    Q8_0: 1 scales, mins false, bias 128, |S, chunk, i| { plain(S::halves(chunk.add(32 * i))) }
    /// Scale, index of a table of values.
    IQ4_NL: 1 scales, mins false, bias 128, table IQ4_TABLE, |S, chunk, i| {
        plain(S::halves(chunk.add(32 * i)))
    }
    /// Exponent, E2M1 nibble.
    MXFP4: 1 scales, mins false, bias 12, table FP4_TABLE, |S, chunk, i| {
        plain(S::exponents(chunk.add(16 * i)))
    }
    /// Scales and minima of four bits per 16.
    Q2_K: 2 scales, mins true, bias 0, |S, chunk, i| {
        let at = chunk.add(scheme::Q2_K.head + 32 * i);
        let (d, dmin) = (S::halves(chunk), S::halves(chunk.add(32)));
        let (s0, m0) = S::nibble_pairs(at);
        let (s1, m1) = S::nibble_pairs(at.add(16));
        let scale = [S::mul(d, s0), S::mul(d, s1)];
        Factors { scale, min: [S::mul(dmin, m0), S::mul(dmin, m1)] }
    }
    /// Scales of six bits less 32 per 16, three bits less 4.
    Q3_K: 2 scales, mins false, bias 4, |S, chunk, i| {
        let (s0, s1) = S::six_bit_pairs(chunk.add(scheme::Q3_K.head + SIX_BIT_PAIRS * i));
        signed_scales(S::halves(chunk), [s0, s1])
    }
    /// Scales and minima of six bits per 32, nibbles.
    Q4_K: 1 scales, mins true, bias 0, |S, chunk, i| { scales_and_mins(chunk, i) }
    /// Scales and minima of six bits per 32, five bits.
    Q5_K: 1 scales, mins true, bias 0, |S, chunk, i| { scales_and_mins(chunk, i) }
    /// Signed byte scales per 16, six bits less 32.
    Q6_K: 2 scales, mins false, bias 32, |S, chunk, i| {
        let (d, at) = (S::halves(chunk), chunk.add(scheme::Q6_K.head + 32 * i));
        let scales = [S::signed_bytes(at), S::signed_bytes(at.add(16))];
        Factors { scale: [S::mul(d, scales[0]), S::mul(d, scales[1])], min: [S::zero(); 2] }
    }
    /// Scales of six bits less 32 per 32, index of a table of values.
    IQ4_XS: 1 scales, mins false, bias 128, table IQ4_TABLE, |S, chunk, i| {
        let (s0, s1) = S::six_bit_pairs(chunk.add(scheme::IQ4_XS.head + SIX_BIT_PAIRS * (i / 2)));
        signed_scales(S::halves(chunk), [if i.is_multiple_of(2) { s0 } else { s1 }; 2])
    }
}

/// Halves of scales, then of offsets that are added.
#[inline(always)]
unsafe fn scale_and_offset<S: Simd>(chunk: *const u8, i: usize) -> Factors<S> {
    // SAFETY: the head of a two-block chunk holds four runs of sixteen halves.
    unsafe {
        let offset = S::halves(chunk.add(64 + 32 * i));
        let min = S::mul(offset, S::splat(&-1.0));
        Factors {
            scale: [S::halves(chunk.add(32 * i)); 2],
            min: [min; 2],
        }
    }
}

#[inline(always)]
unsafe fn scales_and_mins<S: Simd>(chunk: *const u8, i: usize) -> Factors<S> {
    // SAFETY: `Q4_K` and `Q5_K` share head and scales.
    unsafe {
        let (s, m) = S::six_bit_pairs(chunk.add(scheme::Q4_K.head + SIX_BIT_PAIRS * i));
        let (d, dmin) = (S::halves(chunk), S::halves(chunk.add(32)));
        Factors {
            scale: [S::mul(d, s); 2],
            min: [S::mul(dmin, m); 2],
        }
    }
}

#[inline(always)]
unsafe fn signed_scales<S: Simd>(d: S::Floats, stored: [S::Floats; 2]) -> Factors<S> {
    // SAFETY: touches no memory but a constant.
    unsafe {
        let bias = S::splat(&-SCALE_BIAS);
        Factors {
            scale: [
                S::mul(d, S::add(stored[0], bias)),
                S::mul(d, S::add(stored[1], bias)),
            ],
            min: [S::zero(); 2],
        }
    }
}

/// An unpacked 32-block: eight quads of bytes, scales as floats, minima as floats if there are any.
#[derive(Clone, Copy)]
pub(crate) struct Loose<
    const SUBS: usize,
    const MINS: bool,
    const QUADS: usize,
    const BIAS: i32,
    const PAIRED: bool = false,
>;

impl<const SUBS: usize, const MINS: bool, const QUADS: usize, const BIAS: i32, const PAIRED: bool>
    Panel for Loose<SUBS, MINS, QUADS, BIAS, PAIRED>
{
    const BLOCKS: usize = 1;
    const BYTES: usize = loose_bytes(SUBS, MINS);
    const SUBS: usize = SUBS;
    const MINS: bool = MINS;
    /// Only whether it is zero matters: sums are made for the format that was unpacked.
    const BIAS: i32 = BIAS;
    const QUADS: usize = QUADS;
    /// Those of formats without chunks may be any float.
    const OFFSET: bool = !(SUBS == 2 && QUADS == 0);
    const PAIRED: bool = PAIRED;

    #[inline(always)]
    unsafe fn pair<S: Simd>(chunk: *const u8, _: usize, j: usize) -> (S::Codes, S::Codes) {
        debug_assert!(!PAIRED, "pairs are multiplied where they lie");
        // SAFETY: as the caller promises.
        unsafe { unpack::<S>(Codes::Eight, chunk, j) }
    }

    #[inline(always)]
    unsafe fn factors<S: Simd>(chunk: *const u8, _: usize) -> Factors<S> {
        // SAFETY: `SUBS` runs of scales follow the codes, then as many of minima.
        unsafe {
            let run = |n: usize| S::floats(chunk.add(512 + 64 * n).cast());
            let zero = [S::zero(); 2];
            let min = if MINS {
                [run(SUBS), run(2 * SUBS - 1)]
            } else {
                zero
            };
            Factors {
                scale: [run(0), run(SUBS - 1)],
                min,
            }
        }
    }
}

/// An unpacked 32-block of words: eight quads of codes less what is subtracted from them, scales as floats.
#[derive(Clone, Copy)]
pub(crate) struct Words<const SUBS: usize>;

/// Bytes of the codes of [`Words`].
pub(crate) const WORD_CODES: usize = 1024;

impl<const SUBS: usize> Panel for Words<SUBS> {
    const BLOCKS: usize = 1;
    const BYTES: usize = WORD_CODES + 64 * SUBS;
    const SUBS: usize = SUBS;
    const MINS: bool = false;
    const BIAS: i32 = 0;
    const QUADS: usize = 8;
    /// As those of [`Loose`].
    const OFFSET: bool = SUBS == 1;
    const WORDS: bool = true;

    unsafe fn pair<S: Simd>(_: *const u8, _: usize, _: usize) -> (S::Codes, S::Codes) {
        unreachable!("words are multiplied where they lie");
    }

    #[inline(always)]
    unsafe fn factors<S: Simd>(chunk: *const u8, _: usize) -> Factors<S> {
        // SAFETY: `SUBS` runs of scales follow the codes.
        unsafe {
            let run = |n: usize| S::floats(chunk.add(WORD_CODES + 64 * n).cast());
            Factors {
                scale: [run(0), run(SUBS - 1)],
                min: [S::zero(); 2],
            }
        }
    }
}

/// Bytes of an unpacked 32-block.
pub(crate) const fn loose_bytes(subs: usize, mins: bool) -> usize {
    512 + 64 * subs * (1 + mins as usize)
}

/// Unpacks `chunks` chunks at `from` to `to`, quads in pairs or one by one.
///
/// # Safety
/// `from` holds the chunks and `to` has room for [`loose_bytes`] per 32-block.
#[inline(always)]
pub(crate) unsafe fn loosen<S: Simd, P: Panel, const PAIRED: bool>(
    (from, chunks): (*const u8, usize),
    to: *mut u8,
    fetch: Fetch,
) {
    let size = loose_bytes(P::SUBS, P::MINS);
    for chunk in 0..chunks {
        for i in 0..P::BLOCKS {
            // SAFETY: both pointers stay inside what the caller promises.
            unsafe {
                let from = from.add(chunk * P::BYTES);
                let bytes = P::BYTES / P::BLOCKS;
                ahead::<S>(fetch, from.wrapping_add(bytes * i), bytes / LINE_BYTES);
                loosen_block::<S, P, PAIRED>(from, i, to.add((chunk * P::BLOCKS + i) * size));
            }
        }
    }
}

/// Unpacks chunks of wide codes to [`Words`].
///
/// # Safety
/// As [`loosen`], of [`Words`].
#[inline(always)]
pub(crate) unsafe fn widen<S: Simd, P: Panel>(
    (from, chunks): (*const u8, usize),
    to: *mut u8,
    fetch: Fetch,
) {
    for block in 0..chunks * P::BLOCKS {
        let (chunk, i) = (block / P::BLOCKS, block % P::BLOCKS);
        // SAFETY: both pointers stay inside what the caller promises.
        unsafe {
            let from = from.add(chunk * P::BYTES);
            let to = to.add(block * Words::<1>::BYTES);
            let bytes = P::BYTES / P::BLOCKS;
            ahead::<S>(fetch, from.wrapping_add(bytes * i), bytes / LINE_BYTES);
            for j in 0..4 {
                let (low, high) = P::pair::<S>(from, i, j);
                S::store_words(to.add(256 * j), low);
                S::store_words(to.add(256 * j + 128), high);
            }
            let factors: Factors<S> = P::factors(from, i);
            S::store(to.add(WORD_CODES).cast(), factors.scale[0]);
        }
    }
}

#[inline(always)]
unsafe fn loosen_block<S: Simd, P: Panel, const PAIRED: bool>(
    chunk: *const u8,
    i: usize,
    to: *mut u8,
) {
    // SAFETY: as `loosen`.
    unsafe {
        for j in 0..4 {
            let (low, high) = P::pair::<S>(chunk, i, j);
            let to = to.add(128 * j);
            if !PAIRED {
                S::store_codes(to, low);
                S::store_codes(to.add(64), high);
            } else if P::QUADS == 0 {
                S::store_pair::<true>(to, low, high);
            } else {
                S::store_pair::<false>(to, low, high);
            }
        }
        let factors: Factors<S> = P::factors(chunk, i);
        for sub in 0..P::SUBS {
            S::store(to.add(512 + 64 * sub).cast(), factors.scale[sub]);
            if P::MINS {
                S::store(to.add(512 + 64 * (P::SUBS + sub)).cast(), factors.min[sub]);
            }
        }
    }
}
