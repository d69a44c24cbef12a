//! What a program needs and what the machine has.

use std::collections::BTreeSet;

use tokkata_ir::{Adapter, CacheGroup, DeviceId, Program, RawRows, SlotId, WeightId, WeightSource};

/// Bytes that a loaded program occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights in the formats of the file.
    pub weights: u64,
    /// Cache blocks for the contexts of all sequences.
    pub caches: u64,
    /// Cache blocks for the context of one sequence: with less no long text can be answered.
    pub least_caches: u64,
    /// Logits of every logit row.
    pub logits: u64,
    /// What is added to weights after loading, as the device keeps it.
    pub adapters: u64,
}

impl MemoryNeed {
    /// What `program` needs, its weights taken from `source`.
    #[must_use]
    pub fn of(program: &Program, source: &dyn WeightSource) -> Self {
        let weights = program.weights.iter();
        let bytes = weights.map(|w| weight_bytes(source, &w.recipe)).sum();
        Self::sum(program, bytes, program.caches.iter().cloned())
    }

    /// Weights of so many bytes, these caches, and a program's logits.
    fn sum(program: &Program, weights: u64, caches: impl Iterator<Item = CacheGroup>) -> Self {
        let limits = &program.limits;
        let least_caches = caches
            .map(|g| g.block_bytes() * g.blocks_of_sequence(limits))
            .fold(0, u64::saturating_add);
        let logits = u64::from(limits.logit_rows) * u64::from(program.n_vocab) * 4;
        MemoryNeed {
            weights,
            caches: least_caches.saturating_mul(limits.seqs.into()),
            least_caches,
            logits,
            adapters: 0,
        }
    }

    /// What one of a program's devices needs.
    #[must_use]
    pub fn on(program: &Program, source: &dyn WeightSource, device: DeviceId) -> Self {
        let nodes = program.plans.iter().flat_map(|p| &p.nodes);
        let own = || nodes.clone().filter(|n| n.device == device);
        let weights: BTreeSet<WeightId> = own().flat_map(|n| n.op.weights()).collect();
        let slots: BTreeSet<SlotId> = own().flat_map(|n| n.op.slots()).collect();
        let weights = weights.iter().map(|id| &program.weights[id.index()]);
        let bytes = weights.map(|w| weight_bytes(source, &w.recipe)).sum();
        let group = |(g, group): (usize, &CacheGroup)| {
            let own = slots.iter().filter(|s| s.group.index() == g);
            CacheGroup {
                slots: own.map(|s| group.slots[s.slot as usize].clone()).collect(),
                ..group.clone()
            }
        };
        Self::sum(program, bytes, program.caches.iter().enumerate().map(group))
    }

    /// The same with an adapter attached.
    #[must_use]
    pub fn with(self, adapter: Option<&Adapter>) -> Self {
        MemoryNeed {
            adapters: adapter.map_or(0, Adapter::bytes),
            ..self
        }
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.beside(self.caches)
    }

    /// What cannot be done without.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.beside(self.least_caches)
    }

    fn beside(&self, caches: u64) -> u64 {
        let rest = [self.logits, self.adapters, caches];
        rest.into_iter().fold(self.weights, u64::saturating_add)
    }
}

/// Bytes of a weight in the formats it is stored in.
#[must_use]
pub fn weight_bytes(source: &dyn WeightSource, recipe: &tokkata_ir::Recipe) -> u64 {
    let Ok(rows) = RawRows::new(source, recipe) else {
        return 0;
    };
    let segments = rows.segments().iter();
    segments
        .map(|s| (s.dtype.row_bytes(s.cols).unwrap_or(0) as u64) * s.rows as u64)
        .sum()
}

/// How many elements of a weight are stored in each format.
#[must_use]
pub fn weight_formats(
    source: &dyn WeightSource,
    recipe: &tokkata_ir::Recipe,
) -> Vec<(tokkata_core::DType, u64)> {
    let rows = RawRows::new(source, recipe);
    let segments = rows.iter().flat_map(RawRows::segments);
    segments
        .map(|s| (s.dtype, s.cols as u64 * s.rows as u64))
        .collect()
}

/// Bytes that can be allocated without swapping, as far as the system tells.
#[must_use]
pub fn available() -> Option<u64> {
    #[cfg(not(target_arch = "wasm32"))]
    return tokkata_backend_cpu::available_bytes();
    // Nobody tells what a page may have.
    #[cfg(target_arch = "wasm32")]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_none_overflows() {
        let need = MemoryNeed {
            weights: 1000,
            caches: 400,
            least_caches: 100,
            logits: 20,
            adapters: 3,
        };
        assert_eq!((need.total(), need.least()), (1423, 1123));
        let caches = u64::MAX;
        assert_eq!(MemoryNeed { caches, ..need }.total(), u64::MAX);
    }
}
