//! `cargo xtask cuda LIBNVRTC [-v | --disturbed OUT]`: compiles `crates/backend-cuda/kernels` into `images.bin`, which is committed.
//!
//! NVRTC is the compiler as a library; the package `nvidia-cuda-nvrtc-cu12` has it (12.8 made the committed file), and it needs
//! no GPU. `-v` prints the registers and the spills of every kernel. `--disturbed` makes a file of kernels for 9.0 whose warps sleep now and
//! then, which suite, goldens and `jitter` take from `TOKKATA_CUDA_IMAGES`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{root, run as run_command};

pub(crate) fn run(args: &[String]) -> Result<()> {
    let crates = root().join("crates");
    let kernels = crates.join("backend-cuda/kernels");
    let images = kernels.join("images.bin");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (library, out, flags) = match args[..] {
        [library] => (library, images, None),
        [library, "-v"] => (library, images, Some("-v")),
        [library, "--disturbed", out] => (library, PathBuf::from(out), Some("--disturbed")),
        _ => bail!("usage: cargo xtask cuda LIBNVRTC [-v | --disturbed OUT]"),
    };
    run_command(
        Command::new("python3")
            .arg(kernels.join("compile.py"))
            .arg(library)
            .arg(&kernels)
            .arg(crates.join("quant/src"))
            .arg(out)
            .args(flags),
    )
}
