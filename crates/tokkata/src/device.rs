//! The backends that are built in, by name.

#[cfg_attr(target_arch = "wasm32", path = "device/no_cpu.rs")]
mod cpu;
#[cfg_attr(not(feature = "cuda"), path = "device/no_cuda.rs")]
mod cuda;
#[cfg_attr(not(feature = "wgpu"), path = "device/no_wgpu.rs")]
mod wgpu;

use tokkata_ir::Device;

use crate::error::{Error, Result};

/// Names and what they are; the first is the default.
const DEVICES: &[(&str, &str)] = &[
    ("cpu", "this machine's processor"),
    ("cuda:N", "the N-th NVIDIA GPU, counted from 0"),
    (
        "wgpu:N",
        "the N-th GPU of any maker, by Vulkan, Metal or DirectX 12",
    ),
    (
        "auto",
        "the first GPU, or the processor where there is none",
    ),
    ("ref", "the scalar reference interpreter, slow"),
];

/// Names and descriptions of the devices, the default first.
pub fn devices() -> impl Iterator<Item = (&'static str, &'static str)> {
    DEVICES.iter().copied()
}

/// The number of the GPU of any maker that is called so.
fn adapter(name: &str) -> Option<usize> {
    match name {
        "wgpu" => Some(0),
        _ => name.strip_prefix("wgpu:")?.parse().ok(),
    }
}

/// The device called `name`, or the default.
///
/// # Errors
/// [`Error::Device`] lists the known names; [`Error::NoDevice`] says why one of them cannot be used here.
pub fn device(name: Option<&str>) -> Result<Box<dyn Device>> {
    let wanted = name.unwrap_or(DEVICES[0].0);
    // `CUDA0` is what llama.cpp calls it.
    let nvidia = wanted
        .strip_prefix("cuda:")
        .or_else(|| wanted.strip_prefix("CUDA").filter(|n| !n.is_empty()));
    let nvidia = nvidia.and_then(|n| n.parse().ok());
    let opened = match (wanted, nvidia, adapter(wanted)) {
        ("cpu", ..) => cpu::open(),
        ("ref", ..) => Ok(Box::new(tokkata_backend_ref::RefBackend::default()) as Box<dyn Device>),
        ("cuda", ..) => cuda::open(0),
        ("auto", ..) => cuda::open(0)
            .or_else(|_| wgpu::first())
            .or_else(|_| cpu::open()),
        (_, Some(index), _) => cuda::open(index),
        (_, _, Some(index)) => wgpu::open(index),
        _ => {
            let names: Vec<&str> = DEVICES.iter().map(|d| d.0).collect();
            return Err(Error::Device {
                found: wanted.to_owned(),
                known: names.join(", "),
            });
        }
    };
    opened.map_err(|why| Error::NoDevice {
        device: wanted.to_owned(),
        why,
    })
}

/// What is timed of a choice for a GPU: a token of an answer alone, one of eight answers at once, a prompt.
pub const TIMED: [&str; 3] = ["alone", "of eight", "prompt"];

/// A choice for a GPU that was tried.
#[derive(Clone, Debug)]
pub struct Tried {
    /// What it is called.
    pub choice: String,
    /// How many times as fast it is as what was best until then, as [`TIMED`]; `None` where it computes wrongly or cannot be used.
    pub faster: Option<[f64; 3]>,
    /// Whether it is used from now on.
    pub taken: bool,
}

/// A GPU whose kernels can be chosen by measuring them.
#[cfg(not(target_arch = "wasm32"))]
#[derive(Debug)]
pub struct Tuner(wgpu::Tuner);

#[cfg(not(target_arch = "wasm32"))]
impl Tuner {
    /// The GPU with this name, as it is without any choice.
    ///
    /// # Errors
    /// A device for which nothing is chosen, or that cannot be used.
    pub fn open(name: &str) -> Result<Self> {
        let index = adapter(name).ok_or_else(|| Error::Device {
            found: name.to_owned(),
            known: "wgpu:0, wgpu:1 and so on, or none for the processor".to_owned(),
        })?;
        let opened = wgpu::Tuner::open(index);
        opened.map(Tuner).map_err(|why| Error::NoDevice {
            device: name.to_owned(),
            why,
        })
    }

    /// Measures with a model which kernels are fastest: what each choice computes is held against what is computed without it, then it
    /// is timed beside what was best until then. `None` if `said` stops it.
    ///
    /// # Errors
    /// A model that cannot be run twice at once there.
    pub fn measure(
        &self,
        checkpoint: &crate::Checkpoint,
        said: &mut dyn FnMut(&Tried) -> std::ops::ControlFlow<()>,
    ) -> Result<Option<Vec<String>>> {
        self.0.measure(checkpoint, said)
    }

    /// Keeps choices for programs that open the GPU from now on, or forgets what was kept, if there are none; gives the file, where
    /// [`keep_checks`] has said where they are kept.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn keep(&self, chosen: &[String]) -> Result<Option<std::path::PathBuf>> {
        self.0.keep(chosen)
    }
}

/// Says where it is kept what the checks of GPUs found when they were first opened: the beginning of the paths of files,
/// which should name the program's build. Without it, every program that opens a GPU of wgpu checks it anew.
pub fn keep_checks(prefix: std::path::PathBuf) {
    wgpu::keep_checks(prefix);
}

/// Asks the browser for its GPU, and says what it is; it is `wgpu:0` from then on.
///
/// # Errors
/// One line that says why there is none.
#[cfg(all(target_arch = "wasm32", feature = "wgpu"))]
pub async fn ask() -> std::result::Result<String, String> {
    wgpu::ask().await
}

/// What can compute on this machine: names, and what each is or why it cannot be used.
#[must_use]
pub fn present() -> Vec<(String, String)> {
    let mut found = vec![("cpu".to_owned(), DEVICES[0].1.to_owned())];
    match cuda::count() {
        Ok(count) => found.extend((0..count).map(|i| (format!("cuda:{i}"), cuda::said(i)))),
        Err(why) => found.push(("cuda".to_owned(), why)),
    }
    match wgpu::said() {
        Ok(said) => found.extend(
            (0..)
                .zip(said)
                .map(|(i, s): (usize, _)| (format!("wgpu:{i}"), s)),
        ),
        Err(why) => found.push(("wgpu".to_owned(), why)),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_name() {
        for name in ["cpu", "ref"] {
            assert_eq!(device(Some(name)).unwrap().name(), name);
        }
        for name in ["tpu", "cuda:x", "cuda:-1", "CUDA", "CUDAx", "wgpu:x"] {
            let error = device(Some(name)).err().unwrap().to_string();
            let want =
                format!("found device '{name}', expected one of cpu, cuda:N, wgpu:N, auto, ref");
            assert_eq!(error, want);
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_one_line() {
        let error = device(Some("cuda:99")).err().unwrap().to_string();
        assert!(
            error.starts_with("device cuda:99 cannot be used: "),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
        let theirs = device(Some("CUDA99")).err().unwrap().to_string();
        assert_eq!(theirs, error.replace("cuda:99", "CUDA99"));
        let error = device(Some("wgpu:99")).err().unwrap().to_string();
        assert!(
            error.starts_with("device wgpu:99 cannot be used: "),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
        // A device that is named is not replaced; `auto` finds another.
        let found = device(Some("auto")).unwrap();
        assert_eq!(found.name() == "cuda", cuda::count().is_ok_and(|n| n > 0));
        assert_eq!(present()[0].0, "cpu");
    }
}
