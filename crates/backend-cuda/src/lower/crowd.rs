//! Products of many replies' rows by `crowd.cu`: the formats and columns that it knows, and its tiles.

use tokkata_core::DType;
use tokkata_ir::{BackendError, Lead};

use super::Lowering;
use super::tiles::Shape;
use crate::driver::Mode;
use crate::error::lost;
use crate::launch::{Extent, Kernel, Tile, When};
use crate::params::Params;

/// Fewest rows, and columns of which theirs are multiples: a block's scale of Q6_K is copied with its neighbour's.
pub(super) const LEAST: u32 = 9;
const COLUMNS: u32 = 512;
/// Most shared memory of a block beside its barriers, and most places for weights and rows under way.
const SHARED: u32 = 226 << 10;
const PLACES: u32 = 8;
/// Warps that copy.
const COPYING: u32 = 4;

/// A form of `crowd.cu`: outputs and rows of its tiles, and groups of eight warps that share a tile's rows.
struct Form {
    outputs: u32,
    rows: u32,
    groups: u32,
}

const fn form(outputs: u32, rows: u32, groups: u32) -> Form {
    Form {
        outputs,
        rows,
        groups,
    }
}

/// For up to 64 rows where there are fewer of the largest tiles than multiprocessors.
const NARROW: [Form; 3] = [form(64, 16, 1), form(64, 32, 1), form(32, 64, 2)];
/// And where there are more.
const WIDE: [Form; 3] = [form(64, 16, 1), form(64, 32, 1), form(64, 64, 2)];

impl Form {
    fn threads(&self) -> u32 {
        (8 * self.groups + COPYING) * 32
    }

    /// Shared memory: two levels of sums that are not complete, scales as floats, and places; of each 256 columns of rows
    /// (a few bytes between them), their scales and sums, and weights.
    fn bytes(&self, parts: &[Shape]) -> u32 {
        let &Form {
            outputs,
            rows,
            groups,
        } = self;
        let fixed = 2 * 4 * 4 * outputs * rows + groups * outputs * 4 * 16;
        let block = |part: &Shape| match part.0 {
            DType::Q4_K => 144,
            DType::Q5_K => 176,
            _ => 208 + 4,
        };
        let block = parts.iter().map(block).max().unwrap_or(0);
        let place = rows * (256 + 16 + 8 * 8) + outputs * block;
        fixed + PLACES.min((SHARED - fixed) / place) * place
    }
}

impl Lowering<'_, '_> {
    /// Products of replies' rows by `crowd.cu`: the fewest rows; `None` where it does not know their formats or columns.
    pub(super) fn crowd_rows(
        &mut self,
        (lead, k): (Lead, u32),
        parts: &[Shape],
        params: &Params,
    ) -> Result<Option<u32>, BackendError> {
        let known = |d: DType| matches!(d, DType::Q4_K | DType::Q5_K | DType::Q6_K);
        let fits = self.ground.kernels.has_words() && k.is_multiple_of(COLUMNS);
        if !fits || !parts.iter().all(|p| known(p.0)) {
            return Ok(None);
        }
        let tile = |form: &Form| {
            let name = format!("crowd_{}_{}", form.outputs, form.rows);
            let function = self.ground.kernels.function("crowd", &name).map_err(lost)?;
            function.allow_shared(SHARED).map_err(lost)?;
            function.prefer_shared().map_err(lost)?;
            Ok(Tile {
                function,
                rows: form.rows,
                blocks: self.ground.processors,
                threads: form.threads(),
                shared: form.bytes(parts),
                least: 0,
                most: Some(self.ground.processors),
            })
        };
        // Of Q6_K the largest tiles leave room for too few places, and their warps have too few registers.
        let outputs: u32 = parts.iter().map(|p| p.1).sum();
        let forms = match outputs.div_ceil(64) < self.ground.processors {
            true => &NARROW[..],
            false if parts.iter().any(|p| p.0 == DType::Q6_K) => &WIDE[..2],
            false => &WIDE[..],
        };
        let tiles: Result<Box<[Tile]>, BackendError> = forms.iter().map(tile).collect();
        let when = self.when;
        (self.when, self.mode) = (When::Counts(lead, LEAST, u32::MAX), self.early());
        let grid = [Extent::ONE; 3];
        self.push(Kernel::Fitting(lead, tiles?), grid, (0, 0), params);
        (self.when, self.mode) = (when, Mode::Plain);
        Ok(Some(LEAST))
    }
}
