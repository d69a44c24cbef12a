//! Look-ups and products.

use tokkata_core::DType;
use tokkata_ir::{BackendError, GatherIndex, Lead, Node, Op, ValueId, WeightId};

use super::{Lowering, unsupported};
use crate::formats::is_wide;
use crate::gpu::Matrices;
use crate::launch::{Extent, Kernel, RowKind};
use crate::layout::lead_code;
use crate::params::{NONE, Params};
use crate::weights::Segment;

/// Outputs of a workgroup: 32 threads each.
const OUTPUTS: u32 = 8;

/// Outputs and rows of a tile, and rows of one of cooperative matrices where there are many.
const TILE_OUTPUTS: u32 = 128;
const TILE_ROWS: u32 = 64;
const TALL_ROWS: u32 = 128;

/// Words before a row's halves.
const HEAD: u32 = 4;

/// How weights of a format are read by cooperative matrices; `None` where a half is too little for them.
pub(crate) fn how_halved(dtype: DType) -> Option<[(&'static str, u32); 4]> {
    let wide = is_wide(dtype);
    let whole = dtype == DType::F16;
    let fits = !matches!(dtype, DType::F32 | DType::BF16);
    fits.then_some([
        ("WEIGHTS_VEC4", (wide || whole).into()),
        ("WIDE", wide.into()),
        ("HALVES", 1),
        ("KIND", 1),
    ])
}

/// Constants of the tiles of such matrices, of few rows and of many.
pub(crate) fn halved_tiles(m: Matrices) -> [[(&'static str, u32); 7]; 2] {
    [TILE_ROWS, TALL_ROWS].map(|rows| {
        [
            ("WORK_VEC4", 1),
            ("SIDE", m.side),
            ("LANES", m.lanes),
            ("STEP", m.step),
            ("TILE_ROWS", rows),
            // Matrices of a subgroup side by side; eight subgroups (32 where matrices are small) make up the tile.
            ("ACROSS", rows / 32),
            // Rows of which a thread fetches eight columns.
            ("X_ROWS", rows * m.step / 8 / 256),
        ]
    })
}

/// Rows from which tall tiles of so many outputs are as many as asked for.
fn tall_from(outputs: u32, tiles: u32) -> u32 {
    let down = tiles.div_ceil(outputs.div_ceil(TILE_OUTPUTS)).max(1);
    (down - 1)
        .saturating_mul(TALL_ROWS)
        .saturating_add(1)
        .max(TILE_ROWS + 1)
}

/// What a product holds besides the weight's rows.
#[derive(Clone, Copy)]
struct Product {
    value: ValueId,
    x: u32,
    y: u32,
    scale: u32,
    bias: u32,
    ids: u32,
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
            value: node.ins[0],
            x: self.at(node.ins[0]),
            y: self.at(node.outs[0]),
            scale: NONE,
            bias: NONE,
            ids: NONE,
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
        let embeds = node.ins.first().map_or(NONE, |&v| self.at(v));
        let segments = self.ground.weights.place(table).segments.clone();
        let rows: u32 = segments.iter().map(|s| s.rows).sum();
        for segment in segments {
            let params = Params::new().u32s(&[lead_code(lead), width, index, offset, rows]);
            let params = params.u32s(&[segment.at as u32, segment.row_words, segment.first]);
            let params = params.u32s(&[segment.rows, embeds, self.at(out)]);
            let params = params.u32((segment.first == 0).into());
            let own = [
                ("FORMAT", segment.dtype.ggml()),
                ("THREADS", 256),
                ("WORK_VEC4", 1),
                ("ROWS", 1),
            ];
            let pipeline = self.pipeline(("matmul.wgsl", "gather"), &own);
            let grid = [Extent::rows(lead), Extent::ONE, Extent::ONE];
            self.push(Kernel::One(pipeline), grid, segment.arena, &params);
        }
        Ok(())
    }

    /// A product with each run of rows of one format in one arena. A weight of several matrices has one format.
    fn multiply(&mut self, weight: WeightId, op: Product) -> Result<(), BackendError> {
        let segments = self.ground.weights.place(weight).segments.clone();
        let rows: u32 = segments.iter().map(|s| s.rows).sum();
        let one_format = segments.windows(2).all(|s| s[0].dtype == s[1].dtype);
        if op.parts > 1 && !one_format {
            return Err(unsupported("matrices of several formats in one weight"));
        }
        let several = op.parts > 1 || op.top_k > 0;
        let n = rows / op.parts;
        for segment in segments {
            let (outputs, first, matrix, matrices) = match several {
                true => (n, 0, segment.first / n, segment.rows / n),
                false => (segment.rows, segment.first, 0, 1),
            };
            let (mut x, mut y) = (op.x, op.y);
            if op.top_k == 0 {
                (x, y) = (x + matrix * op.x_part, y + matrix * op.y_part);
            }
            let params =
                Params::new().u32s(&[segment.at as u32, segment.row_words, segment.row_words * n]);
            let params = params.u32s(&[x, y, op.scale, op.bias, op.ids]);
            let params = params.u32s(&[lead_code(op.lead), outputs, op.k, op.x_stride, op.x_part]);
            let params = params.u32s(&[op.y_stride, op.y_part, first, op.scale_len]);
            let params = params.u32s(&[op.bias_part, op.top_k, matrix, matrices]);
            let aligned = (op.k | op.x_stride | op.x_part).is_multiple_of(8);
            let most = if op.top_k > 0 { 0 } else { 3 };
            let tiled = op.top_k == 0 && self.ground.abilities.tiles;
            let pipeline = |by: u32| {
                let own = [
                    ("FORMAT", segment.dtype.ggml()),
                    ("THREADS", 256),
                    ("WORK_VEC4", 1),
                    ("ALIGNED", aligned.into()),
                    ("REPLIES", tiled.into()),
                    ("ROWS", 1 << by),
                ];
                self.pipeline(("matmul.wgsl", "matvec"), &own)
            };
            let pipelines = (0..=most).map(pipeline);
            let pipelines = pipelines.collect();
            let heads = if op.top_k > 0 { 1 } else { matrices };
            let grid = [
                Extent::fixed(outputs.div_ceil(OUTPUTS)),
                Extent::ONE,
                Extent::fixed(heads),
            ];
            let kernel = Kernel::ByRows(op.lead, op.top_k.max(1), pipelines);
            self.kind = tiled.then_some(RowKind::Reply);
            if !self.prompts_only || !tiled {
                self.push(kernel, grid, segment.arena, &params);
            }
            self.kind = None;
            if tiled {
                self.kind = Some(RowKind::Prompt);
                self.tiles(&segment, (&op, outputs, matrices), params)?;
                self.kind = None;
            }
        }
        Ok(())
    }

    /// A product of rows of prompts, with the parameters of `matvec`.
    fn tiles(
        &mut self,
        segment: &Segment,
        (op, outputs, matrices): (&Product, u32, u32),
        params: Params,
    ) -> Result<(), BackendError> {
        let across = Extent::fixed(outputs.div_ceil(TILE_OUTPUTS));
        let down = |rows| Extent::elements(op.lead, 1, rows);
        let format = ("FORMAT", segment.dtype.ggml());
        let fits = |m: &Matrices| op.parts == 1 && op.k.is_multiple_of(m.step);
        let matrices_of = self.ground.matrices.filter(fits);
        if let (Some(m), Some(how)) = (matrices_of, how_halved(segment.dtype)) {
            let params = params.u32(self.halved(op)?).f32(segment.scale_of_halves());
            let [few, many] = halved_tiles(m);
            let from = tall_from(outputs, self.ground.choices.tiles);
            let tiles = [(few, TILE_ROWS, 0..from), (many, TALL_ROWS, from..u32::MAX)];
            for (tile, rows, count) in tiles {
                let own = [&tile[..], &how, &[format]].concat();
                let tiles = Kernel::One(self.pipeline(("tiles_coop.wgsl", "tiles_coop"), &own));
                let grid = [across, down(rows), Extent::ONE];
                self.count = Some((op.lead, count));
                self.push(tiles, grid, segment.arena, &params);
            }
            self.count = None;
            return Ok(());
        }
        let aligned = (op.k | op.x_stride | op.x_part).is_multiple_of(8);
        let own = [
            format,
            ("WORK_VEC4", 1),
            ("ALIGNED", aligned.into()),
            ("KIND", 1),
        ];
        let tiles = Kernel::One(self.pipeline(("tiles.wgsl", "tiles"), &own));
        let grid = [across, down(TILE_ROWS), Extent::fixed(matrices)];
        self.push(tiles, grid, segment.arena, &params);
        Ok(())
    }

    /// Where the rows of a product's value lie as halves.
    fn halved(&mut self, op: &Product) -> Result<u32, BackendError> {
        let row = op.k / 2 + HEAD;
        let words = u64::from(self.most(op.lead)) * u64::from(row);
        let to = self.grown.halves(words)?;
        if self.halves.insert(to, op.value) != Some(op.value) {
            let params = Params::new().u32s(&[op.x, to, lead_code(op.lead), op.k, op.x_stride]);
            let grid = [Extent::rows(op.lead), Extent::ONE, Extent::ONE];
            self.launch(("halve.wgsl", "halve"), &[("THREADS", 256)], grid, &params)?;
        }
        Ok(to)
    }
}
