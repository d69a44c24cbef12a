//! Importance matrices as files: GGUF, and what llama.cpp wrote before.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokkata_core::{Array, DType, Metadata, Value};
use tokkata_formats::{FormatError, GgufWriter, ModelFile, ShardLimit, write_file};

use super::{Importance, ImportanceError, Inputs};

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Longest entry of an old file that is read: more columns than any model has.
const MAX_VALUES: usize = 1 << 28;

impl Importance {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// A file that cannot be read, or is no importance matrix.
    pub fn read(path: &Path) -> Result<Self, ImportanceError> {
        let file = path.display().to_string();
        let bytes = std::fs::read(path);
        let bytes = bytes.map_err(|source| ImportanceError::Io {
            file: file.clone(),
            source,
        })?;
        Self::from_bytes(&bytes, &file)
    }

    /// The same for the bytes of a file called `name`.
    ///
    /// # Errors
    /// As [`Importance::read`].
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, ImportanceError> {
        if bytes.starts_with(b"GGUF") {
            let file = ModelFile::from_bytes(bytes.to_vec());
            let named = |mut error: FormatError| {
                name.clone_into(&mut error.file);
                error
            };
            return from_gguf(&file.map_err(named)?, name);
        }
        from_old(bytes).map_err(|found| shape(name, found))
    }

    /// Writes the newer format, which is GGUF.
    ///
    /// # Errors
    /// A name too long for GGUF, or a failed write; nothing is left under the name then.
    pub fn write(&self, path: &Path) -> Result<PathBuf, ImportanceError> {
        let mut writer = GgufWriter::new(path, self.metadata())?;
        for (name, inputs) in &self.entries {
            let experts = inputs.counts.len().max(1);
            let shape = [experts, inputs.sums.len() / experts];
            writer.declare(&format!("{name}{SUMS}"), DType::F32, &shape)?;
            writer.declare(&format!("{name}{COUNTS}"), DType::F32, &[experts, 1])?;
        }
        let mut out = writer.create(ShardLimit::Whole)?;
        for inputs in self.entries.values() {
            out.write(&bytes_of(inputs.sums.iter().copied()))?;
            out.write(&bytes_of(inputs.counts.iter().map(|&n| n as f32)))?;
        }
        let paths = out.finish()?;
        Ok(paths.into_iter().next().unwrap_or_else(|| path.to_owned()))
    }

    /// Writes the older format: means over chunks of [`Importance::chunk_tokens`], 512 where that is unknown.
    ///
    /// # Errors
    /// A failed write; nothing is left under the name then.
    pub fn write_old(&self, path: &Path) -> Result<(), ImportanceError> {
        Ok(write_file(path, &self.to_old())?)
    }

    /// The older format.
    #[must_use]
    pub fn to_old(&self) -> Vec<u8> {
        let chunk_tokens = u64::from(self.chunk_tokens.unwrap_or(512).max(1));
        let seen = |inputs: &&Inputs| inputs.counts.iter().any(|&n| n > 0);
        let entries = self.entries.iter().filter(|(_, inputs)| seen(inputs));
        let entries: Vec<_> = entries.collect();
        let mut out = Vec::new();
        put_number(&mut out, entries.len());
        for (name, inputs) in entries {
            let most = inputs.counts.iter().max().copied().unwrap_or(0);
            let calls = most.div_ceil(chunk_tokens);
            put_text(&mut out, name);
            put_number(&mut out, calls as usize);
            put_number(&mut out, inputs.sums.len());
            out.extend(bytes_of(inputs.means().iter().map(|m| m * calls as f32)));
        }
        put_number(&mut out, self.chunks as usize);
        put_text(&mut out, self.datasets.last().map_or("", String::as_str));
        out
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        let datasets = self.datasets.iter().map(|d| d.as_str().into()).collect();
        metadata.insert("general.type", Value::from("imatrix"));
        metadata.insert("imatrix.datasets", Value::Array(Array::Str(datasets)));
        metadata.insert("imatrix.chunk_count", Value::U32(self.chunks));
        let tokens = self.chunk_tokens.unwrap_or(0);
        metadata.insert("imatrix.chunk_size", Value::U32(tokens));
        metadata
    }
}

fn put_number(out: &mut Vec<u8>, number: usize) {
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    out.extend(number.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len());
    out.extend(text.as_bytes());
}

