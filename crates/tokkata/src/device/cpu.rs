//! The processor.

use tokkata_ir::Device;

pub(super) fn open() -> Result<Box<dyn Device>, String> {
    Ok(Box::new(tokkata_backend_cpu::CpuBackend))
}
