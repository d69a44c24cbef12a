//! Tokkata's C interface: `include/tokkata.h` is its documentation.
//!
//! This crate is nothing but the border: it checks what comes in, calls the facade and [`tokkata_requests`], and turns
//! what comes back into statuses, buffers and events.
//!
//! Invariants: a handle is a number in a table, never an address, so that one that was freed is refused; every function
//! goes through [`border::guard`], which catches panics; a pointer is looked at in [`border`] alone; nothing is written
//! to a result on failure, but for the size that a buffer needs.
//!
//! Reading order: [`status`], [`handle`], [`border`], [`types`], then the functions in the order of the header.

#![allow(unsafe_code)]
// The header documents functions and structs, and what every argument must be.
#![allow(clippy::missing_safety_doc, missing_docs)]

pub mod border;
pub mod grammar;
pub mod handle;
pub mod library;
pub mod machine;
pub mod model;
pub mod request;
pub mod sample;
pub mod session;
pub mod speech;
pub mod status;
pub mod tokens;
pub mod types;
pub mod values;
