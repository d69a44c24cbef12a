//! What adapters add.

use tokkata_ir::adapter::{Runs, matrices};
use tokkata_ir::{AdaptForm, BackendError, Op};

use super::{Lowering, of, unsupported};
use crate::adapters::OPS;
use crate::launch::{Extent, Kernel};
use crate::layout::lead_code;
use crate::params::{NONE, Params};

/// Threads of a workgroup, and workgroups that share the ranks of a run.
const DOWN: u32 = 128;
const UP: u32 = 256;
const RANKS: u32 = 32;
/// Most workgroups for runs: less than every adapter takes.
const MOST_RUNS: u32 = 32768;

/// What ops of a dispatch have in common: most runs of a row, most outputs of one, whether columns come in fours.
struct All {
    parts: u32,
    rows: u32,
    fours: bool,
}

impl Lowering<'_, '_> {
    /// Additions to products that were dispatched together, or to a look-up.
    pub(super) fn adapts(&mut self, nodes: &[usize]) -> Result<(), BackendError> {
        let mut ops = Vec::new();
        let mut all = All {
            parts: 0,
            rows: 0,
            fours: true,
        };
        for &n in nodes {
            let node = &self.plan.nodes[n];
            let Op::Adapt { weight, form } = node.op else {
                return Err(unsupported(node.op.name()));
            };
            if form == AdaptForm::Tokens {
                self.adapt_tokens(n)?;
                continue;
            }
            let own = Runs::new(self.ground.program, self.plan, node, (weight, form));
            let first = ops.len() as u32 / 12 * (self.ground.adapters.runs() / OPS as u32);
            ops.extend([node.ins[0], node.ins[1], node.outs[0]].map(|v| self.at(v)));
            ops.push(node.ins.get(2).map_or(NONE, |&v| self.at(v)));
            ops.extend([
                weight.0,
                (form == AdaptForm::Heads).into(),
                own.parts,
                own.rows,
            ]);
            ops.extend([own.columns, own.stride, own.apart, first]);
            all = All {
                parts: own.parts.max(all.parts),
                rows: own.rows.max(all.rows),
                fours: all.fours && own.come_in(4),
            };
        }
        if !ops.is_empty() {
            self.adapt_products(nodes, &ops, &all);
        }
        Ok(())
    }

    fn adapt_products(&mut self, nodes: &[usize], ops: &[u32], all: &All) {
        let lead = self.lead(self.plan.nodes[nodes[0]].outs[0]);
        let weights = self.ground.program.weights.len() as u32;
        let params = Params::new().u32s(&[lead_code(lead), weights]);
        let params = params.u32s(&[self.ground.adapters.runs(), 0]).u32s(ops);
        let runs = Extent::elements(lead, all.parts.into(), 1).at_most(MOST_RUNS);
        let ops = Extent::fixed(nodes.len() as u32);
        for (kernel, across) in [("down", RANKS), ("up", all.rows.div_ceil(UP))] {
            let grid = [Extent::fixed(across), runs, ops];
            self.adapt_kernel(kernel, all.fours, grid, &params);
        }
    }

    fn adapt_tokens(&mut self, n: usize) -> Result<(), BackendError> {
        let node = &self.plan.nodes[n];
        let Op::Adapt { weight, form } = node.op else {
            return Err(unsupported(node.op.name()));
        };
        let (y, out) = (node.ins[0], node.outs[0]);
        let (program, lead) = (self.ground.program, self.lead(out));
        let (_, rows, _) = matrices(form, &program.weights[weight.index()].shape);
        let params = of(lead, program.weights.len() as u32);
        let params = params.u32s(&[self.width(out), weight.0, rows as u32]);
        let params = params.u32s(&[self.at(y), self.at(out)]);
        let grid = [Extent::rows(lead), Extent::ONE, Extent::ONE];
        self.adapt_kernel("tokens", true, grid, &params);
        Ok(())
    }

    /// A kernel that sees adapters in the place of weights.
    fn adapt_kernel(
        &mut self,
        kernel: &'static str,
        fours: bool,
        grid: [Extent; 3],
        params: &Params,
    ) {
        let own = [
            ("THREADS", DOWN),
            ("WORK_VEC4", 1),
            ("WEIGHTS_VEC4", 1),
            ("ALIGNED", fours.into()),
        ];
        let pipeline = self.pipeline(("adapt.wgsl", kernel), &own);
        let behind = self.ground.weights.arenas.len();
        self.push(Kernel::One(pipeline), grid, behind, params);
    }
}
