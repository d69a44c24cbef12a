//! AMX: tiles of bytes and of bfloat16.
//!
//! Tile registers outlive the assembly that fills them, since compilers use them for nothing else.
#![allow(unsafe_code)]

use std::arch::asm;

use super::folded::{self, PLANE, SUMS};
use super::simd::ROWS;
use super::split;
use crate::kernels::quantize::split::STEP;

/// Whether the processor has tiles of bytes and of bfloat16, and the system lets this process use them.
#[cfg(target_os = "linux")]
pub(crate) fn available() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const TILES: u32 = 1 << 24 | 1 << 25 | 1 << 22;
    /// Asks for a component of the extended state.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    static GRANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *GRANTED.get_or_init(|| {
        let has = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES == TILES;
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

/// This thread's tiles, of 64 bytes a row: sums and activations of some rows, then weights of sixteen. Others may use
/// tiles in this thread before and after, so they are set every time and released afterwards.
pub(super) struct Tiles(());

/// Registers of sums and activations.
const ACTIVATIONS: usize = 5;
/// Registers in use.
const REGISTERS: usize = 8;

impl Tiles {
    /// Tiles of `height` rows of activations, at most sixteen.
    ///
    /// # Safety
    /// [`available`] was true.
    pub(super) unsafe fn new(height: usize) -> Self {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..REGISTERS].fill(64);
        config.rows[..ACTIVATIONS].fill(height as u8);
        config.rows[ACTIVATIONS..REGISTERS].fill(16);
        // SAFETY: the sizes are the palette's, and the processor has tiles.
        unsafe {
            asm!("ldtilecfg [{0}]", in(reg) &raw const config, options(nostack, preserves_flags));
        }
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the processor has tiles, as `new` was told.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// Runs `$go!` with the registers of the sums of high and of low bytes.
macro_rules! with_sums {
    ($odd:expr, $go:ident) => {
        if $odd {
            $go!("tmm2", "tmm3")
        } else {
            $go!("tmm0", "tmm1")
        }
    };
}

/// High bytes are signed, low ones are not.
#[allow(clippy::undocumented_unsafe_blocks)]
// SAFETY (of every block below): the tiles are set, and the trait's contract gives the memory.
impl folded::Multiply for Tiles {
    #[inline(always)]
    unsafe fn zero(&mut self, odd: bool) {
        macro_rules! zero {
            ($high:literal, $low:literal) => {
                asm!(
                    concat!("tilezero ", $high),
                    concat!("tilezero ", $low),
                    options(nostack, preserves_flags, nomem)
                )
            };
        }
        unsafe { with_sums!(odd, zero) }
    }

    #[inline(always)]
    unsafe fn step(&mut self, odd: bool, codes: *const i8, panel: *const u8) {
        macro_rules! step {
            ($high:literal, $low:literal) => {
                asm!(
                    "tileloadd tmm4, [{codes} + {line}]",
                    "tileloadd tmm6, [{panel} + {line}]",
                    concat!("tdpbssd ", $high, ", tmm4, tmm6"),
                    "tileloadd tmm7, [{panel} + {line} + {plane}]",
                    concat!("tdpbsud ", $low, ", tmm4, tmm7"),
                    codes = in(reg) codes, panel = in(reg) panel,
                    line = in(reg) 64_usize, plane = const PLANE,
                    options(nostack, preserves_flags, readonly)
                )
            };
        }
        unsafe { with_sums!(odd, step) }
    }

    #[inline(always)]
    unsafe fn store(&mut self, odd: bool, to: *mut u8) {
        macro_rules! store {
            ($high:literal, $low:literal) => {
                asm!(
                    concat!("tilestored [{to} + {line}], ", $high),
                    concat!("tilestored [{to} + {line} + {sums}], ", $low),
                    to = in(reg) to, line = in(reg) 64_usize, sums = const SUMS,
                    options(nostack, preserves_flags)
                )
            };
        }
        unsafe { with_sums!(odd, store) }
    }
}

/// Runs `$go!` with the registers of the sums of tile `$t` and panel `$n`, and of that panel.
macro_rules! with_sum {
    ($t:expr, $n:expr, $go:ident) => {
        match ($t, $n) {
            (0, 0) => $go!("tmm0", "tmm6"),
            (0, _) => $go!("tmm1", "tmm7"),
            (_, 0) => $go!("tmm2", "tmm6"),
            (_, _) => $go!("tmm3", "tmm7"),
        }
    };
}

#[allow(clippy::undocumented_unsafe_blocks)]
// SAFETY (of every block below): the tiles are set, and the trait's contract gives the memory.
impl split::Multiply for Tiles {
    #[inline(always)]
    unsafe fn load(&mut self, t: usize, n: usize, from: *const f32) {
        macro_rules! load {
            ($sum:literal, $panel:literal) => {
                asm!(
                    concat!("tileloadd ", $sum, ", [{from} + {line}]"),
                    from = in(reg) from, line = in(reg) size_of::<f32>() * ROWS,
                    options(nostack, preserves_flags, readonly)
                )
            };
        }
        unsafe { with_sum!(t, n, load) }
    }

    #[inline(always)]
    unsafe fn rows(&mut self, rows: *const u16) {
        unsafe {
            asm!(
                "tileloadd tmm4, [{rows} + {line}]",
                rows = in(reg) rows, line = in(reg) size_of::<u16>() * STEP,
                options(nostack, preserves_flags, readonly)
            );
        }
    }

    #[inline(always)]
    unsafe fn panel(&mut self, n: usize, panel: *const u8) {
        macro_rules! panel {
            ($sum:literal, $panel:literal) => {
                asm!(
                    concat!("tileloadd ", $panel, ", [{panel} + {line}]"),
                    panel = in(reg) panel, line = in(reg) 2 * size_of::<u16>() * ROWS,
                    options(nostack, preserves_flags, readonly)
                )
            };
        }
        unsafe { with_sum!(0, n, panel) }
    }

    #[inline(always)]
    unsafe fn add(&mut self, t: usize, n: usize) {
        macro_rules! add {
            ($sum:literal, $panel:literal) => {
                asm!(
                    concat!("tdpbf16ps ", $sum, ", tmm4, ", $panel),
                    options(nostack, preserves_flags, nomem)
                )
            };
        }
        unsafe { with_sum!(t, n, add) }
    }

    #[inline(always)]
    unsafe fn store(&mut self, t: usize, n: usize, to: *mut f32) {
        macro_rules! store {
            ($sum:literal, $panel:literal) => {
                asm!(
                    concat!("tilestored [{to} + {line}], ", $sum),
                    to = in(reg) to, line = in(reg) size_of::<f32>() * ROWS,
                    options(nostack, preserves_flags)
                )
            };
        }
        unsafe { with_sum!(t, n, store) }
    }
}
