//! GPUs of any maker.

#[cfg(not(target_arch = "wasm32"))]
mod tune;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::OnceLock;

use tokkata_backend_wgpu::{Description, NO_ADAPTER, WgpuDevice};
use tokkata_ir::Device;

#[cfg(not(target_arch = "wasm32"))]
use crate::checkpoint::Checkpoint;
#[cfg(not(target_arch = "wasm32"))]
use crate::device::Tried;

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

/// The first line of what is kept; classes of kernels that are wrong follow, then what was chosen behind a line of its own.
const HEAD: &str = "checked";
const TUNED: &str = "tuned";

/// The adapter with this number, without kernels that a check found wrong and with those that were chosen, or why it cannot be used.
pub(super) fn checked(index: usize) -> Result<WgpuDevice, String> {
    let (mut device, chosen) = untuned(index)?;
    for choice in chosen {
        // What is not known is as it is by default.
        device.choose(&choice);
    }
    Ok(device)
}

/// The adapter without kernels that a check found wrong, and what was chosen for it, which it does not know yet.
fn untuned(index: usize) -> Result<(WgpuDevice, Vec<String>), String> {
    let mut device = WgpuDevice::open(index)?;
    if cfg!(target_arch = "wasm32") {
        // A page cannot wait for what a check computes.
        return Ok((device, Vec::new()));
    }
    let path = kept(&device);
    let text = path.and_then(|p| std::fs::read_to_string(p).ok());
    let mut lines = text.iter().flat_map(|text| text.lines()).map(str::to_owned);
    if lines.next().as_deref() == Some(HEAD) {
        let wrong = lines.by_ref().take_while(|line| line != TUNED).collect();
        device.leave_out(wrong);
        return Ok((device, lines.collect()));
    }
    device.check().map_err(|e| format!("wgpu:{index}: {e}"))?;
    // Where nothing can be kept it is checked again.
    let _ = keep(&device, &[]);
    Ok((device, Vec::new()))
}

/// Keeps what a device's check found, and what was chosen for it; gives the file, where there is one.
fn keep(device: &WgpuDevice, chosen: &[String]) -> std::io::Result<Option<PathBuf>> {
    let Some(path) = kept(device) else {
        return Ok(None);
    };
    path.parent().map(std::fs::create_dir_all).transpose()?;
    let head = std::iter::once(HEAD);
    let mut lines: Vec<&str> = head
        .chain(device.wrong().iter().map(String::as_str))
        .collect();
    if !chosen.is_empty() {
        lines.push(TUNED);
        lines.extend(chosen.iter().map(String::as_str));
    }
    // Whole or not at all: others may open the adapter meanwhile.
    let unfinished = path.with_extension("new");
    std::fs::write(&unfinished, lines.join("\n") + "\n")?;
    std::fs::rename(&unfinished, &path)?;
    Ok(Some(path))
}

/// An adapter without what a check found wrong, and with nothing chosen.
#[cfg(not(target_arch = "wasm32"))]
#[derive(Debug)]
pub(super) struct Tuner(WgpuDevice);

#[cfg(not(target_arch = "wasm32"))]
impl Tuner {
    pub(super) fn open(index: usize) -> Result<Self, String> {
        Ok(Tuner(untuned(index)?.0))
    }

    pub(super) fn measure(
        &self,
        checkpoint: &Checkpoint,
        said: &mut dyn FnMut(&Tried) -> std::ops::ControlFlow<()>,
    ) -> crate::Result<Option<Vec<String>>> {
        tune::tune(&self.0, checkpoint, said)
    }

    pub(super) fn keep(&self, chosen: &[String]) -> crate::Result<Option<PathBuf>> {
        keep(&self.0, chosen).map_err(|source| crate::Error::Choices { source })
    }
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
