//! Texts that get vectors, and the models that give them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use tokkata::{Checkpoint, Model, OpenOptions, Pooling};

use crate::args::{bytes_of, read_bytes, read_stdin, usage};
use crate::console::Wait;
use crate::load;

/// Texts done between two looks at the progress.
const PORTION: usize = 64;

/// Where texts come from.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// A text; given again, each is another
    #[arg(short, long, value_name = "TEXT")]
    prompt: Vec<OsString>,
    /// Read texts from a file, one a line; - for standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Read texts from standard input, one a line
    #[arg(long, conflicts_with = "file")]
    stdin: bool,
    /// What stands between the texts of a file instead of a line's end; nothing for one text
    #[arg(long, visible_alias = "embd-separator", value_name = "TEXT")]
    separator: Option<String>,
}

impl TextArgs {
    /// The texts: of the flags, or else of the arguments without one.
    pub(crate) fn read(&self, rest: &[OsString]) -> Result<Vec<Vec<u8>>> {
        let mut texts: Vec<Vec<u8>> = self.prompt.iter().chain(rest).map(bytes_of).collect();
        let bytes = match (&self.file, self.stdin) {
            (Some(path), _) => Some(read_bytes(path)?),
            (None, true) => Some(read_stdin()?),
            (None, false) => None,
        };
        texts.extend(bytes.iter().flat_map(|b| self.cut(b)));
        if texts.is_empty() {
            return Err(usage("no text was given; give -p TEXT, -f FILE or --stdin"));
        }
        Ok(texts)
    }

    fn cut(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let separator = self.separator.as_deref().unwrap_or("\n").as_bytes();
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        cut(bytes, separator).map(<[u8]>::to_vec).collect()
    }
}

/// The parts between separators; everything where there is no separator.
fn cut<'a>(bytes: &'a [u8], separator: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let now = rest?;
        let at = match separator.len() {
            0 => None,
            n => now.windows(n).position(|w| w == separator),
        };
        rest = at.map(|at| &now[at + separator.len()..]);
        Some(at.map_or(now, |at| &now[..at]))
    })
}

/// Tokens of each text, as the file wants them.
pub(crate) fn encode(checkpoint: &Checkpoint, texts: &[Vec<u8>]) -> Result<Vec<Vec<u32>>> {
    let ids = texts.iter().map(|text| checkpoint.encode_text(text));
    Ok(ids.collect::<tokkata::Result<_>>()?)
}

/// A model loaded for these texts.
pub(crate) fn load(
    checkpoint: Checkpoint,
    options: OpenOptions,
    pooling: Option<Pooling>,
    texts: &[Vec<u32>],
) -> Result<Model> {
    let options = options.for_texts(&checkpoint, pooling, texts)?;
    load::load(checkpoint, &options)
}

/// The vector of each text, with progress shown.
pub(crate) fn vectors(model: &mut Model, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    let wait = Wait::new("computing vectors");
    let mut vectors = Vec::with_capacity(texts.len());
    for portion in texts.chunks(PORTION) {
        wait.set(vectors.len() as u64, texts.len() as u64);
        vectors.extend(model.embed(portion)?);
    }
    Ok(vectors)
}

/// What a model is called in answers.
pub(crate) fn model_name(checkpoint: &Checkpoint) -> String {
    let name = checkpoint.metadata().str("general.name");
    name.map_or_else(|| stem(checkpoint.path()), str::to_owned)
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or(path.as_os_str())
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_separators() {
        let all = |bytes: &'static str, at: &'static str| -> Vec<&str> {
            let parts = cut(bytes.as_bytes(), at.as_bytes());
            parts.map(|p| std::str::from_utf8(p).unwrap()).collect()
        };
        assert_eq!(all("a\n\nb", "\n"), ["a", "", "b"]);
        assert_eq!(all("a<#>b", "<#>"), ["a", "b"]);
        assert_eq!(all("a\nb", ""), ["a\nb"]);
        assert_eq!(all("", "\n"), [""]);
    }
}
