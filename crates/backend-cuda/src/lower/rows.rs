//! Ops of a row alone, chosen rows and draws.

use tokkata_ir::op::GateClamp;
use tokkata_ir::sample::tables;
use tokkata_ir::{
    Act, BackendError, BinaryKind, Lead, Node, Op, Pairing, PoolKind, RopeOp, ValueId,
};

use super::products::{NormOf, norm_code};
use super::{Lowering, MOST_BLOCKS, THREADS, threads_for, unsupported};
use crate::launch::{Extent, RowKind, When};
use crate::layout::lead_code;
use crate::params::Params;

/// Words of a report of log-probabilities.
pub(crate) const REPORT_WORDS: u32 = 42;

/// Blocks that look at a row of logits, and bytes of what each finds.
const LOOKERS: u32 = 64;
const FOUND_BYTES: u64 = 16;

/// A function of an element, as `activate.cuh` numbers them.
struct Function {
    kind: u32,
    params: [f32; 4],
}

impl Function {
    fn of(act: Act) -> Self {
        let plain = |kind| (kind, [0.0; 4]);
        let (kind, params) = match act {
            Act::Identity => plain(0),
            Act::Silu => plain(1),
            Act::Gelu => plain(2),
            Act::GeluErf => plain(3),
            Act::GeluQuick => plain(4),
            Act::Relu => plain(5),
            Act::Relu2 => plain(6),
            Act::Sigmoid => plain(7),
            Act::Tanh => plain(8),
            Act::Softplus => plain(9),
            Act::Exp => plain(10),
            Act::NegExp => plain(11),
            Act::Xielu {
                alpha_n,
                alpha_p,
                beta,
                eps,
            } => (12, [alpha_n, alpha_p, beta, eps]),
            Act::Situ { beta } => (13, [beta, 0.0, 0.0, 0.0]),
            Act::Swish { alpha } => (14, [alpha, 0.0, 0.0, 0.0]),
            Act::SignedSqrt { eps } => (15, [eps, 0.0, 0.0, 0.0]),
        };
        Function { kind, params }
    }

    fn params(&self, params: Params) -> Params {
        let params = params.u32(self.kind);
        self.params.iter().fold(params, |p, &x| p.f32(x))
    }
}

/// A function that products of `gemm16.cu` do in their end, as kernels number it.
pub(super) fn ending(act: Act) -> Option<u32> {
    use Act::{Gelu, GeluErf, GeluQuick, Relu, Relu2, Silu};
    let known = matches!(act, Silu | Gelu | GeluErf | GeluQuick | Relu | Relu2);
    known.then(|| Function::of(act).kind)
}

fn binary_code(kind: BinaryKind) -> u32 {
    match kind {
        BinaryKind::Add => 0,
        BinaryKind::Sub => 1,
        BinaryKind::Mul => 2,
        BinaryKind::Div => 3,
    }
}

/// The second operand of a binary op.
struct Operand {
    at: u64,
    stride: u32,
    period: u32,
    run: u32,
    scale: f32,
}

/// Runs of columns from one place to another: `Columns` of `rows.cu`.
#[derive(Clone, Copy)]
struct Columns {
    runs: u32,
    run: u32,
    in_first: u32,
    in_stride: u32,
    in_times: u32,
    out_first: u32,
    out_stride: u32,
}

