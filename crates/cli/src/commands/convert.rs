//! `convert`: a model in another container.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tokkata::convert::{Conversion, OutType};
use tokkata::{Container, DType, Preset};

use super::examples;
use crate::args::{ModelArgs, refuse, usage};
use crate::console::say;
use crate::interrupt::Interrupt;
use crate::load;
use crate::progress::Bar;

/// Flags of `convert`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::CONVERT)]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The file to write; .gguf or .safetensors tells the container [default: beside the model]
    #[arg(short, long, visible_alias = "outfile", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Types to write: auto, f32, f16, bf16, or a mix such as q8_0 or q4_k_m
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = out_type)]
    outtype: OutType,
}

fn out_type(text: &str) -> Result<OutType, String> {
    let plain = [DType::F32, DType::F16, DType::BF16];
    let float = DType::from_name(text).filter(|t| plain.contains(t));
    match (text, float, Preset::from_name(text)) {
        ("auto", _, _) => Ok(OutType::Auto),
        (_, Some(dtype), _) => Ok(OutType::Plain(dtype)),
        (_, None, Some(preset)) => Ok(OutType::Mix(preset)),
        _ => Err(format!(
            "found '{text}', expected auto, f32, f16, bf16 or a mix such as q4_k_m"
        )),
    }
}

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let (path, rest) = args.model.split()?;
    let (output, rest): (_, &[OsString]) = match (&args.output, rest.split_first()) {
        (Some(output), _) => (Some(output.clone()), rest),
        (None, Some((output, rest))) => (Some(PathBuf::from(output)), rest),
        (None, None) => (None, rest),
    };
    refuse(rest)?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let ending = match checkpoint.file().container() {
        Container::Gguf => "safetensors",
        Container::Safetensors | Container::Mlx | Container::Ggml => "gguf",
    };
    // `with_extension` would cut a name such as model-1.5b.
    let beside = || {
        PathBuf::from(format!(
            "{}.{ending}",
            path.display().to_string().trim_end_matches('/')
        ))
    };
    let output = output.unwrap_or_else(beside);
    let conversion = Conversion::plan(&checkpoint, args.outtype)?;
    let interrupt = Interrupt::catch();
    let mut bar = Bar::new("converting");
    let on_tensor = |done, total| {
        bar.set(done, total);
        interrupt.check()
    };
    let written = match output.extension().and_then(|e| e.to_str()) {
        Some("gguf") => conversion.write_gguf(&output, on_tensor)?,
        Some("safetensors") => conversion.write_safetensors(&output, on_tensor)?,
        _ => {
            return Err(usage(format!(
                "found the output {}, expected a name that ends in .gguf or .safetensors",
                output.display()
            )));
        }
    };
    drop(bar);
    for path in written {
        say(&format!(
            "{}: {} tensors",
            path.display(),
            conversion.tensors().count()
        ));
    }
    Ok(())
}
