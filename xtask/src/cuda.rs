//! `cargo xtask cuda LIBNVRTC [-v]`: compiles `crates/backend-cuda/kernels` into `images.bin`, which is committed.
//!
//! NVRTC is the compiler as a library; the package `nvidia-cuda-nvrtc-cu12` has it (12.8 made the committed file), and it needs
//! no GPU. `-v` prints the registers and the spills of every kernel.

use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{root, run as run_command};

pub(crate) fn run_compiler(library: &str, verbose: bool) -> Result<()> {
    let crates = root().join("crates");
    let kernels = crates.join("backend-cuda/kernels");
    let mut compile = Command::new("python3");
    compile
        .arg(kernels.join("compile.py"))
        .arg(library)
        .arg(&kernels);
    compile
        .arg(crates.join("quant/src"))
        .arg(kernels.join("images.bin"));
    if verbose {
        compile.arg("-v");
    }
    run_command(&mut compile)
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    match args {
        [library] => run_compiler(library, false),
        [library, flag] if flag == "-v" => run_compiler(library, true),
        _ => bail!("usage: cargo xtask cuda LIBNVRTC [-v]"),
    }
}
