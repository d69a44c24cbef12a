//! AMX: the integer products of a panel and a tile of columns in tile registers, the float part in AVX-512.
//!
//! A 32-block of an unpacked panel is a right-hand tile as it lies: eight quads of sixteen rows. The columns' bytes of
//! a block lie row by row, which is a left-hand tile. Tile registers outlive the assembly
//! that fills them, since compilers use them for nothing else.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::cell::Cell;
use std::marker::PhantomData;

use super::Out;
use super::avx512::Avx512;
use super::panel::loose_bytes;
use super::simd::{ROWS, Simd, Task};
use super::tile::{Columns, On, TILE_COLS};
use crate::layout::BLOCK;

/// Products whose sums are in flight. All their sums together are less than a page: loads wait for stores at the same
/// place of another page.
const FLIGHT: usize = 4;
/// Blocks that an unpacked panel is fetched ahead, from the second-level cache.
const NEAR: usize = 8;
/// Bytes of the sums of one product.
const SUMS: usize = TILE_COLS * ROWS * size_of::<i32>();

/// Sums of [`FLIGHT`] products, `[product][column][row]`.
#[repr(align(64))]
struct Sums([u8; FLIGHT * SUMS]);

/// Whether the processor has tiles of bytes and the system lets this process use them.
#[cfg(target_os = "linux")]
pub(crate) fn available() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const TILES_AND_BYTES: u32 = 0b11 << 24;
    /// Asks for a component of the extended state.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    static GRANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *GRANTED.get_or_init(|| {
        let has =
            __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_BYTES == TILES_AND_BYTES;
        // SAFETY: the call only widens what this process may use; all arguments are plain numbers.
        has && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn available() -> bool {
    false
}

/// The layout that `ldtilecfg` reads: palette, bytes per row and rows of each register.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

