//! Weights as plain rows of floats.

use tokkata_ir::weight::read_f32;
use tokkata_ir::{BackendError, Program, RawRows, WeightDef, WeightSource};

/// Rows are decoded in portions of about this many elements, so that raw bytes never exist as a whole.
const PORTION: usize = 1 << 20;

/// Every weight of the program, `f32`, in its own shape.
pub(crate) fn load_weights(
    program: &Program,
    source: &dyn WeightSource,
) -> Result<Vec<Vec<f32>>, BackendError> {
    let load = |def| load_weight(def, source);
    program.weights.iter().map(load).collect()
}

fn load_weight(def: &WeightDef, source: &dyn WeightSource) -> Result<Vec<f32>, BackendError> {
    let segments = RawRows::new(source, &def.recipe)?;
    let (mut rows, mut elems, mut cols) = (0, 0, 1);
    for s in segments.segments() {
        rows += s.rows;
        elems += s.rows * s.cols;
        cols = cols.max(s.cols);
    }
    let expected = def.rows() * def.cols();
    if elems != expected {
        return Err(BackendError::Weight(format!(
            "{} has {elems} elements where the plan expects {expected}",
            def.name
        )));
    }
    let portion = (PORTION / cols).max(1);
    let mut floats = Vec::with_capacity(elems);
    for start in (0..rows).step_by(portion) {
        let take = portion.min(rows - start);
        floats.extend(read_f32(source, &def.recipe, start, take)?);
    }
    Ok(floats)
}
