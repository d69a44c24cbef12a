//! Prompts' rows in halves, as the kernels of `gemm90.cu` take them for products with weights of block formats and of sixteen bits.

use std::collections::BTreeSet;

use tokkata_core::DType;
use tokkata_ir::{BackendError, KvSource, Lead, Op, ValueId};

use super::Lowering;
use super::products::{NormOf, PARTS};
use super::tiles::{Shape, blocks_of, is_sixteen};
use crate::error::lost;
use crate::launch::{Extent, Kernel, RowKind, Tile};
use crate::layout::{HALVED_COLUMNS, halves_at, most, units_at};
use crate::params::Params;
use crate::select::{Item, matrix};

/// Most columns of a row that is halved: sixteen a thread.
const MOST_COLUMNS: u32 = 16 * 1024;

/// As in `gemm90.cu`: outputs of a tile, blocks of a cluster, threads, and bytes of the sums that are on their way out.
const OUTPUTS: u32 = 128;
const CLUSTER: u32 = 2;
const THREADS: u32 = 384;
const SUMS: u32 = 8 * 32 * 20 * 4;
/// Columns of the narrowest product with weights of F16 up to which all of them take parts.
const SMALL: u32 = 1024;
/// What a round of tiles of 256 rows costs beside one of 128.
const ROUNDS: [u32; 2] = [100, 58];

/// What prompts' rows of products are read from.
#[derive(Debug, Default)]
pub(super) struct PromptForms {
    /// Values in halves, and in bytes, for weights of block formats.
    halves: BTreeSet<ValueId>,
    bytes: BTreeSet<ValueId>,
    /// Whether weights of sixteen bits take parts instead, since rows attend to each other: products of encoders hand parts on.
    parts: bool,
    /// Whether those of F16 do, whose products are so small that handing parts on outweighs that tensor cores do twice the work.
    small: bool,
    /// Whether those of BF16 do, since some are larger than halves, or so small that these have few bits.
    extreme: bool,
}

/// Bytes of an output's weights that are copied at a time, with their scales; `None` for formats that are not made halves.
fn block_bytes(format: DType) -> Option<u32> {
    match format {
        DType::Q4_K => Some(144),
        DType::Q5_K => Some(176),
        DType::Q6_K => Some(208),
        DType::Q8_0 => Some(272),
        DType::Q4_0 | DType::IQ4_NL => Some(144),
        DType::F16 | DType::BF16 => Some(128),
        _ => None,
    }
}

/// Shared memory of tiles of so many rows: copies of rows and of weights under way, and sums.
fn tile_bytes(format: DType, block: u32, rows: u32) -> u32 {
    let large = rows > 128;
    let weights = match is_sixteen(format) {
        true if large => 4,
        true => 6,
        false if block > 256 => 2,
        false => 3,
    };
    let stages = match large {
        true if block < 192 => 4,
        true => 3,
        false => 6,
    };
    stages * rows * 128 + weights * OUTPUTS * block + SUMS
}

impl Lowering<'_, '_> {
    /// Finds what prompts' rows of products are read from.
    pub(super) fn note_prompts(&mut self, items: &[Item]) {
        let among = |op: &Op| matches!(op, Op::Attention(op) if op.source == KvSource::Rows);
        self.forms.parts = self.plan.nodes.iter().any(|node| among(&node.op));
        for item in items {
            let Some((x, formats)) = self.prompt_formats(item) else {
                continue;
            };
            if formats.is_empty() {
                self.forms.bytes.insert(x);
            }
            self.forms.extreme |= formats.contains(&DType::BF16) && !self.fits_halves(item);
            self.forms.small |= formats.contains(&DType::F16) && self.width(x) <= SMALL;
            for format in formats.into_iter().filter(|f| !is_sixteen(*f)) {
                match self.is_halved(format, self.width(x)) {
                    true => self.forms.halves.insert(x),
                    false => self.forms.bytes.insert(x),
                };
            }
        }
    }

    /// Whether bfloats of all weights of products keep their bits as halves.
    fn fits_halves(&self, item: &Item) -> bool {
        let Item::Products { nodes, .. } = item else {
            return true;
        };
        let mut weights = nodes.iter().filter_map(|&n| matrix(&self.plan.nodes[n].op));
        weights.all(|w| self.ground.weights.place(w).fits_halves())
    }

