//! Weights as recipes over the tensors of a file.
//!
//! A recipe says how a weight is made from file tensors; [`RawRows`] streams its rows, so that a backend fills
//! its own layout without a second copy of the weight.

use tokkata_core::DType;

use crate::backend::{BackendError, Mapped, WeightSource};
use crate::ids::Site;

/// The largest half that a device makes of weights which it knows a bound of: beside it sums of rounded factors have room.
pub const LARGE_HALF: f32 = 32768.0;

/// The power of two that numbers up to `most` are multiplied by before a device makes halves of them, so that none is infinite and few
/// lose bits: the largest after which none is above [`LARGE_HALF`]. 1 where nothing follows from the bound.
#[must_use]
pub fn power_of_halves(most: f32) -> f32 {
    match (LARGE_HALF / most).log2().floor() {
        exponent if exponent.is_finite() => exponent.min(24.0).exp2(),
        _ => 1.0,
    }
}

/// The meaning of a weight's dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Query heads times their columns.
    Heads,
    /// Key heads times their columns.
    KvHeads,
    /// Feed-forward columns.
    Ff,
    /// Experts.
    Experts,
    /// Vocabulary.
    Vocab,
    /// Residual stream.
    Embd,
    /// Anything else.
    Other,
}

/// How a plan uses a weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// As the matrix of a product.
    pub matmul: bool,
    /// As a table whose rows are looked up.
    pub gather: bool,
    /// Elementwise.
    pub vector: bool,
}

/// A function applied to every element while a weight is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fold {
    /// `x + c`.
    AddConst(f32),
    /// `x · c`.
    MulConst(f32),
    /// `−e^x`.
    NegExp,
    /// `e^x`.
    Exp,
}

/// How a weight is made from file tensors. Shapes are slowest first, rows are the last dimension.
#[derive(Clone, Debug, PartialEq)]
pub enum Recipe {
    /// The tensor as it is.
    Source(String),
    /// Rows `start..start + len` (over all leading dimensions flattened).
    Rows {
        /// Of what.
        of: Box<Recipe>,
        /// First row.
        start: u32,
        /// Rows taken.
        len: u32,
    },
    /// Rows of the parts one after the other; formats may differ.
    Concat(Vec<Recipe>),
    /// Row `i` is row `map[i]` of the inner recipe.
    Permute {
        /// Of what.
        of: Box<Recipe>,
        /// Source row of each row.
        map: Vec<u32>,
    },
    /// The same elements in rows of another width; for formats whose blocks are single elements.
    Reshape {
        /// Of what.
        of: Box<Recipe>,
        /// Columns.
        cols: u32,
    },
    /// Every element mapped, giving F32.
    Map {
        /// Of what.
        of: Box<Recipe>,
        /// By what.
        fold: Fold,
    },
    /// The matrix transposed, giving F32; `[batch, n, k]` becomes `[batch, k, n]`.
    Transpose {
        /// Of what.
        of: Box<Recipe>,
        /// Rows of one matrix before.
        n: u32,
        /// Columns before.
        k: u32,
    },
    /// Rows of zeros, which no file holds.
    Zeros {
        /// Format, in which bytes of zero are zeros.
        dtype: DType,
        /// Rows.
        rows: u32,
        /// Columns.
        cols: u32,
    },
}

/// A weight of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightDef {
    /// The canonical (GGUF) name.
    pub name: String,
    /// Shape, slowest first.
    pub shape: Vec<u32>,
    /// Named dimensions, as many as the shape has.
    pub axes: Vec<Axis>,
    /// How to make it.
    pub recipe: Recipe,
    /// How plans use it.
    pub uses: Uses,
    /// Where it belongs.
    pub site: Site,
}

impl WeightDef {
    /// Columns of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().map_or(1, |&d| d as usize)
    }

    /// Rows over all leading dimensions.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len().saturating_sub(1)]
            .iter()
            .map(|&d| d as usize)
            .product()
    }
}

/// A run of rows of one format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// Format of these rows.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// The rows of a recipe, ready to be streamed from a source.
pub struct RawRows<'a> {
    source: &'a dyn WeightSource,
    recipe: &'a Recipe,
    segments: Vec<SourceInfo>,
}