impl Lowering<'_, '_> {
    pub(super) fn row_op(&mut self, node: &Node) -> Result<(), BackendError> {
        let affine = |kind, a, b| Function {
            kind,
            params: [a, b, 0.0, 0.0],
        };
        match node.op {
            Op::Unary(act) => self.unary(node, &Function::of(act)),
            Op::Copy => self.unary(node, &Function::of(Act::Identity)),
            Op::Affine { scale, offset } => self.unary(node, &affine(16, scale, offset)),
            Op::Softcap { cap } => self.unary(node, &affine(17, cap, 0.0)),
            Op::Clamp { lo, hi } => self.unary(node, &affine(18, lo, hi)),
            Op::Suppress { first, last } => self.suppress(node, first, last),
            Op::Gate { act, clamp } => self.gate(node, act, clamp),
            Op::Binary { .. } | Op::Weighted { .. } | Op::PerRun { .. } => self.binary(node),
            Op::Slice { .. } | Op::Repeat { .. } => self.columns(node),
            Op::Concat { groups } => self.concat(node, groups),
            Op::Norm { .. } => self.norm(node),
            Op::Softmax { width } => self.runs(node, 0, width, 0.0),
            Op::SumRuns { width } => self.runs(node, 1, width, 0.0),
            Op::RmsRuns { width, eps } => self.runs(node, 2, width, eps),
            Op::GaussianTopK { z } => self.runs(node, 3, self.width(node.ins[0]), z),
            Op::Sinkhorn { n, iterations, eps } => self.sinkhorn(node, (n, iterations), eps),
            Op::Rope(ref op) => self.rope(node, op),
            Op::PosScale {
                coef,
                length,
                offset,
            } => self.pos_scale(node, [coef, length, offset]),
            Op::SelectRows => self.select_rows(node),
            Op::Pool(kind) => self.pool(node, kind),
            ref op => Err(unsupported(op.name())),
        }
    }

    /// Lead and columns of a node's output.
    fn out(&self, node: &Node) -> (ValueId, Lead, u32) {
        let out = node.outs[0];
        (out, self.lead(out), self.width(out))
    }

