//! Convolutions, shifts and recurrences.

use tokkata_ir::{BackendError, Conv1dOp, Lead, Node, Op, Scan, SlotId};

use super::products::Outputs;
use super::{Lowering, too_large, unsupported};
use crate::launch::{Extent, RowKind};

/// Frames and outputs of a block of `conv1d`.
const CONV_TILE: u32 = 128;

/// Taps that a thread holds.
const MOST_TAPS: u32 = 16;

/// `Scan` of `recurrent.cu`, but for its inputs.
#[derive(Default)]
struct Recurrence {
    kind: u32,
    weights: [u64; 3],
    heads: u32,
    k_heads: u32,
    n: u32,
    p: u32,
    groups: u32,
    tiled: bool,
    wide_decay: bool,
    scale: f32,
    /// Whether an output's state is a row rather than a column.
    rows: bool,
}

impl Lowering<'_, '_> {
    pub(super) fn recurrent(&mut self, node: &Node) -> Result<(), BackendError> {
        match &node.op {
            Op::Conv { .. } => self.conv(node),
            Op::Conv1d(op) => self.conv1d(node, op),
            Op::Shift { slot } => {
                let width = self.width(node.ins[0]);
                let params = self.cache(*slot, self.step()).u32(width);
                let params = params.u64s(&[self.at(node.ins[0]), self.at(node.outs[0])]);
                let grid = channels_of(width, 128, Lead::Seqs);
                self.launch(("recurrent", "shift"), grid, (128, 0), &params)
            }
            Op::Scan { scan, slot } => self.scan(node, scan, *slot),
            op => Err(unsupported(op.name())),
        }
    }

    fn conv(&mut self, node: &Node) -> Result<(), BackendError> {
        let Op::Conv {
            weight,
            bias,
            kernel,
            slot,
        } = node.op
        else {
            return Err(unsupported(node.op.name()));
        };
        let width = self.width(node.ins[0]);
        let values = [node.ins[0], node.outs[0]].map(|v| self.at(v));
        let taps = [self.floats(weight), self.maybe(bias)];
        let Some(slot) = slot else {
            let params = self.step().u32s(&[width, kernel]).u64s(&taps).u64s(&values);
            let grid = channels_of(width, 128, Lead::Rows);
            return self.launch(("recurrent", "conv_centred"), grid, (128, 0), &params);
        };
        too_large("conv", "taps", kernel, MOST_TAPS)?;
        let params = self.cache(slot, self.step()).u32s(&[width, kernel]);
        let params = params.u64s(&taps).u64s(&values);
        let grid = channels_of(width, 128, Lead::Seqs);
        self.launch(("recurrent", "conv"), grid, (128, 0), &params)
    }

    fn conv1d(&mut self, node: &Node, op: &Conv1dOp) -> Result<(), BackendError> {
        let channels = self.width(node.ins[0]) / op.frames;
        let outputs = self.width(node.outs[0]);
        let n = outputs / (op.frames / op.stride);
        let params = self.step().u64s(&[
            self.floats(op.weight),
            self.maybe(op.bias),
            self.at(node.ins[0]),
            self.at(node.outs[0]),
        ]);
        let params = params.u32s(&[n, channels, op.kernel, op.stride, op.padding, op.frames]);
        let whole = channels.is_multiple_of(4) && n.is_multiple_of(4);
        let halves = self.ground.weights.halves(op.weight).filter(|_| whole);
        let params = params.u32s(&[halves.is_some().into(), 0]);
        let frames = op.frames / op.stride;
        if let Some(halves) = halves {
            self.conv1d_products(node, op, (halves, n))?;
            self.kind = Some(RowKind::Reply);
        }
        let grid = [
            Extent::fixed(n.div_ceil(CONV_TILE)),
            Extent::elements(Lead::Rows, frames.into(), CONV_TILE),
            Extent::ONE,
        ];
        self.launch(("recurrent", "conv1d"), grid, (256, 0), &params)?;
        self.kind = None;
        Ok(())
    }

