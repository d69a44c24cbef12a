//! `split` and `merge`: a GGUF model as several files, and as one again.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;

use anyhow::Result;
use clap::Args;
use tokkata::{ShardLimit, copy_gguf};

use super::examples;
use crate::args::{ModelArgs, refuse, usage};
use crate::console::say;
use crate::interrupt::Interrupt;
use crate::load;
use crate::progress::Bar;

/// Tensors of a file when no limit was asked for, as in llama.cpp's tool.
const DEFAULT_TENSORS: NonZeroUsize = NonZeroUsize::new(128).expect("128 is not 0");

/// Flags of `split`. After the model: what the files' names begin with; -00001-of-0000N.gguf follows.
#[derive(Debug, Args)]
#[command(after_long_help = examples::SPLIT, override_usage = "tokkata split [OPTIONS] IN OUT")]
pub(crate) struct SplitArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// At most so many tensors per file [default: 128]
    #[arg(long, visible_alias = "split-max-tensors", value_name = "N")]
    max_tensors: Option<NonZeroUsize>,
    /// At most so many bytes of tensors per file, such as 500M or 2G
    #[arg(long, visible_alias = "split-max-size", value_name = "SIZE", value_parser = size, conflicts_with = "max_tensors")]
    max_size: Option<NonZeroU64>,
}

/// Flags of `merge`. After the model, any of its files: the file to write.
#[derive(Debug, Args)]
#[command(after_long_help = examples::MERGE, override_usage = "tokkata merge [OPTIONS] IN OUT")]
pub(crate) struct MergeArgs {
    #[command(flatten)]
    model: ModelArgs,
}

/// The model and where to write.
fn places(model: &ModelArgs) -> Result<(&Path, &Path)> {
    let (input, rest) = model.split()?;
    let Some((output, rest)) = rest.split_first() else {
        return Err(usage("no output was named, expected IN OUT"));
    };
    refuse(rest)?;
    Ok((input, Path::new(output)))
}

/// Bytes written with K, M or G, which are powers of 1000 as in llama.cpp's tool.
fn size(text: &str) -> Result<NonZeroU64, String> {
    let units = [('k', 1_000), ('m', 1_000_000), ('g', 1_000_000_000)];
    let unit = |c: char| units.iter().find(|u| u.0 == c.to_ascii_lowercase());
    let (number, factor) = match text.chars().last().and_then(unit) {
        Some(unit) => (&text[..text.len() - 1], unit.1),
        None => (text, 1),
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor));
    let bytes = bytes.and_then(NonZeroU64::new);
    bytes.ok_or_else(|| format!("found '{text}', expected a size such as 500M or 2G"))
}

pub(crate) fn split(args: &SplitArgs) -> Result<()> {
    let tensors = ShardLimit::Tensors(args.max_tensors.unwrap_or(DEFAULT_TENSORS));
    let limit = args.max_size.map_or(tensors, ShardLimit::Bytes);
    let (input, output) = places(&args.model)?;
    copy(input, output, limit)
}

pub(crate) fn merge(args: &MergeArgs) -> Result<()> {
    let (input, output) = places(&args.model)?;
    copy(input, output, ShardLimit::Whole)
}

fn copy(input: &Path, output: &Path, limit: ShardLimit) -> Result<()> {
    let file = load::file(input)?;
    if file.container() != tokkata::Container::Gguf {
        let text = format!("{}: found no GGUF model, expected one", input.display());
        return Err(anyhow::anyhow!(text));
    }
    let same = |part: &str| matches!((Path::new(part).canonicalize(), output.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if file.part_names().any(same) {
        return Err(usage("found IN and OUT to be the same file, expected two"));
    }
    let total = file.tensors().iter().map(|t| t.bytes).sum();
    let (interrupt, mut bar, mut done) = (Interrupt::catch(), Bar::new("copying"), 0);
    let paths = copy_gguf(&file, output, limit, |bytes| {
        done += bytes;
        bar.set(done, total);
        interrupt.check()
    })?;
    drop(bar);
    for path in paths {
        say(&path.display().to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let read = |text| size(text).map(NonZeroU64::get);
        assert_eq!(read("500M"), Ok(500_000_000));
        assert_eq!(read("2g"), Ok(2_000_000_000));
        assert_eq!(read("77"), Ok(77));
        for text in ["", "0", "G", "2T", "99999999999G", "-1M"] {
            assert!(
                read(text).unwrap_err().contains("expected a size"),
                "{text}"
            );
        }
    }
}
