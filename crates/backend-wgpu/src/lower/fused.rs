//! Products of one value together with what comes before and after them, and heads on their way to attention.

use tokkata_core::DType;
use tokkata_ir::{BackendError, Lead, Op, Pairing, ValueId, WeightId};

use super::{Ground, Lowering, unsupported};
use crate::formats::is_wide;
use crate::launch::{Extent, Kernel, RowKind};
use crate::layout::lead_code;
use crate::lower::rows::gate_params;
use crate::params::{NONE, Params};
use crate::select::{Heads, Products};
use crate::weights::Segment;

/// Threads of a workgroup, of which 32 make an output or two.
pub(super) const THREADS: u32 = 256;
const TEAMS: u32 = THREADS / 32;

/// Columns that are shared at least, and as floats at most with as much memory as every adapter has.
const LEAST_CHUNK: u32 = 1024;
const MOST_CHUNK: u32 = 2048;

/// Columns that steps of one, two and four rows share at most: as integers of 16 bits, and for weights of sixteen bits. More of them leave
/// room for fewer workgroups, which costs more than sharing them in turn.
const CHUNKS_OF_INTEGERS: [u32; 3] = [4096, 4096, 2048];
const CHUNKS_OF_SIXTEEN: [u32; 3] = [2048, 2048, 1024];

/// Runs of a row of weights that a thread asks for at once: a single row of sixteen bits leaves room for more of them.
pub(crate) const fn runs(by: u32, sixteen: bool) -> u32 {
    if sixteen && by == 0 { 4 } else { 1 }
}

/// Outputs of 32 threads with so many rows of weights.
pub(crate) const fn made(each: u32, gated: bool) -> u32 {
    if gated { each / 2 } else { each }
}

/// What products of one value have in common: the first one's weights, their rows, and the norm's weight before them with its epsilon.
pub(super) struct Common {
    pub(super) segment: Segment,
    pub(super) x: ValueId,
    pub(super) x_at: u32,
    pub(super) columns: u32,
    pub(super) lead: Lead,
    pub(super) norm: (u32, f32),
}

impl Lowering<'_, '_> {
    /// Rows of prompts op by op, rows of replies at once; these `beside` the ones before, where they read the same value.
    pub(super) fn products(&mut self, found: &Products, beside: bool) -> Result<(), BackendError> {
        let nodes = &self.plan.nodes;
        self.prompts_only = true;
        let norm = found.norm.filter(|_| !found.again);
        let before = norm.into_iter().chain(found.nodes.iter().copied());
        let after = found.gate.into_iter().chain(found.add.map(|a| a.0));
        for n in before.chain(after) {
            self.node(&nodes[n])?;
        }
        self.prompts_only = false;
        self.kind = Some(RowKind::Reply);
        self.beside = beside;
        let made = self.replies(found);
        self.beside = false;
        self.kind = None;
        made
    }

