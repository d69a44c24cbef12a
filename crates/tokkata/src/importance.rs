//! Importance matrices: how strongly each column of a weight is used, in llama.cpp's files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokkata_core::{Array, DType, Metadata, Value};
use tokkata_formats::{FormatError, GgufWriter, ModelFile, ShardLimit};

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Longest entry of an old file that is read: more columns than any model has.
const MAX_VALUES: usize = 1 << 28;

/// Why an importance matrix could not be read or used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ImportanceError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("{file}: cannot read the importance matrix: {source}")]
    Io {
        file: String,
        source: std::io::Error,
    },
    #[error(
        "{file}: found {found}, expected an importance matrix in llama.cpp's GGUF or older format"
    )]
    Shape { file: String, found: String },
}

/// Squared inputs of one weight, added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// One sum per column, for each expert after the other.
    pub sums: Vec<f32>,
    /// Rows that were added, for each expert or once for all.
    pub counts: Vec<u64>,
}

impl Inputs {
    /// Means of squared inputs; ones for an expert that nothing went through.
    #[must_use]
    pub fn means(&self) -> Vec<f32> {
        let width = (self.sums.len() / self.counts.len().max(1)).max(1);
        let experts = self.sums.chunks(width).zip(&self.counts);
        experts
            .flat_map(|(sums, &count)| {
                sums.iter().map(move |sum| match count {
                    0 => 1.0,
                    _ => sum / count as f32,
                })
            })
            .collect()
    }

    /// Adds the squares of one input row of expert `expert` of `experts`.
    pub fn add(&mut self, row: &[f32], expert: usize, experts: usize) {
        if self.sums.is_empty() {
            self.sums = vec![0.0; row.len() * experts];
            self.counts = vec![0; experts];
        }
        let sums = &mut self.sums[expert * row.len()..][..row.len()];
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += x * x;
        }
        self.counts[expert] += 1;
    }
}

/// What was measured of each weight, by the weight's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// The measurements.
    pub entries: BTreeMap<String, Inputs>,
    /// Names of the texts that the model read.
    pub datasets: Vec<String>,
    /// Chunks of text.
    pub chunks: u32,
    /// Tokens of a chunk; `None` in old files.
    pub chunk_tokens: Option<u32>,
}

impl Importance {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// A file that cannot be read, or is no importance matrix.
    pub fn read(path: &Path) -> Result<Self, ImportanceError> {
        let io = |source| ImportanceError::Io {
            file: path.display().to_string(),
            source,
        };
        let mut magic = [0; 4];
        let mut file = std::fs::File::open(path).map_err(io)?;
        let known = std::io::Read::read_exact(&mut file, &mut magic).is_ok();
        if known && magic == *b"GGUF" {
            return from_gguf(&ModelFile::open(path)?);
        }
        let bytes = std::fs::read(path).map_err(io)?;
        from_old(&bytes).map_err(|found| shape(path, found))
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

fn bytes_of(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn shape(path: &Path, found: String) -> ImportanceError {
    let file = path.display().to_string();
    ImportanceError::Shape { file, found }
}

fn from_gguf(file: &ModelFile) -> Result<Importance, ImportanceError> {
    let wrong = |found: String| shape(file.path(), found);
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
        let sums = floats(file, &tensor.name)?;
        let counts = floats(file, &format!("{name}{COUNTS}"))?;
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

fn floats(file: &ModelFile, name: &str) -> Result<Vec<f32>, ImportanceError> {
    let wrong = |found: String| shape(file.path(), found);
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
    use super::*;

    fn sample() -> Importance {
        let mut inputs = Inputs::default();
        inputs.add(&[1.0, 2.0], 0, 2);
        inputs.add(&[3.0, 4.0], 0, 2);
        Importance {
            entries: [("blk.0.ffn_up_exps.weight".to_owned(), inputs)].into(),
            datasets: vec!["text.txt".into()],
            chunks: 3,
            chunk_tokens: Some(512),
        }
    }

    #[test]
    fn experts_without_inputs_weigh_one() {
        let means = sample().entries["blk.0.ffn_up_exps.weight"].means();
        assert_eq!(means, [5.0, 10.0, 1.0, 1.0]);
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
