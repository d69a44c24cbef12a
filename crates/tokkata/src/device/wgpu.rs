//! GPUs of any maker.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::OnceLock;

use tokkata_backend_wgpu::{Description, NO_ADAPTER, WgpuDevice};
use tokkata_ir::Device;

/// Asks the browser for its GPU, and says what it is.
#[cfg(target_arch = "wasm32")]
pub(super) async fn ask() -> Result<String, String> {
    WgpuDevice::ask().await.map(|found| text(&found))
}

/// Where it is kept what checks of adapters found.
static CHECKS: OnceLock<PathBuf> = OnceLock::new();

/// Keeps in a file for each adapter and driver, whose path begins so, what its check found, so that it is done once.
pub(super) fn keep_checks(prefix: PathBuf) {
    // Who said it first is heard.
    let _ = CHECKS.set(prefix);
}

/// Where an adapter's findings are kept.
fn kept(device: &WgpuDevice) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    device.identity().hash(&mut hasher);
    let mut path = CHECKS.get()?.clone().into_os_string();
    path.push(format!("-{:016x}", hasher.finish()));
    Some(path.into())
}

/// The first line of what is kept; classes of kernels that are wrong follow.
const HEAD: &str = "checked";

/// The adapter with this number, without kernels that a check found wrong, or why it cannot be used.
pub(super) fn checked(index: usize) -> Result<WgpuDevice, String> {
    let mut device = WgpuDevice::open(index)?;
    if cfg!(target_arch = "wasm32") {
        // A page cannot wait for what a check computes.
        return Ok(device);
    }
    let path = kept(&device);
    let text = path.as_ref().and_then(|p| std::fs::read_to_string(p).ok());
    let mut lines = text.iter().flat_map(|text| text.lines());
    if lines.next() == Some(HEAD) {
        device.leave_out(lines.map(str::to_owned).collect());
        return Ok(device);
    }
    let wrong = device.check().map_err(|e| format!("wgpu:{index}: {e}"))?;
    let lines: Vec<&str> = std::iter::once(HEAD)
        .chain(wrong.iter().map(String::as_str))
        .collect();
    if let Some(path) = path {
        // Where nothing can be kept it is checked again.
        let _ = path.parent().map(std::fs::create_dir_all);
        let _ = std::fs::write(path, lines.join("\n") + "\n");
    }
    Ok(device)
}

/// The adapter with this number, or why it cannot be used.
pub(super) fn open(index: usize) -> Result<Box<dyn Device>, String> {
    Ok(Box::new(checked(index)?))
}

/// The first adapter that is a GPU.
pub(super) fn first() -> Result<Box<dyn Device>, String> {
    match WgpuDevice::adapters().iter().position(|a| !a.software) {
        Some(index) => open(index),
        None => Err(NO_ADAPTER.to_owned()),
    }
}

/// What each adapter is, and what it lacks.
pub(super) fn said() -> Result<Vec<String>, String> {
    let adapters = WgpuDevice::adapters();
    match adapters.is_empty() {
        true => Err(NO_ADAPTER.to_owned()),
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
