//! Products by the kernels of `matvec.cu`: rows prepared once, then several weights a launch.

use std::collections::BTreeSet;

use tokkata_core::DType;
use tokkata_ir::{Act, BackendError, Lead, Node, NormKind, Op, ValueId, WeightId};

use super::cuts::{Cut, Ending};
use super::tiles::{CROWD, STAGE, Shape, is_sixteen};
use super::{Lowering, tape, unsupported};
use crate::driver::Mode;
use crate::error::lost;
use crate::launch::{Extent, Kernel, RowKind, When};
use crate::layout::{lead_code, most, turned_rows};
use crate::params::Params;
use crate::select::{Form, Item, matrix};

/// Warps of a block, an output each.
const WARPS: u32 = 8;
/// Weights that a launch has room for.
pub(super) const PARTS: usize = 4;

/// Most columns of a row that a block makes bytes of for itself: with more, each block does too much that all others do.
const MOST_OWN: u32 = 1 << 10;

/// In the place of a norm: that there is none, and that rows are there in bytes.
const NO_NORM: u32 = 4;
const PREPARED: u32 = 5;

/// What rows come from: their norm as kernels number it, and what it reads.
pub(super) struct NormOf {
    pub(super) from: ValueId,
    pub(super) kind: u32,
    pub(super) eps: f32,
    pub(super) weight: Option<WeightId>,
    pub(super) bias: Option<WeightId>,
}

/// A product's weight and what happens to its outputs.
struct Part {
    weight: WeightId,
    scale: Option<WeightId>,
    bias: Option<WeightId>,
    y: ValueId,
    /// Rows of an expert; 0 without experts.
    expert_rows: u32,
}

/// Outputs of a product by weights in halves: `n` of each row, `stride` from one row's to the next.
pub(super) struct Outputs {
    pub(super) weights: u64,
    pub(super) bias: u64,
    pub(super) y: u64,
    pub(super) n: u32,
    pub(super) stride: u32,
}

impl Lowering<'_, '_> {
    /// Products of prompts' rows in parts by weights in halves.
    pub(super) fn product_of_halves(
        &mut self,
        cut: &Cut,
        out: &Outputs,
    ) -> Result<(), BackendError> {
        let &Outputs { n, stride, .. } = out;
        let k = cut.width();
        let params = self.step().u64s(&[out.weights, 0, out.y, 0, out.bias, 0]);
        let params = params.u64s(&[u64::from(k) * 2, 0, 0, 0]);
        let params = params.u32s(&[n, DType::F16.ggml(), stride, 0, 1, 0]);
        let none = |params: Params, _| params.u64s(&[0; 10]).u32s(&[n, 0, 0, 0, 0, 0]);
        let params = (1..PARTS).fold(params, none);
        let params = params.u64s(&[cut.parts, cut.units, 0, 0, 0]);
        let params = params.u32s(&[lead_code(Lead::Rows), k, 0, 0, 0, 0, 1, 0]);
        let params = params.u64s(&[0, cut.apart]);
        let params = Ending::default().params(params);
        let tiles = self.tiles(DType::F16, &[(DType::F16, n)], false, k)?;
        self.mode = self.early();
        let grid = [Extent::ONE; 3];
        self.push(Kernel::Tiles(Lead::Rows, tiles), grid, (0, 0), &params);
        self.mode = Mode::Plain;
        Ok(())
    }

    /// Addresses of a value in bytes: bytes, scales and sums.
    fn in_bytes(&self, x: ValueId) -> [u64; 3] {
        let at = self.places.bytes[x.index()];
        let rows = u64::from(most(self.limits(), self.lead(x)));
        let columns = u64::from(self.width(x));
        let scales = at + (rows * columns).next_multiple_of(16);
        [at, scales, scales + rows * columns / 32 * 4]
    }

    /// Where scales and sums of a value in bytes lie run by run, and rows from a run to the next one.
    fn turned(&self, x: ValueId) -> (u64, u32) {
        let rows = u64::from(most(self.limits(), self.lead(x)));
        let columns = u64::from(self.width(x));
        let beside = rows * (columns + columns / 32 * 8);
        let at = self.places.bytes[x.index()] + beside.next_multiple_of(16);
        (at, turned_rows(rows) as u32)
    }

