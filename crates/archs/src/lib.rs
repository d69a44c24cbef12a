//! Architecture descriptors: a model family as data.
//!
//! A descriptor is a TOML file that says how a family differs from the plain decoder: rules, not values. The
//! resolver evaluates them against a file's header and tensors and gives a [`tokkata_ir::ModelSpec`], one row per
//! layer. Nothing outside `archs/` compares an architecture's name, and a user's own file works like a built-in
//! one. This crate builds no plan and knows no device.
//!
//! Reading order: [`schema`] (what a descriptor may say), [`expr`] (the rules), [`resolve`], [`registry`], [`hf`]
//! (directories in the terms of GGUF),
//! [`adapter`] (what is added to a model's weights), [`beside`] (drafters in files of their own).
//!
//! ```
//! use tokkata_archs::Registry;
//! let registry = Registry::builtin();
//! assert!(registry.get("llama").is_some());
//! ```

pub mod adapter;
pub mod beside;
mod check;
pub mod error;
pub mod expr;
pub mod hf;
pub mod near;
pub mod registry;
pub mod resolve;
pub mod schema;
pub mod source;
pub mod view;

pub use adapter::{AdapterError, AdapterFile};
pub use error::ArchError;
pub use hf::HfView;
pub use registry::Registry;
pub use resolve::ResolveOptions;
pub use schema::Descriptor;
pub use source::FileWeights;
pub use view::{Found, GgufView, View};
