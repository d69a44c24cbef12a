//! Tests that compare with others, and tests of what compares.

mod adapters;
mod composite;
mod config;
mod drafts;
mod goldens;
mod guesses;
mod hf;
mod jitter;
mod kept;
mod plans;
mod reference;
mod refusals;
mod sensitivity;
mod turns;
