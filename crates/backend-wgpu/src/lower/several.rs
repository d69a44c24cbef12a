//! Products of several rows that are made integers once for all that read them.

use tokkata_ir::BackendError;

use super::Lowering;
use super::fused::{Common, THREADS, made};
use crate::launch::{Extent, Kernel};
use crate::layout::lead_code;
use crate::params::Params;
use crate::select::Products;

/// Rows of weights that 32 threads have.
const EACH: u32 = 2;

/// Rows at a time, as powers of two: where workgroups share more than they may everywhere, eight with 20 KiB.
pub(crate) const MOST: u32 = 3;

/// Columns that 32 threads read together, and the vectors of four words that they are: `integers_of_rows.wgsl` has their order.
const SPAN: u32 = 1024;
const SPAN_VECS: u32 = 32 * 5;

/// Constants of `integers.wgsl`: whether a norm comes before.
pub(crate) fn own_of_integers(normed: bool) -> [(&'static str, u32); 5] {
    [
        ("THREADS", THREADS),
        ("WORK_VEC4", 1),
        ("VECS_VEC4", 1),
        ("DOTS", 1),
        ("NORMED", normed.into()),
    ]
}

/// Constants of `several.wgsl` but for the format: of so many rows as a power of two, whether a gate follows, and whose halves it reads.
pub(crate) fn own_of_several(by: u32, gated: bool, halves: bool) -> [(&'static str, u32); 11] {
    [
        ("THREADS", THREADS),
        ("WORK_VEC4", 1),
        ("VECS_VEC4", 1),
        ("WEIGHTS_VEC4", 1),
        ("DOTS", 1),
        ("HALVES", halves.into()),
        ("EACH", EACH),
        ("MADE", made(EACH, gated)),
        ("GATED", gated.into()),
        ("ROWS", 1 << by),
        // Vectors that each thread fetches of the rows' span.
        ("FETCHES", (SPAN_VECS << by).div_ceil(THREADS)),
    ]
}

impl Lowering<'_, '_> {
    /// Whether products have so many weights that it pays to make rows integers before, or it is done already.
    pub(super) fn pays(&self, found: &Products, of: &Common) -> bool {
        let outs = found.nodes.iter().map(|&n| self.plan.nodes[n].outs[0]);
        let outputs: u64 = outs.map(|out| u64::from(self.width(out))).sum();
        let weights = u64::from(of.columns) * outputs;
        let done = |known: &(_, _)| *known == (of.x, found.norm);
        self.integers.values().any(done) || weights >= u64::from(self.ground.choices.weights) << 20
    }

    /// Products of rows that `integers.wgsl` makes ready, unless they are.
    pub(super) fn several(&mut self, found: &Products, of: &Common) -> Result<(), BackendError> {
        let row = u64::from(of.columns.div_ceil(SPAN) * SPAN_VECS * 4);
        let to = self.grown.integers(u64::from(self.most(of.lead)) * row)?;
        let known = (of.x, found.norm);
        if self.integers.insert(to, known) != Some(known) {
            let params = Params::new().u32s(&[to, of.x_at, lead_code(of.lead)]);
            let params = params.u32s(&[of.columns, of.norm.0]).f32(of.norm.1);
            let own = own_of_integers(found.norm.is_some());
            let pipeline = self.pipeline(("integers.wgsl", "integers"), &own);
            let grid = [Extent::rows(of.lead), Extent::ONE, Extent::ONE];
            self.push(Kernel::One(pipeline), grid, 0, &params);
            self.beside = false;
        }
        let gated = found.gate.is_some();
        let (params, end) = self.parts(found, of, (to, made(EACH, gated)))?;
        let abilities = self.ground.abilities;
        let format = ("FORMAT", of.segment.dtype.ggml());
        let pipeline = |by: u32| {
            let own = own_of_several(by, gated, abilities.halves);
            self.pipeline(("several.wgsl", "several"), &[&own[..], &[format]].concat())
        };
        let most = MOST - u32::from(!abilities.shares_more);
        // One row alone goes another way.
        let pipelines = (0..=most).map(|by| pipeline(by.max(1))).collect();
        let kernel = Kernel::ByRows(of.lead, 1, pipelines);
        let grid = [Extent::fixed(end), Extent::ONE, Extent::ONE];
        self.push(kernel, grid, of.segment.arena, &params);
        Ok(())
    }
}