impl<'a> RawRows<'a> {
    /// Prepares `recipe`; fails when a tensor it names is absent.
    ///
    /// # Errors
    /// [`BackendError::Weight`] names the tensor.
    pub fn new(source: &'a dyn WeightSource, recipe: &'a Recipe) -> Result<Self, BackendError> {
        Ok(RawRows {
            source,
            recipe,
            segments: segments(source, recipe)?,
        })
    }

    /// Runs of rows by format, in row order.
    #[must_use]
    pub fn segments(&self) -> &[SourceInfo] {
        &self.segments
    }

    /// Reads rows `start..start + rows` of segment format into `out`: `rows × row_bytes`.
    /// The range must lie inside one segment.
    ///
    /// # Errors
    /// Input and output errors of the source.
    pub fn read(&self, start: usize, rows: usize, out: &mut [u8]) -> Result<(), BackendError> {
        read_rows(self.source, self.recipe, start, rows, out)
    }

    /// The bytes of every segment where they lie, or `None` when some have to be read.
    #[must_use]
    pub fn mapped(&self) -> Option<Vec<Mapped>> {
        let maps = mapped_rows(self.source, self.recipe)?;
        let whole = |(s, m): (&SourceInfo, &Mapped)| {
            let row = s.dtype.row_bytes(s.cols);
            row.and_then(|r| r.checked_mul(s.rows)) == Some(m.bytes().len())
        };
        let fits = maps.len() == self.segments.len() && self.segments.iter().zip(&maps).all(whole);
        fits.then_some(maps)
    }
}

fn missing(name: &str) -> BackendError {
    BackendError::Weight(format!("tensor {name} is absent"))
}

fn segments(source: &dyn WeightSource, recipe: &Recipe) -> Result<Vec<SourceInfo>, BackendError> {
    match recipe {
        Recipe::Source(name) => {
            let (dtype, shape) = source.tensor(name).ok_or_else(|| missing(name))?;
            let cols = shape.last().copied().unwrap_or(1);
            let rows = shape[..shape.len().saturating_sub(1)].iter().product();
            Ok(vec![SourceInfo { dtype, rows, cols }])
        }
        Recipe::Rows { of, start, len } => {
            let (start, len) = (*start as usize, *len as usize);
            let mut out = Vec::new();
            let mut first = 0;
            for s in segments(source, of)? {
                let (a, b) = (start.max(first), (start + len).min(first + s.rows));
                if a < b {
                    out.push(SourceInfo { rows: b - a, ..s });
                }
                first += s.rows;
            }
            Ok(out)
        }
        Recipe::Concat(parts) => {
            let mut out = Vec::new();
            for part in parts {
                out.extend(segments(source, part)?);
            }
            Ok(out)
        }
        Recipe::Permute { of, map } => {
            let inner = segments(source, of)?;
            let uniform = inner.iter().all(|s| s.dtype == inner[0].dtype);
            if !uniform {
                return Err(BackendError::Weight(
                    "a permuted weight mixes formats".to_owned(),
                ));
            }
            Ok(vec![SourceInfo {
                rows: map.len(),
                ..inner[0].clone()
            }])
        }
        Recipe::Reshape { of, cols } => reshaped(&segments(source, of)?, *cols as usize),
        Recipe::Map { of, .. } => Ok(segments(source, of)?
            .into_iter()
            .map(|s| SourceInfo {
                dtype: DType::F32,
                ..s
            })
            .collect()),
        Recipe::Transpose { of, n, k } => {
            let rows: usize = segments(source, of)?.iter().map(|s| s.rows).sum();
            let batch = rows / *n as usize;
            Ok(vec![SourceInfo {
                dtype: DType::F32,
                rows: batch * *k as usize,
                cols: *n as usize,
            }])
        }
        Recipe::Zeros { dtype, rows, cols } => Ok(vec![SourceInfo {
            dtype: *dtype,
            rows: *rows as usize,
            cols: *cols as usize,
        }]),
    }
}

