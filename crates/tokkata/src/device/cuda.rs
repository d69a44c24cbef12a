//! NVIDIA GPUs.

use tokkata_backend_cuda::CudaDevice;
use tokkata_ir::Device;

/// The GPU with this number, or why it cannot be used.
pub(super) fn open(index: usize) -> Result<Box<dyn Device>, String> {
    Ok(Box::new(CudaDevice::open(index)?))
}

/// How many there are, or why none can be used.
pub(super) fn count() -> Result<usize, String> {
    CudaDevice::count()
}

/// What a GPU is, or why it cannot be used.
pub(super) fn said(index: usize) -> String {
    let described =
        CudaDevice::open(index).and_then(|device| device.describe().map_err(|e| e.to_string()));
    let d = match described {
        Ok(description) => description,
        Err(why) => return why,
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (major, minor) = d.capability;
    format!(
        "{}, {:.1} of {:.1} GiB free, {} multiprocessors, compute capability {major}.{minor}, kernels for {}",
        d.name,
        gib(d.free_bytes),
        gib(d.total_bytes),
        d.processors,
        d.kernels
    )
}
