//! The reference backend: a scalar interpreter of programs, and thereby the meaning of each op.
//!
//! It computes a plan node by node in plain loops, in `f32` or, as the oracle of every other backend, with
//! activations and sums in `f64`. It fuses nothing and is not meant to be fast.
//!
//! Invariants: a row's numbers depend on that row and its sequence's earlier rows alone, bit for bit, whatever
//! else is in the step and however a prompt is cut into steps; the order of every sum follows from its length;
//! keys are visited by position, never by block. Kept after a replay are the plan's outputs, or every value
//! after [`RefInstance::keep_all`].
//!
//! Reading order: `kernels/*` (the ops), `cache` (paged keys, values and states), `select` (op to kernel), `run`
//! (the loop), [`shape`] (the rules of shapes, without numbers).
//!
//! ```
//! use tokkata_backend_ref::{Precision, RefBackend};
//! use tokkata_ir::Device;
//! let oracle = RefBackend { precision: Precision::F64 };
//! assert_eq!(oracle.name(), "ref");
//! ```

mod args;
mod cache;
mod kernels;
mod layout;
mod real;
mod run;
mod select;
pub mod shape;

use std::sync::Arc;

use tokkata_ir::{
    ArenaLayout, BackendError, Device, Executor, HostExecutor, LoadOptions, Loaded, Machine,
    Program, ValueId, WeightSource,
};

use crate::cache::block_bytes;
use crate::real::Real;
use crate::run::Interpreter;

/// Type of activations and sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Plain `f32`.
    #[default]
    F32,
    /// `f64` throughout; weights and caches keep their file and cache types.
    F64,
}

/// The reference backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefBackend {
    /// Type of activations and sums.
    pub precision: Precision,
}

/// A loaded program whose every value can be looked at.
pub trait RefInstance: Machine {
    /// Whether replays keep every value rather than the outputs.
    fn keep_all(&mut self, keep: bool);

    /// Ends replays after the node with this index.
    fn stop_after(&mut self, node: Option<usize>);

    /// A value of the last replay in full precision, `None` where it was not computed or not kept.
    fn value(&self, value: ValueId) -> Option<Vec<f64>>;
}

impl RefBackend {
    /// Loads a program for inspection, its caches in `arena`.
    ///
    /// # Errors
    /// Weights that are absent or misshapen, and cache types it does not know.
    pub fn open(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        arena: &ArenaLayout,
    ) -> Result<Box<dyn RefInstance>, BackendError> {
        Ok(match self.precision {
            Precision::F32 => Box::new(opened::<f32>(program, weights, arena)?),
            Precision::F64 => Box::new(opened::<f64>(program, weights, arena)?),
        })
    }
}

fn opened<R: Real>(
    program: Arc<Program>,
    weights: &dyn WeightSource,
    arena: &ArenaLayout,
) -> Result<Interpreter<R>, BackendError> {
    let mut machine = Interpreter::new(program, weights)?;
    machine.open(arena);
    Ok(machine)
}

impl Device for RefBackend {
    fn name(&self) -> &'static str {
        "ref"
    }

    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        _options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        Ok(match self.precision {
            Precision::F32 => Box::new(Interpreter::<f32>::new(program, weights)?),
            Precision::F64 => Box::new(Interpreter::<f64>::new(program, weights)?),
        })
    }
}

impl<R: Real> Loaded for Interpreter<R> {
    fn block_bytes(&self) -> Vec<u64> {
        block_bytes(self.program())
    }

    fn memory_bytes(&self) -> u64 {
        Machine::memory_bytes(self)
    }

    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn open(mut self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError> {
        Interpreter::open(&mut self, &arena);
        let program = Arc::clone(self.program());
        Ok(Box::new(HostExecutor::new(*self, program, arena)))
    }
}
