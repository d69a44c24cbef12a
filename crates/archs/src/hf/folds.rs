//! What becomes of a stored tensor on its way to a canonical one.

use tokkata_core::DType;
use tokkata_ir::{Fold, Recipe};

use super::config::Config;
use super::rules::TensorRule;
use crate::error::ArchError;
use crate::schema::Rule;
use crate::view::Found;

/// A tensor in the making.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    found: Found,
    /// The canonical name, for messages.
    name: String,
}

/// Rotated rows of heads that are stored in another order than they are wanted in.
struct Turned {
    heads: usize,
    /// Rows of a head before the rotated ones.
    from: usize,
    /// Rotated rows of a head; all others where nothing is said.
    rows: Option<usize>,
    /// Neighbours are stored, halves are wanted.
    apart: bool,
}

impl Piece {
    /// The rows of `parts`, one after the other; with `stack` each part is a matrix of its own.
    pub(crate) fn join(name: &str, mut parts: Vec<Found>, stack: bool) -> Result<Self, ArchError> {
        let name = name.to_owned();
        if parts.len() == 1 && !stack {
            return Ok(Piece {
                found: parts.remove(0),
                name,
            });
        }
        if parts.iter().any(|p| p.dtype != parts[0].dtype) {
            parts = parts.into_iter().map(floats).collect();
        }
        let first = parts[0].clone();
        let alike = |p: &Found| match stack {
            true => p.shape == first.shape,
            false => p.shape.get(1..) == first.shape.get(1..),
        };
        if let Some(other) = parts.iter().find(|p| !alike(p)) {
            let what = format!(
                "is to be made of {} {:?} and {} {:?}, expected parts alike",
                first.dtype, first.shape, other.dtype, other.shape
            );
            return Err(ArchError::Tensor { name, what });
        }
        let rows = parts.iter().map(|p| p.shape.first().copied().unwrap_or(1));
        let shape = match stack {
            true => [&[parts.len()], first.shape.as_slice()].concat(),
            false => [&[rows.sum()], first.shape.get(1..).unwrap_or(&[])].concat(),
        };
        let flat = first.shape.len() == 1 && !stack;
        let recipes = parts.into_iter().map(|p| p.recipe);
        let recipe = match flat {
            false => Recipe::Concat(recipes.collect()),
            // Vectors follow one another within one row.
            true => reshape(
                Recipe::Concat(recipes.map(|r| reshape(r, 1)).collect()),
                shape[0],
            ),
        };
        let found = Found {
            dtype: first.dtype,
            shape,
            recipe,
        };
        Ok(Piece { found, name })
    }

    /// A tensor of one value, which no file holds.
    pub(crate) fn filled(
        rule: &TensorRule,
        value: &Rule,
        config: &Config<'_>,
    ) -> Result<Found, ArchError> {
        let shape = rule.shape.iter().map(|r| config.size(r));
        let shape = shape.collect::<Result<Vec<usize>, _>>()?;
        let value = config.number(value)?.unwrap_or(0.0);
        let of = Box::new(Recipe::Zeros {
            dtype: DType::F32,
            rows: shape.iter().rev().skip(1).product::<usize>() as u32,
            cols: shape.last().copied().unwrap_or(1) as u32,
        });
        let fold = Fold::AddConst(value as f32);
        Ok(Found {
            dtype: DType::F32,
            shape,
            recipe: Recipe::Map { of, fold },
        })
    }

    /// Everything that a rule asks for.
    pub(crate) fn fold(
        mut self,
        rule: &TensorRule,
        config: &Config<'_>,
    ) -> Result<Found, ArchError> {
        if rule.transpose {
            self.transpose();
        }
        if !rule.reshape.is_empty() {
            self.resize(&rule.reshape, config)?;
        }
        if !rule.parts.is_empty() {
            self.deal(rule, config)?;
        }
        if let [a, b] = rule.turn.as_slice() {
            let from = rule.turn_from.as_ref().map(|r| config.size(r));
            let counts = [config.size(a)?, config.size(b)?];
            self.turn(counts, from.transpose()?.unwrap_or(0))?;
        }
        if let Some(heads) = &rule.pairs {
            let heads = config.size(heads)?;
            let size = |r: &Option<Rule>| r.as_ref().map(|r| config.size(r)).transpose();
            self.pair(&Turned {
                heads,
                from: size(&rule.pair_from)?.unwrap_or(0),
                rows: size(&rule.pair_rows)?,
                apart: rule.unpair,
            })?;
        }
        // A bias keeps its shape; a vector that is no bias takes the one that is asked for.
        if !self.name.ends_with(".bias") || self.found.shape.len() > 1 {
            self.resize(&rule.shape, config)?;
        }
        if rule.transpose_out {
            self.transpose();
        }
        if let Some(rows) = &rule.pad_rows {
            self.pad(config.size(rows)?);
        }
        self.map(rule, config)?;
        Ok(self.found)
    }

