//! `cargo xtask demo [--weights FILE] [--python PROGRAM]`: makes `demo/demo.gguf`, the model inside the program, anew.
//!
//! Everything that training needs is written by `demo/generate.py`, but for the tokenizer, which stays as it is. Training
//! wants a GPU and PyTorch, `tokenizers`, `safetensors` and `gguf` (six minutes on an H100); with `--weights` the file that
//! an earlier training left is only exported and quantised. Nothing else runs this: the model file is committed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root, run};

/// Size and length of the training that made the committed file.
const TRAINING: [&str; 6] = ["--layers", "8", "--seconds", "0", "--steps", "3945"];
/// Matrices that are rounded a little more, to keep the file below 7 MB.
const MIX: [&str; 3] = ["q6_k", "--tensor-type", "ffn_up=q5_k"];

struct Options {
    weights: Option<PathBuf>,
    python: String,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let (mut weights, mut python) = (None, "python3".to_owned());
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = args
                .next()
                .with_context(|| format!("{arg} needs a value"))?;
            match arg.as_str() {
                "--weights" => weights = Some(PathBuf::from(value)),
                "--python" => python.clone_from(value),
                _ => bail!("found {arg}, expected --weights or --python"),
            }
        }
        Ok(Options { weights, python })
    }

    /// A script of `demo/`, run in its folder.
    fn script(&self, name: &str, args: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.python);
        run(command
            .current_dir(root().join("demo"))
            .arg(name)
            .args(args))
    }
}

pub(crate) fn demo(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let out = root().join("target/demo");
    std::fs::create_dir_all(&out)?;
    let weights = match &options.weights {
        Some(path) => path
            .canonicalize()
            .with_context(|| path.display().to_string())?,
        None => train(&options, &out)?,
    };
    let full = out.join("demo-f16.gguf");
    options.script("export.py", &[text(&weights)?, text(&full)?])?;
    let file = root().join("demo/demo.gguf");
    // The program that quantises must not need the file that it makes.
    let tool = [
        "run",
        "--release",
        "-p",
        "tokkata-cli",
        "--no-default-features",
        "--",
        "quantize",
    ];
    run(cargo(&tool).args([&full, &file]).args(MIX))?;
    options.script("test_check.py", &[])
}

fn train(options: &Options, out: &Path) -> Result<PathBuf> {
    options.script("generate.py", &["tests", "tests.json"])?;
    options.script(
        "generate.py",
        &["stories", "stories.txt", "--documents", "400"],
    )?;
    options.script("train.py", &[&[text(out)?], &TRAINING[..]].concat())?;
    Ok(out.join("model-8.safetensors"))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{}: is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn arguments_come_in_pairs() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = Options::parse(&words("--weights a.safetensors --python py")).unwrap();
        assert_eq!(options.python, "py");
        assert!(options.weights.is_some());
        assert!(Options::parse(&words("--weights")).is_err());
        assert!(Options::parse(&words("--size 3")).is_err());
    }
}
