//! One file of a model.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Fault, FormatError, Quoted, Result};
use crate::source::{ReadRanges, Source};
use crate::tensor::Span;

/// Bytes that live as long as their owner, and the range of them that is meant.
pub type SharedSpan = (Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>);

/// A file and its name for messages.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    source: Arc<Source>,
}

impl Part {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path).map_err(|fault| FormatError::at(path, fault))?;
        Ok(Self {
            name: path.display().to_string(),
            source: Arc::new(source),
        })
    }

    pub(crate) fn memory(name: String, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self {
            name,
            source: Arc::new(Source::Memory(Box::new(bytes))),
        }
    }

    /// A file of which `head` are the first bytes.
    pub(crate) fn ranges(name: String, head: Vec<u8>, file: Box<dyn ReadRanges>) -> Self {
        Self {
            name,
            source: Arc::new(Source::Ranges { head, file }),
        }
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.source.size()
    }

    /// What is in memory: all of it, or the first bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.source.bytes()
    }

    /// The owner of the bytes, and where `span` lies in them.
    pub(crate) fn shared(&self, span: Span<'_>) -> std::result::Result<SharedSpan, Fault> {
        let start = self.checked(span, 0, span.bytes)? as usize;
        self.in_memory(start as u64 + span.bytes)?;
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::clone(&self.source) as _;
        Ok((owner, start..start + span.bytes as usize))
    }

    pub(crate) fn fail(&self, fault: Fault) -> FormatError {
        FormatError::new(&self.name, fault)
    }

    /// The bytes of `span`, out of the map.
    pub(crate) fn slice(&self, span: Span<'_>) -> std::result::Result<&[u8], Fault> {
        let start = self.checked(span, 0, span.bytes)?;
        self.in_memory(start + span.bytes)?;
        Ok(&self.bytes()[start as usize..(start + span.bytes) as usize])
    }

    /// Fails where bytes up to `end` can only be read.
    fn in_memory(&self, end: u64) -> std::result::Result<(), Fault> {
        if end <= self.bytes().len() as u64 {
            return Ok(());
        }
        let unsupported = std::io::ErrorKind::Unsupported.into();
        Err(Fault::io("map the file")(unsupported))
    }

    /// Fills `buf` from byte `offset` of `span`.
    pub(crate) fn read(
        &self,
        span: Span<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<(), Fault> {
        let start = self.checked(span, offset, buf.len() as u64)?;
        self.source
            .read_at(start, buf)
            .map_err(Fault::io("read the file"))
    }

    /// First file byte of a range of `span`, which must stay within span and file.
    fn checked(&self, span: Span<'_>, offset: u64, len: u64) -> std::result::Result<u64, Fault> {
        let file = self.size();
        let end = offset.checked_add(len).filter(|&end| end <= span.bytes);
        let end = end
            .and_then(|end| end.checked_add(span.offset))
            .filter(|&end| end <= file);
        match end {
            Some(_) => Ok(span.offset + offset),
            None => {
                let (tensor, size) = (Quoted::new(span.name), span.bytes);
                Err(Fault::ReadRange {
                    tensor,
                    offset,
                    len,
                    size,
                })
            }
        }
    }
}
