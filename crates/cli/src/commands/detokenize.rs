//! `detokenize`: the text of tokens, byte for byte.

use std::io::{IsTerminal, Write};

use anyhow::{Result, anyhow};
use clap::Args;
use tokkata::DecodeOptions;

use super::examples;
use crate::args::{ModelArgs, read_stdin, token_ids, usage};
use crate::load;

/// Flags of `detokenize`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::DETOKENIZE)]
pub(crate) struct DetokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The token ids, such as 1,2,3; from standard input if absent
    #[arg(long, value_name = "IDS")]
    ids: Option<String>,
    /// Print special tokens too
    #[arg(long)]
    special: bool,
}

pub(crate) fn run(args: &DetokenizeArgs) -> Result<()> {
    let (path, rest) = args.model.split()?;
    let mut text = args.ids.clone().unwrap_or_default();
    for arg in rest {
        text += &format!(" {}", arg.display());
    }
    if text.is_empty() {
        text = String::from_utf8_lossy(&read_stdin()?).into_owned();
    }
    let ids = token_ids(&text.replace('\n', " ")).map_err(usage)?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let tokenizer = checkpoint.tokenizer()?;
    let n = tokenizer.vocab_size();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= n) {
        return Err(anyhow!(
            "{}: found token {id}, expected ids below {n}",
            path.display()
        ));
    }
    let bytes = tokenizer.decode(
        &ids,
        DecodeOptions {
            special: args.special,
            continues: false,
        },
    );
    let mut out = std::io::stdout().lock();
    out.write_all(&bytes)?;
    if out.is_terminal() {
        writeln!(out)?;
    }
    Ok(out.flush()?)
}
