//! Adapters on the device: pairs of matrices in one buffer, which kernels see in the place of weights.

use std::sync::Arc;

use tokkata_ir::adapter::{Places, most_parts};
use tokkata_ir::{Adapter, BackendError, Program};

use crate::error::lost;
use crate::gpu::Gpu;
use crate::layout::Space;

/// Ops of a dispatch, as its parameters have room for.
pub(crate) const OPS: usize = 4;

/// Words of a pair in front of all matrices, as `adapt.wgsl` reads them.
const PAIR: usize = 4;

/// Words that matrices begin at multiples of.
const ALIGN: usize = 4;

/// Words that an adapter's begin at multiples of.
const APART: u64 = 64;

/// Words that may be on their way to the device.
const STAGED: usize = 16 << 20;

/// The adapters of a program.
#[derive(Debug)]
pub(crate) struct Adapters {
    gpu: Arc<Gpu>,
    program: Arc<Program>,
    /// None where no plan has them.
    pairs: Option<wgpu::Buffer>,
    /// Runs of all ops of a dispatch.
    runs: u32,
    /// Parts of low rank, for pairs of this rank at most.
    low: Option<wgpu::Buffer>,
    rank: u32,
    space: Space,
    /// By number: the first word, and how many there are.
    held: Places<(u64, u64)>,
}

impl Adapters {
    /// Room for as many as the program's limits say.
    pub(crate) fn new(gpu: &Arc<Gpu>, program: &Arc<Program>) -> Result<Self, BackendError> {
        let (count, runs) = (program.limits.adapters, most_parts(program));
        let words = count as usize * program.weights.len() * PAIR;
        let pairs = || gpu.alloc("adapters", words as u64 * 4);
        Ok(Adapters {
            gpu: Arc::clone(gpu),
            program: Arc::clone(program),
            pairs: (count > 0 && runs > 0).then(pairs).transpose()?,
            runs: runs * OPS as u32,
            low: None,
            rank: 0,
            space: Space::default(),
            held: Places::new(count),
        })
    }

    /// Runs of all ops of a dispatch that there is room for.
    pub(crate) fn runs(&self) -> u32 {
        self.runs
    }

    /// What kernels see in the place of weights.
    pub(crate) fn pairs(&self) -> Option<&wgpu::Buffer> {
        self.pairs.as_ref()
    }

    /// Where parts of low rank go, once there is a pair.
    pub(crate) fn low(&self) -> Option<&wgpu::Buffer> {
        self.low.as_ref()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let own = self.pairs.iter().chain(&self.low);
        own.map(wgpu::Buffer::size).sum()
    }

    /// Puts an adapter at a number that no step names, once all steps that were added are submitted. Whether kernels see other
    /// buffers from now on.
    pub(crate) fn put(&mut self, number: u32, adapter: &Adapter) -> Result<bool, BackendError> {
        if self.pairs.is_none() {
            return Ok(false);
        }
        let mut changed = false;
        if adapter.rank() > self.rank {
            let bytes = u64::from(self.runs) * u64::from(adapter.rank()) * 4;
            let low = self.gpu.alloc("work space of adapters", bytes)?;
            (self.low, self.rank) = (Some(low), adapter.rank());
            changed = true;
        }
        let (words, places) = adapter.packed(&self.program, ALIGN);
        let room = (words.len() as u64).next_multiple_of(APART);
        let (first, grown) = self.room(room)?;
        self.write(first, &words)?;
        let mut pairs = vec![[0u32; PAIR]; self.program.weights.len()];
        for (pair, place) in places {
            let [a, b] = place.map(|at| first as u32 + at as u32);
            pairs[pair.weight.index()] = [a, b, pair.rank, 0];
        }
        let at = u64::from(number - 1) * (pairs.len() * PAIR) as u64;
        self.write(at, pairs.as_flattened())?;
        self.held.set(number, Some((first, room)));
        Ok(changed || grown)
    }

    /// Lets one go that no step reads any more: nobody names its number before another takes it.
    pub(crate) fn let_go(&mut self, number: u32) {
        if let Some(&(first, words)) = self.held.get(number)
            && words > 0
        {
            self.space.give(first, words);
        }
        self.held.set(number, None);
    }

    /// The first of so many words that nobody uses, and whether the buffer was made anew for them.
    fn room(&mut self, words: u64) -> Result<(u64, bool), BackendError> {
        if words == 0 {
            return Ok((0, false));
        }
        if let Some(at) = self.space.find(words) {
            return Ok((at, false));
        }
        let old = self.pairs.as_ref().expect("plans that have adapters");
        let had = (old.size() / 4).next_multiple_of(APART);
        let most = self.gpu.binding_bytes() / 4;
        let wanted = (had + words).max((2 * had).min(most));
        let new = self.gpu.alloc("adapters", wanted * 4)?;
        let mut encoder = self
            .gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(old, 0, &new, 0, old.size());
        self.gpu.queue.submit([encoder.finish()]);
        self.pairs = Some(new);
        self.space.give(had, wanted - had);
        let found = self.space.find(words);
        Ok((found.expect("there is room now"), true))
    }

    fn write<T: bytemuck::NoUninit>(&self, first: u64, words: &[T]) -> Result<(), BackendError> {
        let pairs = self.pairs.as_ref().expect("plans that have adapters");
        let mut at = first * 4;
        for piece in words.chunks(STAGED) {
            let bytes = bytemuck::cast_slice(piece);
            self.gpu.queue.write_buffer(pairs, at, bytes);
            at += bytes.len() as u64;
            if piece.len() == STAGED {
                self.gpu.queue.submit([]);
                let waited = self.gpu.device.poll(wgpu::PollType::wait_indefinitely());
                waited.map_err(|e| lost(e.to_string()))?;
            }
        }
        self.gpu.healthy()
    }
}
