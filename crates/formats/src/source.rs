//! Bytes of one model file: a mapped file that is also read with `pread`, memory, or ranges that somebody else reads.
//!
//! A file that another process shortens while it is mapped raises SIGBUS on access through the map;
//! reads through [`Source::read_at`] report an error instead.

#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use crate::error::Fault;

/// Bytes that someone else owns.
pub(crate) trait Bytes: AsRef<[u8]> + Send + Sync {}

impl<T: AsRef<[u8]> + Send + Sync> Bytes for T {}

/// A file that somebody else keeps and reads, such as a browser.
pub trait ReadRanges: Send + Sync {
    /// Bytes of the file.
    fn size(&self) -> u64;

    /// Fills `buf` from byte `offset`; threads may call it at once.
    ///
    /// # Errors
    /// A read that failed, or that leaves the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()>;
}

/// Where the bytes of one part of a model are.
pub(crate) enum Source {
    File {
        file: File,
        map: memmap2::Mmap,
    },
    Memory(Box<dyn Bytes>),
    /// Of which only the first bytes are here.
    Ranges {
        head: Vec<u8>,
        file: Box<dyn ReadRanges>,
    },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Source::File { .. } => "File",
            Source::Memory(_) => "Memory",
            Source::Ranges { .. } => "Ranges",
        };
        write!(f, "{kind}({} bytes)", self.size())
    }
}

impl AsRef<[u8]> for Source {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        // Looked at before opening: opening a pipe would block.
        let meta = std::fs::metadata(path).map_err(Fault::open)?;
        if meta.is_dir() {
            let advice = "name a .gguf file inside it";
            return Err(Fault::NotAFile {
                found: "a directory",
                advice,
            });
        }
        if !meta.is_file() {
            let advice = "copy the model to a plain file first";
            return Err(Fault::NotAFile {
                found: "a pipe or device",
                advice,
            });
        }
        if meta.len() == 0 {
            return Err(Fault::Empty);
        }
        let file = File::open(path).map_err(Fault::open)?;
        // SAFETY: the map is private and read-only. Its bytes change only if another process writes the
        // file meanwhile; they are treated as untrusted and every slice is checked against the map's length.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Fault::io("map the file"))?;
        Ok(Self::File { file, map })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Source::File { map, .. } => map,
            Source::Memory(bytes) => (**bytes).as_ref(),
            Source::Ranges { head, .. } => head,
        }
    }

    /// Bytes of the file, of which [`Source::bytes`] may be the first alone.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Source::Ranges { file, .. } => file.size(),
            _ => self.bytes().len() as u64,
        }
    }

    /// Fills `buf` from byte `offset`; threads may call it at once.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        match self {
            Source::File { file, .. } => positioned::read_exact_at(file, buf, offset),
            Source::Memory(_) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(buf.len());
                let from = self
                    .bytes()
                    .get(start..end)
                    .ok_or(std::io::ErrorKind::UnexpectedEof)?;
                buf.copy_from_slice(from);
                Ok(())
            }
            Source::Ranges { file, .. } => file.read_at(offset, buf),
        }
    }
}

#[cfg(unix)]
mod positioned {
    use std::os::unix::fs::FileExt;

    pub(super) fn read_exact_at(
        file: &std::fs::File,
        buf: &mut [u8],
        offset: u64,
    ) -> std::io::Result<()> {
        file.read_exact_at(buf, offset)
    }
}

#[cfg(windows)]
mod positioned {
    use std::os::windows::fs::FileExt;

    pub(super) fn read_exact_at(
        file: &std::fs::File,
        mut buf: &mut [u8],
        mut offset: u64,
    ) -> std::io::Result<()> {
        while !buf.is_empty() {
            match file.seek_read(buf, offset)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                n => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }
}

#[cfg(not(any(unix, windows)))]
mod positioned {
    pub(super) fn read_exact_at(_: &std::fs::File, _: &mut [u8], _: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
