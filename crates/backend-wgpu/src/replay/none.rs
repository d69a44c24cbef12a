//! In the place of what only Vulkan has.

use std::sync::Arc;

use tokkata_ir::BackendError;

use super::{Buffers, Call, Piece};
use crate::gpu::Gpu;
use crate::preprocess::Constants;

/// No kernel is ever made ready.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prepared {}

/// There is none.
pub(crate) enum Set {}

/// There is none.
pub(crate) enum Recorded {}

/// There is none.
pub(crate) enum Replay {}

impl Replay {
    pub(crate) fn new(_: &Arc<Gpu>) -> Option<Self> {
        None
    }

    pub(crate) fn prepare(
        &self,
        _: (&'static str, &'static str),
        _: &Constants,
    ) -> Result<Prepared, BackendError> {
        match *self {}
    }

    pub(crate) fn set(&self, _: Buffers) -> Result<Set, BackendError> {
        match *self {}
    }

    pub(crate) fn record(&self, _: &[Call]) -> Result<Recorded, BackendError> {
        match *self {}
    }

    pub(crate) fn encode<'a>(
        &self,
        _: &mut wgpu::CommandEncoder,
        _: impl Iterator<Item = &'a Piece>,
    ) {
        match *self {}
    }
}
