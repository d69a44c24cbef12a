//! Files of base runs, as llama-perplexity writes and reads them.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use tempfile::{Builder, NamedTempFile};
use tokkata::perplexity::PackedRow;

const MAGIC: &[u8; 8] = b"_logits_";

/// What a base run scored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BaseHeader {
    /// Tokens of a chunk.
    pub(super) ctx: u32,
    n_vocab: u32,
    /// All chunks.
    pub(super) tokens: Vec<u32>,
}

impl BaseHeader {
    pub(super) fn new(ctx: u32, n_vocab: usize, tokens: &[u32]) -> Self {
        BaseHeader {
            ctx,
            n_vocab: n_vocab as u32,
            tokens: tokens.to_vec(),
        }
    }
}

/// A file that appears under its name when it is whole.
pub(super) struct BaseWriter {
    path: PathBuf,
    out: BufWriter<NamedTempFile>,
}

impl BaseWriter {
    pub(super) fn create(path: &Path, header: &BaseHeader) -> Result<Self> {
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty());
        let file = builder().tempfile_in(dir.unwrap_or(Path::new(".")));
        let file = file.with_context(|| format!("{}: cannot be written", path.display()))?;
        let mut out = BufWriter::new(file);
        let chunks = header.tokens.len() as u32 / header.ctx;
        out.write_all(MAGIC)?;
        for number in [header.ctx, header.n_vocab, chunks] {
            out.write_all(&number.to_le_bytes())?;
        }
        for token in &header.tokens {
            out.write_all(&token.to_le_bytes())?;
        }
        let path = path.to_owned();
        Ok(BaseWriter { path, out })
    }

    pub(super) fn write(&mut self, row: &PackedRow) -> Result<()> {
        let written = self.out.write_all(&row.bytes);
        written.with_context(|| format!("{}: cannot be written", self.path.display()))
    }

    pub(super) fn finish(self) -> Result<()> {
        let file = self
            .out
            .into_inner()
            .map_err(std::io::IntoInnerError::into_error)?;
        file.persist(&self.path)
            .with_context(|| format!("{}: cannot be written", self.path.display()))?;
        Ok(())
    }
}

/// Makes files that others may read, as far as the user's mask allows, and not the user alone.
fn builder() -> Builder<'static, 'static> {
    #[allow(unused_mut)]
    let mut builder = Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

/// A file being read.
#[derive(Debug)]
pub(super) struct BaseReader {
    path: PathBuf,
    file: BufReader<File>,
    header: BaseHeader,
}

impl BaseReader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("{name}: cannot be read"))?;
        let size = file.metadata()?.len();
        let mut file = BufReader::new(file);
        let header = read_header(&mut file, size);
        let header = header.ok_or_else(|| {
            anyhow!(
                "{name}: found no predictions of a base run; make them with --kl-divergence-base"
            )
        })?;
        Ok(BaseReader {
            path: path.to_owned(),
            file,
            header,
        })
    }

    pub(super) fn header(&self) -> &BaseHeader {
        &self.header
    }

    pub(super) fn expect_vocab(&self, n_vocab: usize) -> Result<()> {
        let found = self.header.n_vocab;
        if found as usize == n_vocab {
            return Ok(());
        }
        let name = self.path.display();
        Err(anyhow!(
            "{name}: found a base run with {found} tokens, expected {n_vocab}; use the same tokenizer"
        ))
    }

    pub(super) fn row(&mut self) -> Result<PackedRow> {
        let mut bytes = vec![0; PackedRow::len_bytes(self.header.n_vocab as usize)];
        let read = self.file.read_exact(&mut bytes);
        read.with_context(|| format!("{}: the base run is cut off", self.path.display()))?;
        Ok(PackedRow { bytes })
    }
}

/// The header, unless it is another kind of file or announces more than `size` bytes.
fn read_header(file: &mut impl Read, size: u64) -> Option<BaseHeader> {
    let mut magic = [0; 8];
    file.read_exact(&mut magic).ok()?;
    let mut number = || {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let (ctx, n_vocab, chunks) = (number()?, number()?, number()?);
    let tokens = u64::from(ctx) * u64::from(chunks);
    let sensible = (super::LEAST_CTX..1 << 30).contains(&ctx) && n_vocab > 0;
    if magic != *MAGIC || !sensible || tokens > size / 4 || u64::from(n_vocab) > size {
        return None;
    }
    let tokens: Option<Vec<u32>> = (0..tokens).map(|_| number()).collect();
    Some(BaseHeader {
        ctx,
        n_vocab,
        tokens: tokens?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_lies_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        let header = BaseHeader::new(4, 3, &[1, 2, 0, 1, 2, 2, 1, 0]);
        let row = PackedRow::pack(&[0.5, -1.0, 2.0]);
        let mut writer = BaseWriter::create(&path, &header).unwrap();
        writer.write(&row).unwrap();
        assert!(!path.exists());
        writer.finish().unwrap();
        let mut reader = BaseReader::open(&path).unwrap();
        assert_eq!(*reader.header(), header);
        assert_eq!(reader.row().unwrap(), row);
        assert!(reader.row().is_err() && reader.expect_vocab(4).is_err());
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..8 + 12 + 32 {
            assert_eq!(read_header(&mut &bytes[..cut], cut as u64), None, "{cut}");
        }
        let mut lie = bytes.clone();
        lie[16..20].fill(0xff);
        assert_eq!(read_header(&mut &lie[..], lie.len() as u64), None);
    }
}
