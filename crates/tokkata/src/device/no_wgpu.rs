//! A build without kernels for GPUs of any maker.

use tokkata_ir::Device;

const WHY: &str = "this build has no kernels for GPUs of any maker; take one with the feature wgpu";

pub(super) fn keep_checks(_: std::path::PathBuf) {}

pub(super) fn open(_: usize) -> Result<Box<dyn Device>, String> {
    Err(WHY.to_owned())
}

/// There is none.
#[cfg(not(target_arch = "wasm32"))]
#[derive(Debug)]
pub(super) enum Tuner {}

#[cfg(not(target_arch = "wasm32"))]
impl Tuner {
    pub(super) fn open(_: usize) -> Result<Self, String> {
        Err(WHY.to_owned())
    }

    pub(super) fn measure(
        &self,
        _: &crate::Checkpoint,
        _: &mut dyn FnMut(&super::Tried) -> std::ops::ControlFlow<()>,
    ) -> crate::Result<Option<Vec<String>>> {
        match *self {}
    }

    pub(super) fn keep(&self, _: &[String]) -> crate::Result<Option<std::path::PathBuf>> {
        match *self {}
    }
}

pub(super) fn first() -> Result<Box<dyn Device>, String> {
    Err(WHY.to_owned())
}

pub(super) fn said() -> Result<Vec<String>, String> {
    Err(WHY.to_owned())
}
