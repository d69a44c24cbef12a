//! Products in tiles on tensor cores: which parts of a launch have them, and their kernels.

use std::collections::BTreeSet;

use tokkata_core::DType;
use tokkata_ir::{BackendError, Lead, Op};

use super::Lowering;
use crate::driver::Mode;
use crate::error::lost;
use crate::launch::{Extent, Kernel, Tile, When};
use crate::params::Params;
use crate::select::in_bytes;

/// Copies under way of `gemm.cu`, and columns of each.
const STAGES: u32 = 4;
pub(super) const STAGE: u32 = 64;

/// Large tiles are used where there are at least so many of them: enough for the largest devices, and thrice that for so many
/// columns, where their beginnings and ends weigh more than what they save in between.
const BUSY: u32 = 100;
const BUSY_SHORT: u32 = 400;
const SHORT: std::ops::Range<u32> = 513..2048;

/// Fewest rows of replies that go to tensor cores, and columns of which their numbers are multiples.
pub(super) const CROWD: u32 = 3;
const GROUP: u32 = 128;

/// A form of `few.cu`: its kernel, the fewest and the most rows, and most shared memory of its blocks, which lie alone on their
/// multiprocessors.
struct Few {
    name: &'static str,
    rows: [u32; 2],
    shared: u32,
}
const FEW: [Few; 2] = [
    Few {
        name: "few",
        rows: [2, 4],
        shared: 200 << 10,
    },
    Few {
        name: "few_8",
        rows: [5, 8],
        shared: 226 << 10,
    },
];
/// Columns of which theirs are multiples, and places for weights under way.
const STRETCH: u32 = 1024;
const PLACES: u32 = 8;
/// Most columns: each 4,096 of a row have a barrier.
const MOST_FEW: u32 = 8 * 4096;
/// Outputs, and columns of each, from which on it is worth leaving a tape for with one row too.
const WIDE: u32 = 1 << 14;
const WIDE_COLUMNS: u32 = 4096;

/// The format of a part of a launch, and its outputs.
pub(super) type Shape = (DType, u32);

impl Lowering<'_, '_> {
    /// Rows of replies in two parts of sixteen bits, for the kernels of `replies16.cu`: what products are told, whose `params` do
    /// not say where those lie.
    pub(super) fn cut_replies(
        &mut self,
        (lead, k): (Lead, u32),
        (format, crowds): (DType, &Crowds),
        params: &Params,
    ) -> Result<Params, BackendError> {
        let rows = u64::from(self.most(lead));
        let columns = u64::from(k);
        let threads = k.div_ceil(8).next_multiple_of(32).min(256);
        let blocks = Extent::fixed(k.div_ceil(threads * 8));
        let grid = [blocks, Extent::rows(lead), Extent::ONE];
        let params = params.clone();
        let (name, params) = if crowds.quarters() {
            let apart = rows.next_multiple_of(ROWS_BESIDE.into());
            let pieces = columns.div_ceil(64) * apart;
            let (parts, units) = (pieces * 64 * 4, pieces * 2 * 4);
            let at = self.shared_scratch(parts + units + SUMS + COUNTS)?;
            let sums = at + parts + units;
            let params = params.u64s(&[at, at + parts, apart, sums, sums + SUMS]);
            (format!("cut_wide_{format}"), params)
        } else {
            let apart = rows * columns;
            let units = rows * columns.div_ceil(32) * 4;
            let at = self.shared_scratch(2 * apart * 2 + units)?;
            let params = params.u64s(&[at, at + 2 * apart * 2, apart]);
            (format!("cut_{format}"), params)
        };
        self.launch_early(("replies16", &name), grid, (threads, 0), &params)?;
        Ok(params)
    }

    /// Formats of the parts of a launch whose rows of prompts go to tensor cores; none where they do not.
    pub(super) fn tile_formats(
        &self,
        parts: &[Shape],
        lead: Lead,
        top_k: u32,
        gated: bool,
        columns: u32,
    ) -> BTreeSet<DType> {
        match lead {
            Lead::Rows => self.tensor_formats(parts, top_k, gated, columns.is_multiple_of(STAGE)),
            _ => BTreeSet::new(),
        }
    }

