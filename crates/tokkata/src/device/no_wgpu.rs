//! A build without kernels for GPUs of any maker.

use tokkata_ir::Device;

const WHY: &str = "this build has no kernels for GPUs of any maker; take one with the feature wgpu";

pub(super) fn keep_checks(_: std::path::PathBuf) {}

pub(super) fn open(_: usize) -> Result<Box<dyn Device>, String> {
    Err(WHY.to_owned())
}

pub(super) fn first() -> Result<Box<dyn Device>, String> {
    Err(WHY.to_owned())
}

pub(super) fn said() -> Result<Vec<String>, String> {
    Err(WHY.to_owned())
}