    /// Frames of prompts' rows as products on tensor cores by weights in halves of so many outputs: one launch for each frame that
    /// a row of the output has.
    fn conv1d_products(
        &mut self,
        node: &Node,
        op: &Conv1dOp,
        (halves, n): (u64, u32),
    ) -> Result<(), BackendError> {
        let frames = op.frames / op.stride;
        for own in 0..frames {
            self.kind = Some(RowKind::Prompt);
            let cut = self.cut_frames(node.ins[0], op, own)?;
            let out = Outputs {
                weights: halves,
                bias: self.maybe(op.bias),
                y: self.at(node.outs[0]) + u64::from(own * n) * 4,
                n,
                stride: frames * n,
            };
            self.product_of_halves(&cut, &out)?;
            self.kind = None;
        }
        Ok(())
    }

    fn recurrence(&mut self, node: &Node, scan: &Scan) -> Result<Recurrence, BackendError> {
        let width = self.width(node.outs[0]);
        let heads_of = |n: u32| Recurrence {
            heads: width / n,
            k_heads: width / n,
            n,
            p: n,
            ..Recurrence::default()
        };
        Ok(match *scan {
            Scan::Mamba1 { state, a, d } => Recurrence {
                kind: 0,
                weights: [self.floats(a), self.floats(d), 0],
                n: state,
                p: 1,
                heads: width,
                groups: 1,
                rows: true,
                ..Recurrence::default()
            },
            Scan::Mamba2 {
                heads,
                state,
                groups,
                a,
                d,
                dt_bias,
            } => Recurrence {
                kind: 1,
                weights: [self.floats(a), self.floats(d), self.maybe(dt_bias)],
                heads,
                n: state,
                p: width / heads,
                groups,
                rows: true,
                ..Recurrence::default()
            },
            Scan::Wkv6 { head_dim, first } => Recurrence {
                kind: 2,
                weights: [self.floats(first), 0, 0],
                ..heads_of(head_dim)
            },
            Scan::Gla { head_dim, scale } => Recurrence {
                kind: 3,
                scale,
                ..heads_of(head_dim)
            },
            Scan::Wkv7 { head_dim } => Recurrence {
                kind: 4,
                rows: true,
                ..heads_of(head_dim)
            },
            Scan::GatedDelta {
                k_heads,
                v_heads,
                dim_k,
                dim_v,
                tiled,
                scale,
            } => Recurrence {
                kind: 5,
                heads: v_heads,
                k_heads,
                n: dim_k,
                p: dim_v,
                tiled,
                wide_decay: self.width(node.ins[3]) != v_heads,
                scale,
                ..Recurrence::default()
            },
            Scan::Decay { heads, slopes } => Recurrence {
                kind: 6,
                weights: [self.constant(slopes)?, 0, 0],
                ..heads_of(width / heads)
            },
        })
    }

    fn scan(&mut self, node: &Node, scan: &Scan, slot: SlotId) -> Result<(), BackendError> {
        let op = self.recurrence(node, scan)?;
        let width = self.width(node.outs[0]);
        let mut inputs = [0; 6];
        for (input, &value) in inputs.iter_mut().zip(&node.ins) {
            *input = self.at(value);
        }
        let params = self.cache(slot, self.step()).u64s(&inputs);
        let params = params.u64(self.at(node.outs[0])).u64s(&op.weights);
        let params = params.u32s(&[op.kind, width, op.heads, op.k_heads, op.n, op.p]);
        let params = params.u32s(&[op.groups, op.tiled.into(), op.wide_decay.into()]);
        let params = params.f32(op.scale).align(8);
        let (kernel, per_block) = if op.rows {
            ("scan_rows", 4)
        } else {
            ("scan_columns", 64)
        };
        let grid = channels_of(width, per_block, Lead::Seqs);
        let threads = if op.rows { 128 } else { 64 };
        self.launch(("recurrent", kernel), grid, (threads, 0), &params)
    }
}

fn channels_of(width: u32, per_block: u32, lead: Lead) -> [Extent; 3] {
    [
        Extent::fixed(width.div_ceil(per_block)),
        Extent::rows(lead),
        Extent::ONE,
    ]
}
