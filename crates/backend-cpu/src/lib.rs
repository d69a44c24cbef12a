//! The CPU backend: panels, kernels, a persistent thread pool, and the executor that replays programs on them.
//!
//! It knows programs and step states, not architectures or files. Weights live in panels ([`layout`]) that serve
//! products and look-ups; caches have a layout of their own; a plan becomes a flat list of prepared steps with as
//! few barriers as its data flow allows.
//!
//! Invariants: a row's numbers depend on that row and its sequence alone, never on the batch, the threads or how a
//! prompt is cut; every kernel set gives the same bits, but for products by AMX; a replay allocates nothing for the
//! shapes it has seen.
//!
//! Reading order: [`caps`], [`pool`], [`layout`], [`kernels`], `select` (which steps, which barriers), `arena`
//! (where values lie), `run` (the steps and the loop), [`device`].
//!
//! ```
//! use tokkata_backend_cpu::CpuBackend;
//! use tokkata_ir::Device;
//! assert_eq!(CpuBackend.name(), "cpu");
//! ```

mod arena;
pub mod available;
pub mod busy;
pub mod caps;
pub mod device;
pub mod kernels;
pub mod layout;
pub mod memory;
pub mod pool;
pub mod rates;
mod run;
mod select;
pub mod tuning;

pub use available::available_bytes;
pub use device::CpuBackend;
pub use run::CpuInstance;
