//! Products by the kernels of `matvec.cu`: rows prepared once, then several weights a launch.

use std::collections::BTreeSet;

use tokkata_core::DType;
use tokkata_ir::{Act, BackendError, Lead, Node, NormKind, Op, ValueId, WeightId};

use super::{Lowering, tape, unsupported};
use crate::driver::Mode;
use crate::error::lost;
use crate::launch::{Extent, Kernel, RowKind, Tile, When};
use crate::layout::{lead_code, most, turned_rows};
use crate::params::Params;
use crate::select::{Item, matrix};

/// Warps of a block, an output each.
const WARPS: u32 = 8;
/// Weights that a launch has room for.
const PARTS: usize = 4;

/// Most columns of a row that a block makes bytes of for itself: with more, each block does too much that all others do.
const MOST_OWN: u32 = 1 << 10;

/// Copies under way of `gemm.cu`, and columns of each.
const STAGES: u32 = 4;
const STAGE: u32 = 64;

/// Large tiles are used where there are at least so many of them: enough for the largest devices, and thrice that for so many
/// columns, where their beginnings and ends weigh more than what they save in between.
const BUSY: u32 = 100;
const BUSY_SHORT: u32 = 400;
const SHORT: std::ops::Range<u32> = 513..2048;

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

impl Lowering<'_, '_> {
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
        let params = self.step().u64s(&[self.at(own.from), y, q, d, s]);
        let params = params.u64s(&[self.maybe(own.weight), self.maybe(own.bias)]);
        let params = params.u32s(&[lead_code(lead), width, own.kind]);
        let params = params.f32(own.eps);
        let split = bytes && lead == Lead::Rows && self.ground.kernels.has_tensor_cores();
        let (turned, pitch) = if split { self.turned(x) } else { (0, 0) };
        let params = params.u64(turned).u32(pitch).align(8);
        if split {
            let runs = if norm.is_some() {
                1
            } else {
                width.div_ceil(512)
            };
            let rows = Extent::elements(lead, 1, 4);
            let grid = [Extent::fixed(runs), rows, Extent::ONE];
            self.kind = Some(RowKind::Prompt);
            self.launch(("gemm", "quantise_prompts"), grid, (128, 0), &params)?;
            self.kind = Some(RowKind::Reply);
        }
        let (blocks, threads) = match norm {
            Some(_) => (1, 256),
            None => (
                width.div_ceil(256),
                width.clamp(32, 256).next_multiple_of(32),
            ),
        };
        let grid = [Extent::fixed(blocks), Extent::rows(lead), Extent::ONE];
        if self.makes_own(x) {
            self.when = When::More(lead);
        }
        self.launch(
            ("matvec", "quantise"),
            grid,
            (threads.min(1024), 0),
            &params,
        )?;
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
    pub(super) fn source(&self, own: &NormOf, bytes: bool, total: u32) -> Params {
        let addresses = [
            self.at(own.from),
            self.maybe(own.weight),
            self.maybe(own.bias),
        ];
        let params = Params::new().u64s(&addresses).u32(own.kind).f32(own.eps);
        params.u32s(&[bytes.into(), total])
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
        let params = params
            .clone()
            .then(&self.source(&self.vec_source(x), bytes, total));
        let shared = if bytes { k / 32 * 40 } else { 0 };
        let when = self.when;
        (self.when, self.mode) = (When::One(lead), self.early());
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

    /// One launch of products.
    pub(super) fn products(
        &mut self,
        nodes: &[usize],
        gate: Option<usize>,
        add: Option<(usize, ValueId)>,
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
        let params = params.u64s(&self.in_bytes(x)).u64(self.at(x)).u64(ids);
        let params = params.u32s(&[lead_code(lead), k, top_k, shared.into()]);
        let formats = self.tile_formats(&parts, lead, top_k, gate.is_some(), k);
        let kinds = u32::from(!formats.is_empty());
        let params = params.u32s(&[gate.is_some().into(), act, kinds]);
        let (turned, pitch) = match kinds {
            0 => (0, 0),
            _ => self.turned(x),
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
            let least = if SHORT.contains(&k) { BUSY_SHORT } else { BUSY };
            let tiles = self.tiles(format, &parts, gate.is_some(), least)?;
            self.kind = Some(RowKind::Prompt);
            let grid = [Extent::ONE; 3];
            self.push(Kernel::Tiles(lead, tiles), grid, (0, 0), &params);
            self.kind = Some(RowKind::Reply);
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
            self.when = When::More(lead);
        }
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

    /// Formats of the parts of a launch whose rows of prompts go to tensor cores; none where they do not.
    fn tile_formats(
        &self,
        parts: &[Part],
        lead: Lead,
        top_k: u32,
        gated: bool,
        columns: u32,
    ) -> BTreeSet<DType> {
        use DType::{IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
        let formats: BTreeSet<DType> = parts.iter().map(|p| self.shape_of(p).0).collect();
        let known = |d: &DType| matches!(d, Q4_0 | Q8_0 | Q4_K | Q5_K | Q6_K | MXFP4 | IQ4_NL);
        let fits = self.ground.kernels.has_tensor_cores()
            && lead == Lead::Rows
            && top_k == 0
            && columns.is_multiple_of(STAGE)
            && formats.iter().all(known)
            && (!gated || formats.len() == 1);
        if fits { formats } else { BTreeSet::new() }
    }

    /// Kernels of `gemm.cu` for the parts of one format.
    fn tiles(
        &self,
        format: DType,
        parts: &[Part],
        gated: bool,
        least: u32,
    ) -> Result<[Tile; 2], BackendError> {
        let tile = |name: &str, rows: u32, outputs: u32, threads: u32, least: u32| {
            let name = format!("gemm_{name}_{format}");
            let function = self.ground.kernels.function("gemm", &name).map_err(lost)?;
            let wide = if gated { outputs / 2 } else { outputs };
            let own = parts.iter().take(if gated { 1 } else { parts.len() });
            let own = own.map(|p| self.shape_of(p)).filter(|p| p.0 == format);
            let shared = tile_bytes(format, rows, outputs);
            function.allow_shared(shared).map_err(lost)?;
            Ok(Tile {
                function,
                rows,
                blocks: own.map(|p| p.1.div_ceil(wide)).sum(),
                threads,
                shared,
                least,
            })
        };
        Ok([
            tile("large", 128, 128, 256, least)?,
            tile("small", 64, 64, 128, 0)?,
        ])
    }
}

/// Shared memory of a tile: copies under way and scales, or half of its sums.
fn tile_bytes(format: DType, rows: u32, outputs: u32) -> u32 {
    use DType::{Q4_K, Q5_K, Q6_K, Q8_0};
    let packed = if matches!(format, Q8_0 | Q5_K | Q6_K) {
        64
    } else {
        32
    };
    let scales = match format {
        Q4_K | Q5_K => 4,
        Q6_K => 5,
        _ => 2,
    };
    let stage = rows * 64 + outputs * packed + rows * 16;
    let copies = STAGES * stage + 2 * scales * outputs * 4;
    copies.max(rows / 2 * (outputs + 8) * 4)
}

fn norm_code(kind: NormKind) -> u32 {
    match kind {
        NormKind::Rms => 0,
        NormKind::Layer => 1,
        NormKind::L2 => 2,
        NormKind::L2Max => 3,
    }
}
