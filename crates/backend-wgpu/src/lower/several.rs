//! Products of several rows that are made integers once for all that read them.

use tokkata_ir::BackendError;

use super::Lowering;
use super::fused::{Common, THREADS, made};
use crate::launch::{Extent, Kernel};
use crate::layout::lead_code;
use crate::params::Params;
use crate::select::Products;

/// Rows of weights that 32 threads have.
pub(crate) const EACH: u32 = 2;

/// Rows at a time, as powers of two: where workgroups share more than they may everywhere, eight with 20 KiB.
pub(crate) const MOST: u32 = 3;

/// Columns that 32 threads read together, and the vectors of four words that they are: `integers_of_rows.wgsl` has their order.
const SPAN: u32 = 1024;
const SPAN_VECS: u32 = 32 * 5;

/// Vectors that each thread fetches of so many rows' span, whose number is a power of two.
pub(crate) const fn fetches(by: u32) -> u32 {
    (SPAN_VECS << by).div_ceil(THREADS)
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
            let own = [
                ("THREADS", THREADS),
                ("WORK_VEC4", 1),
                ("VECS_VEC4", 1),
                ("DOTS", 1),
                ("NORMED", found.norm.is_some().into()),
            ];
            let pipeline = self.pipeline(("integers.wgsl", "integers"), &own);
            let grid = [Extent::rows(of.lead), Extent::ONE, Extent::ONE];
            self.push(Kernel::One(pipeline), grid, 0, &params);
            self.beside = false;
        }
        let made = made(EACH, found.gate.is_some());
        let (params, end) = self.parts(found, of, (to, made))?;
        let abilities = self.ground.abilities;
        let pipeline = |by: u32| {
            let own = [
                ("FORMAT", of.segment.dtype.ggml()),
                ("THREADS", THREADS),
                ("WORK_VEC4", 1),
                ("VECS_VEC4", 1),
                ("WEIGHTS_VEC4", 1),
                ("DOTS", 1),
                ("HALVES", abilities.halves.into()),
                ("EACH", EACH),
                ("MADE", made),
                ("GATED", found.gate.is_some().into()),
                ("ROWS", 1 << by),
                ("FETCHES", fetches(by)),
            ];
            self.pipeline(("several.wgsl", "several"), &own)
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
