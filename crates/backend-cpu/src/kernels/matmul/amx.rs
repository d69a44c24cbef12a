//! AMX: tiles of bytes.
//!
//! Tile registers outlive the assembly that fills them, since compilers use them for nothing else.
#![allow(unsafe_code)]

use std::arch::asm;

use super::folded::{Multiply, PLANE, SUMS};

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

/// This thread's tiles, all sixteen rows of 64 bytes. Others may use tiles in this thread before and after, so they are
/// set every time and released afterwards.
pub(super) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`available`] was true.
    pub(super) unsafe fn new() -> Self {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(64);
        config.rows[..8].fill(16);
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
impl Multiply for Tiles {
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
                    "tileloadd tmm5, [{panel} + {line}]",
                    concat!("tdpbssd ", $high, ", tmm4, tmm5"),
                    "tileloadd tmm6, [{panel} + {line} + {plane}]",
                    concat!("tdpbsud ", $low, ", tmm4, tmm6"),
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
