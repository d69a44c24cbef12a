//! What adapters add.

use tokkata_ir::adapter::{Runs, matrices};
use tokkata_ir::{AdaptForm, BackendError, Lead, Op};

use super::{Lowering, unsupported};
use crate::adapters::OPS;
use crate::launch::{Extent, When};
use crate::layout::lead_code;
use crate::params::Params;

/// Rows from which on a block takes several.
const MANY: u32 = 4;

/// Threads of a block, and blocks that share the ranks of a run: of few runs, and of many.
const DOWN: u32 = 128;
const UP: u32 = 256;
const RANKS: [u32; 2] = [32, 4];
/// Runs of a block where there are many: of `down_many`, and of `up_many`.
const RUNS: [u32; 2] = [4, 8];

impl Lowering<'_, '_> {
    /// Additions to products that were launched together, or to a look-up.
    pub(super) fn adapts(&mut self, nodes: &[usize]) -> Result<(), BackendError> {
        let (mut params, mut all) = (Params::new(), (0, 0, true));
        for (i, &n) in nodes.iter().enumerate() {
            let node = &self.plan.nodes[n];
            let Op::Adapt { weight, form } = node.op else {
                return Err(unsupported(node.op.name()));
            };
            if form == AdaptForm::Tokens {
                self.adapt_tokens(n)?;
                continue;
            }
            let own = Runs::new(self.ground.program, self.plan, node, (weight, form));
            let [x, y] = [0, 1].map(|i| node.ins[i]);
            let ids = node.ins.get(2).map_or(0, |&v| self.at(v));
            let form = match form {
                AdaptForm::Product | AdaptForm::Tokens => 0,
                AdaptForm::Heads => 1,
                AdaptForm::Experts => 2,
            };
            params = params.u64s(&[self.at(x), self.at(y), self.at(node.outs[0]), ids]);
            params = params.u32s(&[weight.0, form, own.parts, own.rows]);
            params = params.u32s(&[own.columns, own.stride, own.apart]);
            params = params.u32(i as u32 * (self.ground.adapters.runs() / OPS as u32));
            let (most_parts, most_rows, fours) = all;
            all = (
                own.parts.max(most_parts),
                own.rows.max(most_rows),
                fours && own.come_in(4),
            );
        }
        match all {
            (0, ..) => Ok(()),
            _ => self.adapt_products(nodes, &params, all),
        }
    }

    fn adapt_products(
        &mut self,
        nodes: &[usize],
        ops: &Params,
        (parts, rows, fours): (u32, u32, bool),
    ) -> Result<(), BackendError> {
        let lead = self.lead(self.plan.nodes[nodes[0]].outs[0]);
        let weights = self.ground.program.weights.len() as u32;
        let all = self.ground.adapters;
        let params = self.step().u64(all.at());
        let params = params.u32s(&[lead_code(lead), weights, all.runs(), 0]);
        let params = params.then(ops);
        // The kernel's structure has room for more ops.
        let missing = ops.bytes().len() / nodes.len() * (OPS - nodes.len());
        let params = params.u64s(&vec![0; missing / 8]);
        // Runs of a row have other matrices each.
        let few = if parts > 1 { u32::MAX } else { MANY };
        let ops = Extent::fixed(nodes.len() as u32);
        let sizes = [
            ("few", [1, 1], When::Counts(lead, 1, few - 1)),
            ("many", RUNS, When::Counts(lead, few, u32::MAX)),
        ];
        for ((name, runs, when), ranks) in sizes.into_iter().zip(RANKS) {
            self.when = when;
            let runs = runs.map(|n| Extent::elements(lead, parts.into(), n));
            let down = match fours {
                true => format!("down_{name}_fours"),
                false => format!("down_{name}"),
            };
            let grid = [runs[0], Extent::fixed(ranks), ops];
            self.launch(("adapt", &down), grid, (DOWN, 0), &params)?;
            let grid = [runs[1], Extent::fixed(rows.div_ceil(UP)), ops];
            self.launch(("adapt", &format!("up_{name}")), grid, (UP, 0), &params)?;
        }
        self.when = When::Always;
        Ok(())
    }

    fn adapt_tokens(&mut self, n: usize) -> Result<(), BackendError> {
        let node = &self.plan.nodes[n];
        let Op::Adapt { weight, .. } = node.op else {
            return Err(unsupported(node.op.name()));
        };
        let (y, out) = (node.ins[0], node.outs[0]);
        let (lead, width): (Lead, u32) = (self.lead(out), self.width(out));
        let shape = &self.ground.program.weights[weight.index()].shape;
        let (_, rows, _) = matrices(AdaptForm::Tokens, shape);
        let weights = self.ground.program.weights.len() as u32;
        let params = self.step_of(lead).u32s(&[width, weight.0, rows as u32]);
        let params = params.u64(self.ground.adapters.at()).u32(weights);
        let params = params.u64s(&[self.at(y), self.at(out)]);
        let grid = [Extent::rows(lead), Extent::ONE, Extent::ONE];
        self.launch(("adapt", "tokens"), grid, (UP, 0), &params)
    }
}