    fn replies(&mut self, found: &Products) -> Result<(), BackendError> {
        let nodes = &self.plan.nodes;
        let pairs = found.nodes.iter().map(|&n| {
            let out = nodes[n].outs[0];
            self.width(out).div_ceil(2 * TEAMS)
        });
        let gated = found.gate.is_some();
        let single = !gated && pairs.sum::<u32>() < self.ground.choices.pairs;
        let each = if single { 1 } else { 2 };
        let common = self.common(found)?;
        let (params, end) = self.parts(found, &common, (common.x_at, made(each, gated)))?;
        let Ground {
            abilities, choices, ..
        } = *self.ground;
        let Common { segment, lead, .. } = &common;
        let columns = common.columns;
        let wide = is_wide(segment.dtype);
        let sixteen = matches!(segment.dtype, DType::F16 | DType::BF16);
        let (dots, more) = (wide && abilities.dots, abilities.shares_more);
        let chunk = |by: u32| {
            let all = columns.next_multiple_of(LEAST_CHUNK);
            let most = match (dots, sixteen) {
                (true, _) if more => CHUNKS_OF_INTEGERS[by as usize],
                (true, _) => CHUNKS_OF_INTEGERS[0] >> by,
                (_, true) if more => CHUNKS_OF_SIXTEEN[by as usize],
                _ => (MOST_CHUNK << u32::from(more)) >> by,
            };
            all.min(most).min(choices.columns)
        };
        // Columns that are shared in turn are made ready anew for each group.
        let most_groups = |by: u32| match by > 0 && columns <= chunk(by) {
            true => choices.several,
            false => NONE,
        };
        let pipeline = |by: u32| {
            let own = [
                ("FORMAT", segment.dtype.ggml()),
                ("THREADS", THREADS),
                ("WORK_VEC4", 1),
                ("VECS_VEC4", 1),
                ("WEIGHTS_VEC4", (wide || sixteen).into()),
                ("WIDE", wide.into()),
                ("DOTS", dots.into()),
                ("HALVES", abilities.halves.into()),
                ("CHUNK", chunk(by)),
                ("CHUNKED", (columns > chunk(by)).into()),
                ("EACH", each),
                ("MADE", made(each, gated)),
                ("GATED", gated.into()),
                ("NORMED", found.norm.is_some().into()),
                ("ROWS", 1 << by),
                ("RUNS", runs(by, sixteen)),
                ("MOST_GROUPS", most_groups(by)),
            ];
            self.pipeline(("products.wgsl", "products"), &own)
        };
        let rows_at_once = 1 + u32::from(abilities.shares_more);
        let pipelines = (0..=rows_at_once).map(pipeline).collect();
        let kernel = Kernel::ByRows(*lead, 1, pipelines);
        // As many turns for each of them. Where columns are shared in turn, weights of sixteen bits alone gain from fewer.
        let most = if columns > chunk(0) && !sixteen {
            end
        } else {
            choices.groups
        };
        let groups = end.div_ceil(end.div_ceil(most));
        let grid = [Extent::fixed(groups), Extent::ONE, Extent::ONE];
        let integers = dots && abilities.integers && columns > chunk(rows_at_once);
        let before = integers && self.pays(found, &common);
        self.count = before.then_some((*lead, 0..choices.integers));
        self.push(kernel, grid, segment.arena, &params);
        if before {
            self.count = Some((*lead, choices.integers..u32::MAX));
            self.several(found, &common)?;
        }
        self.count = None;
        Ok(())
    }

    /// What products have in common.
    fn common(&self, found: &Products) -> Result<Common, BackendError> {
        let nodes = &self.plan.nodes;
        let first = found.nodes[0];
        let Op::Matmul { weight, .. } = nodes[first].op else {
            return Err(unsupported(nodes[first].op.name()));
        };
        let norm = match found.norm.map(|n| &nodes[n].op) {
            Some(Op::Norm {
                weight: Some(w),
                eps,
                ..
            }) => (self.floats(*w), *eps),
            _ => (NONE, 0.0),
        };
        let x = nodes[found.norm.unwrap_or(first)].ins[0];
        Ok(Common {
            segment: self.alone(weight)?,
            x,
            x_at: self.at(x),
            columns: self.width(x),
            lead: self.lead(nodes[first].outs[0]),
            norm,
        })
    }

    /// Parameters of products whose rows lie somewhere, and workgroups in which 32 threads make so many outputs.
    pub(super) fn parts(
        &self,
        found: &Products,
        of: &Common,
        (x, each): (u32, u32),
    ) -> Result<(Params, u32), BackendError> {
        let nodes = &self.plan.nodes;
        let (mut parts, mut end) = (Vec::new(), 0);
        let results = found.results(self.plan);
        for (i, &n) in found.nodes.iter().enumerate() {
            let Op::Matmul {
                weight,
                scale,
                bias,
            } = nodes[n].op
            else {
                return Err(unsupported(nodes[n].op.name()));
            };
            let segment = self.alone(weight)?;
            if found.gate.is_none() || i == 0 {
                end += segment.rows.div_ceil(TEAMS * each);
            }
            let y = self.at(results[i.min(results.len() - 1)]);
            parts.extend([segment.at as u32, y, end, segment.rows]);
            let scale_len = scale.map_or(1, |s| self.weight_len(s));
            parts.extend([self.maybe(scale), scale_len, self.maybe(bias), 0]);
        }
        let params = Params::new().u32s(&[of.segment.row_words, x, lead_code(of.lead)]);
        let params = params.u32s(&[of.columns, of.norm.0]).f32(of.norm.1);
        let params = params.u32(found.add.map_or(NONE, |a| self.at(a.1)));
        let params = params.u32(found.nodes.len() as u32);
        let params = match found.gate.map(|n| &nodes[n].op) {
            Some(Op::Gate { act, clamp }) => gate_params(params, *act, *clamp),
            _ => params.u32s(&[0; 7]),
        };
        Ok((params.u32(0).u32s(&parts), end))
    }

