//! `tokenize`: the tokens of a text. Reads no tensors.

use std::io::Write;

use anyhow::{Result, anyhow};
use clap::Args;
use tokkata::{Checkpoint, EncodeOptions, Tokenizer};

use crate::args::{ModelArgs, PromptArgs, read_stdin};

/// Flags of `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Read the text from standard input
    #[arg(long)]
    stdin: bool,
    /// Print the ids as one line `[1, 2, 3]`
    #[arg(long)]
    ids: bool,
    /// Do not add what the file wants before and after a text
    #[arg(long)]
    no_bos: bool,
    /// Leave the spellings of special tokens as text
    #[arg(long)]
    no_parse_special: bool,
    /// Print the number of tokens
    #[arg(long)]
    show_count: bool,
}

pub(crate) fn run(args: &TokenizeArgs) -> Result<()> {
    let (path, rest) = args.model.split()?;
    let mut texts = args.prompt.read(rest)?;
    if args.stdin || texts.is_empty() {
        texts.push(read_stdin()?);
    }
    let checkpoint = Checkpoint::open(path, &args.model.arch_files)?;
    let tokenizer = checkpoint.tokenizer()?;
    let options = EncodeOptions {
        add_special: !args.no_bos,
        parse_special: !args.no_parse_special,
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for text in texts {
        let ids = tokenizer.encode_bytes(&text, options);
        let ids = ids.map_err(|e| anyhow!("{}: the text to encode: {e}", path.display()))?;
        if args.ids {
            writeln!(out, "{ids:?}")?;
        } else {
            print_pieces(&mut out, tokenizer, &ids)?;
        }
        if args.show_count {
            writeln!(out, "Total number of tokens: {}", ids.len())?;
        }
    }
    Ok(out.flush()?)
}

fn print_pieces(out: &mut impl Write, tokenizer: &Tokenizer, ids: &[u32]) -> Result<()> {
    for &id in ids {
        let piece = String::from_utf8_lossy(tokenizer.token_bytes(id));
        writeln!(out, "{id:6} -> '{}'", piece.escape_debug())?;
    }
    Ok(())
}