    /// What weights of a launch's parts are multiplied by when they are made halves, and what undoes it: `Scaled` of `gemm90.cu`.
    pub(super) fn scaled(&self, nodes: &[usize]) -> Params {
        let mut up = [1.0; PARTS];
        let weights = nodes.iter().filter_map(|&n| matrix(&self.plan.nodes[n].op));
        for (up, weight) in up.iter_mut().zip(weights) {
            *up = self.ground.weights.place(weight).scale_of_halves();
        }
        let params = up.iter().fold(Params::new(), |params, &up| params.f32(up));
        up.iter().fold(params, |params, &up| params.f32(up.recip()))
    }

    /// Whether products of prompts' rows of so many columns with this format take halves.
    pub(super) fn is_halved(&self, format: DType, columns: u32) -> bool {
        let fits = u64::from(columns).is_multiple_of(HALVED_COLUMNS) && columns <= MOST_COLUMNS;
        let parts = match format {
            DType::F16 => self.forms.parts || self.forms.small,
            DType::BF16 => self.forms.parts || self.forms.extreme,
            _ => false,
        };
        fits && self.ground.kernels.has_words() && block_bytes(format).is_some() && !parts
    }

    /// Whether products read prompts' rows of a value in bytes.
    pub(super) fn reads_bytes(&self, x: ValueId) -> bool {
        self.forms.bytes.contains(&x)
    }

    /// Addresses of a value in halves, and of what its rows are multiplied by.
    pub(super) fn in_halves(&self, x: ValueId) -> [u64; 2] {
        let rows = u64::from(most(self.limits(), self.lead(x)));
        let columns = self.width(x).into();
        let at = self.places.bytes[x.index()] + halves_at(rows, columns);
        [at, at + units_at(rows, columns)]
    }

    /// Makes halves of prompts' rows, where products read them; `params` are those of `Quantise`.
    pub(super) fn halve_prompts(
        &mut self,
        x: ValueId,
        params: &Params,
    ) -> Result<(), BackendError> {
        if !self.forms.halves.contains(&x) {
            return Ok(());
        }
        self.halve_into((x, self.in_halves(x)), params)
    }

    /// Makes halves of prompts' rows at such addresses.
    fn halve_into(
        &mut self,
        (x, to): (ValueId, [u64; 2]),
        params: &Params,
    ) -> Result<(), BackendError> {
        let params = params.clone().u64s(&to);
        let threads = self.width(x).div_ceil(16).next_multiple_of(32);
        let grid = [Extent::rows(Lead::Rows), Extent::ONE, Extent::ONE];
        self.kind = Some(RowKind::Prompt);
        self.launch_early(("gemm90", "halve_prompts"), grid, (threads, 0), &params)?;
        self.kind = None;
        Ok(())
    }

    /// Makes halves of prompts' rows at such addresses, of a norm of what they come from; floats too where an address for these is there.
    pub(super) fn halve_rows(
        &mut self,
        (x, to): (ValueId, [u64; 2]),
        (own, floats): (&NormOf, u64),
    ) -> Result<(), BackendError> {
        let params = self.quantise_params((x, own), [floats, 0, 0, 0], (0, 0), true);
        self.halve_into((x, to), &params)
    }

    /// Kernels of `gemm90.cu` for the parts of one format.
    pub(super) fn halved_tiles(
        &self,
        (lead, format): (Lead, DType),
        parts: &[Shape],
        gated: bool,
    ) -> Result<Kernel, BackendError> {
        let block = block_bytes(format).expect("the format is made halves");
        let tile = |name: &str, rows: u32| {
            let name = format!("gemm90_{name}_{format}");
            let function = self.ground.kernels.function("gemm90", &name);
            let function = function.map_err(lost)?;
            let shared = tile_bytes(format, block, rows);
            function.allow_shared(shared).map_err(lost)?;
            let blocks = blocks_of(format, parts, gated, OUTPUTS);
            Ok(Tile {
                function,
                rows,
                blocks: blocks.next_multiple_of(CLUSTER),
                threads: THREADS,
                shared,
                least: 0,
                most: Some((self.ground.processors / CLUSTER * CLUSTER).max(CLUSTER)),
            })
        };
        let [large, small] = ROUNDS;
        Ok(Kernel::Rounds(
            lead,
            [(tile("large", 256)?, large), (tile("small", 128)?, small)],
        ))
    }
}
