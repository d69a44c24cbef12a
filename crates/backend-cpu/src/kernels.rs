//! Kernels for the set of instructions that this processor has.
//!
//! A [`Kernel`] is the proof that its set can run. All sets give the same bits, since integer sums are
//! exact and floats go through the same operations in the same order; but the set with tiles quantises the activations
//! of some formats by groups of another length, and splits them for others.
#![allow(unsafe_code)]

pub(crate) mod act;
pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod lanes;
mod math;
pub mod matmul;
pub(crate) mod norm;
pub mod quantize;
pub(crate) mod rope;
pub(crate) mod scan;

pub use matmul::{Add, Epilogue, MAX_STREAM_ROWS, Scratch, Store};
pub use quantize::{Activations, Forms, RowWriter};

use crate::caps::{Caps, Level};
use crate::tuning::Tuning;
use matmul::portable::Portable;
use matmul::simd::{Simd, Task};

/// A kernel set that this processor can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    level: Level,
    stream_rows: usize,
    group_bytes: usize,
}

impl Kernel {
    /// The set that `caps` allows, or `None` when it was not built into this program.
    #[must_use]
    pub fn new(caps: &Caps) -> Option<Self> {
        let built = cfg!(target_arch = "x86_64") || caps.level() == Level::Portable;
        let Tuning {
            stream_rows,
            group_kib,
            ..
        } = Tuning::usual(caps.level());
        built.then_some(Self {
            level: caps.level(),
            stream_rows,
            group_bytes: group_kib << 10,
        })
    }

    /// This set with the other choices of `tuning`.
    #[must_use]
    pub fn tuned(self, tuning: &Tuning) -> Self {
        Self {
            level: self.level,
            stream_rows: tuning.stream_rows.clamp(1, MAX_STREAM_ROWS),
            group_bytes: tuning.group_kib << 10,
        }
    }

    /// The set.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Whether tiles multiply `rows` rows of activations.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles(&self, rows: usize) -> bool {
        self.level == Level::Amx && rows > self.stream_rows
    }

    /// Runs a task compiled for this set.
    pub(crate) fn vectorize<T: Task>(&self, task: T) {
        // SAFETY: the value proves that the processor has the set.
        unsafe {
            match self.level {
                Level::Portable => Portable::vectorize(task),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => matmul::avx2::Avx2::vectorize(task),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 | Level::Amx => matmul::avx512::Avx512::vectorize(task),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("`new` refuses sets that are not built"),
            }
        }
    }
}
