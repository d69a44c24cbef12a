//! Adapters on the device: pairs of matrices by adapter and weight, found by kernels at one address.

use std::sync::Arc;

use tokkata_ir::adapter::{Places, most_parts};
use tokkata_ir::{Adapter, BackendError, Program};

use crate::driver::{Buffer, Context};
use crate::error::{lost, out_of_memory};
use crate::params::Params;

/// Ops of a launch, as `adapt.cu` has room for.
pub(crate) const OPS: usize = 4;

/// Bytes in front of the pairs, and of a pair, as `adapt.cu` declares them.
const HEAD: u64 = 16;
const PAIR: u64 = 24;

/// Floats that matrices begin at multiples of.
const ALIGN: usize = 4;

/// The adapters of a program.
#[derive(Debug)]
pub(crate) struct Adapters {
    context: Arc<Context>,
    program: Arc<Program>,
    /// Where kernels look; none where no plan has them.
    table: Option<Buffer>,
    /// Runs of all ops of a launch.
    runs: u32,
    /// Parts of low rank, for pairs of this rank at most.
    low: Option<Buffer>,
    rank: u32,
    held: Places<Buffer>,
}

impl Adapters {
    /// Room for as many as the program's limits say.
    pub(crate) fn new(
        context: &Arc<Context>,
        program: &Arc<Program>,
    ) -> Result<Self, BackendError> {
        let (count, runs) = (program.limits.adapters, most_parts(program));
        let bytes = HEAD + PAIR * u64::from(count) * program.weights.len() as u64;
        let table = || {
            let table = context.alloc(bytes).map_err(lost)?;
            table.fill(0).map_err(lost)?;
            Ok(table)
        };
        Ok(Adapters {
            context: Arc::clone(context),
            program: Arc::clone(program),
            table: (count > 0 && runs > 0).then(table).transpose()?,
            runs: runs * OPS as u32,
            low: None,
            rank: 0,
            held: Places::new(count),
        })
    }

    /// Where kernels look.
    pub(crate) fn at(&self) -> u64 {
        self.table.as_ref().map_or(0, Buffer::at)
    }

    /// Runs of all ops of a launch that there is room for.
    pub(crate) fn runs(&self) -> u32 {
        self.runs
    }

    pub(crate) fn bytes(&self) -> u64 {
        let own = self.table.iter().chain(&self.low);
        own.chain(self.held.iter()).map(Buffer::bytes).sum()
    }

    /// Whether the device must be idle before this one is put anywhere: memory that steps use grows.
    pub(crate) fn grows(&self, adapter: &Adapter) -> bool {
        adapter.rank() > self.rank
    }

    /// Puts an adapter at a number that no step names.
    pub(crate) fn put(&mut self, number: u32, adapter: &Adapter) -> Result<(), BackendError> {
        let Some(table) = &self.table else {
            return Ok(());
        };
        if self.grows(adapter) {
            let rank = adapter.rank();
            let bytes = u64::from(self.runs) * u64::from(rank) * 4;
            let low = self.alloc("work space of adapters", bytes)?;
            let written = table.write(0, &low.at().to_le_bytes());
            written.map_err(lost)?;
            (self.low, self.rank) = (Some(low), rank);
        }
        let (floats, places) = adapter.packed(&self.program, ALIGN);
        let buffer = self.alloc("an adapter", floats.len().max(ALIGN) as u64 * 4)?;
        let written = buffer.write(0, bytemuck::cast_slice(&floats));
        written.map_err(lost)?;
        let mut pairs = vec![0; self.program.weights.len() * PAIR as usize];
        for (pair, place) in places {
            let params = Params::new().u64s(&place.map(|at| buffer.at() + at as u64 * 4));
            let params = params.u32s(&[pair.rank, 0]);
            let at = pair.weight.index() * PAIR as usize;
            pairs[at..at + PAIR as usize].copy_from_slice(params.bytes());
        }
        let written = table.write(HEAD + u64::from(number - 1) * pairs.len() as u64, &pairs);
        written.map_err(lost)?;
        self.held.set(number, Some(buffer));
        Ok(())
    }

    /// Lets one go that no step reads any more: nobody names its number before another takes it.
    pub(crate) fn let_go(&mut self, number: u32) {
        self.held.set(number, None);
    }

    fn alloc(&self, what: &str, bytes: u64) -> Result<Buffer, BackendError> {
        let buffer = self.context.alloc(bytes);
        buffer.map_err(|e| out_of_memory(&self.context, what, bytes, &e))
    }
}
