//! GPUs of any maker.

use tokkata_backend_wgpu::{Description, WgpuDevice};
use tokkata_ir::Device;

/// Asks the browser for its GPU, and says what it is.
#[cfg(target_arch = "wasm32")]
pub(super) async fn ask() -> Result<String, String> {
    WgpuDevice::ask().await.map(|found| text(&found))
}

/// The adapter with this number, or why it cannot be used.
pub(super) fn open(index: usize) -> Result<Box<dyn Device>, String> {
    Ok(Box::new(WgpuDevice::open(index)?))
}

/// The first adapter that is a GPU.
pub(super) fn first() -> Result<Box<dyn Device>, String> {
    match WgpuDevice::adapters().iter().position(|a| !a.software) {
        Some(index) => open(index),
        None => Err("no GPU was found".to_owned()),
    }
}

/// What each adapter is, and what it lacks.
pub(super) fn said() -> Result<Vec<String>, String> {
    let adapters = WgpuDevice::adapters();
    match adapters.is_empty() {
        true => Err(
            "no adapter was found: there is no driver for Vulkan, Metal or DirectX 12".to_owned(),
        ),
        false => Ok(adapters.iter().map(text).collect()),
    }
}

fn text(a: &Description) -> String {
    let gib = a.binding_bytes as f64 / f64::from(1 << 30);
    let kind = if a.software { ", in software" } else { "" };
    let lacks = match a.lacks.is_empty() {
        true => String::new(),
        false => format!(", without {}", a.lacks.join(" and ")),
    };
    let driver = if a.driver.is_empty() {
        String::new()
    } else {
        format!(" ({})", a.driver)
    };
    format!(
        "{} by {}{driver}{kind}, pieces of {gib:.2} GiB{lacks}",
        a.name, a.api
    )
}