    /// `Quantise` of `products.cuh` behind the step: rows of `x`, where their floats and bytes go, and whether prompts' are others' to make.
    pub(super) fn quantise_params(
        &self,
        (x, own): (ValueId, &NormOf),
        [y, q, d, s]: [u64; 4],
        (turned, pitch): (u64, u32),
        split: bool,
    ) -> Params {
        let params = self.step().u64s(&[self.at(own.from), y, q, d, s]);
        let params = params.u64s(&[self.maybe(own.weight), self.maybe(own.bias)]);
        let params = params.u32s(&[lead_code(self.lead(x)), self.width(x), own.kind]);
        let params = params.f32(own.eps).u64(turned);
        params.u32s(&[pitch, split.into()])
    }

    /// Rows of `x`, normalised where there is a norm, as floats and as bytes.
    pub(super) fn prepare_rows(
        &mut self,
        (norm, x): (Option<usize>, ValueId),
        floats: bool,
        bytes: bool,
    ) -> Result<(), BackendError> {
        let (lead, width) = (self.lead(x), self.width(x));
        let own = self.norm_of(norm, x);
        let [q, d, s] = if bytes { self.in_bytes(x) } else { [0; 3] };
        let y = if floats { self.at(x) } else { 0 };
        let tensor = bytes && self.ground.kernels.has_tensor_cores();
        let split = tensor && lead == Lead::Rows;
        let turned = if tensor { self.turned(x) } else { (0, 0) };
        let params = self.quantise_params((x, &own), [y, q, d, s], turned, split);
        if split {
            let runs = if norm.is_some() {
                1
            } else {
                width.div_ceil(512)
            };
            let rows = Extent::elements(lead, 1, 4);
            let grid = [Extent::fixed(runs), rows, Extent::ONE];
            if self.reads_bytes(x) {
                self.kind = Some(RowKind::Prompt);
                self.launch(("gemm", "quantise_prompts"), grid, (128, 0), &params)?;
            }
            self.halve_prompts(x, &params)?;
            self.kind = Some(RowKind::Reply);
        }
        let most = if norm.is_some() { 512 } else { 256 };
        let blocks = width.div_ceil(most);
        let threads = match norm {
            Some(_) => most,
            None => width.clamp(32, most).next_multiple_of(32),
        };
        let grid = [Extent::fixed(blocks), Extent::rows(lead), Extent::ONE];
        if self.makes_own(x) {
            self.when = When::more(lead);
        }
        self.launch_early(("matvec", "quantise"), grid, (threads, 0), &params)?;
        (self.kind, self.when) = (None, When::Always);
        Ok(())
    }

    /// Leaves the values alone that every product of one row makes bytes of with the bits that they have beside others.
    pub(super) fn keep_own_sources(&mut self, items: &[Item]) {
        let mut others = Vec::new();
        for item in items {
            let Item::Products { nodes, gate, .. } = item else {
                continue;
            };
            let x = self.plan.nodes[nodes[0]].ins[0];
            let lead = self.lead(self.plan.nodes[nodes[0]].outs[0]);
            let weight = |n: &usize| matrix(&self.plan.nodes[*n].op);
            let formats: BTreeSet<DType> = nodes
                .iter()
                .filter_map(weight)
                .map(|w| self.ground.weights.place(w).segments[0].dtype)
                .collect();
            let tiles = self.ground.kernels.has_tensor_cores() && lead == Lead::Rows;
            let whole = !tiles || self.width(x).is_multiple_of(STAGE);
            if !whole || (gate.is_some() && formats.len() > 1) {
                others.push(x);
            }
        }
        self.sources.retain(|x, _| !others.contains(x));
    }

    /// Whether products of one row make its bytes for themselves.
    fn makes_own(&self, x: ValueId) -> bool {
        self.sources.contains_key(&x) && self.width(x) <= MOST_OWN
    }

    /// What rows come from: a norm's input, or the rows themselves.
    pub(super) fn norm_of(&self, norm: Option<usize>, x: ValueId) -> NormOf {
        match norm.map(|n| &self.plan.nodes[n]) {
            Some(Node {
                op:
                    Op::Norm {
                        kind,
                        eps,
                        weight,
                        bias,
                        ..
                    },
                ins,
                ..
            }) => NormOf {
                from: ins[0],
                kind: norm_code(*kind),
                eps: *eps,
                weight: *weight,
                bias: *bias,
            },
            _ => NormOf {
                from: x,
                kind: NO_NORM,
                eps: 0.0,
                weight: None,
                bias: None,
            },
        }
    }

