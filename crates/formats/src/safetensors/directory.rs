//! Directories of safetensors files, with the configuration and tokenizer beside them.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokkata_core::{Metadata, Value};

use super::header::{Header, Pairs};
use crate::error::{Fault, FormatError, Quoted, Result};
use crate::model::{Container, Contents};
use crate::packing::{PackedWeight, Quantisation, group};
use crate::part::Part;
use crate::tensor::{StoredTensor, TensorInfo};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Longest configuration: real ones stay below a tenth of it, and each byte may cost 36 of memory.
const MAX_CONFIG: u64 = 4 << 20;
/// Longest index; its entries are strings.
const MAX_INDEX: u64 = 64 << 20;
/// Longest tokenizer or template file.
const MAX_SIDE_FILE: u64 = 256 << 20;
/// Most files of one model.
const MAX_SHARDS: usize = 4096;

/// The files beside the tensors of a model directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    config: serde_json::Value,
}

impl Directory {
    fn open(path: &Path) -> Result<Self> {
        let config = read_json(&path.join(CONFIG), MAX_CONFIG)?;
        Ok(Self {
            path: path.to_owned(),
            config,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The contents of `config.json`.
    #[must_use]
    pub fn config(&self) -> &serde_json::Value {
        &self.config
    }

    /// Names of the tokenizer, template and other side files that are there, sorted; folders count with
    /// what they hold, as in `1_Pooling/config.json`.
    ///
    /// # Errors
    /// A directory that cannot be listed.
    pub fn side_files(&self) -> Result<Vec<String>> {
        const ENDINGS: [&str; 5] = ["json", "model", "txt", "jinja", "tiktoken"];
        let mut names = list(&self.path)?;
        for folder in list(&self.path)?
            .iter()
            .filter(|name| self.path.join(name).is_dir())
        {
            let inner = list(&self.path.join(folder))?;
            names.extend(inner.iter().map(|name| format!("{folder}/{name}")));
        }
        names.retain(|name| {
            let path = Path::new(name);
            let ending = path.extension().and_then(|e| e.to_str());
            let weights = name.ends_with(".safetensors.index.json");
            ending.is_some_and(|e| ENDINGS.contains(&e))
                && !weights
                && self.path.join(name).is_file()
        });
        Ok(names)
    }

    /// The bytes of a side file such as `tokenizer.json`, or `None` if it is not there.
    ///
    /// # Errors
    /// A file that cannot be read or is far too long.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path.join(name);
        if !path.exists() {
            return Ok(None);
        }
        read_file(&path, MAX_SIDE_FILE).map(Some)
    }

    /// A side file of JSON such as `tokenizer_config.json`, or `None` if it is not there. Vocabularies are
    /// too long for a tree of values: they go through [`Directory::read`].
    ///
    /// # Errors
    /// A file that cannot be read, is not JSON or is longer than 4 MiB.
    pub fn read_json(&self, name: &str) -> Result<Option<serde_json::Value>> {
        let path = self.path.join(name);
        if !path.exists() {
            return Ok(None);
        }
        read_json(&path, MAX_CONFIG).map(Some)
    }
}

/// Names in a directory, sorted; names that are not UTF-8 are left out.
fn list(path: &Path) -> Result<Vec<String>> {
    let fail = |source| {
        let action = "list the directory";
        FormatError::at(path, Fault::Io { action, source })
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fail)? {
        names.extend(entry.map_err(fail)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// A small file, read up to its limit whatever length the system reports.
fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let read = || {
        let meta = std::fs::metadata(path).map_err(Fault::io("open the file"))?;
        if !meta.is_file() {
            let advice = "put a plain file there";
            return Err(Fault::NotAFile {
                found: "a directory, pipe or device",
                advice,
            });
        }
        let file = std::fs::File::open(path).map_err(Fault::io("open the file"))?;
        let mut bytes = Vec::new();
        file.take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(Fault::io("read the file"))?;
        if bytes.len() as u64 > limit {
            return Err(Fault::Count {
                what: "bytes or more",
                found: limit + 1,
                limit,
            });
        }
        Ok(bytes)
    };
    read().map_err(|fault| FormatError::at(path, fault))
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path, limit: u64) -> Result<T> {
    let bytes = read_file(path, limit)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let reason = Quoted::new(error.to_string());
        FormatError::at(
            path,
            Fault::Json {
                what: "JSON file",
                reason,
            },
        )
    })
}

/// Which file holds which tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: Pairs,
}

/// Opens a model directory.
pub(crate) fn open_directory(path: &Path) -> Result<Contents> {
    if !path.join(CONFIG).is_file() {
        return Err(FormatError::at(path, no_config(path)));
    }
    let directory = Directory::open(path)?;
    let index = path.join(INDEX);
    if index.exists() {
        let Index { weight_map } = read_json(&index, MAX_INDEX)?;
        let shards = shards(&weight_map).map_err(|fault| FormatError::at(&index, fault))?;
        let contents = load(path, &shards, Some(directory))?;
        agree(&weight_map, &shards, &contents).map_err(|fault| FormatError::at(&index, fault))?;
        return Ok(contents);
    }
    load(path, &[weights(path)?], Some(directory))
}

fn no_config(path: &Path) -> Fault {
    let holds = |ending: &str| {
        let names = list(path).unwrap_or_default();
        names.iter().any(|name| name.ends_with(ending))
    };
    let (found, advice) = if holds(".gguf") {
        (
            "a directory without config.json",
            "name the .gguf file inside it",
        )
    } else {
        (
            "a directory without config.json",
            "download the whole model, or name a model file",
        )
    };
    Fault::NotAFile { found, advice }
}

/// The one file of tensors in a directory without an index.
fn weights(path: &Path) -> Result<String> {
    let names = list(path)?;
    let mut files = names
        .into_iter()
        .filter(|name| name.ends_with(".safetensors"));
    let (first, second) = (files.next(), files.next());
    match (first, second) {
        (Some(only), None) => Ok(only),
        _ if path.join(SINGLE).exists() => Ok(SINGLE.to_owned()),
        (first, _) => {
            let found = first.map_or(
                "no safetensors file",
                |_| "several safetensors files and no index",
            );
            let (expected, advice) = (format!("{SINGLE} or {INDEX}"), "download the whole model");
            Err(FormatError::at(
                path,
                Fault::Split {
                    found: found.to_owned(),
                    expected,
                    advice,
                },
            ))
        }
    }
}

/// The files that an index names, in order of first mention.
fn shards(weight_map: &Pairs) -> std::result::Result<Vec<String>, Fault> {
    let mut files = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (_, file) in &weight_map.0 {
        if !seen.insert(file) {
            continue;
        }
        if !plain_name(file) || files.len() == MAX_SHARDS {
            return Err(Fault::Split {
                found: format!("the file name {}", Quoted::new(file)),
                expected: format!("at most {MAX_SHARDS} names of files beside the index"),
                advice: "download the index again",
            });
        }
        files.push(file.clone());
    }
    Ok(files)
}

/// Whether a name stays in its directory.
fn plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let normal = matches!(parts.next(), Some(std::path::Component::Normal(_)));
    normal && parts.next().is_none() && !name.contains('\\')
}

