//! A browser, whose processor has no threads for us.

use tokkata_ir::Device;

pub(super) fn open() -> Result<Box<dyn Device>, String> {
    Err("a browser computes on its GPU alone; take wgpu".to_owned())
}