    /// Formats of the parts of a launch whose rows of replies go to tensor cores where there are many; none where they do not.
    pub(super) fn crowd_formats(
        &self,
        parts: &[Shape],
        top_k: u32,
        gated: bool,
        columns: u32,
    ) -> BTreeSet<DType> {
        self.tensor_formats(parts, top_k, gated, columns.is_multiple_of(GROUP))
    }

    /// Formats that tensor cores multiply by: of rows in bytes all at once where the columns are `even`, of sixteen bits one.
    fn tensor_formats(
        &self,
        parts: &[Shape],
        top_k: u32,
        gated: bool,
        even: bool,
    ) -> BTreeSet<DType> {
        let formats: BTreeSet<DType> = parts.iter().map(|p| p.0).collect();
        let fits =
            self.ground.kernels.has_tensor_cores() && top_k == 0 && (!gated || formats.len() == 1);
        let bytes = even && formats.iter().all(|&d| in_bytes(d));
        let sixteen = formats.len() == 1 && formats.iter().all(|&d| is_sixteen(d));
        match fits && (bytes || sixteen) {
            true => formats,
            false => BTreeSet::new(),
        }
    }

    /// Which kernels rows of replies have with one format.
    pub(super) fn crowds(&self, format: DType) -> &'static [Crowds] {
        match (is_sixteen(format), self.ground.kernels.has_words()) {
            (false, _) => &CROWDS,
            (true, false) => &CROWDS_16,
            (true, true) => &CROWDS_90,
        }
    }

    /// Kernels of `replies.cu` or `replies16.cu` for the parts of one format.
    pub(super) fn crowd_tiles(
        &self,
        (format, crowds): (DType, &Crowds),
        parts: &[Shape],
        gated: bool,
    ) -> Result<Box<[Tile]>, BackendError> {
        let crowd = |kind: &Crowd| {
            let &Crowd { rows, outputs, .. } = kind;
            let source = match is_sixteen(format) {
                true => "replies16",
                false => "replies",
            };
            let name = format!("{}_{rows}_{format}", kind.name);
            let shared = kind.bytes(format);
            let function = self.ground.kernels.function(source, &name);
            let function = function.map_err(lost)?;
            function.allow_shared(shared).map_err(lost)?;
            let blocks = blocks_of(format, parts, gated, outputs);
            let (blocks, threads, most) = match kind.quarters {
                true => (4 * blocks, 640, Some(self.ground.processors)),
                false => (blocks, 256, None),
            };
            Ok(Tile {
                function,
                rows,
                blocks,
                threads,
                shared,
                least: 0,
                most,
            })
        };
        crowds.kinds.iter().map(crowd).collect()
    }

    /// Places of a form of `few.cu` for weights under way, the bytes of each and all that a block shares; `None` where it does not
    /// know the formats or the columns.
    fn few_places(&self, form: &Few, k: u32, parts: &[Shape]) -> Option<[u32; 3]> {
        let place = |d: DType| match d {
            DType::Q4_K => Some(16 * (4 * 144 + 16)),
            DType::Q5_K => Some(16 * (4 * 176 + 16)),
            DType::Q6_K => Some(16 * (4 * 208 + 16 + 16)),
            _ => None,
        };
        let places: Option<Vec<u32>> = parts.iter().map(|p| place(p.0)).collect();
        let place = places?.into_iter().max()?;
        let rows = form.rows[1];
        // Rows with their scales and sums, scales of the units of eight warps of two stretches, their sums of some tiles, zeros.
        let fixed = rows * (k + 16) + rows * k / 4 + 8 * 2 * 512 + 8 * 16 * 16 * 4 + 16;
        let count = (form.shared.saturating_sub(fixed) / place).min(PLACES);
        let known = self.ground.kernels.has_words() && k.is_multiple_of(STRETCH) && k <= MOST_FEW;
        (known && count >= 4).then_some([count, place, fixed + count * place])
    }

    /// Whether products have so many outputs that a launch of `few.cu` is faster than an instruction of a tape for one row too.
    pub(super) fn is_wide(&self, nodes: &[usize]) -> bool {
        let [node] = nodes else {
            return false;
        };
        let node = &self.plan.nodes[*node];
        let Op::Matmul { weight, .. } = node.op else {
            return false;
        };
        let dtype = self.ground.weights.place(weight).segments[0].dtype;
        let (k, outputs) = (self.width(node.ins[0]), self.width(node.outs[0]));
        let shape = [(dtype, outputs)];
        let is_large = outputs >= WIDE && k >= WIDE_COLUMNS;
        let known = self.few_places(&FEW[0], k, &shape).is_some();
        is_large && known && !self.crowd_formats(&shape, 0, false, k).is_empty()
    }

    /// Products of a few replies' rows by `few.cu`, from `least` on: the most rows; `None` where it does not know their formats or
    /// columns.
    pub(super) fn few_rows(
        &mut self,
        (lead, k): (Lead, u32),
        least: u32,
        parts: &[Shape],
        params: &Params,
    ) -> Result<Option<u32>, BackendError> {
        let mut known = None;
        for form in &FEW {
            let Some([count, place, shared]) = self.few_places(form, k, parts) else {
                break;
            };
            let function = self.ground.kernels.function("few", form.name);
            let function = function.map_err(lost)?;
            function.allow_shared(form.shared).map_err(lost)?;
            function.prefer_shared().map_err(lost)?;
            let params = params.clone().then(&Params::new().u32s(&[count, place]));
            let [first, most] = form.rows;
            let first = if known.is_none() { least } else { first };
            let when = self.when;
            (self.when, self.mode) = (When::Counts(lead, first, most), self.early());
            let blocks = Extent::fixed(self.ground.processors);
            let grid = [blocks, Extent::ONE, Extent::ONE];
            self.push(Kernel::One(function), grid, (12 * 32, shared), &params);
            (self.when, self.mode) = (when, Mode::Plain);
            known = Some(most);
        }
        Ok(known)
    }

    /// Kernels of `gemm.cu` for the parts of one format.
    pub(super) fn tiles(
        &self,
        format: DType,
        parts: &[Shape],
        gated: bool,
        columns: u32,
    ) -> Result<[Tile; 2], BackendError> {
        let short = SHORT.contains(&columns) && !is_sixteen(format);
        let least = if short { BUSY_SHORT } else { BUSY };
        let wide = self.ground.kernels.has_words();
        let tile = |name: &str, side: u32, (threads, cluster): (u32, u32), least: u32| {
            let most = self.ground.processors / cluster * cluster;
            let name = format!("gemm_{name}_{format}");
            let source = if is_sixteen(format) { "gemm16" } else { "gemm" };
            let function = self.ground.kernels.function(source, &name).map_err(lost)?;
            let shared = tile_bytes(format, (side, side), wide);
            function.allow_shared(shared).map_err(lost)?;
            Ok(Tile {
                function,
                rows: side,
                blocks: blocks_of(format, parts, gated, side).next_multiple_of(cluster),
                threads,
                shared,
                least,
                most: (cluster > 1).then_some(most.max(cluster)),
            })
        };
        // On 9.0 four more warps copy weights of sixteen bits for those that multiply by them, and four write what these made; two
        // blocks share their rows, and go on to further tiles.
        let large = match wide && is_sixteen(format) {
            true => (512, 2),
            false => (256, 1),
        };
        Ok([
            tile("large", 128, large, least)?,
            tile("small", 64, (128, 1), 0)?,
        ])
    }
}

