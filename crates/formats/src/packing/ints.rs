//! Packed weights whose elements are integers times a factor that columns share, some with an offset.

use super::pieces::{Pieces, Stored};
use super::{GptqZeros, PackedWeight, Scheme};

/// The nibble of an AWQ word that holds each column.
const AWQ_NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A weight of integers: element `k` of a row is `factor · code`, plus the offset where there is one.
pub(super) struct Ints<'a> {
    scheme: Scheme,
    pieces: &'a Pieces<'a>,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl<'a> Ints<'a> {
    /// The weight as integers, if it is made of them.
    pub(super) fn of(weight: &PackedWeight, pieces: &'a Pieces<'a>) -> Option<Self> {
        let scheme = weight.scheme;
        let whole = matches!(
            scheme,
            Scheme::Affine { .. }
                | Scheme::Gptq { .. }
                | Scheme::Awq { .. }
                | Scheme::Packed { .. }
                | Scheme::Int8Scaled { .. }
        );
        whole.then(|| Ints {
            scheme,
            pieces,
            rows: weight.rows(),
            cols: weight.cols(),
        })
    }

    /// Codes of a row from which zero points are taken already.
    pub(super) fn codes(&self, row: usize, out: &mut [i32]) {
        for (k, code) in out.iter_mut().enumerate() {
            *code = self.code(row, k) - self.zero(row, self.group(k));
        }
    }

    fn code(&self, row: usize, k: usize) -> i32 {
        let values = self.pieces.values;
        match self.scheme {
            Scheme::Affine { bits, .. } => {
                let bits = usize::from(bits);
                values.bits((row * (self.cols * bits / 32), 1), k * bits, bits) as i32
            }
            Scheme::Gptq { bits, .. } => {
                let bits = usize::from(bits);
                values.bits((row, values.cols), k * bits, bits) as i32
            }
            Scheme::Awq { .. } => awq(values, k, row),
            Scheme::Packed { bits, .. } => {
                let per_word = 32 / usize::from(bits);
                let word = row * values.cols + k / per_word;
                centred(values.word(word), (k % per_word, bits))
            }
            _ => i32::from(values.byte(row * self.cols + k) as i8),
        }
    }

    /// The zero point of a row in a group.
    fn zero(&self, row: usize, group: usize) -> i32 {
        let Some(zeros) = self.pieces.zeros else {
            return 0;
        };
        match self.scheme {
            Scheme::Gptq {
                bits, zeros: kind, ..
            } => {
                let bits = usize::from(bits);
                let stored = zeros.bits((group * zeros.cols, 1), row * bits, bits);
                stored as i32 + i32::from(kind == GptqZeros::LessOne)
            }
            Scheme::Awq { .. } => awq(zeros, group, row),
            // Packed along the rows.
            Scheme::Packed { bits, .. } => {
                let per_word = 32 / usize::from(bits);
                let word = row / per_word * zeros.cols + group;
                centred(zeros.word(word), (row % per_word, bits))
            }
            _ => 0,
        }
    }

    /// Columns that follow one another with one factor.
    fn run(&self) -> usize {
        let run = match self.scheme {
            Scheme::Affine { group, .. } | Scheme::Awq { group } => group,
            Scheme::Gptq { group, .. } | Scheme::Packed { group, .. } => group.unwrap_or(self.cols),
            Scheme::Int8Scaled { block } => block.map_or(self.cols, |b| b[1]),
            _ => 1,
        };
        run.max(1)
    }

    fn group(&self, k: usize) -> usize {
        let Some(index) = self.pieces.index else {
            return k / self.run();
        };
        let groups = self.pieces.scales.len() / self.pieces.scales.cols.max(1);
        (index.word(k) as usize).min(groups.saturating_sub(1))
    }

    /// The place of an element's factor, and of its offset.
    fn place(&self, row: usize, k: usize) -> usize {
        let scales = self.pieces.scales;
        match self.scheme {
            Scheme::Gptq { .. } | Scheme::Awq { .. } => self.group(k) * scales.cols + row,
            Scheme::Int8Scaled { block } => scale_place(scales, block, (row, k)),
            _ => row * self.cols.div_ceil(self.run()) + self.group(k),
        }
    }

    /// What an element's code is multiplied by.
    pub(super) fn factor(&self, row: usize, k: usize) -> f32 {
        self.pieces.scales.float(self.place(row, k))
    }

    /// What is added to an element.
    pub(super) fn offset(&self, row: usize, k: usize) -> Option<f32> {
        let biases = self.pieces.biases?;
        Some(biases.float(self.place(row, k)))
    }

    /// Whether each run of `len` columns has one factor.
    pub(super) fn runs_hold(&self, len: usize) -> bool {
        let run = self.run();
        let by_order = match self.pieces.index {
            Some(_) => {
                let columns: Vec<_> = (0..self.cols).map(|k| self.group(k)).collect();
                let alike = |c: &[usize]| c.iter().all(|&g| g == c[0]);
                columns.chunks(len).all(alike)
            }
            None => run.is_multiple_of(len) || run >= self.cols,
        };
        self.cols.is_multiple_of(len) && by_order
    }

    /// The least and the greatest code that there can be.
    pub(super) fn range(&self) -> (i32, i32) {
        let (low, high) = match self.scheme {
            Scheme::Affine { bits, .. } | Scheme::Gptq { bits, .. } => (0, (1 << bits) - 1),
            Scheme::Awq { .. } => (0, 15),
            Scheme::Packed { bits, .. } => (-1 << (bits - 1), (1 << (bits - 1)) - 1),
            _ => (-128, 127),
        };
        if self.pieces.zeros.is_none() {
            return (low, high);
        }
        let groups = self.cols.div_ceil(self.run());
        let (mut least, mut most) = (i32::MAX, i32::MIN);
        for row in 0..self.rows {
            for group in 0..groups {
                let zero = self.zero(row, group);
                (least, most) = (least.min(zero), most.max(zero));
            }
        }
        (low.saturating_sub(most), high.saturating_sub(least))
    }
}

fn awq(stored: Stored<'_>, row: usize, column: usize) -> i32 {
    let word = stored.word(row * stored.cols + column / 8);
    (word >> (4 * AWQ_NIBBLE[column % 8]) & 15) as i32
}

/// A code of a word whose middle stands for zero.
fn centred(word: u32, (place, bits): (usize, u8)) -> i32 {
    let code = word >> (usize::from(bits) * place) & ((1 << bits) - 1);
    code as i32 - (1 << (bits - 1))
}

/// The place of the scale of a tensor, a row, or a block of rows and columns.
pub(super) fn scale_place(
    scales: Stored<'_>,
    block: Option<[usize; 2]>,
    (row, k): (usize, usize),
) -> usize {
    match block {
        Some([n, b]) => row / n * scales.cols + k / b,
        None if scales.len() <= 1 => 0,
        None => row,
    }
}
