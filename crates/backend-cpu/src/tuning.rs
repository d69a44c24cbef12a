//! Choices of kernels, measured on the machine at hand. None changes a result but the set with tiles, which quantises
//! or splits activations for some formats.
//!
//! A tuning is text of the form `set=avx512 stream=8 group=384`, so that it can be kept in a file.
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use tokkata_core::DType;

use crate::caps::{Caps, Level};
use crate::kernels::{Activations, Kernel, MAX_STREAM_ROWS, Scratch, Store};
use crate::layout::{LayoutError, Matrix, Order, Part};
use crate::pool::Pool;

/// The choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The kernel set.
    pub set: Level,
    /// Rows up to which stored panels are streamed rather than unpacked first.
    pub stream_rows: usize,
    /// KiB of unpacked panels that stay in cache.
    pub group_kib: usize,
}

impl Tuning {
    /// What is used on a machine that was not measured.
    #[must_use]
    pub const fn usual(set: Level) -> Self {
        Tuning {
            set,
            stream_rows: 8,
            group_kib: 384,
        }
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning {
            set,
            stream_rows,
            group_kib,
        } = self;
        write!(
            f,
            "set={} stream={stream_rows} group={group_kib}",
            set.name()
        )
    }
}

/// A text that is no tuning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "found '{0}', expected kernel choices such as 'set=avx2 stream=8 group=384'; run `tokkata tune` again"
)]
pub struct TuningError(String);

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Self, TuningError> {
        let wrong = || TuningError(text.to_owned());
        let mut tuning = Tuning::usual(Level::Portable);
        let mut seen = 0;
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse::<usize>().map_err(|_| wrong());
            match name {
                "set" => {
                    let known = Level::ALL.into_iter().find(|l| l.name() == value);
                    tuning.set = known.ok_or_else(wrong)?;
                }
                "stream" => tuning.stream_rows = number()?,
                "group" => tuning.group_kib = number()?,
                _ => return Err(wrong()),
            }
            seen += 1;
        }
        let fits = (1..=MAX_STREAM_ROWS).contains(&tuning.stream_rows)
            && (1..=1 << 20).contains(&tuning.group_kib);
        if seen == 3 && fits {
            Ok(tuning)
        } else {
            Err(wrong())
        }
    }
}

/// One measured choice: what was tried and multiply–adds per second.
pub type Report<'a> = &'a mut dyn FnMut(&str, f64);

/// Shape of the product that is measured: a feed-forward matrix of a small model.
const SHAPE: (usize, usize) = (3072, 1024);
/// Rows of a prompt.
const PROMPT: usize = 192;
const GROUPS: [usize; 5] = [96, 192, 384, 768, 1536];
/// Measurements of one choice; the best counts.
const ROUNDS: usize = 5;
/// A choice must be this much faster than the one before it: differences below are chance.
const MARGIN: f64 = 1.03;

/// Measures the choices one after the other, with `threads` threads.
///
/// # Errors
/// When a worker fails.
pub fn measure(threads: usize, report: Report<'_>) -> Result<Tuning, LayoutError> {
    let bench = Bench::new(threads)?;
    // The usual choice comes first: others must beat it. Plain Rust is tried only where there is nothing else.
    let usual = Caps::detect();
    let fast = |c: &Caps| *c != usual && c.level() > Level::Portable;
    let sets = std::iter::once(usual).chain(Caps::all().into_iter().filter(fast));
    let sets = sets.map(|caps| Tuning::usual(caps.level()));
    let mut tuning = bench.best(PROMPT, sets, report)?;
    let groups = GROUPS.map(|group_kib| Tuning {
        group_kib,
        ..tuning
    });
    let usual = groups.iter().filter(|t| t.group_kib == tuning.group_kib);
    let others = groups.iter().filter(|t| t.group_kib != tuning.group_kib);
    tuning = bench.best(PROMPT, usual.chain(others).copied(), report)?;
    for rows in (2..=MAX_STREAM_ROWS).rev() {
        let [unpacked, streamed] = [rows - 1, rows].map(|stream_rows| Tuning {
            stream_rows,
            ..tuning
        });
        if bench.best(rows, [unpacked, streamed].into_iter(), report)? == streamed {
            return Ok(streamed);
        }
        tuning = unpacked;
    }
    Ok(tuning)
}

