//! Tests of the command.

mod arguments;
mod bad_files;
mod bench;
mod common;
mod demo;
mod directories;
mod dreams;
mod examples;
mod hub;
mod imatrix;
mod peers;
mod perplexity;
mod quantize;
mod signals;
mod terminal;
mod text;
mod transcribe;
mod vectors;