thread_local! {
    /// Columns and bytes of a left-hand row that this thread's tiles are set to.
    static SHAPE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Sets the tiles: sums in 0–3, columns in 4 and 5, panels in 6 and 7.
fn configure(shape: (usize, usize)) {
    if SHAPE.replace(shape) == shape {
        return;
    }
    let (columns, bytes) = (shape.0 as u8, shape.1 as u16);
    let mut config = Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    for tile in 0..8 {
        (config.row_bytes[tile], config.rows[tile]) = match tile {
            0..4 => (64, columns),
            4 | 5 => (bytes, columns),
            _ => (64, (bytes / 4) as u8),
        };
    }
    // SAFETY: the sizes are below the palette's limits, and only kernels whose set has tiles come here.
    unsafe {
        asm!("ldtilecfg [{0}]", in(reg) &raw const config, options(nostack, preserves_flags));
    };
}

/// Makes the codes of an unpacked panel signed, so that no sum needs a correction.
///
/// # Safety
/// The processor has AVX-512 and `panel` holds `blocks` blocks of `bytes` bytes.
pub(super) unsafe fn sign(panel: *mut u8, (blocks, bytes): (usize, usize), bias: i32) {
    let task = Sign {
        panel,
        blocks,
        bytes,
        bias: bias as u8,
    };
    // SAFETY: passed on.
    unsafe { Avx512::vectorize(task) }
}

struct Sign {
    panel: *mut u8,
    blocks: usize,
    bytes: usize,
    bias: u8,
}

impl Task for Sign {
    #[inline(always)]
    unsafe fn run(self) {
        for block in 0..self.blocks {
            // SAFETY: the codes are the first 512 bytes of each block.
            let codes =
                unsafe { std::slice::from_raw_parts_mut(self.panel.add(block * self.bytes), 512) };
            codes
                .iter_mut()
                .for_each(|code| *code = code.wrapping_sub(self.bias));
        }
    }
}

/// An unpacked, signed panel of `blocks` blocks times a tile of columns that lie row by row.
///
/// # Safety
/// The kernel set has tiles; the panel and the columns hold as many blocks, and `out` a tile.
pub(super) unsafe fn pass<const SUBS: usize, const MINS: bool>(
    panel: *const u8,
    blocks: usize,
    columns: Columns,
    out: &mut Out,
) {
    configure((columns.width, BLOCK / SUBS));
    let out = out.0.as_mut_ptr();
    // SAFETY: passed on; a whole tile has `TILE_COLS` columns.
    unsafe {
        if columns.width == TILE_COLS {
            let task = Pass::<SUBS, MINS, true> {
                panel,
                blocks,
                columns,
                out,
            };
            Avx512::vectorize(On(task, PhantomData::<Avx512>));
        } else {
            let task = Pass::<SUBS, MINS, false> {
                panel,
                blocks,
                columns,
                out,
            };
            Avx512::vectorize(On(task, PhantomData::<Avx512>));
        }
    }
}

/// `WHOLE`: as many columns as a tile has, so that results stay in registers.
struct Pass<const SUBS: usize, const MINS: bool, const WHOLE: bool> {
    panel: *const u8,
    blocks: usize,
    columns: Columns,
    out: *mut [f32; ROWS],
}

impl<const SUBS: usize, const MINS: bool, const WHOLE: bool> Pass<SUBS, MINS, WHOLE> {
    const BYTES: usize = loose_bytes(SUBS, MINS);
    /// Products that are begun before those of a block are wanted.
    const AHEAD: usize = FLIGHT - SUBS;

    /// Begins a product: sub-block `product % SUBS` of block `product / SUBS`.
    #[inline(always)]
    unsafe fn multiply(&self, product: usize, sums: &mut Sums) {
        let (block, sub) = (product / SUBS, product % SUBS);
        let a = BLOCK * self.columns.width * block + BLOCK / SUBS * sub;
        let a = self.columns.codes.wrapping_add(a);
        let b = self
            .panel
            .wrapping_add(Self::BYTES * block + 512 / SUBS * sub);
        let to = sums.0[product % FLIGHT * SUMS..].as_mut_ptr();
        macro_rules! with {
            ($sums:literal, $columns:literal, $panel:literal) => {
                asm!(
                    concat!("tilezero ", $sums),
                    concat!("tileloadd ", $columns, ", [{a} + {row}]"),
                    concat!("tileloadd ", $panel, ", [{b} + {line}]"),
                    concat!("tdpbssd ", $sums, ", ", $columns, ", ", $panel),
                    concat!("tilestored [{to} + {line}], ", $sums),
                    a = in(reg) a, b = in(reg) b, to = in(reg) to,
                    row = in(reg) BLOCK, line = in(reg) 64_usize,
                    options(nostack, preserves_flags)
                )
            };
        }
        // SAFETY: `configure` has set the tiles to these rows; the block exists and `to` has room for the sums.
        unsafe {
            match product % FLIGHT {
                0 => with!("tmm0", "tmm4", "tmm6"),
                1 => with!("tmm1", "tmm5", "tmm7"),
                2 => with!("tmm2", "tmm4", "tmm6"),
                _ => with!("tmm3", "tmm5", "tmm7"),
            }
        }
    }

    /// Adds the products of block `block`, whose sums begin at `sums`, to the results.
    #[inline(always)]
    unsafe fn add(
        &self,
        block: usize,
        sums: *const u8,
        y: &mut [<Avx512 as Simd>::Floats; TILE_COLS],
    ) {
        type S = Avx512;
        let width = self.columns.width;
        let scales = self.columns.scales.wrapping_add(block * width);
        let codes = self.columns.sums.wrapping_add(block * width * SUBS);
        // SAFETY: the block's factors follow its codes, the columns have a scale and sums per block.
        unsafe {
            // Tile loads do not make the processor fetch what follows.
            for line in 0..Self::BYTES / 64 {
                let at = Self::BYTES * (block + NEAR) + 64 * line;
                _mm_prefetch::<_MM_HINT_T0>(self.panel.wrapping_add(at).cast());
            }
            let factors = self.panel.add(Self::BYTES * block + 512);
            let factor = |n: usize| S::floats(factors.add(64 * n).cast());
            let ints = |sub: usize, c: usize| S::floats_of(S::codes(sums.add(sub * SUMS + 64 * c)));
            let scale = [factor(0), factor(SUBS - 1)];
            let min = if MINS {
                [factor(SUBS), factor(2 * SUBS - 1)]
            } else {
                scale
            };
            for (c, y) in y.iter_mut().enumerate() {
                if !WHOLE && c == width {
                    break;
                }
                let mut t = S::mul(ints(0, c), scale[0]);
                if SUBS == 2 {
                    t = S::fma(ints(1, c), scale[1], t);
                }
                if MINS {
                    t = S::fnma(min[0], S::splat(codes.add(c)), t);
                }
                if MINS && SUBS == 2 {
                    t = S::fnma(min[1], S::splat(codes.add(width + c)), t);
                }
                *y = S::fma(t, S::splat(scales.add(c)), *y);
            }
        }
    }
}

impl<const SUBS: usize, const MINS: bool, const WHOLE: bool> Task
    for On<Avx512, Pass<SUBS, MINS, WHOLE>>
{
    /// While the float part of a block runs, the tiles multiply the next ones.
    #[inline(always)]
    unsafe fn run(self) {
        let (pass, mut sums) = (self.0, Sums([0; FLIGHT * SUMS]));
        let ahead = Pass::<SUBS, MINS, WHOLE>::AHEAD;
        let products = pass.blocks * SUBS;
        // SAFETY: as the fields promise.
        unsafe {
            let mut y = [Avx512::zero(); TILE_COLS];
            for product in 0..ahead.min(products) {
                pass.multiply(product, &mut sums);
            }
            for block in 0..pass.blocks {
                for product in block * SUBS + ahead..(block + 1) * SUBS + ahead {
                    if product < products {
                        pass.multiply(product, &mut sums);
                    }
                }
                let now = block * SUBS % FLIGHT;
                pass.add(block, sums.0.as_ptr().add(now * SUMS), &mut y);
            }
            for (c, &y) in y.iter().enumerate() {
                Avx512::store(pass.out.add(c).cast(), y);
            }
        }
    }
}
