//! The processor as a backend: kernel set, worker threads and memory at hand.

use std::sync::Arc;

use tokkata_ir::fusion::Rule;
use tokkata_ir::{
    ArenaLayout, BackendError, Device, Executor, HostExecutor, LoadOptions, Loaded, Machine,
    Program, WeightSource,
};

use crate::available::available_bytes;
use crate::caps::Caps;
use crate::kernels::Kernel;
use crate::pool::{Pinning, Pools};
use crate::run::CpuInstance;
use crate::tuning::{Tuning, TuningError};

/// Cores belong to the process: models that are loaded with as many threads share them.
static POOLS: Pools = Pools::new();

/// The CPU backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend;

impl CpuBackend {
    /// Loads a program that has no caches yet.
    ///
    /// # Errors
    /// Those of [`Device::load`].
    pub fn prepare(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<CpuInstance, BackendError> {
        let kernel = kernel_set(options)?;
        let pinning = if options.pin_threads {
            Pinning::Cores
        } else {
            Pinning::Free
        };
        let pool = POOLS.get(options.threads, pinning);
        CpuInstance::load(program, weights, options, (pool, kernel))
    }
}

impl Device for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn available_bytes(&self) -> Option<u64> {
        available_bytes()
    }

    fn fusions(&self) -> &'static [Rule] {
        crate::select::RULES
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        Ok(Box::new(self.prepare(program, weights, options)?))
    }
}

impl Loaded for CpuInstance {
    fn block_bytes(&self) -> Vec<u64> {
        self.cache_bytes()
    }

    fn memory_bytes(&self) -> u64 {
        Machine::memory_bytes(self)
    }

    fn available_bytes(&self) -> Option<u64> {
        available_bytes()
    }

    fn open(mut self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError> {
        self.make_caches(&arena)?;
        let program = Arc::clone(self.program());
        Ok(Box::new(HostExecutor::new(*self, program, arena)))
    }
}

fn kernel_set(options: &LoadOptions) -> Result<Kernel, BackendError> {
    let unsupported = |op: String| BackendError::Unsupported { backend: "cpu", op };
    let tuning: Option<Tuning> = match &options.tuning {
        Some(text) => Some(
            text.parse()
                .map_err(|e: TuningError| unsupported(e.to_string()))?,
        ),
        None => None,
    };
    let tuned = || Caps::limited_to(tuning?.set.name()).ok();
    let caps = match &options.cpu_features {
        Some(name) => Caps::limited_to(name)
            .map_err(|e| unsupported(format!("the set of instructions that was asked for: {e}")))?,
        None => tuned().unwrap_or_else(Caps::detect),
    };
    let kernel = Kernel::new(&caps)
        .ok_or_else(|| unsupported(format!("the {} kernels", caps.level().name())))?;
    Ok(tuning.map_or(kernel, |t| kernel.tuned(&t)))
}

/// Fails when `needed` bytes are more than the system has to give.
pub(crate) fn check_memory(what: &str, needed: u64) -> Result<(), BackendError> {
    match available_bytes() {
        Some(available) if needed > available => Err(BackendError::OutOfMemory {
            what: what.to_owned(),
            needed,
            available,
        }),
        _ => Ok(()),
    }
}