/// Opens every file once and joins their tensors.
fn load(path: &Path, files: &[String], directory: Option<Directory>) -> Result<Contents> {
    let parts = files
        .iter()
        .map(|file| Part::open(&path.join(file)))
        .collect::<Result<_>>()?;
    join(parts, directory)
}

/// Refuses an index and files that tell different stories.
fn agree(
    weight_map: &Pairs,
    shards: &[String],
    contents: &Contents,
) -> std::result::Result<(), Fault> {
    let clash = |found: String, expected: String| {
        let advice = "download the index and every file again";
        Err(Fault::Split {
            found,
            expected,
            advice,
        })
    };
    let plain = contents.tensors.iter().map(|t| (t.name.as_str(), t.part));
    let other = contents.other.iter().map(|t| (t.name.as_str(), t.part));
    let mut held = HashMap::new();
    let pieces = contents.packed.iter().flat_map(|weight| &weight.pieces);
    let pieces = pieces.map(|(_, t)| (t.name.as_str(), t.part));
    for (name, part) in plain.chain(other).chain(pieces) {
        if let Some(first) = held.insert(name, part) {
            let files = format!("{} and {}", shards[first], shards[part]);
            return clash(
                format!("tensor {} in {files}", Quoted::new(name)),
                "it once".to_owned(),
            );
        }
    }
    for (name, file) in &weight_map.0 {
        let tensor = Quoted::new(name);
        match held.remove(name.as_str()) {
            Some(part) if shards[part] == *file => {}
            Some(part) => {
                return clash(
                    format!("tensor {tensor} in {}", shards[part]),
                    format!("it in {file}"),
                );
            }
            None => return clash(format!("no tensor {tensor}"), format!("it once in {file}")),
        }
    }
    match held.into_iter().next() {
        None => Ok(()),
        Some((name, part)) => clash(
            format!("tensor {} in {}", Quoted::new(name), shards[part]),
            "tensors of the index only".to_owned(),
        ),
    }
}