    fn unary(&mut self, node: &Node, f: &Function) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        if self.ended.contains(&node.ins[0]) {
            self.kind = Some(RowKind::Reply);
        }
        let params = f.params(self.step_of(lead).u32(width));
        let params = params.u64(self.at(node.ins[0])).u64(self.at(out));
        self.each("unary", (lead, width), &params)?;
        self.kind = None;
        Ok(())
    }

    fn suppress(&mut self, node: &Node, first: u32, last: u32) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        let params = self.step_of(lead).u32s(&[width, first, last]);
        let params = params.u64(self.at(node.ins[0])).u64(self.at(out));
        self.each("suppress", (lead, width), &params)
    }

    fn gate(&mut self, node: &Node, act: Act, clamp: GateClamp) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        let (clamp, limit) = match clamp {
            GateClamp::None => (0, 0.0),
            GateClamp::Before(limit) => (1, limit),
            GateClamp::After(limit) => (2, limit),
            GateClamp::BeforePlusOne(limit) => (3, limit),
            GateClamp::UpTanh(limit) => (4, limit),
        };
        let params = Function::of(act).params(self.step_of(lead).u32(width));
        let values = [node.ins[0], node.ins[1], out].map(|v| self.at(v));
        let params = params.u32(clamp).f32(limit).u64s(&values);
        self.each("gate", (lead, width), &params)
    }

    fn binary(&mut self, node: &Node) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        let (kind, a_scale, b) = match node.op {
            Op::Binary {
                kind,
                a_scale,
                b_scale,
            } => {
                let period = self.width(node.ins[1]);
                let b = Operand {
                    at: self.at(node.ins[1]),
                    stride: period,
                    period,
                    run: 1,
                    scale: b_scale,
                };
                (kind, a_scale, b)
            }
            Op::Weighted { kind, weight } => {
                let b = Operand {
                    at: self.floats(weight),
                    stride: 0,
                    period: self.weight_len(weight),
                    run: 1,
                    scale: 1.0,
                };
                (kind, 1.0, b)
            }
            Op::PerRun { kind, width } => {
                let columns = self.width(node.ins[1]);
                let b = Operand {
                    at: self.at(node.ins[1]),
                    stride: columns,
                    period: columns,
                    run: width,
                    scale: 1.0,
                };
                (kind, 1.0, b)
            }
            ref op => return Err(unsupported(op.name())),
        };
        let params = self.step_of(lead).u32s(&[width, binary_code(kind)]);
        let params = params.f32(a_scale).f32(b.scale);
        let params = params.u32s(&[b.stride, b.period, b.run]);
        let params = params.u64s(&[self.at(node.ins[0]), b.at, self.at(out)]);
        self.each("binary", (lead, width), &params)
    }

    /// Columns of one value or of two.
    fn move_columns(
        &mut self,
        moves: &[(ValueId, Columns)],
        to: ValueId,
    ) -> Result<(), BackendError> {
        let (lead, out_width) = (self.lead(to), self.width(to));
        let (mut params, mut widest) = (self.step_of(lead), 0);
        let both = [moves[0], moves[moves.len() - 1]];
        for (from, c) in both {
            params = params.u32s(&[self.width(from), out_width, c.runs, c.run]);
            params = params.u32s(&[c.in_first, c.in_stride, c.in_times]);
            params = params.u32s(&[c.out_first, c.out_stride]);
            widest = widest.max(c.runs * c.run);
        }
        let [first, second] = both.map(|(from, _)| self.at(from));
        let params = params.u64s(&[first, second, self.at(to)]);
        let blocks = Extent::elements(lead, widest.into(), THREADS).at_most(MOST_BLOCKS);
        let grid = [blocks, Extent::fixed(moves.len() as u32), Extent::ONE];
        self.launch_early(("rows", "columns"), grid, (THREADS, 0), &params)
    }

    fn columns(&mut self, node: &Node) -> Result<(), BackendError> {
        let (out, _, out_width) = self.out(node);
        let in_width = self.width(node.ins[0]);
        let columns = match node.op {
            Op::Slice { group, start, len } => Columns {
                runs: in_width / group,
                run: len,
                in_first: start,
                in_stride: group,
                in_times: 1,
                out_first: 0,
                out_stride: len,
            },
            Op::Repeat {
                width,
                times,
                tiled,
            } => {
                let run = if tiled { in_width } else { width };
                Columns {
                    runs: out_width / run,
                    run,
                    in_first: 0,
                    in_stride: run,
                    in_times: times,
                    out_first: 0,
                    out_stride: run,
                }
            }
            ref op => return Err(unsupported(op.name())),
        };
        self.move_columns(&[(node.ins[0], columns)], out)
    }

    fn concat(&mut self, node: &Node, groups: u32) -> Result<(), BackendError> {
        let (out, _, out_width) = self.out(node);
        let shapes: Vec<&[u32]> = node
            .ins
            .iter()
            .map(|&v| &*self.plan.value(v).shape.dims)
            .collect();
        let split = split_inputs(&shapes, groups, out_width)
            .ok_or_else(|| unsupported("concat of widths that do not fit"))?;
        let (mut first, mut moves) = (0, Vec::new());
        for (&value, split) in node.ins.iter().zip(split) {
            let width = self.width(value);
            let run = if split { width / groups } else { width };
            let columns = Columns {
                runs: groups,
                run,
                in_first: 0,
                in_stride: if split { run } else { 0 },
                in_times: 1,
                out_first: first,
                out_stride: out_width / groups,
            };
            moves.push((value, columns));
            first += run;
        }
        moves
            .chunks(2)
            .try_for_each(|two| self.move_columns(two, out))
    }

    fn norm(&mut self, node: &Node) -> Result<(), BackendError> {
        let Op::Norm {
            kind,
            eps,
            width: run,
            weight,
            bias,
        } = node.op
        else {
            return Err(unsupported(node.op.name()));
        };
        let (out, lead, width) = self.out(node);
        let kind = norm_code(kind);
        let len = |id: Option<_>| id.map_or(1, |id| self.weight_len(id));
        let (w_len, b_len) = (len(weight), len(bias));
        let plain = [(weight, w_len), (bias, b_len)]
            .iter()
            .all(|(id, n)| id.is_none() || *n == width);
        if run == width && plain {
            let own = NormOf {
                from: node.ins[0],
                kind,
                eps,
                weight,
                bias,
            };
            if self.norm_in_parts(out, &own)? {
                self.kind = Some(RowKind::Reply);
            }
        }
        let replies = self.kind.is_some();
        let params = self.step_of(lead).u32s(&[width, run, kind]).f32(eps);
        let params = params.u64(self.maybe(weight)).u32(w_len);
        let params = params.u64(self.maybe(bias)).u32(b_len);
        let params = params.u64s(&[self.at(node.ins[0]), self.at(out)]);
        let params = params.u32(replies.into());
        let grid = [Extent::fixed(width / run), Extent::rows(lead), Extent::ONE];
        self.launch_early(("rows", "normalise"), grid, (threads_for(run), 0), &params)?;
        self.kind = None;
        Ok(())
    }

    fn runs(&mut self, node: &Node, kind: u32, run: u32, p: f32) -> Result<(), BackendError> {
        let (out, lead) = (node.outs[0], self.lead(node.outs[0]));
        let width = self.width(node.ins[0]);
        let params = self.step_of(lead).u32s(&[width, run, kind]).f32(p);
        let params = params.u64s(&[self.at(node.ins[0]), self.at(out)]);
        let grid = [Extent::fixed(width / run), Extent::rows(lead), Extent::ONE];
        self.launch(("rows", "runs"), grid, (threads_for(run), 0), &params)
    }

    fn sinkhorn(
        &mut self,
        node: &Node,
        (n, iterations): (u32, u32),
        eps: f32,
    ) -> Result<(), BackendError> {
        let (out, lead, _) = self.out(node);
        let params = self.step_of(lead).u32s(&[n, iterations]).f32(eps);
        let params = params.u64s(&[self.at(node.ins[0]), self.at(out)]);
        let grid = [Extent::elements(lead, 1, 32), Extent::ONE, Extent::ONE];
        self.launch(("rows", "sinkhorn"), grid, (32, 0), &params)
    }

    /// Cosines and sines of every row of the step, made once for all rotations that share them.
    pub(super) fn turns(&mut self, op: &RopeOp) -> Result<(u64, u32), BackendError> {
        let pairs = self.ground.program.constant(op.freqs).f32s().len() as u32;
        let sign = if op.inverse { -1.0 } else { 1.0 };
        let key = Params::new()
            .u32(op.freqs.0)
            .u32(op.channels.map_or(u32::MAX, |c| c.0))
            .f32(op.magnitude)
            .f32(sign)
            .u32(op.back);
        if let Some(&at) = self.turns.get(key.bytes()) {
            return Ok((at, pairs));
        }
        let freqs = self.constant(op.freqs)?;
        let channels = op.channels.map(|c| self.constant(c)).transpose()?;
        let at = self.scratch(u64::from(self.most(Lead::Rows)) * u64::from(pairs) * 8)?;
        let params = self.step().u32(pairs).u64(freqs);
        let params = params.u64(channels.unwrap_or(0)).f32(op.magnitude);
        let params = params.f32(sign).u32(op.back).u64(at);
        self.each("turns", (Lead::Rows, pairs), &params)?;
        // It depends on the step alone, and rotations anywhere need it.
        self.first.extend(self.launches.pop());
        self.turns.insert(key.bytes().to_vec(), at);
        Ok((at, pairs))
    }

    fn rope(&mut self, node: &Node, op: &RopeOp) -> Result<(), BackendError> {
        let (turns, pairs) = self.turns(op)?;
        let (out, lead, width) = self.out(node);
        let halves = u32::from(op.pairing == Pairing::Halves);
        let params = self.step_of(lead).u32s(&[width, op.head_dim, op.offset]);
        let params = params.u32s(&[pairs, halves]).u64(turns);
        let params = params.u64s(&[self.at(node.ins[0]), self.at(out)]);
        self.each("rope", (lead, width), &params)
    }

    fn pos_scale(&mut self, node: &Node, by: [f32; 3]) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        let params = by
            .iter()
            .fold(self.step_of(lead).u32(width), |p, &x| p.f32(x));
        let params = params.u64s(&[self.at(node.ins[0]), self.at(out)]);
        self.each("pos_scale", (lead, width), &params)
    }

    fn select_rows(&mut self, node: &Node) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        let params = self.step().u32(width);
        let params = params.u64s(&[self.at(node.ins[0]), self.at(out)]);
        self.each_early("select_rows", (lead, width), &params)
    }

    fn pool(&mut self, node: &Node, kind: PoolKind) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        let kind = match kind {
            PoolKind::Mean => 0,
            PoolKind::First => 1,
            PoolKind::Last => 2,
        };
        let params = self.step().u32s(&[width, kind]);
        let params = params.u64s(&[self.at(node.ins[0]), self.at(out)]);
        self.each("pool", (lead, width), &params)
    }

    /// `Draw` of `sample.cu`.
    fn draw(&mut self, logits: ValueId, out: u64) -> Result<Params, BackendError> {
        let vocab = self.width(logits);
        let cells = u64::from(self.most(Lead::LogitRows)) * u64::from(vocab);
        let (values, counts) = (self.scratch(cells * 4)?, self.scratch(cells * 4)?);
        let exps = self.upload(&tables::EXP)?;
        let lns = self.upload(&tables::LN)?;
        let ln_lns = self.upload(&tables::LN_LN)?;
        let params = self.step().u64s(&[self.at(logits), out, values, counts]);
        Ok(params.u64s(&[exps, lns, ln_lns]).u32s(&[vocab, 0]))
    }

    pub(super) fn sample(&mut self, node: &Node) -> Result<(), BackendError> {
        let out = self.at(node.outs[0]);
        let params = self.draw(node.ins[0], out)?;
        let rows = Extent::rows(Lead::LogitRows);
        let cells = u64::from(self.most(Lead::LogitRows)) * u64::from(LOOKERS);
        let params = params.u64(self.scratch(cells * FOUND_BYTES)?);
        let grid = [Extent::fixed(LOOKERS), rows, Extent::ONE];
        self.launch_early(("sample", "sift"), grid, (256, 0), &params)?;
        let grid = [rows, Extent::ONE, Extent::ONE];
        self.launch_early(("sample", "sample"), grid, (1024, 0), &params)
    }

    /// Reports of log-probabilities, where tokens are drawn from logits that can be seen; 0 where they are not.
    pub(super) fn report(&mut self) -> Result<u64, BackendError> {
        let ports = ["tokens", "logits"].map(|name| self.plan.output(name));
        let [Some(tokens), Some(logits)] = ports else {
            return Ok(0);
        };
        let params = self.draw(logits, 0)?;
        let words = u64::from(self.most(Lead::LogitRows)) * u64::from(REPORT_WORDS);
        let out = self.scratch(words * 4)?;
        let params = params.u64s(&[self.at(tokens), out]);
        let grid = [Extent::rows(Lead::LogitRows), Extent::ONE, Extent::ONE];
        self.when = When::Told;
        self.launch_early(("sample", "report"), grid, (1024, 0), &params)?;
        self.when = When::Always;
        Ok(out)
    }

    pub(super) fn combine(&mut self, node: &Node) -> Result<(), BackendError> {
        let (out, lead, width) = self.out(node);
        let k = self.width(node.ins[1]);
        let params = self.step().u32s(&[lead_code(lead), width, k]);
        let values = [node.ins[0], node.ins[1], out].map(|v| self.at(v));
        self.each("combine", (lead, width), &params.u64s(&values))
    }
}