/// One run of rows of `cols` elements.
fn reshaped(inner: &[SourceInfo], cols: usize) -> Result<Vec<SourceInfo>, BackendError> {
    let elements: usize = inner.iter().map(|s| s.rows * s.cols).sum();
    let dtype = inner.first().map_or(DType::F32, |s| s.dtype);
    let plain = inner.iter().all(|s| s.dtype == dtype) && dtype.block_elems() == 1;
    if !plain || cols == 0 || !elements.is_multiple_of(cols) {
        let what = format!("{elements} elements of {dtype} do not make rows of {cols}");
        return Err(BackendError::Weight(what));
    }
    let rows = elements / cols;
    Ok(vec![SourceInfo { dtype, rows, cols }])
}

/// The segments of a recipe that only takes rows of tensors.
fn mapped_rows(source: &dyn WeightSource, recipe: &Recipe) -> Option<Vec<Mapped>> {
    match recipe {
        Recipe::Source(name) => Some(vec![source.mapped(name)?]),
        Recipe::Rows { of, start, len } => {
            let (start, end) = (*start as usize, (*start + *len) as usize);
            let inner = segments(source, of).ok()?;
            let (mut out, mut first) = (Vec::new(), 0);
            for (s, map) in inner.iter().zip(mapped_rows(source, of)?) {
                let bytes = s.dtype.row_bytes(s.cols)?;
                let (a, b) = (start.max(first), end.min(first + s.rows));
                if a < b {
                    out.push(map.slice((a - first) * bytes..(b - first) * bytes)?);
                }
                first += s.rows;
            }
            Some(out)
        }
        Recipe::Concat(parts) => {
            let parts = parts.iter().map(|part| mapped_rows(source, part));
            Some(parts.collect::<Option<Vec<_>>>()?.concat())
        }
        Recipe::Permute { .. }
        | Recipe::Reshape { .. }
        | Recipe::Map { .. }
        | Recipe::Transpose { .. }
        | Recipe::Zeros { .. } => None,
    }
}

fn row_bytes(info: &SourceInfo) -> Result<usize, BackendError> {
    info.dtype.row_bytes(info.cols).ok_or_else(|| {
        BackendError::Weight(format!(
            "rows of {} do not divide into {} blocks",
            info.cols, info.dtype
        ))
    })
}

fn read_rows(
    source: &dyn WeightSource,
    recipe: &Recipe,
    start: usize,
    rows: usize,
    out: &mut [u8],
) -> Result<(), BackendError> {
    match recipe {
        Recipe::Source(name) => {
            let (dtype, shape) = source.tensor(name).ok_or_else(|| missing(name))?;
            let cols = shape.last().copied().unwrap_or(1);
            let bytes = row_bytes(&SourceInfo { dtype, rows, cols })?;
            source.read(name, (start * bytes) as u64, &mut out[..rows * bytes])
        }
        Recipe::Rows {
            of, start: first, ..
        } => read_rows(source, of, *first as usize + start, rows, out),
        Recipe::Concat(parts) => read_concat(source, parts, start, rows, out),
        Recipe::Permute { of, map } => {
            let bytes = out.len() / rows.max(1);
            let mut out = out;
            for run in map[start..start + rows].chunk_by(|a, b| a + 1 == *b) {
                let (now, later) = out.split_at_mut(run.len() * bytes);
                read_rows(source, of, run[0] as usize, run.len(), now)?;
                out = later;
            }
            Ok(())
        }
        Recipe::Reshape { of, cols } => {
            read_reshaped(source, of, (start, rows, *cols as usize), out)
        }
        Recipe::Map { of, fold } => {
            let floats = read_f32(source, of, start, rows)?;
            for (bytes, x) in out.chunks_exact_mut(4).zip(floats) {
                bytes.copy_from_slice(&fold.apply(x).to_le_bytes());
            }
            Ok(())
        }
        Recipe::Transpose { of, n, k } => {
            read_transposed(source, of, (*n as usize, *k as usize), (start, rows), out)
        }
        Recipe::Zeros { .. } => {
            out.fill(0);
            Ok(())
        }
    }
}