    /// `Source` of `products.cuh`.
    pub(super) fn source(&self, own: &NormOf, form: Option<Form>, total: u32) -> Params {
        let addresses = [
            self.at(own.from),
            self.maybe(own.weight),
            self.maybe(own.bias),
        ];
        let params = Params::new().u64s(&addresses).u32(own.kind).f32(own.eps);
        params.u32s(&[form.map_or(0, Form::code), total])
    }

    /// What a product of one row by the kernels of `vec.cu` makes its bytes of.
    fn vec_source(&self, x: ValueId) -> NormOf {
        match self.sources.get(&x).filter(|_| self.makes_own(x)) {
            Some(norm) => self.norm_of(*norm, x),
            None => NormOf {
                kind: PREPARED,
                ..self.norm_of(None, x)
            },
        }
    }

    /// Products of one row by the kernels of `vec.cu`.
    fn one_row(
        &mut self,
        (lead, x, k): (Lead, ValueId, u32),
        (total, bytes, gated): (u32, bool, bool),
        params: &Params,
    ) -> Result<(), BackendError> {
        let warps = self.ground.processors * WARPS;
        let at_a_time = match total / warps {
            0 | 1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
        let at_a_time = if gated { at_a_time.max(2) } else { at_a_time };
        let most = self.ground.processors * 4;
        let blocks = total.div_ceil(WARPS * at_a_time).min(most);
        let name = format!("vec_{at_a_time}");
        let function = self.ground.kernels.function("vec", &name).map_err(lost)?;
        let params = params.clone().then(&self.source(
            &self.vec_source(x),
            bytes.then_some(Form::Bytes),
            total,
        ));
        let shared = if bytes { k / 32 * 40 } else { 0 };
        let when = self.when;
        (self.when, self.mode) = (When::one(lead), self.early());
        let grid = [Extent::fixed(blocks), Extent::ONE, Extent::ONE];
        self.push(Kernel::One(function), grid, (WARPS * 32, shared), &params);
        (self.when, self.mode) = (when, Mode::Plain);
        Ok(())
    }

    fn part(&self, node: usize) -> Result<Part, BackendError> {
        let node = &self.plan.nodes[node];
        let y = node.outs[0];
        match node.op {
            Op::Matmul {
                weight,
                scale,
                bias,
            } => Ok(Part {
                weight,
                scale,
                bias,
                y,
                expert_rows: 0,
            }),
            Op::Experts {
                weight,
                scale,
                bias,
                ..
            } => Ok(Part {
                weight,
                scale,
                bias,
                y,
                expert_rows: self.ground.program.weights[weight.index()].shape[1],
            }),
            ref op => Err(unsupported(op.name())),
        }
    }

    /// What the products of an item multiply, and the formats of those whose prompts' rows go to tensor cores.
    pub(super) fn prompt_formats(&self, item: &Item) -> Option<(ValueId, BTreeSet<DType>)> {
        let Item::Products {
            nodes,
            gate,
            paired,
            ..
        } = item
        else {
            return None;
        };
        let first = &self.plan.nodes[nodes[0]];
        let top_k = match first.op {
            Op::Experts { top_k, .. } => top_k,
            _ => 0,
        };
        let (x, lead) = (first.ins[0], self.lead(first.outs[0]));
        let shape = |&n: &usize| Some(self.shape_of(&self.part(n).ok()?));
        let shapes = nodes.iter().map(shape).collect::<Option<Vec<Shape>>>()?;
        let gated = gate.is_some() || *paired;
        let formats = self.tile_formats(&shapes, lead, top_k, gated, self.width(x));
        Some((x, formats))
    }

    /// `Part` of `matvec.cu`; `before` outputs belong to earlier parts.
    fn part_params(
        &self,
        part: &Part,
        (to, add): (ValueId, u64),
        before: u32,
        params: Params,
    ) -> (Params, u32) {
        let segment = &self.ground.weights.place(part.weight).segments[0];
        let rows = match part.expert_rows {
            0 => segment.rows,
            rows => rows,
        };
        let of_expert = u64::from(part.expert_rows);
        let scale_len = part.scale.map_or(1, |s| self.weight_len(s));
        let y_stride = if part.expert_rows > 0 {
            rows
        } else {
            self.width(to)
        };
        let params = params.u64s(&[segment.data, segment.scales, self.at(to)]);
        let params = params.u64s(&[self.maybe(part.scale), self.maybe(part.bias), add]);
        let params = params.u64s(&[
            segment.row_bytes,
            segment.scale_bytes,
            segment.row_bytes * of_expert,
            segment.scale_bytes * of_expert,
        ]);
        let end = before + rows;
        let params = params.u32s(&[end, segment.dtype.ggml(), y_stride, 0]);
        (params.u32s(&[scale_len, part.expert_rows]), end)
    }

    /// One launch of products, `paired` where they go through a gate elsewhere.
    pub(super) fn products(
        &mut self,
        nodes: &[usize],
        gate: Option<usize>,
        add: Option<(usize, ValueId)>,
        paired: bool,
    ) -> Result<(), BackendError> {
        let parts: Vec<Part> = nodes
            .iter()
            .map(|&n| self.part(n))
            .collect::<Result<_, _>>()?;
        let first = &self.plan.nodes[nodes[0]];
        let x = first.ins[0];
        let (lead, mut params, mut end) = (self.lead(first.outs[0]), self.step(), 0);
        let merged = gate.or(add.map(|a| a.0));
        for part in &parts {
            let to = merged.map_or(part.y, |n| self.plan.nodes[n].outs[0]);
            let add = add.map_or(0, |a| self.at(a.1));
            (params, end) = self.part_params(part, (to, add), end, params);
        }
        for _ in parts.len()..PARTS {
            params = params.u64s(&[0; 10]).u32s(&[end, 0, 0, 0, 0, 0]);
        }
        let (top_k, ids, k) = match first.op {
            Op::Experts { top_k, weight, .. } => {
                let shape = &self.ground.program.weights[weight.index()].shape;
                (top_k, self.at(first.ins[1]), shape[2])
            }
            _ => (0, 0, self.width(x)),
        };
        let shared = top_k > 0 && self.width(x) == k;
        let outputs = if gate.is_some() { end / 2 } else { end };
        let act = match gate.map(|g| &self.plan.nodes[g].op) {
            Some(Op::Gate { act: Act::Gelu, .. }) => 2,
            _ => 1,
        };
        let shapes: Vec<Shape> = parts.iter().map(|p| self.shape_of(p)).collect();
        let gated = gate.is_some() || paired;
        let formats = self.tile_formats(&shapes, lead, top_k, gated, k);
        let cut = match formats.first() {
            Some(&format) if is_sixteen(format) => Some(self.cut_rows(x, format)?),
            _ => None,
        };
        let ending = match (&cut, merged) {
            (Some(cut), None) => {
                let outs: Vec<ValueId> = parts.iter().map(|p| p.y).collect();
                self.ending(&outs, cut)?
            }
            _ => Ending::default(),
        };
        let acts = cut.map_or_else(|| self.in_bytes(x), |c| [c.parts, c.units, 0]);
        let params = params.u64s(&acts).u64(self.at(x)).u64(ids);
        let params = params.u32s(&[lead_code(lead), k, top_k, shared.into()]);
        let kinds = u32::from(!formats.is_empty());
        let params = params.u32s(&[gate.is_some().into(), act, kinds]);
        let crowds = self.crowd_formats(&shapes, top_k, gated, k);
        let (turned, pitch) = match cut.is_some() || (kinds == 0 && crowds.is_empty()) {
            true => (0, 0),
            false => self.turned(x),
        };
        let params = params.u32(pitch).u64(turned);
        if top_k == 0 {
            let to = |p: &Part| merged.map_or(p.y, |n| self.plan.nodes[n].outs[0]);
            let piece = |p: &Part| tape::Piece {
                segment: self.ground.weights.place(p.weight).segments[0].clone(),
                to: to(p),
                scale: self.maybe(p.scale),
                scale_len: p.scale.map_or(1, |s| self.weight_len(s)),
                bias: self.maybe(p.bias),
            };
            let pieces = parts.iter().map(piece).collect();
            let behind = (gate.map(|_| act), add.map(|a| a.1));
            self.tape_products(nodes, end, &params, pieces, behind);
        }
        for &format in &formats {
            let halved = self.is_halved(format, k);
            let kernel = match halved {
                true => self.halved_tiles((lead, format), &shapes, gate.is_some())?,
                false => Kernel::Tiles(lead, self.tiles(format, &shapes, gate.is_some(), k)?),
            };
            self.kind = Some(RowKind::Prompt);
            let grid = [Extent::ONE; 3];
            let params = match &cut {
                Some(cut) if cut.halved => {
                    let params = params.clone().u64s(&[cut.parts, cut.units]);
                    params.then(&self.scaled(nodes))
                }
                Some(cut) => ending.params(params.clone().u64(cut.apart)),
                None if halved => {
                    let params = params.clone().u64s(&self.in_halves(x));
                    params.then(&self.scaled(nodes))
                }
                None => params.clone(),
            };
            if is_sixteen(format) || halved {
                self.mode = self.early();
            }
            self.push(kernel, grid, (0, 0), &params);
            (self.kind, self.mode) = (Some(RowKind::Reply), Mode::Plain);
        }
        let one_format = parts
            .windows(2)
            .all(|p| self.shape_of(&p[0]).0 == self.shape_of(&p[1]).0);
        let alone = top_k == 0 && k <= MOST_OWN && (gate.is_none() || one_format);
        if alone {
            let bytes = parts
                .iter()
                .any(|p| crate::select::in_bytes(self.shape_of(p).0));
            self.one_row((lead, x, k), (end, bytes, gate.is_some()), &params)?;
        }
        let wide = self.is_wide(nodes);
        let few = match crowds.is_empty() {
            true => None,
            false => self.few_rows((lead, k), if wide { 1 } else { 2 }, &shapes, &params)?,
        };
        let crowd = match crowds.is_empty() {
            true => None,
            false => self.crowd_rows((lead, k), &shapes, &params)?,
        };
        for &format in &crowds {
            for crowds in self.crowds(format) {
                let [least, most] = crowds.rows;
                let least = few.map_or(least, |most| most + 1);
                let most = crowd.map_or(most, |least| least - 1);
                if least > most {
                    continue;
                }
                let tiles = self.crowd_tiles((format, crowds), &shapes, gate.is_some())?;
                self.when = When::Counts(lead, least, most);
                let grid = [Extent::ONE; 3];
                let params = match is_sixteen(format) {
                    true => self.cut_replies((lead, k), (format, crowds), &params)?,
                    false => params.clone(),
                };
                if is_sixteen(format) {
                    self.mode = self.early();
                }
                self.push(Kernel::Fitting(lead, tiles), grid, (0, 0), &params);
                self.mode = Mode::Plain;
            }
        }
        if wide {
            (self.kind, self.when) = (None, When::Always);
            return Ok(());
        }
        let least = if alone { 2 } else { 1 };
        let most = match (few, crowds.is_empty()) {
            (Some(_), _) => 1,
            (None, false) => CROWD - 1,
            (None, true) => u32::MAX,
        };
        self.when = When::Counts(lead, least, most);
        let kernels = ["matvec_1", "matvec_2", "matvec_4", "matvec_8"];
        let mut functions = Vec::new();
        for name in kernels {
            functions.push(self.ground.kernels.function("matvec", name).map_err(lost)?);
        }
        let blocks = Extent::fixed(outputs.div_ceil(WARPS));
        let (kernel, rows) = match functions[..] {
            [one, ..] if top_k > 0 => {
                let rows = Extent::elements(lead, top_k.into(), 1);
                (Kernel::One(one), rows)
            }
            [one, two, four, eight] => (Kernel::ByRows(lead, [one, two, four, eight]), Extent::ONE),
            _ => unreachable!("there are four kernels"),
        };
        self.push(
            kernel,
            [blocks, rows, Extent::ONE],
            (WARPS * 32, 0),
            &params,
        );
        (self.kind, self.when) = (None, When::Always);
        Ok(())
    }

    /// The format of a part and its outputs.
    fn shape_of(&self, part: &Part) -> (DType, u32) {
        let segment = &self.ground.weights.place(part.weight).segments[0];
        (segment.dtype, segment.rows)
    }
}

/// A norm as the kernels know it.
pub(super) fn norm_code(kind: NormKind) -> u32 {
    match kind {
        NormKind::Rms => 0,
        NormKind::Layer => 1,
        NormKind::L2 => 2,
        NormKind::L2Max => 3,
    }
}