    fn map(&mut self, rule: &TensorRule, config: &Config<'_>) -> Result<(), ArchError> {
        match rule.fold.as_deref() {
            None => {}
            Some("neg_exp") => self.apply(Fold::NegExp),
            Some("exp") => self.apply(Fold::Exp),
            Some(other) => return Err(self.wrong(format!("has the unknown fold '{other}'"))),
        }
        let scale = rule.scale.as_ref().map(|r| config.number(r));
        if let Some(x) = scale.transpose()?.flatten().filter(|&x| x != 1.0) {
            self.apply(Fold::MulConst(x as f32));
        }
        if let Some(add) = rule.add.filter(|_| !self.name.ends_with(".bias")) {
            self.apply(Fold::AddConst(add as f32));
        }
        Ok(())
    }

    fn apply(&mut self, fold: Fold) {
        let of = Box::new(self.take());
        self.found.recipe = Recipe::Map { of, fold };
        self.found.dtype = DType::F32;
    }

    fn take(&mut self) -> Recipe {
        std::mem::replace(&mut self.found.recipe, Recipe::Concat(Vec::new()))
    }

    fn wrong(&self, what: String) -> ArchError {
        ArchError::Tensor {
            name: self.name.clone(),
            what,
        }
    }

    fn transpose(&mut self) {
        let &[ref lead @ .., n, k] = self.found.shape.as_slice() else {
            return;
        };
        let shape = [lead, &[k, n]].concat();
        let of = Box::new(self.take());
        let (n, k) = (n as u32, k as u32);
        self.found = Found {
            dtype: DType::F32,
            shape,
            recipe: Recipe::Transpose { of, n, k },
        };
    }

    fn resize(&mut self, sizes: &[Rule], config: &Config<'_>) -> Result<(), ArchError> {
        if sizes.is_empty() {
            return Ok(());
        }
        let shape = sizes
            .iter()
            .map(|r| config.size(r))
            .collect::<Result<Vec<_>, _>>()?;
        let old = &self.found.shape;
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if elements != Some(old.iter().product()) || elements == Some(0) {
            let what = format!("has shape {old:?}, expected as many values as {shape:?}");
            return Err(self.wrong(what));
        }
        if shape.last() != self.found.shape.last() {
            if self.found.dtype.is_quantised() {
                self.apply(Fold::MulConst(1.0));
            }
            let inner = self.take();
            self.found.recipe = reshape(inner, shape.last().copied().unwrap_or(1));
        }
        self.found.shape = shape;
        Ok(())
    }

    /// Rows of a matrix; of a vector its elements.
    fn rows(&self) -> usize {
        match self.found.shape.as_slice() {
            [n] => *n,
            shape => shape.iter().rev().skip(1).product(),
        }
    }

    /// Keeps and reorders rows.
    fn pick(&mut self, map: Vec<u32>) {
        let vector = self.found.shape.len() == 1;
        let mut of = self.take();
        if vector {
            of = reshape(of, 1);
        }
        let len = map.len();
        let start = map.first().copied().unwrap_or(0);
        let run = (map.iter().zip(start..)).all(|(&a, b)| a == b);
        let of = Box::new(of);
        let picked = match run {
            true => Recipe::Rows {
                of,
                start,
                len: len as u32,
            },
            false => Recipe::Permute { of, map },
        };
        if vector {
            self.found.recipe = reshape(picked, len);
            self.found.shape = vec![len];
            return;
        }
        self.found.recipe = picked;
        if len != self.rows() {
            let cols = self.found.shape.last().copied().unwrap_or(1);
            self.found.shape = vec![len, cols];
        }
    }

    fn deal(&mut self, rule: &TensorRule, config: &Config<'_>) -> Result<(), ArchError> {
        let groups = rule.groups.as_ref().map_or(Ok(1), |r| config.size(r))?;
        let parts = rule.parts.iter().map(|r| config.size(r));
        let parts = parts.collect::<Result<Vec<usize>, _>>()?;
        let total = parts.iter().sum::<usize>();
        let rows = self.rows();
        let pieces = groups.saturating_mul(total);
        if pieces == 0 || !rows.is_multiple_of(pieces) {
            let what =
                format!("has {rows} rows, expected a multiple of {groups} groups of {total}");
            return Err(self.wrong(what));
        }
        let unit = rows / pieces;
        let mut map = Vec::with_capacity(rows);
        let mut first = 0;
        for (i, &part) in parts.iter().enumerate() {
            if rule.take.is_empty() || rule.take.contains(&i) {
                for group in 0..groups {
                    let start = (group * total + first) * unit;
                    map.extend((start..start + part * unit).map(|r| r as u32));
                }
            }
            first += part;
        }
        self.pick(map);
        if !rule.scales.is_empty() {
            let parts: Vec<usize> = parts.iter().map(|part| part * groups * unit).collect();
            self.scale_parts(rule, &parts, config)?;
        }
        Ok(())
    }

