//! What a recipe makes of pairs: the addition of low rank to some of its rows.

use std::collections::{BTreeMap, BTreeSet};

use tokkata_ir::{Fold, RawRows, Recipe, WeightSource};

use super::{AdapterError, Stored};

/// An addition `b · a` to some rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Low {
    pub(super) rank: usize,
    pub(super) cols: usize,
    /// `[rank, cols]`.
    pub(super) a: Vec<f32>,
    /// `[rows, rank]`.
    pub(super) b: Vec<f32>,
    rows: usize,
}

impl Low {
    /// Nothing, for so many rows and columns.
    pub(super) fn none(rows: usize, cols: usize) -> Self {
        Low {
            rank: 0,
            cols,
            a: Vec::new(),
            b: Vec::new(),
            rows,
        }
    }

    pub(super) fn scaled(mut self, scale: f32) -> Self {
        self.b.iter_mut().for_each(|x| *x *= scale);
        self
    }

    /// The sum of two additions.
    pub(super) fn beside(self, other: Low) -> Self {
        let row = |low: &Low, row: usize| low.b[row * low.rank..(row + 1) * low.rank].to_vec();
        let both = |i: usize| [row(&self, i), row(&other, i)].concat();
        Low {
            rank: self.rank + other.rank,
            b: (0..self.rows).flat_map(both).collect(),
            a: [self.a, other.a].concat(),
            ..other
        }
    }

    /// The same with more columns of zeros between its matrices.
    pub(super) fn widened(self, rank: usize) -> Self {
        let more = rank - self.rank;
        let (rows, cols) = (self.rows, self.cols);
        self.beside(Low {
            rank: more,
            cols,
            a: vec![0.0; more * cols],
            b: vec![0.0; more * rows],
            rows,
        })
    }

    /// These rows of it, in this order.
    fn picked(self, rows: impl ExactSizeIterator<Item = usize>) -> Self {
        let count = rows.len();
        let row = |i: usize| &self.b[i * self.rank..(i + 1) * self.rank];
        Low {
            b: rows.flat_map(row).copied().collect(),
            rows: count,
            rank: self.rank,
            cols: self.cols,
            a: self.a.clone(),
        }
    }

    /// It as rows `first..` of `rows`, the others of which get nothing.
    fn among(self, first: usize, rows: usize) -> Self {
        let mut b = vec![0.0; rows * self.rank];
        b[first * self.rank..][..self.b.len()].copy_from_slice(&self.b);
        Low { b, rows, ..self }
    }

    /// Columns for rows.
    fn transposed(self) -> Self {
        Low {
            a: across(&self.b, self.rank),
            b: across(&self.a, self.cols),
            rows: self.cols,
            cols: self.rows,
            rank: self.rank,
        }
    }
}

/// A matrix of rows of `cols`, transposed.
pub(super) fn across(x: &[f32], cols: usize) -> Vec<f32> {
    let column = |c: usize| x.iter().skip(c).step_by(cols.max(1)).copied();
    (0..cols).flat_map(column).collect()
}