/// Opens one safetensors file, and the configuration beside it if there is one.
pub(crate) fn open_file(path: &Path) -> Result<Contents> {
    let part = Part::open(path)?;
    let beside = path.parent().unwrap_or(Path::new(""));
    let directory = match beside.join(CONFIG).is_file() {
        true => Some(Directory::open(beside)?),
        false => None,
    };
    join(vec![part], directory)
}

/// One safetensors file in memory.
pub(crate) fn from_part(part: Part) -> Result<Contents> {
    join(vec![part], None)
}

fn join(parts: Vec<Part>, directory: Option<Directory>) -> Result<Contents> {
    let mut stored = Vec::new();
    let mut metadata = Metadata::default();
    for (number, part) in parts.iter().enumerate() {
        let header = Header::parse(part.bytes(), number).map_err(|fault| part.fail(fault))?;
        keep_pairs(&mut metadata, header.metadata).map_err(|fault| part.fail(fault))?;
        stored.extend(header.tensors);
    }
    let config = directory.as_ref().map(Directory::config);
    let mlx = metadata.str("format") == Some("mlx")
        || config.is_some_and(|config| config.get("quantization").is_some());
    let container = if mlx {
        Container::Mlx
    } else {
        Container::Safetensors
    };
    let (packed, rest) = match &directory {
        Some(directory) => unpack(directory, stored)?,
        None => (Vec::new(), stored),
    };
    let (tensors, other) = sort_out(rest);
    Ok(Contents {
        container,
        layout: None,
        parts,
        metadata,
        tensors,
        packed,
        other,
        directory,
    })
}

/// Takes out what the configuration says is packed.
fn unpack(
    directory: &Directory,
    stored: Vec<StoredTensor>,
) -> Result<(Vec<PackedWeight>, Vec<StoredTensor>)> {
    let read = || match Quantisation::read(&directory.config)? {
        Some(quantisation) => group(&quantisation, stored),
        None => Ok((Vec::new(), stored)),
    };
    read().map_err(|fault| FormatError::at(&directory.path.join(CONFIG), fault))
}

/// Adds the pairs of one file; files of one model repeat each other's.
fn keep_pairs(
    metadata: &mut Metadata,
    pairs: Vec<(String, String)>,
) -> std::result::Result<(), Fault> {
    let mut own = std::collections::HashSet::new();
    for (key, value) in pairs {
        if !own.insert(key.clone()) {
            return Err(Fault::DuplicateKey {
                key: Quoted::new(key),
            });
        }
        if metadata.get(&key).is_none() {
            metadata.insert(key, Value::from(value.as_str()));
        }
    }
    Ok(())
}

fn sort_out(stored: Vec<StoredTensor>) -> (Vec<TensorInfo>, Vec<StoredTensor>) {
    let (mut tensors, mut other) = (Vec::new(), Vec::new());
    for tensor in stored {
        match tensor.into_info() {
            Ok(info) => tensors.push(info),
            Err(packed) => other.push(packed),
        }
    }
    (tensors, other)
}
