//! Models from repositories: where the hub and its cache are, by the variables that other programs read.

#[cfg(feature = "hub")]
mod on;
#[cfg(not(feature = "hub"))]
#[path = "hub/off.rs"]
mod on;

pub(crate) use on::{known, list, pull, remove};
