//! The vector operations that the matmul kernels are written in, once per instruction set.
//!
//! Every value spans the sixteen rows of a panel. All sets compute the same bits: integer sums are
//! exact and float operations are single IEEE operations in the same order.

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;

/// A piece of work compiled for one instruction set.
pub(crate) trait Task {
    /// Does the work. Implementations are `#[inline(always)]`, so that they are compiled with the
    /// features of [`Simd::vectorize`].
    ///
    /// # Safety
    /// As the task says of its fields.
    unsafe fn run(self);
}

/// An instruction set.
///
/// # Safety
/// All functions need a processor with the set; pointers must be valid for what their function
/// reads or writes. Only [`Simd::vectorize`] may be called from code compiled without the set.
pub(crate) trait Simd: Copy + 'static {
    /// Four unsigned codes of each row: a *quad*.
    type Codes: Copy;
    /// One integer per row.
    type Ints: Copy;
    /// One float per row.
    type Floats: Copy;
    /// Running sum of products of codes that fit six bits.
    type Narrow: Copy;
    /// Running sum of products of codes that need eight bits.
    type Wide: Copy;

    /// The sets that take the first and the last eight rows, where registers are too few for many columns of all.
    type Low: Simd;
    /// As [`Simd::Low`].
    type High: Simd;

    /// Most columns that are multiplied with all rows at once, where a block has one sum; more columns take two halves of the rows.
    const WHOLE_COLS: usize;
    /// The same where a block has several sums.
    const WHOLE_GROUPED_COLS: usize = Self::WHOLE_COLS;
    /// Most columns that one pass over a stored panel serves.
    const STREAM_COLS: usize;
    /// The same where a tuning says that unpacking takes longer than a set's sums: [`Tuning::wide`](crate::tuning::Tuning).
    const WIDE_STREAM_COLS: usize = Self::STREAM_COLS;
    /// Most columns whose results stay in registers from block to block.
    const KEPT_COLS: usize = 12;
    /// The same of stored panels with one scale a block and codes of more than four bits: unpacking needs registers too.
    const KEPT_STORED_COLS: usize = Self::KEPT_COLS;
    /// Most columns that one pass over an unpacked panel serves.
    const LOOSE_COLS: usize;
    /// The same where a block has several sums.
    const GROUPED_COLS: usize = Self::LOOSE_COLS;
    /// Most columns of one pass over an unpacked panel with two scales a block: the sums of both are in registers at a
    /// time.
    const PAIR_COLS: usize;
    /// Columns take turns with the codes of half a block with two scales, which stay in registers, rather than their sums.
    const BY_COLUMN: bool = false;
    /// Most columns of one pass over an unpacked panel of eight-bit codes.
    const WIDE_COLS: usize;
    /// Most columns of one pass over floats.
    const FLOAT_COLS: usize;
    /// Wide codes of many rows are multiplied as words of sixteen bits.
    const WORDS: bool = false;
    /// Wide codes are multiplied less 128, which all their formats subtract: so sums start without it.
    const SIGNED_WIDE: bool = false;
    /// Unpacked codes are multiplied by instructions for matrices: two quads of two rows with two quads of two columns.
    const MATRIX: bool = false;

    unsafe fn vectorize<T: Task>(task: T);
    /// `p + n`, in a register of its own where addresses of two registers are slow.
    #[inline(always)]
    fn step<T>(p: *const T, n: usize) -> *const T {
        p.wrapping_add(n)
    }
    /// `p`, where registers are few only once `sum` is known: what is read through it is not read long before it is used.
    #[inline(always)]
    unsafe fn later<T, N>(p: *const T, _sum: &N) -> *const T {
        p
    }
    /// Asks for a line in the first-level cache.
    unsafe fn prefetch_first(p: *const u8);
    /// Asks for a line in the second-level cache.
    unsafe fn prefetch_second(p: *const u8);

    unsafe fn codes(p: *const u8) -> Self::Codes;
    unsafe fn store_codes(p: *mut u8, v: Self::Codes);
    unsafe fn mask(v: Self::Codes, byte: u8) -> Self::Codes;
    unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes;
    /// Shifts 16-bit lanes; bits cross bytes, so a mask must follow.
    unsafe fn shr(v: Self::Codes, bits: u32) -> Self::Codes;
    /// Shifts 16-bit lanes; bits cross bytes, so a mask must follow.
    unsafe fn shl(v: Self::Codes, bits: u32) -> Self::Codes;
    /// `table[code]` for codes below 16.
    unsafe fn lookup(v: Self::Codes, table: &[u8; 16]) -> Self::Codes;

    unsafe fn splat_int(p: *const i32) -> Self::Ints;
    unsafe fn floats_of(v: Self::Ints) -> Self::Floats;
    /// The floats that have these bits.
    unsafe fn float_bits(v: Self::Ints) -> Self::Floats;

    /// Starts a group of narrow products that [`Simd::narrow_end`] adds to `sum`.
    unsafe fn narrow_start(sum: Self::Ints) -> Self::Narrow;
    /// Adds the products of a quad with four signed bytes at `a`.
    unsafe fn narrow_dot(n: Self::Narrow, codes: Self::Codes, a: *const i8) -> Self::Narrow;
    /// The same for columns whose bytes follow each other.
    #[inline(always)]
    unsafe fn narrow_quad<const C: usize>(
        n: &mut [Self::Narrow; C],
        codes: Self::Codes,
        a: *const i8,
    ) {
        for (c, n) in n.iter_mut().enumerate() {
            // SAFETY: passed on.
            *n = unsafe { Self::narrow_dot(*n, codes, a.add(4 * c)) };
        }
    }
    /// As [`Simd::narrow_dot`], where `n` is as it was started.
    #[inline(always)]
    unsafe fn narrow_first(n: Self::Narrow, codes: Self::Codes, a: *const i8) -> Self::Narrow {
        // SAFETY: passed on.
        unsafe { Self::narrow_dot(n, codes, a) }
    }
    unsafe fn narrow_end(sum: Self::Ints, n: Self::Narrow) -> Self::Ints;
    unsafe fn wide_start(sum: Self::Ints) -> Self::Wide;
    unsafe fn wide_dot(n: Self::Wide, codes: Self::Codes, a: *const i8) -> Self::Wide;
    /// As [`Simd::narrow_quad`].
    #[inline(always)]
    unsafe fn wide_quad<const C: usize>(n: &mut [Self::Wide; C], codes: Self::Codes, a: *const i8) {
        for (c, n) in n.iter_mut().enumerate() {
            // SAFETY: passed on.
            *n = unsafe { Self::wide_dot(*n, codes, a.add(4 * c)) };
        }
    }
    /// As [`Simd::narrow_first`].
    #[inline(always)]
    unsafe fn wide_first(n: Self::Wide, codes: Self::Codes, a: *const i8) -> Self::Wide {
        // SAFETY: passed on.
        unsafe { Self::wide_dot(n, codes, a) }
    }
    unsafe fn wide_end(sum: Self::Ints, n: Self::Wide) -> Self::Ints;

    /// Writes codes less 128 as words: the first two of each row, and 64 bytes behind them the others.
    unsafe fn store_words(_: *mut u8, _: Self::Codes) {
        unreachable!("the set multiplies bytes");
    }
    /// Adds the products of a quad of words with four words of each column, whose words follow each other.
    unsafe fn word_quad<const C: usize>(_: &mut [Self::Ints; C], _: *const u8, _: *const i8) {
        unreachable!("the set multiplies bytes");
    }

    /// Writes two quads as [`Simd::matrix_pair`] reads them: both of a row, then those of the next. Wide ones less 128.
    unsafe fn store_pair<const WIDE: bool>(_: *mut u8, _: Self::Codes, _: Self::Codes) {
        unreachable!("the set multiplies quads");
    }
    /// Adds the products of two quads with those of up to four columns at `a` and at `b`.
    unsafe fn matrix_pair<const C: usize, const WIDE: bool>(
        _: &mut [Self::Ints; 4],
        _: *const u8,
        _: [*const i8; 2],
    ) {
        unreachable!("the set multiplies quads");
    }
    /// Adds what [`Simd::matrix_pair`] has summed up to each column's sum.
    unsafe fn matrix_end<const C: usize>(_: &mut [Self::Ints; C], _: [Self::Ints; 4]) {
        unreachable!("the set multiplies quads");
    }

    unsafe fn zero() -> Self::Floats;
    unsafe fn splat(p: *const f32) -> Self::Floats;
    unsafe fn floats(p: *const f32) -> Self::Floats;
    unsafe fn store(p: *mut f32, v: Self::Floats);
    /// Sixteen halves.
    unsafe fn halves(p: *const u8) -> Self::Floats;
    /// Sixteen bfloat16 of even positions and sixteen of odd ones, from interleaved pairs.
    unsafe fn bfloat_pairs(p: *const u8) -> (Self::Floats, Self::Floats);
    /// Sixteen E8M0 exponents, each standing for half its power of two.
    unsafe fn exponents(p: *const u8) -> Self::Floats;
    /// Sixteen signed bytes.
    unsafe fn signed_bytes(p: *const u8) -> Self::Floats;
    /// Sixteen pairs of 4-bit numbers: low nibbles, high nibbles.
    unsafe fn nibble_pairs(p: *const u8) -> (Self::Floats, Self::Floats);
    /// Sixteen pairs of 6-bit numbers: 16 bytes of low nibbles, then 8 bytes whose nibble `row`
    /// holds the two high bits of the first and, above them, of the second.
    unsafe fn six_bit_pairs(p: *const u8) -> (Self::Floats, Self::Floats);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a * b`, rounded once.
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
}
