//! `embed`: texts as vectors.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::json;
use tokkata::{DType, Model, Pooling, SafetensorsWriter, normalize};

use super::examples;
use crate::args::{DeviceArgs, ModelArgs, SizeArgs, token_ids, usage};
use crate::load;
use crate::texts::{self, TextArgs};

/// Flags of `embed`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::EMBED)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    texts: TextArgs,
    /// The tokens of one text, such as 1,2,3, instead of texts
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "file", "stdin"])]
    ids: Option<String>,
    /// How a text's rows become one vector: none, mean, cls, last or rank [default: the file's]
    #[arg(long, value_name = "KIND", value_parser = pooling)]
    pooling: Option<Pooling>,
    /// 2 scales vectors to length 1, none leaves them [default: 2, and none with --pooling rank]
    #[arg(long, visible_alias = "embd-normalize", value_name = "KIND", value_parser = scaling, allow_negative_numbers = true)]
    normalize: Option<Scaling>,
    /// json or safetensors to standard output, or a file with one of these endings
    #[arg(short, long, value_name = "FORMAT", default_value = "json", value_parser = target)]
    output: Target,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// What becomes of a vector's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    Unit,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Safetensors,
}

/// A format, and the file to write unless it is standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    format: Format,
    path: Option<PathBuf>,
}

fn pooling(text: &str) -> Result<Pooling, String> {
    Pooling::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Pooling::ALL.iter().map(|p| p.0).collect();
        format!("found '{text}', expected one of {}", names.join(", "))
    })
}

fn scaling(text: &str) -> Result<Scaling, String> {
    match text {
        "2" => Ok(Scaling::Unit),
        "none" | "-1" => Ok(Scaling::None),
        _ => Err(format!("found '{text}', expected 2 or none")),
    }
}

fn target(text: &str) -> Result<Target, String> {
    let path = Path::new(text);
    let ending = path.extension().and_then(|e| e.to_str());
    let format = match ending.unwrap_or(text) {
        "json" => Format::Json,
        "safetensors" => Format::Safetensors,
        _ => {
            return Err(format!(
                "found '{text}', expected json, safetensors or a file with one of these endings"
            ));
        }
    };
    let path = ending.is_some().then(|| path.to_owned());
    Ok(Target { format, path })
}

pub(crate) fn run(args: &EmbedArgs) -> Result<()> {
    let texts = match args.ids {
        Some(_) => args.model.only_model().map(|_| Vec::new())?,
        None => args.texts.read(args.model.split()?.1)?,
    };
    let binary = args.output.format == Format::Safetensors && args.output.path.is_none();
    if binary && std::io::stdout().is_terminal() {
        return Err(usage(
            "safetensors are no text for a terminal; give a file with -o FILE.safetensors",
        ));
    }
    let (checkpoint, options) = load::open(&args.model, &args.device, &args.sizes)?;
    let ids = match &args.ids {
        Some(ids) => vec![token_ids(ids).map_err(usage)?],
        None => texts::encode(&checkpoint, &texts)?,
    };
    let mut model = texts::load(checkpoint, options, args.pooling, &ids)?;
    let mut vectors = texts::vectors(&mut model, &ids)?;
    let pooling = model.pooling()?;
    let usual = if pooling == Pooling::Rank {
        Scaling::None
    } else {
        Scaling::Unit
    };
    if args.normalize.unwrap_or(usual) == Scaling::Unit {
        let width = model.vector_width()?;
        let rows = vectors.iter_mut().flat_map(|v| v.chunks_mut(width));
        rows.for_each(normalize);
    }
    let result = Embeddings {
        model: &model,
        ids: &ids,
        vectors: &vectors,
        width: model.vector_width()?,
        by_row: pooling == Pooling::None,
    };
    result.write(&args.output)
}

/// Everything that is written.
struct Embeddings<'a> {
    model: &'a Model,
    ids: &'a [Vec<u32>],
    vectors: &'a [Vec<f32>],
    width: usize,
    /// A vector per token rather than per text.
    by_row: bool,
}

impl Embeddings<'_> {
    fn write(&self, target: &Target) -> Result<()> {
        match (target.format, &target.path) {
            (Format::Json, None) => self.json(&mut std::io::stdout().lock()),
            (Format::Json, Some(path)) => {
                let failed = |e| anyhow!("{}: cannot be written: {e}", path.display());
                let mut file = std::fs::File::create(path).map_err(failed)?;
                self.json(&mut file)
            }
            (Format::Safetensors, Some(path)) => self.safetensors(path),
            (Format::Safetensors, None) => {
                let folder = tempfile::tempdir()?;
                let path = folder.path().join("vectors.safetensors");
                self.safetensors(&path)?;
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(&std::fs::read(&path)?)?;
                Ok(stdout.flush()?)
            }
        }
    }

    /// The answer of an embeddings request, as servers give it.
    fn json(&self, out: &mut impl Write) -> Result<()> {
        let mut out = std::io::BufWriter::new(out);
        let name = json!(texts::model_name(self.model.checkpoint()));
        write!(out, "{{\"object\":\"list\",\"model\":{name},\"data\":[")?;
        for (i, vector) in self.vectors.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(
                out,
                "{comma}\n{{\"object\":\"embedding\",\"index\":{i},\"embedding\":"
            )?;
            if self.by_row {
                let rows: Vec<String> = vector.chunks(self.width).map(numbers).collect();
                write!(out, "[{}]", rows.join(","))?;
            } else {
                write!(out, "{}", numbers(vector))?;
            }
            write!(out, "}}")?;
        }
        let tokens: usize = self.ids.iter().map(Vec::len).sum();
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        writeln!(out, "\n],\"usage\":{usage}}}")?;
        Ok(out.flush()?)
    }

    /// One tensor `embeddings` of all vectors, or `embeddings.N` with the rows of text N.
    fn safetensors(&self, path: &Path) -> Result<()> {
        let mut writer = SafetensorsWriter::new(path, []);
        if self.by_row {
            for (i, ids) in self.ids.iter().enumerate() {
                let shape = [ids.len(), self.width];
                writer.declare(&format!("embeddings.{i}"), DType::F32, &shape)?;
            }
        } else {
            let shape = [self.vectors.len(), self.width];
            writer.declare("embeddings", DType::F32, &shape)?;
        }
        let mut out = writer.create()?;
        for vector in self.vectors {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.write(&bytes)?;
        }
        out.finish()?;
        Ok(())
    }
}

/// Numbers with as many digits as tell a float from its neighbours.
fn numbers(values: &[f32]) -> String {
    let texts: Vec<String> = values.iter().map(f32::to_string).collect();
    format!("[{}]", texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_or_a_file_is_written() {
        let of = |text: &str| target(text).map(|t| (t.format, t.path.is_some()));
        assert_eq!(of("json"), Ok((Format::Json, false)));
        assert_eq!(of("safetensors"), Ok((Format::Safetensors, false)));
        assert_eq!(of("a/b.safetensors"), Ok((Format::Safetensors, true)));
        assert_eq!(of("x.json"), Ok((Format::Json, true)));
        assert!(of("x.csv").unwrap_err().contains("'x.csv'"));
        assert!(of("csv").is_err());
    }

    #[test]
    fn floats_come_back_from_their_digits() {
        let values = [0.1, -1.0e-8, 3.0, f32::MIN_POSITIVE];
        let read: Vec<f32> = serde_json::from_str(&numbers(&values)).unwrap();
        assert_eq!(read, values);
    }
}
