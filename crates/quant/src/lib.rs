//! Block formats: layouts, exact dequantisers and quantisers.
//!
//! This crate knows the bytes of every GGUF element type and nothing of files, models or devices.
//! It starts no threads: quantisers take row ranges, so callers split work as they like.
//!
//! Invariants: dequantised values have llama.cpp's bits; wrong lengths are errors, never panics;
//! every result is the same on every machine and for every split into row ranges.
//!
//! Reading order: [`block`] (layouts as one formula), [`dequantize()`], [`mod@quantize`] (searches),
//! [`mix`] (which tensor gets which type), [`num`] (small floats).
//!
//! ```
//! use tokkata_core::DType;
//! use tokkata_quant::{Layout, Unpacked, dequantize};
//!
//! let mut block = vec![0x88; 18]; // thirty-two nibbles of 8, which stands for zero
//! block[..2].copy_from_slice(&[0x00, 0x3c]); // scale 1.0
//! block[2] = 0x9f;
//! let mut values = [0.0; 32];
//! dequantize(DType::Q4_0, &block, &mut values)?;
//! assert_eq!((values[0], values[16], values[1]), (7.0, 1.0, 0.0));
//!
//! let layout = Layout::of(DType::Q4_0).expect("a block format");
//! let mut unpacked = Unpacked::new();
//! layout.unpack(&block, &mut unpacked)?;
//! assert_eq!((unpacked.codes[0], unpacked.scale(0)), (7, 1.0));
//! # Ok::<(), tokkata_quant::QuantError>(())
//! ```

pub mod block;
pub mod dequantize;
mod error;
mod grids;
pub mod mix;
pub mod num;
pub mod quantize;
mod tables;

pub use block::{Layout, Unpacked};
pub use dequantize::{dequantize, dequantize_vec};
pub use error::QuantError;
pub use grids::points;
pub use quantize::{can_quantize, needs_importance, quantize};
