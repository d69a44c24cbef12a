//! Prompts' rows in halves, as the kernels of `gemm90.cu` take them for products with weights of block formats.

use std::collections::BTreeSet;

use tokkata_core::DType;
use tokkata_ir::{BackendError, Lead, ValueId};

use super::Lowering;
use super::tiles::{Shape, blocks_of};
use crate::error::lost;
use crate::launch::{Extent, RowKind, Tile};
use crate::layout::{HALVED_COLUMNS, halves_at, most, units_at};
use crate::params::Params;
use crate::select::Item;

/// Most columns of a row that is halved: sixteen a thread.
const MOST_COLUMNS: u32 = 16 * 1024;

/// As in `gemm90.cu`: outputs of a tile, blocks of a cluster, threads, and bytes of the sums that are on their way out.
const OUTPUTS: u32 = 128;
const CLUSTER: u32 = 2;
const THREADS: u32 = 384;
const SUMS: u32 = 8 * 32 * 20 * 4;
/// Tiles from which on they have 256 rows.
const BUSY: u32 = 512;

/// Values that prompts' rows of products are read from: in halves, and in bytes.
#[derive(Debug, Default)]
pub(super) struct PromptForms {
    halves: BTreeSet<ValueId>,
    bytes: BTreeSet<ValueId>,
}

/// Bytes of 256 columns of an output, with its scales; `None` for formats that are not made halves.
fn block_bytes(format: DType) -> Option<u32> {
    match format {
        DType::Q4_K => Some(144),
        DType::Q5_K => Some(176),
        DType::Q6_K => Some(208),
        DType::Q8_0 => Some(272),
        DType::Q4_0 | DType::IQ4_NL => Some(144),
        _ => None,
    }
}

/// Shared memory of tiles of so many rows: copies of rows and of weights under way, and sums.
fn tile_bytes(block: u32, rows: u32) -> u32 {
    let weights = if block > 256 { 2 } else { 3 };
    let stages = match rows > 128 {
        true if block < 192 => 4,
        true => 3,
        false => 6,
    };
    stages * rows * 128 + weights * OUTPUTS * block + SUMS
}

impl Lowering<'_, '_> {
    /// Finds what prompts' rows of products are read from.
    pub(super) fn note_prompts(&mut self, items: &[Item]) {
        for item in items {
            let Some((x, formats)) = self.prompt_formats(item) else {
                continue;
            };
            if formats.is_empty() {
                self.forms.bytes.insert(x);
            }
            for format in formats {
                match self.is_halved(format, self.width(x)) {
                    true => self.forms.halves.insert(x),
                    false => self.forms.bytes.insert(x),
                };
            }
        }
    }

    /// Whether products of prompts' rows of so many columns with this format take halves.
    pub(super) fn is_halved(&self, format: DType, columns: u32) -> bool {
        let fits = u64::from(columns).is_multiple_of(HALVED_COLUMNS) && columns <= MOST_COLUMNS;
        fits && self.ground.kernels.has_words() && block_bytes(format).is_some()
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
        let params = params.clone().u64s(&self.in_halves(x));
        let threads = self.width(x).div_ceil(16).next_multiple_of(32);
        let grid = [Extent::rows(Lead::Rows), Extent::ONE, Extent::ONE];
        self.kind = Some(RowKind::Prompt);
        self.launch_early(("gemm90", "halve_prompts"), grid, (threads, 0), &params)?;
        self.kind = None;
        Ok(())
    }

    /// Kernels of `gemm90.cu` for the parts of one format.
    pub(super) fn halved_tiles(
        &self,
        format: DType,
        parts: &[Shape],
        gated: bool,
    ) -> Result<[Tile; 2], BackendError> {
        let block = block_bytes(format).expect("the format is made halves");
        let tile = |name: &str, rows: u32, least: u32| {
            let name = format!("gemm90_{name}_{format}");
            let function = self.ground.kernels.function("gemm90", &name);
            let function = function.map_err(lost)?;
            let shared = tile_bytes(block, rows);
            function.allow_shared(shared).map_err(lost)?;
            let blocks = blocks_of(format, parts, gated, OUTPUTS);
            Ok(Tile {
                function,
                rows,
                blocks: blocks.next_multiple_of(CLUSTER),
                threads: THREADS,
                shared,
                least,
                most: Some((self.ground.processors / CLUSTER * CLUSTER).max(CLUSTER)),
            })
        };
        Ok([tile("large", 256, BUSY)?, tile("small", 128, 0)?])
    }
}