/// Tiles beside each other, of so many outputs, that hold the parts of one format; a gated pair shares a tile.
pub(super) fn blocks_of(format: DType, parts: &[Shape], gated: bool, outputs: u32) -> u32 {
    let (wide, parts) = match gated {
        true => (outputs / 2, &parts[..1]),
        false => (outputs, parts),
    };
    let own = parts.iter().filter(|p| p.0 == format);
    own.map(|p| p.1.div_ceil(wide)).sum()
}

/// Formats whose prompts' rows are cut into parts of sixteen bits.
pub(super) fn is_sixteen(format: DType) -> bool {
    matches!(format, DType::F16 | DType::BF16)
}

/// Shared memory of a tile: copies under way and scales, or half of its sums. Kernels of 9.0 are `wide`: they take 64 columns of
/// sixteen bits at a time, and large tiles have room for their sums besides.
fn tile_bytes(format: DType, (rows, outputs): (u32, u32), wide: bool) -> u32 {
    use DType::{BF16, F16, Q4_K, Q5_K, Q6_K, Q8_0};
    if matches!(format, F16 | BF16) {
        let parts = if format == F16 { 2 } else { 3 };
        if !wide {
            return STAGES * (parts * rows + outputs) * 32 * 2;
        }
        let (stages, sums) = match rows > 64 {
            true => (5 - parts, rows * (outputs + 8) * 4),
            false => (6 - parts, 0),
        };
        return stages * ((parts * rows + outputs) * 64 * 2 + rows * 4) + sums;
    }
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

/// Kernels for at least and at most so many rows of replies.
pub(super) struct Crowds {
    pub(super) rows: [u32; 2],
    kinds: &'static [Crowd],
}

impl Crowds {
    const fn new(least: u32, most: u32, kinds: &'static [Crowd]) -> Crowds {
        let rows = [least, most];
        Crowds { rows, kinds }
    }

    /// Whether quarters of the columns are items of work.
    fn quarters(&self) -> bool {
        self.kinds.iter().any(|k| k.quarters)
    }
}

/// A kernel for rows of replies: tiles of so many rows by outputs, and copies under way.
struct Crowd {
    name: &'static str,
    rows: u32,
    outputs: u32,
    quarters: bool,
    stages: u32,
}

impl Crowd {
    /// Tiles of 32 outputs.
    const fn narrow(rows: u32, stages: u32) -> Crowd {
        Crowd {
            name: "replies",
            rows,
            outputs: 32,
            quarters: false,
            stages,
        }
    }

    /// Tiles of 128 outputs whose columns blocks take quarters of.
    const fn wide(rows: u32, stages: u32) -> Crowd {
        Crowd {
            name: "wide",
            rows,
            outputs: 128,
            quarters: true,
            stages,
        }
    }

    /// Shared memory: copies under way, scales as floats, sums that are not complete; or the four parts of its sums. Of
    /// `replies16.cu`: stretches of 256 columns, a few bytes between their rows; or a quarter of those, and a run's sums.
    fn bytes(&self, format: DType) -> u32 {
        use DType::{Q4_K, Q5_K, Q6_K, Q8_0};
        let &Crowd { rows, outputs, .. } = self;
        if self.quarters {
            return self.stages * ((outputs + 2 * rows) * 128 + rows * 8) + rows * outputs * 4;
        }
        if is_sixteen(format) {
            return self.stages * ((outputs + 2 * rows) * 576 + rows * 32);
        }
        let (columns, pitch, floats) = match format {
            Q4_K => (256, 144, 64),
            Q5_K => (256, 176, 64),
            Q6_K => (256, 208, 68),
            Q8_0 => (128, 144, 0),
            _ => (128, 80, 0),
        };
        let stage = outputs * pitch + rows * (columns + 16) + columns / 32 * rows * 8;
        let kept = if rows >= 32 { 2 * 4 * 16 * 256 } else { 0 };
        (self.stages * stage + 2 * outputs * floats + kept).max(4 * outputs * (rows + 2) * 4)
    }
}

const CROWDS: [Crowds; 1] = [Crowds::new(
    CROWD,
    u32::MAX,
    &[
        Crowd::narrow(8, 6),
        Crowd::narrow(16, 5),
        Crowd::narrow(32, 4),
    ],
)];
const CROWDS_16: [Crowds; 1] = [Crowds::new(
    CROWD,
    u32::MAX,
    &[
        Crowd::narrow(8, 4),
        Crowd::narrow(16, 3),
        Crowd::narrow(32, 4),
    ],
)];
/// With tensor cores of 9.0.
const CROWDS_90: [Crowds; 2] = [
    Crowds::new(CROWD, 8, &[Crowd::narrow(8, 4)]),
    Crowds::new(
        9,
        u32::MAX,
        &[
            Crowd::wide(16, 9),
            Crowd::wide(32, 7),
            Crowd::wide(ROWS_BESIDE, 5),
        ],
    ),
];
/// Most rows of a tile.
const ROWS_BESIDE: u32 = 64;
/// Bytes of the sums of 96 tiles' quarters, and of what says how often they were written and read.
const SUMS: u64 = 96 * 4 * ROWS_BESIDE as u64 * 128 * 4;
const COUNTS: u64 = (1 + 96 * 16) * 4;
