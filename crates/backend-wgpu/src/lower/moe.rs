//! Routers.

use tokkata_ir::{BackendError, Node, RouteOp, Score};

use super::{Lowering, too_large};
use crate::launch::Extent;
use crate::layout::lead_code;
use crate::params::Params;

/// What the kernel has room for.
const MOST_CHOSEN: u32 = 64;
const MOST_GROUPS: u32 = 32;
const MOST_EXPERTS: u32 = 1024;

fn score_code(score: Score) -> u32 {
    match score {
        Score::Softmax => 0,
        Score::Sigmoid => 1,
        Score::Logits => 2,
        Score::SqrtSoftplus => 3,
    }
}

impl Lowering<'_, '_> {
    pub(super) fn route(&mut self, node: &Node, op: &RouteOp) -> Result<(), BackendError> {
        let groups = op.groups.map_or([0, 0], |g| [g.count, g.used]);
        too_large("route", "experts of a row", op.top_k, MOST_CHOSEN)?;
        too_large("route", "groups", groups[0], MOST_GROUPS)?;
        too_large("route", "experts", op.n_experts, MOST_EXPERTS)?;
        let lead = self.lead(node.ins[0]);
        let score = score_code(op.score);
        let select = op.select.map_or(score, score_code);
        let vocab = op.table.map_or(1, |t| self.weight_len(t) / op.top_k);
        let params = Params::new().u32s(&[
            self.at(node.ins[0]),
            self.maybe(op.bias),
            self.maybe(op.table),
            self.at(node.outs[0]),
            self.at(node.outs[1]),
        ]);
        let params = params.u32s(&[lead_code(lead), op.n_experts, op.top_k, score, select]);
        let params = params.u32s(&groups).u32s(&[
            op.softmax_chosen.into(),
            op.sigmoid_chosen.into(),
            op.renormalise.into(),
            op.id_divisor,
        ]);
        let params = params.f32(op.near_ties).f32(op.scale).u32(vocab);
        let grid = [Extent::rows(lead), Extent::ONE, Extent::ONE];
        self.launch(("experts.wgsl", "route"), &[], grid, &params)
    }

    pub(super) fn group(&mut self, node: &Node) -> Result<(), BackendError> {
        let (lead, k) = (self.lead(node.ins[0]), self.width(node.ins[0]));
        let values = [node.ins[0], node.outs[0], node.outs[1]].map(|v| self.at(v));
        let params = Params::new().u32s(&[lead_code(lead), k]).u32s(&values);
        let grid = [
            Extent::elements(lead, k.into(), 128),
            Extent::ONE,
            Extent::ONE,
        ];
        self.launch(("experts.wgsl", "group"), &[], grid, &params)
    }
}
