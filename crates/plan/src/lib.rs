//! Builds programs from model specifications, runs passes over them and prints them.
//!
//! The program that comes out is semantic and unfused, the same for every device: build → adapt → prune → narrow →
//! renumber → uses → shard → partition. Fusion belongs to the backends, which declare rules for
//! [`tokkata_ir::fusion`]. This crate knows no kernel and no file.
//!
//! Reading order: [`mod@build`] (one module per block kind), [`passes`], [`place`], [`dump`].

pub mod build;
pub mod dump;
pub mod error;
pub mod passes;
pub mod place;

pub use build::{BuildOptions, build, build_with};
pub use error::PlanError;
