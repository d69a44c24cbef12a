//! `tokenize`: the tokens of a text. Reads no tensors.

use std::io::Write;

use anyhow::{Result, anyhow};
use clap::Args;
use tokkata::{EncodeOptions, Tokenizer};

use super::examples;
use crate::args::{ModelArgs, PromptArgs, read_stdin};
use crate::console::say;
use crate::load;

/// Flags of `tokenize`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::TOKENIZE)]
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
    /// Print the pieces alone, one a line, with escapes for what is not printable
    #[arg(long)]
    pieces: bool,
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
    let mut texts = args.prompt.read_exact(rest)?;
    if args.stdin || texts.is_empty() {
        texts.push(read_stdin()?);
    }
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let tokenizer = checkpoint.tokenizer()?;
    let options = EncodeOptions {
        add_special: !args.no_bos,
        parse_special: !args.no_parse_special,
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for text in texts {
        let ids = tokenizer.encode_bytes(&text, options);
        let ids = ids.map_err(|e| anyhow!("{}: the text to encode: {e}", path.display()))?;
        match (args.ids, args.pieces) {
            (true, false) => writeln!(out, "{ids:?}")?,
            (false, true) => print_pieces(&mut out, tokenizer, &ids)?,
            _ => print_table(&mut out, tokenizer, &ids)?,
        }
        if args.show_count {
            let line = format!("Total number of tokens: {}", ids.len());
            // Whoever reads ids reads one line.
            if args.ids {
                say(&line);
            } else {
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(out.flush()?)
}

fn print_table(out: &mut impl Write, tokenizer: &Tokenizer, ids: &[u32]) -> Result<()> {
    for &id in ids {
        let piece = escaped(tokenizer.token_bytes(id));
        writeln!(out, "{id:6} -> '{piece}'")?;
    }
    Ok(())
}

fn print_pieces(out: &mut impl Write, tokenizer: &Tokenizer, ids: &[u32]) -> Result<()> {
    for &id in ids {
        writeln!(out, "{}", escaped(tokenizer.token_bytes(id)))?;
    }
    Ok(())
}

/// Text with escapes for control characters, and `\xNN` for bytes that are no text by themselves.
fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out.extend(chunk.valid().escape_debug());
        out.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_spelled() {
        assert_eq!(escaped("a\n\u{e9}".as_bytes()), "a\\n\u{e9}");
        assert_eq!(escaped(&[b'a', 0xe2, 0x82]), "a\\xe2\\x82");
    }
}
