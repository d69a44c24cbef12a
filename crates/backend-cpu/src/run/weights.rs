//! Weights of a program in the forms that steps read: panels for products and tables, floats for the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokkata_core::DType;
use tokkata_ir::weight::read_f32;
use tokkata_ir::{
    BackendError, Conv1dOp, Mapped, Op, Program, RawRows, WeightDef, WeightId, WeightSource,
};

use crate::layout::{LayoutError, Matrix, Order, PANEL_ROWS, Part};
use crate::memory::Slab;
use crate::pool::Pool;

/// What a weight is used as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Role {
    matrix: bool,
    /// Rows of one of several matrices stacked in the weight.
    stacked: bool,
    vector: bool,
}

/// Every weight that the plans use.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    matrices: BTreeMap<u32, Arc<Matrix>>,
    vectors: BTreeMap<u32, Vec<f32>>,
}

fn roles(program: &Program) -> BTreeMap<u32, Role> {
    let mut roles: BTreeMap<u32, Role> = BTreeMap::new();
    for node in program.plans.iter().flat_map(|p| &p.nodes) {
        let matrix = match node.op {
            Op::Gather { table, .. } => Some(table),
            Op::Matmul { weight, .. }
            | Op::HeadMatmul { weight, .. }
            | Op::Conv1d(Conv1dOp { weight, .. })
            | Op::Experts { weight, .. } => Some(weight),
            _ => None,
        };
        for id in node.op.weights() {
            let role = roles.entry(id.0).or_default();
            if Some(id) == matrix {
                role.matrix = true;
                role.stacked |= matches!(node.op, Op::HeadMatmul { .. } | Op::Experts { .. });
            } else {
                role.vector = true;
            }
        }
    }
    roles
}

/// Bytes that the weights of a program need, a little more than in the file.
pub(crate) fn bytes_needed(
    program: &Program,
    source: &dyn WeightSource,
    no_repack: bool,
) -> Result<u64, BackendError> {
    let mut bytes = 0;
    for (id, role) in roles(program) {
        let def = &program.weights[id as usize];
        let raw = RawRows::new(source, &def.recipe)?;
        let packed = role.matrix && !(no_repack && raw.mapped().is_some());
        for segment in raw.segments() {
            let row = segment
                .dtype
                .row_bytes(segment.cols)
                .unwrap_or(segment.cols * 4) as u64;
            let rows = segment.rows as u64;
            bytes += if role.vector {
                rows * segment.cols as u64 * 4
            } else {
                0
            };
            bytes += if packed {
                rows * row + rows * row / 32
            } else {
                0
            };
        }
    }
    Ok(bytes)
}

impl Weights {
    /// Reads every weight, packing matrices on all workers, or leaving them in the map where `no_repack` asks for it
    /// and the source can.
    pub(crate) fn load(
        program: &Program,
        source: &dyn WeightSource,
        pool: &Pool,
        no_repack: bool,
    ) -> Result<Self, BackendError> {
        let mut weights = Weights::default();
        let slab = Slab::default();
        for (id, role) in roles(program) {
            let def = &program.weights[id as usize];
            if role.matrix {
                let mapped = if no_repack {
                    map(def, role.stacked, source)?
                } else {
                    None
                };
                let matrix = match mapped {
                    Some(matrix) => matrix,
                    None => pack(def, role.stacked, source, (pool, &slab))?,
                };
                weights.matrices.insert(id, Arc::new(matrix));
            }
            if role.vector {
                weights.vectors.insert(id, floats(def, source)?);
            }
        }
        Ok(weights)
    }

    pub(crate) fn matrix(&self, id: WeightId) -> Arc<Matrix> {
        Arc::clone(&self.matrices[&id.0])
    }

    pub(crate) fn vector(&self, id: WeightId) -> Vec<f32> {
        self.vectors[&id.0].clone()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let matrices = self.matrices.values().map(|m| m.held() as u64);
        let vectors = self
            .vectors
            .values()
            .map(|v| size_of_val(v.as_slice()) as u64);
        matrices.sum::<u64>() + vectors.sum::<u64>()
    }
}