struct Bench {
    pool: Pool,
    matrix: Matrix,
}

impl Bench {
    fn new(threads: usize) -> Result<Self, LayoutError> {
        let pool = Pool::new(threads);
        let ((rows, k), dtype) = (SHAPE, DType::Q4_K);
        let parts = [Part { dtype, rows }];
        let source = |_: usize, _: std::ops::Range<usize>, to: &mut [u8]| {
            // Small scales, any codes.
            to.iter_mut()
                .enumerate()
                .for_each(|(i, b)| *b = (i * 37 % 251) as u8 & 0x3b);
            Ok(())
        };
        let matrix = Matrix::pack(&pool, k, &parts, Order::Sequential, &source)?;
        Ok(Bench { pool, matrix })
    }

    /// The fastest of some choices for this many rows, an earlier one unless a later one is clearly faster.
    fn best(
        &self,
        rows: usize,
        choices: impl Iterator<Item = Tuning>,
        report: Report<'_>,
    ) -> Result<Tuning, LayoutError> {
        let mut rated = Vec::new();
        for tuning in choices {
            rated.push((tuning, f64::MAX));
        }
        for _ in 0..ROUNDS {
            for (tuning, least) in &mut rated {
                *least = least.min(self.time(rows, *tuning)?.as_secs_f64());
            }
        }
        let work = (rows * SHAPE.0 * SHAPE.1) as f64;
        let mut best = rated[0];
        for &(tuning, least) in &rated {
            report(&format!("{rows} rows, {tuning}"), work / least);
            if least * MARGIN < best.1 {
                best = (tuning, least);
            }
        }
        Ok(best.0)
    }

    /// Time of a product on all workers.
    fn time(&self, rows: usize, tuning: Tuning) -> Result<Duration, LayoutError> {
        let caps = Caps::limited_to(tuning.set.name());
        let kernel = caps.ok().and_then(|caps| Kernel::new(&caps));
        let kernel = kernel
            .expect("only sets of this machine are tried")
            .tuned(&tuning);
        let (n, k) = SHAPE;
        let mut x = Activations::default();
        let writer = x.begin(rows, k, kernel.forms(&self.matrix));
        let row: Vec<f32> = (0..k).map(|i| (i * 29 % 63) as f32 - 31.0).collect();
        // SAFETY: one thread writes, and none reads yet.
        (0..rows).for_each(|r| unsafe { writer.write(&kernel, r, &row) });
        let mut y = vec![0.0; rows * n];
        // SAFETY: workers take disjoint panels.
        let store = unsafe { Store::new(&mut y, n) };
        let start = Instant::now();
        self.pool.run(&|worker| {
            let panels = self.matrix.share(worker.index(), worker.count());
            let (mut store, mut scratch) = (store, Scratch::default());
            kernel.matmul(&self.matrix, &x, panels.clone(), &mut scratch, &mut store);
        })?;
        Ok(start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuning_survives_its_text() {
        let tuning = Tuning {
            set: Level::Avx2,
            stream_rows: 5,
            group_kib: 768,
        };
        assert_eq!(tuning.to_string(), "set=avx2 stream=5 group=768");
        assert_eq!(tuning.to_string().parse(), Ok(tuning));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "set=avx2",
            "set=mmx stream=8 group=384",
            "set=avx2 stream=0 group=384",
            "set=avx2 stream=13 group=384",
            "set=avx2 stream=8 group=x",
            "set=avx2 stream=8 group=384 more",
        ] {
            assert!(text.parse::<Tuning>().is_err(), "{text}");
        }
    }

    #[test]
    fn measuring_gives_a_set_of_this_machine() {
        let mut tried = 0;
        let tuning = measure(1, &mut |_, rate| tried += usize::from(rate > 0.0)).unwrap();
        assert!(Caps::limited_to(tuning.set.name()).is_ok());
        assert!(tried >= GROUPS.len() + 3, "{tried}");
        assert_eq!(tuning.to_string().parse(), Ok(tuning));
    }
}
