//! What is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// A model, threads and lengths.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// As `tokkata bench --synthetic` names it.
    pub(super) shape: String,
    pub(super) format: String,
    pub(super) threads: usize,
    pub(super) prompt: usize,
    pub(super) generated: usize,
    pub(super) depth: usize,
    /// Sequences that are decoded at once.
    pub(super) sequences: usize,
    /// What computes, where it is not the processor.
    pub(super) device: Option<String>,
}

const FORMATS: [&str; 6] = ["q4_0", "q4_k_m", "q8_0", "q6_k", "f16", "bf16"];

fn case(shape: &str, format: &str, threads: usize) -> Case {
    let large = shape.contains("4b");
    Case {
        shape: shape.to_owned(),
        format: format.to_owned(),
        threads,
        prompt: if large { 128 } else { 256 },
        generated: if large { 32 } else { 24 },
        depth: 0,
        sequences: 1,
        device: None,
    }
}

/// Decoding after 4096 positions.
fn deep(case: Case) -> Case {
    Case {
        depth: 4096,
        prompt: 0,
        ..case
    }
}

/// The short list, which fits 40 minutes on two cores, or everything; with other threads if wanted.
pub(super) fn cases(full: bool, threads: Option<usize>) -> Vec<Case> {
    let mut cases = usual(full);
    if let Some(threads) = threads {
        cases.iter_mut().for_each(|case| case.threads = threads);
        let mut seen = std::collections::BTreeSet::new();
        cases.retain(|case| seen.insert(case.name()));
    }
    cases
}

fn usual(full: bool) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    if full {
        for shape in ["smollm2-135m", "qwen3-0.6b", "llama-3.2-1b", "qwen3-4b"] {
            for threads in [1, 2] {
                cases.extend(FORMATS.map(|format| case(shape, format, threads)));
                cases.extend(["q4_0", "q4_k_m"].map(|format| deep(case(shape, format, threads))));
            }
        }
        return cases;
    }
    cases.extend(FORMATS.iter().map(|f| case("qwen3-0.6b", f, 2)));
    cases.push(case("qwen3-0.6b", "q4_k_m", 1));
    cases.push(case("smollm2-135m", "q8_0", 2));
    cases.push(case("llama-3.2-1b", "q4_k_m", 2));
    cases.push(case("qwen3-4b", "q4_k_m", 2));
    cases.push(case("qwen3-30b-a3b-6l", "q4_k_m", 2));
    cases.push(deep(case("qwen3-0.6b", "q4_k_m", 2)));
    cases.push(deep(case("llama-3.2-1b", "q4_k_m", 2)));
    cases.extend([4, 8, 16, 32].map(|sequences| Case {
        prompt: 0,
        sequences,
        ..case("qwen3-0.6b", "q4_k_m", 2)
    }));
    cases
}

/// What a GPU is measured with: prompts of 512, 128 tokens; behind a deep cache; many sequences.
pub(super) fn on_device(device: &str) -> Vec<Case> {
    let on = |shape: &str, format: &str| Case {
        prompt: 512,
        generated: 128,
        device: Some(device.to_owned()),
        ..case(shape, format, 1)
    };
    let mut cases: Vec<Case> = Vec::new();
    let four = ["q4_0", "q4_k_m", "q8_0", "f16"];
    cases.extend(four.map(|format| on("qwen3-0.6b", format)));
    cases.extend(["q4_0", "q4_k_m"].map(|format| on("llama-3.2-1b", format)));
    cases.push(on("qwen3-4b", "q4_k_m"));
    cases.extend(four.map(|format| on("llama-3.1-8b", format)));
    cases.push(Case {
        prompt: 0,
        generated: 64,
        depth: 16_384,
        ..on("llama-3.1-8b", "q4_k_m")
    });
    for format in ["q4_k_m", "f16"] {
        cases.extend([8, 32, 64].map(|sequences| Case {
            prompt: 0,
            generated: 64,
            sequences,
            ..on("llama-3.1-8b", format)
        }));
    }
    cases
}

impl Case {
    /// Model, format, threads or device, sequences and depth.
    pub(super) fn name(&self) -> String {
        let depth = match self.depth {
            0 => String::new(),
            depth => format!(" @{depth}"),
        };
        let sequences = match self.sequences {
            1 => String::new(),
            sequences => format!(" ×{sequences}"),
        };
        let place = match &self.device {
            Some(device) => device.clone(),
            None => format!("{}t", self.threads),
        };
        format!("{} {} {place}{sequences}{depth}", self.shape, self.format)
    }

    /// The model's file, made up once.
    pub(super) fn file(&self, ours: &Path, folder: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let file = folder.join(format!("{}-{}.gguf", self.shape, self.format));
        if file.exists() {
            return Ok(file);
        }
        let part = file.with_extension("part");
        let status = Command::new(ours)
            .args(["bench", "--synthetic"])
            .arg(format!("{}:{}", self.shape, self.format))
            .args(["-p", "0", "-n", "0", "--save"])
            .arg(&part)
            .status()?;
        if !status.success() {
            bail!("{} cannot be made up", file.display());
        }
        std::fs::rename(part, &file)?;
        Ok(file)
    }
}
