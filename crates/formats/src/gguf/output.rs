//! The bytes of a GGUF file after it was described: headers, tensors, padding, names.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::cursor::Endian;
use super::shard::Shards;
use super::swap::{swap_blocks, swap_rule};
use super::write::{Checked, Declared, GgufWriter, Shard, expect_bytes};
use crate::error::{Fault, Quoted, Result};
use crate::output::{PendingFile, Place, write_fault};

/// A GGUF file, or the files of a split one, being written under temporary names.
///
/// Nothing stands under a final name before [`GgufOutput::finish`]; dropping it removes what was written.
#[derive(Debug)]
pub struct GgufOutput {
    writer: GgufWriter,
    shards: Shards,
    done: Vec<Place>,
    body: Option<Body<PendingFile>>,
    /// The tensor being written, and its bytes so far.
    current: usize,
    written: u64,
}

impl GgufOutput {
    pub(super) fn start(writer: GgufWriter, shards: Shards) -> Result<Self> {
        let (done, body) = (Vec::new(), None);
        let mut output = Self {
            writer,
            shards,
            done,
            body,
            current: 0,
            written: 0,
        };
        output.open().map_err(|fault| output.writer.fail(fault))?;
        Ok(output)
    }

    /// Appends bytes, little-endian, to the current tensor, and moves on when it is whole. A big-endian
    /// file takes whole blocks only.
    ///
    /// # Errors
    /// More bytes than the tensor has, or a failed write.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.append(bytes).map_err(|fault| self.writer.fail(fault))
    }

    fn append(&mut self, bytes: &[u8]) -> Checked<()> {
        let Some(tensor) = self.writer.tensors.get(self.current) else {
            let tensor = Quoted::new("");
            return Err(Fault::Given {
                tensor,
                found: bytes.len() as u64,
                expected: 0,
            });
        };
        let after = self.written + bytes.len() as u64;
        if after > tensor.bytes {
            return expect_bytes(tensor, after);
        }
        let body = self
            .body
            .as_mut()
            .expect("a file is open while tensors are left");
        body.put(&self.writer, tensor, bytes)?;
        self.written = after;
        if after == tensor.bytes {
            body.pad(self.writer.alignment)?;
            (self.current, self.written) = (self.current + 1, 0);
            self.next_shard()?;
        }
        Ok(())
    }

    /// The tensor whose bytes come next.
    #[must_use]
    pub fn current(&self) -> Option<&str> {
        self.writer
            .tensors
            .get(self.current)
            .map(|t| t.name.as_str())
    }

    fn open(&mut self) -> Checked<()> {
        let number = self.done.len();
        let file = PendingFile::create(self.shards.path(number))?;
        let shard = self.shards.shard(number);
        self.body = Some(Body::start(file, &self.writer, &shard)?);
        self.next_shard()
    }

    /// Closes the file whose last tensor is whole, and opens the next.
    fn next_shard(&mut self) -> Checked<()> {
        let end = self.shards.shard(self.done.len()).tensors.end;
        if self.current < end {
            return Ok(());
        }
        let body = self.body.take().expect("a file is open until it is closed");
        self.done.push(body.out.close()?);
        if self.done.len() < self.shards.len() {
            self.open()
        } else {
            Ok(())
        }
    }

    /// Gives the files their names, the first file last so that a split model shows up whole.
    ///
    /// # Errors
    /// Tensors without all their bytes, or a failed rename.
    pub fn finish(mut self) -> Result<Vec<PathBuf>> {
        if let Some(tensor) = self.writer.tensors.get(self.current) {
            let fault = expect_bytes(tensor, self.written).unwrap_err();
            return Err(self.writer.fail(fault));
        }
        let places = std::mem::take(&mut self.done).into_iter().rev();
        let paths: Checked<Vec<_>> = places.map(Place::rename).collect();
        let mut paths = paths.map_err(|fault| self.writer.fail(fault))?;
        paths.reverse();
        Ok(paths)
    }

    /// The name that the first or only file will have.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.shards.path(0)
    }
}

/// The bytes of one file after its header.
#[derive(Debug)]
pub(super) struct Body<W> {
    pub(super) out: W,
    at: u64,
}

impl<W: Write> Body<W> {
    pub(super) fn start(out: W, writer: &GgufWriter, shard: &Shard<'_>) -> Checked<Self> {
        let header = writer.header(shard);
        let mut body = Self { out, at: 0 };
        body.raw(&header)?;
        body.pad(writer.alignment)?;
        Ok(body)
    }

    pub(super) fn put(
        &mut self,
        writer: &GgufWriter,
        tensor: &Declared,
        bytes: &[u8],
    ) -> Checked<()> {
        if writer.endian == Endian::Little {
            return self.raw(bytes);
        }
        let block = tensor.dtype.block_bytes();
        if !bytes.len().is_multiple_of(block) {
            let expected = bytes.len().next_multiple_of(block) as u64;
            let (tensor, found) = (Quoted::new(&tensor.name), bytes.len() as u64);
            return Err(Fault::Given {
                tensor,
                found,
                expected,
            });
        }
        let rule = swap_rule(tensor.dtype).expect("declaring refuses types without a rule");
        let mut swapped = bytes.to_vec();
        swap_blocks(tensor.dtype, rule, &mut swapped);
        self.raw(&swapped)
    }

    pub(super) fn pad(&mut self, alignment: u64) -> Checked<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut left = self.at.next_multiple_of(alignment) - self.at;
        while left > 0 {
            let now = left.min(ZEROS.len() as u64);
            self.raw(&ZEROS[..now as usize])?;
            left -= now;
        }
        Ok(())
    }

    fn raw(&mut self, bytes: &[u8]) -> Checked<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(write_fault)
    }
}