/// Which inputs of a join have a run per group (the others repeat). Widths decide; where they fit more than one way, an
/// input whose first dimension is the number of groups is split, and the first input rather than the later.
fn split_inputs(shapes: &[&[u32]], groups: u32, out_width: u32) -> Option<Vec<bool>> {
    let widths: Vec<u32> = shapes.iter().map(|s| s.iter().product()).collect();
    let fits = |mask: u32| {
        let run = |(i, &w): (usize, &u32)| match mask >> i & 1 {
            1 => w.is_multiple_of(groups).then_some(w / groups),
            _ => Some(w),
        };
        let sum: Option<u32> = widths.iter().enumerate().map(run).sum();
        sum == Some(out_width / groups)
    };
    let named = |i: usize| shapes[i].len() > 1 && shapes[i][0] == groups;
    let expected: u32 = (0..shapes.len()).map(|i| u32::from(named(i)) << i).sum();
    let masks = (0..1u32 << shapes.len()).filter(|&m| fits(m));
    let best = masks.min_by_key(|m| ((m ^ expected).count_ones(), m.trailing_zeros()))?;
    Some((0..shapes.len()).map(|i| best >> i & 1 == 1).collect())
}

#[cfg(test)]
mod tests {
    use super::split_inputs;

    #[test]
    fn joined_inputs_are_split_where_they_fit() {
        let split = |shapes: &[&[u32]], groups, out| split_inputs(shapes, groups, out);
        assert_eq!(split(&[&[2, 8], &[4]], 2, 24), Some(vec![true, false]));
        assert_eq!(split(&[&[16], &[8]], 2, 24), Some(vec![true, true]));
        assert_eq!(split(&[&[16], &[8]], 1, 24), Some(vec![false, false]));
        assert_eq!(split(&[&[16], &[9]], 2, 24), None);
    }
}
