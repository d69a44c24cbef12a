//! The CUDA backend: plans as launches on an NVIDIA GPU.
//!
//! The driver is looked for when a device is opened, so a program that holds this crate runs on machines without one.
//! Kernels are CUDA C++ in `kernels/`, compiled by `cargo xtask cuda` into images that the program carries; only the driver
//! is needed to run them.
//!
//! Invariants: everything that changes between replays lies in device memory at fixed addresses (`StepLayout`), so a
//! replay is given nothing but its bucket; rows of slots that have stopped stay in their places and change nothing; a row's
//! numbers follow from that row and its sequence alone, so the order of every sum follows from its length or from absolute
//! positions.
//!
//! Reading order: `driver` (the calls), `images` (kernels), `weights`, `adapters`, `layout` (addresses), `lower` (ops to
//! launches), `work` (works as words), `exec` (the executor), `device`.
//!
//! ```
//! use tokkata_backend_cuda::CudaDevice;
//! match CudaDevice::count() {
//!     Ok(n) => println!("{n} GPUs"),
//!     Err(why) => println!("no GPU: {why}"),
//! }
//! ```

mod adapters;
mod device;
mod driver;
mod error;
mod exec;
mod images;
mod kept;
mod launch;
mod layout;
mod lower;
mod params;
mod select;
mod weights;
mod work;

pub use device::{CudaDevice, Description, Timeline};
