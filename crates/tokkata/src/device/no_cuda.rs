//! A build without kernels for NVIDIA GPUs.

use tokkata_ir::Device;

const WHY: &str = "this build has no kernels for NVIDIA GPUs; take one with the feature cuda, in Python the package tokkata-cuda";

pub(super) fn open(_: usize) -> Result<Box<dyn Device>, String> {
    Err(WHY.to_owned())
}

pub(super) fn count() -> Result<usize, String> {
    Err(WHY.to_owned())
}

pub(super) fn said(_: usize) -> String {
    WHY.to_owned()
}