    /// Multiplies the rows of each part by its own factor.
    fn scale_parts(
        &mut self,
        rule: &TensorRule,
        parts: &[usize],
        config: &Config<'_>,
    ) -> Result<(), ArchError> {
        if rule.scales.len() != parts.len() || !rule.take.is_empty() {
            return Err(self.wrong(format!("has {} factors for {parts:?}", rule.scales.len())));
        }
        let vector = self.found.shape.len() == 1;
        let inner = match vector {
            true => reshape(self.take(), 1),
            false => self.take(),
        };
        let (mut scaled, mut start) = (Vec::new(), 0);
        for (factor, &len) in rule.scales.iter().zip(parts) {
            let of = Box::new(Recipe::Rows {
                of: Box::new(inner.clone()),
                start: start as u32,
                len: len as u32,
            });
            let factor = config.number(factor)?.unwrap_or(1.0);
            let fold = Fold::MulConst(factor as f32);
            scaled.push(Recipe::Map { of, fold });
            start += len;
        }
        self.found.dtype = DType::F32;
        self.found.recipe = match vector {
            true => reshape(Recipe::Concat(scaled), start),
            false => Recipe::Concat(scaled),
        };
        Ok(())
    }

    /// Copies of the first row behind those that are there.
    fn pad(&mut self, rows: usize) {
        let there = self.rows();
        if self.found.shape.len() == 2 && there < rows {
            let map = (0..rows).map(|row| if row < there { row as u32 } else { 0 });
            let of = Box::new(self.take());
            let map = map.collect();
            self.found.recipe = Recipe::Permute { of, map };
            self.found.shape[0] = rows;
        }
    }

    /// Units of rows `[a, b]` behind the first rows become `[b, a]`.
    fn turn(&mut self, [a, b]: [usize; 2], from: usize) -> Result<(), ArchError> {
        let rows = self.rows();
        let turned = rows.saturating_sub(from);
        let units = a.saturating_mul(b);
        if units == 0 || turned == 0 || !turned.is_multiple_of(units) {
            let what = format!("has {rows} rows, expected {from} and a multiple of {a} times {b}");
            return Err(self.wrong(what));
        }
        let unit = turned / units;
        let mut map: Vec<u32> = (0..from as u32).collect();
        for (j, i) in (0..b).flat_map(|j| (0..a).map(move |i| (j, i))) {
            let start = from + (i * b + j) * unit;
            map.extend((start..start + unit).map(|r| r as u32));
        }
        let shape = self.found.shape.clone();
        self.pick(map);
        self.found.shape = shape;
        Ok(())
    }

    /// Rows `i` and `i + half` of the rotated ones of a head become neighbours, or the other way around.
    fn pair(&mut self, turned: &Turned) -> Result<(), ArchError> {
        let (rows, &Turned { heads, from, .. }) = (self.rows(), turned);
        let width = rows / heads.max(1);
        let rotated = turned.rows.unwrap_or(width.saturating_sub(from));
        let fits = from.saturating_add(rotated) <= width && rotated.is_multiple_of(2);
        if heads == 0 || width * heads != rows || !fits {
            let what = format!(
                "has {rows} rows, expected {heads} heads of {from} and an even number of others"
            );
            return Err(self.wrong(what));
        }
        let half = rotated / 2;
        let taken = |r: usize| match turned.apart {
            true => r % half * 2 + r / half,
            false => r % 2 * half + r / 2,
        };
        let place = |row: usize| match (row % width).checked_sub(from) {
            Some(r) if r < rotated => row - r + taken(r),
            _ => row,
        };
        let shape = self.found.shape.clone();
        self.pick((0..rows).map(|r| place(r) as u32).collect());
        self.found.shape = shape;
        Ok(())
    }
}

/// The same numbers in F32.
fn floats(found: Found) -> Found {
    let (of, fold) = (Box::new(found.recipe), Fold::MulConst(1.0));
    Found {
        dtype: DType::F32,
        recipe: Recipe::Map { of, fold },
        ..found
    }
}

fn reshape(of: Recipe, cols: usize) -> Recipe {
    Recipe::Reshape {
        of: Box::new(of),
        cols: cols as u32,
    }
}
