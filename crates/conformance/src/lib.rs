//! The conformance suite: every op of a backend against the reference, and the fixtures it is made of.
//!
//! It drives backends through their contract only. It is a development crate: nothing that ships depends on it.
//!
//! Invariants: weights and inputs follow from names and indices, so that a failure can be repeated anywhere;
//! tolerances are multiples of the error that rounding is expected to cause, never absolute numbers.
//!
//! Reading order: [`fixture`] (programs in code and steps over them), [`ops`] (the suite), [`draws`], [`golden`] and [`hf`] (whole
//! models), [`kept`] (states that rows keep), [`jitter`] (workers that sleep), [`wide`] (heads of real widths), [`load`] (many callers). A device joins the suite by [`suite!`], goldens in
//! [`devices`], and jitter by [`jitter::verify`].
//!
//! ```
//! use tokkata_backend_ref::RefBackend;
//! use tokkata_conformance::fixture::{Feed, Fixture, Rows};
//! use tokkata_ir::{Act, LoadOptions, Op};
//!
//! let mut fixture = Fixture::default();
//! let x = fixture.input(&[2]);
//! let y = fixture.op(Op::Unary(Act::Relu), &[x], &[2]);
//! let mut run = fixture.load(&RefBackend::default(), &LoadOptions::default())?;
//! let feed = Feed { values: vec![(x, vec![-1.0, 2.0])], ..Feed::default() };
//! run.step(&[Rows::first(1)], &feed)?;
//! assert_eq!(run.floats(y), [0.0, 2.0]);
//! # Ok::<(), tokkata_ir::BackendError>(())
//! ```

use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_cuda::CudaDevice;
use tokkata_backend_ref::RefBackend;
use tokkata_backend_wgpu::WgpuDevice;
use tokkata_ir::Device;

pub mod adapters;
pub mod attaching;
pub mod decode;
pub mod drafts;
pub mod draws;
pub mod fixture;
pub mod generate;
pub mod golden;
pub mod guesses;
pub mod hf;
pub mod host_time;
pub mod jitter;
pub mod kept;
pub mod late;
pub mod load;
pub mod models;
pub mod ops;
pub mod replay;
pub mod speech;
pub mod turns;
pub mod wide;
pub mod words;

/// Every device that goldens are checked on, the reference first: a device joins them here. A GPU is skipped by name where
/// there is none.
#[must_use]
pub fn devices() -> Vec<Box<dyn Device>> {
    let mut devices: Vec<Box<dyn Device>> =
        vec![Box::new(RefBackend::default()), Box::new(CpuBackend)];
    match cuda() {
        Ok(cuda) => devices.push(Box::new(cuda)),
        Err(why) => eprintln!("skipped: cuda: {why}"),
    }
    match wgpu() {
        Ok(wgpu) => devices.push(Box::new(wgpu)),
        Err(why) => eprintln!("skipped: wgpu: {why}"),
    }
    devices
}

/// The first GPU, with the kernels of the file that `TOKKATA_CUDA_IMAGES` names, where kernels are worked on.
///
/// # Errors
/// One line that says why there is none.
pub fn cuda() -> Result<CudaDevice, String> {
    match std::env::var_os("TOKKATA_CUDA_IMAGES") {
        Some(path) => CudaDevice::with_images(0, &std::fs::read(path).map_err(|e| e.to_string())?),
        None => CudaDevice::open(0),
    }
}

/// The first adapter of wgpu, or that with the number in `TOKKATA_WGPU`; with the kernels that every adapter can run where a
/// `p` stands behind it.
///
/// # Errors
/// One line that says why there is none.
pub fn wgpu() -> Result<WgpuDevice, String> {
    let wanted = std::env::var("TOKKATA_WGPU").unwrap_or_default();
    let number = wanted.trim_end_matches('p').parse().unwrap_or(0);
    match wanted.ends_with('p') {
        true => WgpuDevice::open_plain(number),
        false => WgpuDevice::open(number),
    }
}
