//! The GPU of a browser, which has to be asked for before anything can be loaded.

use std::sync::{Arc, OnceLock};

use super::{Description, describe, misfit};
use crate::gpu::{Abilities, Gpu, one_line};

static OPENED: OnceLock<(Description, Arc<Gpu>)> = OnceLock::new();

pub(super) fn opened() -> Option<(Description, Arc<Gpu>)> {
    OPENED.get().cloned()
}

pub(super) async fn ask() -> Result<Description, String> {
    if let Some(opened) = OPENED.get() {
        return Ok(opened.0.clone());
    }
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::BROWSER_WEBGPU,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let wanted = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..wgpu::RequestAdapterOptions::default()
    };
    let adapter = instance.request_adapter(&wanted).await;
    let adapter = adapter.map_err(|_| "the browser has no GPU for pages (WebGPU)".to_owned())?;
    if let Some(why) = misfit(&adapter) {
        return Err(why);
    }
    // Kernels have no subgroups there: their directive is one that naga does not read.
    let gpu = Gpu::open(&adapter, Abilities::BASE).await;
    let gpu = gpu.map_err(|e| one_line(&e))?;
    let opened = OPENED.get_or_init(|| (describe(&adapter), Arc::new(gpu)));
    Ok(opened.0.clone())
}
