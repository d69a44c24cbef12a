//! Kernels for the set of instructions that this processor has.
//!
//! A [`Kernel`] is the proof that its set can run. All sets give the same bits, since integer sums are
//! exact and floats go through the same operations in the same order; but the set with tiles quantises the activations
//! of some formats by groups of another length, and splits them for others.
#![allow(unsafe_code)]

pub(crate) mod act;
pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod indexer;
pub(crate) mod lanes;
pub(crate) mod lowrank;
mod math;
pub mod matmul;
pub(crate) mod norm;
pub mod quantize;
pub(crate) mod rope;
pub(crate) mod scan;
pub(crate) mod summary;

pub use matmul::{Add, Epilogue, MAX_STREAM_ROWS, Scratch, Store};
pub use quantize::{Activations, Forms, RowWriter};

use crate::caps::{Caps, Level};
use crate::tuning::{Fetch, Near, Tuning};
use matmul::simd::{Simd, Task};

/// A kernel set that this processor can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    level: Level,
    /// The set that multiplies few rows; it gives the same bits.
    few: Level,
    stream_rows: usize,
    group_bytes: usize,
    pub(crate) fetch: Fetch,
    single: Fetch,
    pub(crate) near: Near,
    pub(crate) wide: bool,
}

/// Rows whose integer products wait for memory alone.
pub(crate) const MOST_SINGLE: usize = 2;

impl Kernel {
    /// The set that `caps` allows, or `None` when it was not built into this program.
    #[must_use]
    pub fn new(caps: &Caps) -> Option<Self> {
        let vectors = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        let built = vectors || caps.level() == Level::Portable;
        let kernel = Self {
            level: caps.level(),
            few: caps.level(),
            stream_rows: 1,
            group_bytes: 0,
            fetch: Fetch::default(),
            single: Fetch::default(),
            near: Near::default(),
            wide: false,
        };
        built.then(|| kernel.tuned(&Tuning::usual(caps.level())))
    }

    /// This set with the other choices of `tuning`.
    #[must_use]
    pub fn tuned(self, tuning: &Tuning) -> Self {
        Self {
            level: self.level,
            few: self.few_of(tuning.few),
            stream_rows: tuning.stream_rows.clamp(1, MAX_STREAM_ROWS),
            group_bytes: tuning.group_kib << 10,
            fetch: tuning.fetch,
            single: tuning.single,
            near: tuning.near,
            wide: tuning.wide,
        }
    }

    /// `few` where the processor has it and it gives the bits of this set.
    fn few_of(self, few: Level) -> Level {
        let same = few.agrees_with(self.level) && Caps::limited_to(few.name()).is_ok();
        if same { few } else { self.level }
    }

    /// Whether `rows` rows are few, for which stored panels are read once.
    pub(crate) fn streams(&self, rows: usize) -> bool {
        rows <= self.stream_rows
    }

    /// How stored panels are fetched for `rows` rows, of which up to `most` wait for memory alone.
    pub(crate) fn fetch_for(&self, rows: usize, most: usize) -> Fetch {
        if rows <= most {
            self.single
        } else {
            self.fetch
        }
    }

    /// The set that multiplies `rows` rows.
    pub(crate) fn level_for(&self, rows: usize) -> Level {
        if self.streams(rows) {
            self.few
        } else {
            self.level
        }
    }

    /// Bytes of unpacked panels that stay in cache.
    pub(crate) fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// The set.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Whether tiles multiply `rows` rows of activations.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles(&self, rows: usize) -> bool {
        self.level == Level::Amx && !self.streams(rows)
    }

    /// Runs a task compiled for this set.
    pub(crate) fn vectorize<T: Task>(&self, task: T) {
        // SAFETY: the value proves that the processor has the set.
        unsafe {
            macro_rules! go {
                ($set:ty) => {
                    <$set>::vectorize(task)
                };
            }
            matmul::with_set!(self.level, go);
        }
    }
}
