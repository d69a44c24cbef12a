//! Look-ups and products.

use tokkata_ir::{BackendError, GatherIndex, Lead, Node, Op, WeightId};

use super::{Lowering, unsupported};
use crate::launch::Extent;
use crate::layout::lead_code;
use crate::params::Params;

/// Outputs of a block: a warp each.
const WARPS: u32 = 8;
/// Rows of a warp.
const TILE: u32 = 4;

/// What `Product` of `matmul.cu` holds besides the weight's rows.
#[derive(Clone, Copy)]
struct Product {
    x: u64,
    y: u64,
    scale: u64,
    bias: u64,
    ids: u64,
    lead: Lead,
    k: u32,
    x_stride: u32,
    x_part: u32,
    y_stride: u32,
    y_part: u32,
    scale_len: u32,
    bias_part: u32,
    top_k: u32,
    /// Matrices of the weight, one after the other.
    parts: u32,
}

impl Lowering<'_, '_> {
    pub(super) fn linear(&mut self, node: &Node) -> Result<(), BackendError> {
        match node.op {
            Op::Gather { table, index } => self.gather(node, table, index),
            Op::Matmul {
                weight,
                scale,
                bias,
            } => {
                let (k, n) = (self.width(node.ins[0]), self.width(node.outs[0]));
                let product = Product {
                    scale: self.maybe(scale),
                    bias: self.maybe(bias),
                    scale_len: scale.map_or(1, |s| self.weight_len(s)),
                    ..self.product(node, k, n)
                };
                self.multiply(weight, product)
            }
            Op::HeadMatmul { weight, heads } => {
                let (k, n) = (self.width(node.ins[0]), self.width(node.outs[0]));
                let product = Product {
                    x_part: k / heads,
                    y_part: n / heads,
                    parts: heads,
                    k: k / heads,
                    ..self.product(node, k, n)
                };
                self.multiply(weight, product)
            }
            Op::Experts {
                weight,
                scale,
                bias,
                top_k,
            } => {
                let shape = &self.ground.program.weights[weight.index()].shape;
                let (experts, n, k) = (shape[0], shape[1], shape[2]);
                let width = self.width(node.ins[0]);
                let product = Product {
                    scale: self.maybe(scale),
                    bias: self.maybe(bias),
                    ids: self.at(node.ins[1]),
                    x_part: if width == k { 0 } else { k },
                    y_part: n,
                    bias_part: n,
                    top_k,
                    parts: experts,
                    k,
                    ..self.product(node, width, top_k * n)
                };
                self.multiply(weight, product)
            }
            ref op => Err(unsupported(op.name())),
        }
    }

    fn product(&self, node: &Node, x_stride: u32, y_stride: u32) -> Product {
        Product {
            x: self.at(node.ins[0]),
            y: self.at(node.outs[0]),
            scale: 0,
            bias: 0,
            ids: 0,
            lead: self.lead(node.outs[0]),
            k: x_stride,
            x_stride,
            x_part: 0,
            y_stride,
            y_part: 0,
            scale_len: 1,
            bias_part: 0,
            top_k: 0,
            parts: 1,
        }
    }

    fn gather(
        &mut self,
        node: &Node,
        table: WeightId,
        index: GatherIndex,
    ) -> Result<(), BackendError> {
        let (out, lead, width) = (
            node.outs[0],
            self.lead(node.outs[0]),
            self.width(node.outs[0]),
        );
        let (index, offset) = match index {
            GatherIndex::Token => (0, 0),
            GatherIndex::Position { offset } => (1, offset),
            GatherIndex::Fixed(row) => (2, row),
        };
        let place = self.ground.weights.place(table);
        let rows = place.segments.iter().map(|s| s.rows).sum();
        let segments = place.segments.len() as u32;
        let params = self.step().u64(place.table);
        let params = params.u32s(&[segments, width, index, offset, rows, lead_code(lead)]);
        let embeds = node.ins.first().map_or(0, |&v| self.at(v));
        let params = params.u64s(&[embeds, self.at(out)]);
        let pieces = Extent::fixed(width.div_ceil(32 * 32));
        let grid = [Extent::rows(lead), pieces, Extent::ONE];
        self.launch(("matmul", "gather"), grid, (32, 0), &params)
    }

    /// A product with each run of rows of one format. A weight of several matrices has one format, or is cut where
    /// formats change between whole matrices.
    fn multiply(&mut self, weight: WeightId, op: Product) -> Result<(), BackendError> {
        let segments = self.ground.weights.place(weight).segments.clone();
        if op.parts > 1 && segments.len() > 1 {
            return Err(unsupported("matrices of several formats in one weight"));
        }
        let mut first = 0;
        assert!(
            segments.iter().all(|s| s.scale_bytes == 0),
            "weights whose blocks are taken apart have a kernel of their own"
        );
        for segment in segments {
            let n = segment.rows / op.parts;
            let tile = if op.top_k > 0 { 1 } else { TILE };
            let params = self.step().u64(segment.data).u64(segment.row_bytes);
            let params = params.u64(segment.row_bytes * u64::from(n));
            let params = params.u64s(&[op.x, op.y, op.scale, op.bias, op.ids]);
            let params = params.u32s(&[lead_code(op.lead), n, op.k, op.x_stride, op.x_part]);
            let params = params.u32s(&[op.y_stride, op.y_part, first, op.scale_len]);
            let params: Params = params.u32s(&[op.bias_part, op.top_k, tile]).align(8);
            let rows = Extent::elements(op.lead, op.top_k.max(1).into(), tile);
            let heads = if op.top_k > 0 { 1 } else { op.parts };
            let grid = [Extent::fixed(n.div_ceil(WARPS)), rows, Extent::fixed(heads)];
            let kernel = format!("matmul_{}", segment.dtype);
            self.launch(("matmul", &kernel), grid, (WARPS * 32, 0), &params)?;
            first += n;
        }
        Ok(())
    }
}