fn bytes_of(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn shape(file: &str, found: String) -> ImportanceError {
    let file = file.to_owned();
    ImportanceError::Shape { file, found }
}

fn from_gguf(file: &ModelFile, path: &str) -> Result<Importance, ImportanceError> {
    let wrong = |found: String| shape(path, found);
    let metadata = file.metadata();
    let number = |key| metadata.uint(key).and_then(|n| u32::try_from(n).ok());
    let (Some(chunks), Some(tokens)) =
        (number("imatrix.chunk_count"), number("imatrix.chunk_size"))
    else {
        return Err(wrong("a GGUF file without imatrix.* keys".into()));
    };
    let datasets = metadata.strings("imatrix.datasets").unwrap_or_default();
    let mut entries = BTreeMap::new();
    for tensor in file.tensors() {
        let Some(name) = tensor.name.strip_suffix(SUMS) else {
            continue;
        };
        let sums = floats((file, path), &tensor.name)?;
        let counts = floats((file, path), &format!("{name}{COUNTS}"))?;
        if counts.is_empty() || sums.is_empty() || sums.len() % counts.len() != 0 {
            let (sums, counts) = (sums.len(), counts.len());
            return Err(wrong(format!("{sums} sums for {counts} counts of {name}")));
        }
        let counts = counts.iter().map(|n| n.round() as u64).collect();
        entries.insert(name.to_owned(), Inputs { sums, counts });
    }
    if entries.is_empty() {
        return Err(wrong("a file without entries".into()));
    }
    Ok(Importance {
        entries,
        datasets: datasets.iter().map(ToString::to_string).collect(),
        chunks,
        chunk_tokens: Some(tokens),
    })
}

fn floats((file, path): (&ModelFile, &str), name: &str) -> Result<Vec<f32>, ImportanceError> {
    let wrong = |found: String| shape(path, found);
    let tensor = file.tensor(name);
    let tensor = tensor.ok_or_else(|| wrong(format!("no tensor {name}")))?;
    if tensor.dtype != DType::F32 {
        return Err(wrong(format!("{name} in {}", tensor.dtype)));
    }
    let (values, _) = file.data(tensor)?.as_chunks::<4>();
    Ok(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Reads what llama.cpp wrote before it used GGUF; `Err` says what was found.
fn from_old(bytes: &[u8]) -> Result<Importance, String> {
    let mut old = Old { rest: bytes };
    let count = old.length(MAX_VALUES)?;
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        let name = old.text()?;
        let calls = old.number()?;
        let values = old.length(MAX_VALUES)?;
        let (sums, _) = old.take(values * 4)?.as_chunks::<4>();
        let sums = sums.iter().map(|b| f32::from_le_bytes(*b)).collect();
        // A count of zero marks sums that nothing divides.
        let counts = vec![calls.max(1) as u64];
        entries.insert(name, Inputs { sums, counts });
    }
    let chunks = old.number().unwrap_or(0).max(0) as u32;
    let datasets = old.text().ok().filter(|text| !text.is_empty());
    Ok(Importance {
        entries,
        datasets: datasets.into_iter().collect(),
        chunks,
        chunk_tokens: None,
    })
}

struct Old<'a> {
    rest: &'a [u8],
}

impl<'a> Old<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (head, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or("a file that is cut off or of another kind")?;
        self.rest = rest;
        Ok(head)
    }

    fn number(&mut self) -> Result<i32, String> {
        let bytes = self.take(4)?;
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn length(&mut self, limit: usize) -> Result<usize, String> {
        let n = self.number()?;
        let n = usize::try_from(n).ok().filter(|&n| n > 0 && n <= limit);
        n.ok_or_else(|| "a file of another kind".to_owned())
    }

    fn text(&mut self) -> Result<String, String> {
        let n = self.length(1 << 16)?;
        Ok(String::from_utf8_lossy(self.take(n)?).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn committed_inputs_of_the_fuzz_target_replay() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(root.join("../../fuzz/seeds/imatrix")).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            let read = Importance::from_bytes(&bytes, "seed").unwrap();
            assert!(!read.entries.is_empty());
            for cut in 0..bytes.len() {
                // Nothing but what follows the entries of the older format may be missing.
                if let Ok(part) = Importance::from_bytes(&bytes[..cut], "seed") {
                    assert_eq!(part.entries, read.entries);
                }
            }
        }
    }

    #[test]
    fn the_older_format_keeps_means() {
        let read = from_old(&sample().to_old()).unwrap();
        let means = |i: &Importance| i.entries["blk.0.ffn_up_exps.weight"].means();
        assert_eq!(means(&read), means(&sample()));
        assert_eq!(
            (read.chunks, &read.datasets),
            (sample().chunks, &sample().datasets)
        );
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i.gguf");
        sample().write(&path).unwrap();
        assert_eq!(Importance::read(&path).unwrap(), sample());
    }

    #[test]
    fn old_files_are_read_and_damaged_ones_refused() {
        let mut bytes = Vec::new();
        let text = |bytes: &mut Vec<u8>, t: &str| {
            bytes.extend((t.len() as i32).to_le_bytes());
            bytes.extend(t.as_bytes());
        };
        bytes.extend(1i32.to_le_bytes());
        text(&mut bytes, "blk.0.attn_q.weight");
        bytes.extend(4i32.to_le_bytes());
        bytes.extend(2i32.to_le_bytes());
        bytes.extend(8f32.to_le_bytes());
        bytes.extend(2f32.to_le_bytes());
        let whole = bytes.len();
        bytes.extend(7i32.to_le_bytes());
        text(&mut bytes, "wiki.txt");
        let read = from_old(&bytes).unwrap();
        assert_eq!(read.entries["blk.0.attn_q.weight"].means(), [2.0, 0.5]);
        assert_eq!(
            (read.chunks, read.datasets),
            (7, vec!["wiki.txt".to_owned()])
        );
        assert!(from_old(&bytes[..whole]).is_ok());
        for cut in 0..whole {
            assert!(from_old(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(from_old(&[0xff; 64]).is_err());
    }
}
