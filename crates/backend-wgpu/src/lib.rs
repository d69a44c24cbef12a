//! The wgpu backend: plans as dispatches on any GPU that Vulkan, Metal or DirectX 12 drive.
//!
//! Adapters are looked for when they are asked for, so a program that holds this crate runs on machines without one. Kernels are
//! WGSL in `kernels/`, cut to their variants and translated by wgpu when a program is loaded.
//!
//! Invariants: everything that changes between replays lies in device memory at fixed places (`StepLayout`), so a replay is given
//! nothing but how many rows there are; rows of slots that have stopped stay in their places and change nothing; sums have an
//! order that follows from their length or from absolute positions, over 32 threads whatever a subgroup's width, so a row's
//! numbers follow from that row and its sequence alone; a kernel sees seven buffers and asks for nothing that WebGPU does not
//! promise, unless the adapter has it.
//!
//! Reading order: `gpu` (the adapter), `preprocess`, `kernels` and `spirv` (sources), `formats` and `weights`, `adapters` (those of a model),
//! `layout` (places), `lower` (ops to dispatches), `work` (works as words), `exec` (the executor) and `replay` (steps that are recorded once), `device`, `check` (what is tried before it is trusted) and `choices` (what is measured).
//!
//! ```
//! use tokkata_backend_wgpu::WgpuDevice;
//! for (i, adapter) in WgpuDevice::adapters().iter().enumerate() {
//!     println!("wgpu:{i}: {} by {}", adapter.name, adapter.api);
//! }
//! ```

mod adapters;
mod check;
mod choices;
mod device;
mod error;
mod exec;
mod formats;
mod gpu;
mod kept;
mod kernels;
mod launch;
mod layout;
mod lower;
mod params;
mod preprocess;
mod replay;
mod select;
mod spirv;
mod weights;
mod work;

pub use device::{Description, NO_ADAPTER, WgpuDevice};
pub use kernels::{Module, modules};
