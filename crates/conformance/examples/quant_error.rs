//! Error of quantised inference: `quant_error LLAMA_LOGITS MODEL…` compares the CPU backend and llama.cpp with the f64
//! reference on the dequantised weights, over 32 token sequences, and prints the geometric means of both errors.

use std::process::Command;

use tokkata_archs::Registry;
use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_ref::{Precision, RefBackend};
use tokkata_conformance::models::{Feeding, load, nmse};
use tokkata_formats::ModelFile;

const INPUTS: u32 = 32;
const TOKENS: &str = "24";

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (oracle, models) = args
        .split_first()
        .ok_or("usage: quant_error LLAMA_LOGITS MODEL…")?;
    println!(
        "{:<40} {:>12} {:>12} {:>8}",
        "model", "ours", "llama.cpp", "ratio"
    );
    for model in models {
        let (ours, theirs) = compare(oracle, model)?;
        println!(
            "{model:<40} {ours:>12.3e} {theirs:>12.3e} {:>8.3}",
            ours / theirs
        );
    }
    Ok(())
}

/// Geometric means of our and of their normalised mean square error.
fn compare(oracle: &str, model: &str) -> Result<(f64, f64), String> {
    let file = ModelFile::open(model).map_err(|e| e.to_string())?;
    let registry = Registry::builtin();
    let way = Feeding::WHOLE;
    let reference = RefBackend {
        precision: Precision::F64,
    };
    let cpu = CpuBackend;
    let len = TOKENS.parse().expect("a number");
    let mut exact = load(&file, &registry, &reference, len, way)?;
    let mut fast = load(&file, &registry, &cpu, len, way)?;
    let out = std::env::temp_dir().join(format!("quant_error-{}.bin", std::process::id()));
    let (mut ours, mut theirs) = (0.0, 0.0);
    for seed in 1..=INPUTS {
        let run = Command::new(oracle)
            .arg(model)
            .arg(&out)
            .args([TOKENS, &seed.to_string()])
            .output();
        let run = run.map_err(|e| e.to_string())?;
        let ids = String::from_utf8_lossy(&run.stdout).into_owned();
        let ids: Vec<u32> = ids
            .trim()
            .split(',')
            .map(|t| t.parse().expect("an id"))
            .collect();
        let bytes = std::fs::read(&out).map_err(|e| e.to_string())?;
        let logits: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().expect("4")))
            .collect();
        let want = exact.logits(&ids, way)?;
        ours += nmse(&fast.logits(&ids, way)?, &want).ln();
        theirs += nmse(&logits, &want).ln();
    }
    std::fs::remove_file(&out).map_err(|e| e.to_string())?;
    Ok((
        (ours / f64::from(INPUTS)).exp(),
        (theirs / f64::from(INPUTS)).exp(),
    ))
}
