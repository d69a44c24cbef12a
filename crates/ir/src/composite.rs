//! One program on several devices: each runs the nodes that name it.
//!
//! A plan is cut where its nodes change device. A step goes from segment to segment; what crosses is read where it was
//! made and fed where it is needed, over the host unless both are one device. Blocks lie on all devices alike: a name
//! stands for the block's share on each. The composite keeps the slots' lengths, tokens and limits itself and tells
//! every device of every change, so that any number of segments of a step may be one device's.
//!
//! One part is at work at a time: this is for models that fit no single device, not for speed.

mod cut;
mod job;
mod parts;

use std::sync::Arc;

use crate::arena::{ArenaLayout, UNIT_BYTES};
use crate::backend::{BackendError, LoadOptions, WeightSource};
use crate::device::{Device, Executor, Loaded};
use crate::program::Program;
use cut::{Cut, Home};
use parts::{Part, Parts};

/// Several devices as one. The nodes of a program say by their number which of them runs what.
pub struct Composite {
    devices: Vec<Box<dyn Device>>,
}

impl Composite {
    /// These devices, by number.
    #[must_use]
    pub fn new(devices: Vec<Box<dyn Device>>) -> Self {
        Composite { devices }
    }
}

impl Device for Composite {
    fn name(&self) -> &'static str {
        "composite"
    }

    fn notes(&self) -> Vec<String> {
        self.devices.iter().flat_map(|d| d.notes()).collect()
    }

    /// The sum over devices that do not share memory.
    fn available_bytes(&self) -> Option<u64> {
        self.devices.iter().map(|d| d.available_bytes()).sum()
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        let cut = Cut::new(&program, self.devices.len())?;
        let parts = self.devices.iter().zip(&cut.programs);
        let parts = parts.map(|(d, p)| d.load(Arc::new(p.clone()), weights, options));
        Ok(Box::new(LoadedParts {
            parts: parts.collect::<Result<_, _>>()?,
            program,
            cut,
        }))
    }
}

struct LoadedParts {
    program: Arc<Program>,
    parts: Vec<Box<dyn Loaded>>,
    cut: Cut,
}

impl LoadedParts {
    /// The part's share of the bytes of a block, of the group of which it has most.
    fn share(&self, part: &dyn Loaded) -> f64 {
        let (all, own) = (self.block_bytes(), placed_bytes(part));
        let shares = own.iter().zip(&all).map(|(&o, &a)| o as f64 / a as f64);
        shares.fold(0.0, f64::max)
    }
}

/// Bytes that a block of each group takes on a device, in whole units; a group of which it has nothing takes one too.
fn placed_bytes(part: &dyn Loaded) -> Vec<u64> {
    let bytes = part.block_bytes().into_iter();
    bytes
        .map(|b| b.max(1).next_multiple_of(UNIT_BYTES))
        .collect()
}

impl Loaded for LoadedParts {
    fn block_bytes(&self) -> Vec<u64> {
        let mut sums = vec![0; self.program.caches.len()];
        for part in &self.parts {
            for (sum, bytes) in sums.iter_mut().zip(placed_bytes(part.as_ref())) {
                *sum += bytes;
            }
        }
        sums
    }

    fn memory_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.memory_bytes()).sum()
    }

    fn available_bytes(&self) -> Option<u64> {
        let room = self.parts.iter().filter_map(|part| {
            let share = self.share(part.as_ref());
            let bytes = part.available_bytes()? as f64;
            (share > 0.0).then(|| (bytes / share) as u64)
        });
        room.min()
    }

    fn open(self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError> {
        let open = |(part, home): (Box<dyn Loaded>, Home)| {
            let own = arena.with_blocks(&part.block_bytes());
            let executor = part.open(own)?;
            Ok(Part { executor, home })
        };
        let parts = self.parts.into_iter().zip(self.cut.homes).map(open);
        let parts = parts.collect::<Result<_, BackendError>>()?;
        let segments = self.cut.segments;
        Ok(Box::new(Parts::new(self.program, parts, segments, arena)))
    }
}

#[cfg(test)]
mod tests;