/// Makes additions out of pairs, and notes which it used.
pub(super) struct Maker<'a> {
    pairs: &'a BTreeMap<String, Stored>,
    base: &'a dyn WeightSource,
    used: BTreeSet<&'a String>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(pairs: &'a BTreeMap<String, Stored>, base: &'a dyn WeightSource) -> Self {
        Maker {
            pairs,
            base,
            used: BTreeSet::new(),
        }
    }

    /// Tensors whose pairs were used.
    pub(super) fn used(&self) -> Vec<&'a String> {
        self.used.iter().copied().collect()
    }

    /// What is added to rows `start..start + len` of a recipe; `None` where nothing is.
    pub(super) fn rows(
        &mut self,
        recipe: &Recipe,
        start: usize,
        len: usize,
    ) -> Result<Option<Low>, AdapterError> {
        match recipe {
            Recipe::Source(name) => Ok(self.source(name, start, len)),
            Recipe::Rows {
                of, start: first, ..
            } => self.rows(of, *first as usize + start, len),
            Recipe::Concat(parts) => self.concat(parts, start, len),
            Recipe::Permute { of, map } => {
                let wanted = map[start..start + len].iter().map(|&row| row as usize);
                let (first, last) = wanted
                    .clone()
                    .fold((usize::MAX, 0), |(a, b), row| (a.min(row), b.max(row)));
                let low = self.rows(of, first.min(last), last + 1 - first.min(last))?;
                Ok(low.map(|low| low.picked(wanted.map(|row| row - first))))
            }
            Recipe::Map { of, fold } => {
                let low = self.rows(of, start, len)?;
                match (low, fold) {
                    (None, _) => Ok(None),
                    (Some(low), Fold::MulConst(c)) => Ok(Some(low.scaled(*c))),
                    (Some(_), _) => Err(self.unfit("is for a weight that is no linear map")),
                }
            }
            Recipe::Reshape { of, cols } => match self.rows_in(of)? {
                (_, own) if own == *cols as usize => self.rows(of, start, len),
                (rows, _) => match self.rows(of, 0, rows)? {
                    None => Ok(None),
                    Some(_) => Err(self.unfit("is for a weight of other rows than its tensor's")),
                },
            },
            Recipe::Transpose { of, n, k } => {
                self.transposed(of, (*n as usize, *k as usize), start, len)
            }
            Recipe::Zeros { .. } => Ok(None),
        }
    }

    fn unfit(&self, what: &str) -> AdapterError {
        let name = self
            .used
            .last()
            .map(|tensor| self.pairs[*tensor].name.clone());
        AdapterError::Tensor {
            name: name.unwrap_or_default(),
            what: what.to_owned(),
        }
    }

    /// Rows and columns of a recipe.
    fn rows_in(&self, recipe: &Recipe) -> Result<(usize, usize), AdapterError> {
        let raw = RawRows::new(self.base, recipe)?;
        let segments = raw.segments();
        let cols = segments.first().map_or(0, |s| s.cols);
        Ok((segments.iter().map(|s| s.rows).sum(), cols))
    }

    /// Every matrix that the rows reach into adds to its own of them.
    fn source(&mut self, name: &str, start: usize, len: usize) -> Option<Low> {
        let (tensor, stored) = self.pairs.get_key_value(name)?;
        self.used.insert(tensor);
        let [a, b] = [&stored.a, &stored.b];
        let rank = a.0[a.0.len() - 2];
        let (n, cols) = (b.0[b.0.len() - 2], a.0[a.0.len() - 1]);
        let matrices = start / n..(start + len).div_ceil(n);
        let own = matrices.map(|e| {
            let rows = (e * n).max(start)..((e + 1) * n).min(start + len);
            let low = Low {
                rank,
                cols,
                a: a.1[e * rank * cols..][..rank * cols].to_vec(),
                b: b.1[rows.start * rank..rows.end * rank].to_vec(),
                rows: rows.len(),
            };
            low.among(rows.start - start, len)
        });
        own.reduce(Low::beside)
    }

    fn concat(
        &mut self,
        parts: &[Recipe],
        start: usize,
        len: usize,
    ) -> Result<Option<Low>, AdapterError> {
        let (mut first, mut sum) = (0, None::<Low>);
        for part in parts {
            let (rows, _) = self.rows_in(part)?;
            let (from, to) = (start.max(first), (start + len).min(first + rows));
            if from < to
                && let Some(low) = self.rows(part, from - first, to - from)?
            {
                let low = low.among(from - start, len);
                sum = Some(match sum {
                    None => low,
                    Some(sum) => sum.beside(low),
                });
            }
            first += rows;
        }
        Ok(sum)
    }

    /// Each matrix `[n, k]` transposed; rows are those of `[k, n]`.
    fn transposed(
        &mut self,
        of: &Recipe,
        (n, k): (usize, usize),
        start: usize,
        len: usize,
    ) -> Result<Option<Low>, AdapterError> {
        let mut sum = None::<Low>;
        for matrix in start / k..(start + len).div_ceil(k) {
            let rows = (matrix * k).max(start)..((matrix + 1) * k).min(start + len);
            let Some(low) = self.rows(of, matrix * n, n)? else {
                continue;
            };
            let (first, at) = (matrix * k, rows.start - start);
            let low = low
                .transposed()
                .picked(rows.map(|row| row - first))
                .among(at, len);
            sum = Some(match sum {
                None => low,
                Some(sum) => sum.beside(low),
            });
        }
        Ok(sum)
    }
}