/// Reads the inner rows that hold the wanted elements, which may begin and end inside a row.
fn read_reshaped(
    source: &dyn WeightSource,
    of: &Recipe,
    (start, rows, cols): (usize, usize, usize),
    out: &mut [u8],
) -> Result<(), BackendError> {
    let inner = segments(source, of)?;
    let Some(first) = inner.first() else {
        return Ok(());
    };
    let elem = first.dtype.block_bytes();
    let width = first.cols.max(1);
    let (from, to) = (start * cols, (start + rows) * cols);
    let (first_row, end_row) = (from / width, to.div_ceil(width));
    let mut raw = vec![0; (end_row - first_row) * width * elem];
    read_rows(source, of, first_row, end_row - first_row, &mut raw)?;
    let skip = (from - first_row * width) * elem;
    out.copy_from_slice(&raw[skip..][..(to - from) * elem]);
    Ok(())
}

fn read_concat(
    source: &dyn WeightSource,
    parts: &[Recipe],
    start: usize,
    rows: usize,
    out: &mut [u8],
) -> Result<(), BackendError> {
    let bytes = out.len() / rows.max(1);
    let (mut first, mut done) = (0, 0);
    for part in parts {
        let len: usize = segments(source, part)?.iter().map(|s| s.rows).sum();
        let (a, b) = (start.max(first), (start + rows).min(first + len));
        if a < b {
            read_rows(
                source,
                part,
                a - first,
                b - a,
                &mut out[done * bytes..][..(b - a) * bytes],
            )?;
            done += b - a;
        }
        first += len;
    }
    Ok(())
}

/// Reads each matrix in runs of rows, each of which is a run of columns of the wanted rows.
fn read_transposed(
    source: &dyn WeightSource,
    of: &Recipe,
    (n, k): (usize, usize),
    (start, rows): (usize, usize),
    out: &mut [u8],
) -> Result<(), BackendError> {
    const RUN: usize = 64;
    let mut at = start;
    while at < start + rows {
        let (batch, col) = (at / k, at % k);
        let taken = (k - col).min(start + rows - at);
        for first in (0..n).step_by(RUN) {
            let run = RUN.min(n - first);
            let values = read_f32(source, of, batch * n + first, run)?;
            for (j, row) in values.chunks_exact(k).enumerate() {
                for (i, value) in row[col..col + taken].iter().enumerate() {
                    let place = (at - start + i) * n + first + j;
                    out[place * 4..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        at += taken;
    }
    Ok(())
}

/// Rows of a recipe as floats.
///
/// # Errors
/// Input and output errors of the source, and formats it cannot decode.
pub fn read_f32(
    source: &dyn WeightSource,
    recipe: &Recipe,
    start: usize,
    rows: usize,
) -> Result<Vec<f32>, BackendError> {
    let mut floats = Vec::new();
    let mut first = 0;
    for s in segments(source, recipe)? {
        let (a, b) = (start.max(first), (start + rows).min(first + s.rows));
        if a < b {
            let mut raw = vec![0; (b - a) * row_bytes(&s)?];
            read_rows(source, recipe, a, b - a, &mut raw)?;
            let at = floats.len();
            floats.resize(at + (b - a) * s.cols, 0.0);
            source.decode(s.dtype, &raw, &mut floats[at..])?;
        }
        first += s.rows;
    }
    Ok(floats)
}

impl Fold {
    /// The mapped element.
    #[must_use]
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Fold::AddConst(c) => x + c,
            Fold::MulConst(c) => x * c,
            Fold::NegExp => -x.exp(),
            Fold::Exp => x.exp(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_any_size_are_halves() {
        for (most, power) in [
            (1.0, 32768.0),
            (1.1, 16384.0),
            (40_000.0, 0.5),
            (1e8, 0.000_244_140_63),
        ] {
            assert_eq!(power_of_halves(most), power, "{most}");
            assert!(most * power <= LARGE_HALF, "{most}");
        }
        assert_eq!(power_of_halves(1e-30), 16_777_216.0);
        let nothing = [0.0, f32::INFINITY].map(power_of_halves);
        assert_eq!(nothing, [1.0, 1.0]);
    }
}
