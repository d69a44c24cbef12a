//! Writing safetensors: declare every tensor, then hand over their bytes in the same order.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, json};
use tokkata_core::DType;

use crate::error::{Fault, FormatError, Quoted, Result};
use crate::output::{PendingFile, write_fault};

/// A safetensors file that is still being described.
#[derive(Debug)]
pub struct SafetensorsWriter {
    path: PathBuf,
    header: Map<String, serde_json::Value>,
    tensors: Vec<(String, u64)>,
    names: HashSet<String>,
    at: u64,
}

impl SafetensorsWriter {
    /// Starts a file that will be called `path` when it is whole, with pairs for `__metadata__`.
    pub fn new<'a>(
        path: impl Into<PathBuf>,
        metadata: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let pairs: Map<_, _> = metadata
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v.into()))
            .collect();
        let mut header = Map::new();
        if !pairs.is_empty() {
            header.insert("__metadata__".to_owned(), pairs.into());
        }
        Self {
            path: path.into(),
            header,
            tensors: Vec::new(),
            names: HashSet::new(),
            at: 0,
        }
    }

    /// Announces the next tensor; `shape` has its slowest dimension first.
    ///
    /// # Errors
    /// A name that is used already, a block format, or a shape too large to count.
    pub fn declare(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<()> {
        let fail = |fault| Err(FormatError::at(&self.path, fault));
        let tensor = Quoted::new(name);
        if dtype.is_quantised() {
            let found = Quoted::new(dtype.name());
            return fail(Fault::StorageType { tensor, found });
        }
        if name == "__metadata__" || !self.names.insert(name.to_owned()) {
            return fail(Fault::DuplicateTensor { tensor });
        }
        let elems = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let end = elems
            .and_then(|n| dtype.row_bytes(n))
            .and_then(|n| self.at.checked_add(n as u64));
        let Some(end) = end else {
            let shape = shape.iter().map(|&d| d as u64).collect();
            return fail(Fault::Shape { tensor, shape });
        };
        let entry = json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [self.at, end]});
        self.header.insert(name.to_owned(), entry);
        self.tensors.push((name.to_owned(), end - self.at));
        self.at = end;
        Ok(())
    }

    /// Writes the header; the tensors follow.
    ///
    /// # Errors
    /// A file that cannot be made or written.
    pub fn create(self) -> Result<SafetensorsOutput> {
        let start = || -> std::result::Result<_, Fault> {
            let mut text = serde_json::Value::Object(self.header)
                .to_string()
                .into_bytes();
            text.resize(text.len().next_multiple_of(8), b' ');
            let mut file = PendingFile::create(&self.path)?;
            file.write_all(&(text.len() as u64).to_le_bytes())
                .map_err(write_fault)?;
            file.write_all(&text).map_err(write_fault)?;
            Ok(file)
        };
        let file = start().map_err(|fault| FormatError::at(&self.path, fault))?;
        Ok(SafetensorsOutput {
            path: self.path,
            tensors: self.tensors,
            file,
            current: 0,
            written: 0,
        })
    }
}

/// A safetensors file being written under a temporary name; dropping it removes what was written.
#[derive(Debug)]
pub struct SafetensorsOutput {
    path: PathBuf,
    tensors: Vec<(String, u64)>,
    file: PendingFile,
    current: usize,
    written: u64,
}

impl SafetensorsOutput {
    /// Appends little-endian bytes to the current tensor, and moves on when it is whole.
    ///
    /// # Errors
    /// More bytes than the tensor has, or a failed write.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.skip_empty();
        let found = self.written + bytes.len() as u64;
        let (name, expected) = self
            .tensors
            .get(self.current)
            .map_or(("", 0), |t| (&t.0, t.1));
        if found > expected {
            let fault = Fault::Given {
                tensor: Quoted::new(name),
                found,
                expected,
            };
            return Err(FormatError::at(&self.path, fault));
        }
        let written = self.file.write_all(bytes).map_err(write_fault);
        written.map_err(|fault| FormatError::at(&self.path, fault))?;
        self.written = found;
        if found == expected {
            (self.current, self.written) = (self.current + 1, 0);
        }
        Ok(())
    }

    fn skip_empty(&mut self) {
        while self.tensors.get(self.current).is_some_and(|t| t.1 == 0) {
            self.current += 1;
        }
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// A tensor without all its bytes, or a failed write or rename.
    pub fn finish(mut self) -> Result<PathBuf> {
        self.skip_empty();
        let path = self.path;
        if let Some((name, expected)) = self.tensors.get(self.current) {
            let (tensor, found, expected) = (Quoted::new(name), self.written, *expected);
            return Err(FormatError::at(
                &path,
                Fault::Given {
                    tensor,
                    found,
                    expected,
                },
            ));
        }
        let place = self.file.close().and_then(crate::output::Place::rename);
        place.map_err(|fault| FormatError::at(&path, fault))
    }
}