fn misshapen(def: &WeightDef, elements: usize) -> BackendError {
    let expected = def.rows() * def.cols();
    BackendError::Weight(format!(
        "{} has {elements} elements where the plan expects {expected}",
        def.name
    ))
}

fn floats(def: &WeightDef, source: &dyn WeightSource) -> Result<Vec<f32>, BackendError> {
    let segments = RawRows::new(source, &def.recipe)?;
    let rows = segments.segments().iter().map(|s| s.rows).sum();
    let floats = read_f32(source, &def.recipe, 0, rows)?;
    if floats.len() != def.rows() * def.cols() {
        return Err(misshapen(def, floats.len()));
    }
    Ok(floats)
}

/// Parts of a matrix: one per run of rows of a format, or one per stacked matrix where panels would straddle two.
fn parts(def: &WeightDef, stacked: bool, raw: &RawRows<'_>) -> Result<Vec<Part>, BackendError> {
    let segments = raw.segments();
    let elements: usize = segments.iter().map(|s| s.rows * s.cols).sum();
    if elements != def.rows() * def.cols() || segments.iter().any(|s| s.cols != def.cols()) {
        return Err(misshapen(def, elements));
    }
    let rows = def
        .shape
        .len()
        .checked_sub(2)
        .map_or(1, |i| def.shape[i] as usize);
    if !stacked || rows.is_multiple_of(PANEL_ROWS) {
        return Ok(segments
            .iter()
            .map(|s| Part {
                dtype: s.dtype,
                rows: s.rows,
            })
            .collect());
    }
    let dtype_at = |row: usize| -> DType {
        let mut first = 0;
        let found = segments.iter().find(|s| {
            first += s.rows;
            row < first
        });
        found.map_or(segments[0].dtype, |s| s.dtype)
    };
    Ok((0..def.rows() / rows)
        .map(|i| Part {
            dtype: dtype_at(i * rows),
            rows,
        })
        .collect())
}

/// The matrix in the map; `None` when some of it has to be read.
fn map(
    def: &WeightDef,
    stacked: bool,
    source: &dyn WeightSource,
) -> Result<Option<Matrix>, BackendError> {
    let raw = RawRows::new(source, &def.recipe)?;
    let Some(maps) = raw.mapped() else {
        return Ok(None);
    };
    let parts = parts(def, stacked, &raw)?;
    let (mut rest, mut rows) = (maps.into_iter(), Vec::new());
    let mut left: Option<Mapped> = None;
    for part in &parts {
        let bytes = part.dtype.row_bytes(def.cols()).unwrap_or(0) * part.rows;
        let map = left
            .take()
            .filter(|m| !m.bytes().is_empty())
            .or_else(|| rest.next());
        let split = map.and_then(|m| Some((m.slice(0..bytes)?, m.slice(bytes..m.bytes().len())?)));
        let (now, later) = split.ok_or_else(|| misshapen(def, bytes))?;
        rows.push(now);
        left = Some(later);
    }
    Matrix::map(def.cols(), &parts, rows)
        .map(Some)
        .map_err(|error| failure(def, error))
}

fn pack(
    def: &WeightDef,
    stacked: bool,
    source: &dyn WeightSource,
    (pool, slab): (&Pool, &Slab),
) -> Result<Matrix, BackendError> {
    let raw = RawRows::new(source, &def.recipe)?;
    let parts = parts(def, stacked, &raw)?;
    let starts: Vec<usize> = parts
        .iter()
        .scan(0, |at, p| {
            let start = *at;
            *at += p.rows;
            Some(start)
        })
        .collect();
    let read = |part: usize, rows: std::ops::Range<usize>, out: &mut [u8]| {
        raw.read(starts[part] + rows.start, rows.len(), out)
            .map_err(std::io::Error::other)
    };
    Matrix::pack_in(slab, pool, def.cols(), (&parts, Order::Sequential), &read)
        .map_err(|error| failure(def, error))
}

fn failure(def: &WeightDef, error: LayoutError) -> BackendError {
    match error {
        LayoutError::Pool(error) => BackendError::Lost(error.to_string()),
        error => BackendError::Weight(format!("{}: {error}", def.name)),
    }
}