    /// The rows of a weight that lies in one piece.
    fn alone(&self, weight: WeightId) -> Result<Segment, BackendError> {
        match &self.ground.weights.place(weight).segments[..] {
            [one] => Ok(one.clone()),
            _ => Err(unsupported("products of weights in pieces")),
        }
    }

    /// Norms and rotations of heads, as `turn.wgsl` reads them.
    pub(super) fn turn_words(&mut self, heads: &Heads) -> Result<[u32; 10], BackendError> {
        let nodes = &self.plan.nodes;
        let Op::Rope(rope) = &nodes[heads.rope_q].op else {
            return Err(unsupported("heads without a rotation"));
        };
        let (turns, pairs) = self.turns(rope)?;
        let norm = |node: Option<usize>| match node.map(|n| &nodes[n].op) {
            Some(Op::Norm {
                weight: Some(w),
                eps,
                ..
            }) => [self.floats(*w), self.weight_len(*w), eps.to_bits()],
            _ => [NONE, 1, 0],
        };
        let ([q, q_len, q_eps], [k, k_len, k_eps]) = (norm(heads.norm_q), norm(heads.norm_k));
        let halves = u32::from(rope.pairing == Pairing::Halves);
        Ok([
            q,
            q_len,
            q_eps,
            k,
            k_len,
            k_eps,
            rope.offset,
            pairs,
            halves,
            turns,
        ])
    }

    /// Heads on their way to attention; where that comes next, it takes them itself in steps of one row of each sequence.
    pub(super) fn heads(&mut self, heads: &Heads) -> Result<(), BackendError> {
        let Some(reader) = heads.attention else {
            return self.heads_alone(heads);
        };
        let node = &self.plan.nodes[reader];
        let Op::Attention(op) = &node.op else {
            return Err(unsupported(node.op.name()));
        };
        self.singles = Some(false);
        self.heads_alone(heads)?;
        self.attention(node, op, None)?;
        self.singles = Some(true);
        self.attention(node, op, Some(heads))?;
        self.singles = None;
        Ok(())
    }

    fn heads_alone(&mut self, heads: &Heads) -> Result<(), BackendError> {
        let nodes = &self.plan.nodes;
        let (Op::Rope(rope), Op::CacheWrite { slot }) =
            (&nodes[heads.rope_q].op, &nodes[heads.write].op)
        else {
            return Err(unsupported("heads without a rotation"));
        };
        let turn = self.turn_words(heads)?;
        let v = nodes[heads.write].ins[1];
        let dim = rope.head_dim;
        let (n_q, n_k) = (self.width(heads.q) / dim, self.width(heads.k) / dim);
        let params = self.cache(*slot, Params::new());
        let params = params.u32s(&[self.at(heads.q), self.at(heads.k), self.at(v)]);
        let params = params.u32s(&[self.at(nodes[heads.rope_q].outs[0]), n_q, n_k, dim]);
        let params = params.u32s(&turn).u32(self.width(v) / n_k);
        let grid = [
            Extent::fixed(n_q + 2 * n_k),
            Extent::rows(Lead::Rows),
            Extent::ONE,
        ];
        self.launch(("heads.wgsl", "heads"), &[("THREADS", 64)], grid, &params)
    }
}
