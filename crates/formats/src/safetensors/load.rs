//! Opening safetensors files, alone or as a directory.

use std::collections::HashSet;
use std::path::Path;

use tokkata_core::{Metadata, Value};

use super::directory::{CONFIG, Directory, list, read_json};
use super::header::Header;
use super::index::Index;
use super::typed;
use crate::error::{Fault, FormatError, Quoted, Result};
use crate::model::{Container, Contents};
use crate::packing::{PackedWeight, Pieces, Quantisation, group, kept};
use crate::part::Part;
use crate::tensor::{StoredTensor, TensorInfo};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Longest index; its entries are strings.
const MAX_INDEX: u64 = 64 << 20;

/// Opens a model directory.
pub(crate) fn open_directory(path: &Path) -> Result<Contents> {
    if !path.join(CONFIG).is_file() {
        return Err(FormatError::at(path, no_config(path)));
    }
    let directory = Directory::open(path)?;
    let index = path.join(INDEX);
    if index.exists() {
        let told: Index = read_json(&index, MAX_INDEX)?;
        let files = told
            .files()
            .map_err(|fault| FormatError::at(&index, fault))?;
        let contents = load(path, &files, Some(directory))?;
        told.agree(&files, &contents)
            .map_err(|fault| FormatError::at(&index, fault))?;
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

/// Opens every file once and joins their tensors.
fn load(path: &Path, files: &[String], directory: Option<Directory>) -> Result<Contents> {
    let parts = files
        .iter()
        .map(|file| Part::open(&path.join(file)))
        .collect::<Result<_>>()?;
    join(parts, directory)
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
    if let Some(part) = parts.first() {
        typed::read(&mut metadata).map_err(|fault| part.fail(fault))?;
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
        Some(directory) => unpack(directory, stored, &parts)?,
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
    parts: &[Part],
) -> Result<(Vec<PackedWeight>, Vec<StoredTensor>)> {
    let bytes = |tensor: &StoredTensor| {
        let part = parts.get(tensor.part)?;
        Some(part.slice(tensor.span()).ok()?.to_vec())
    };
    let grouped = || match Quantisation::read(directory.config())? {
        Some(quantisation) => group(&quantisation, stored, &bytes),
        None => Ok((Vec::new(), stored)),
    };
    let grouped = grouped();
    let (mut packed, rest) =
        grouped.map_err(|fault| FormatError::at(&directory.path().join(CONFIG), fault))?;
    for weight in &mut packed {
        weight.kept = kept(weight, &pieces(weight, parts)?);
    }
    Ok((packed, rest))
}

fn pieces<'a>(weight: &PackedWeight, parts: &'a [Part]) -> Result<Pieces<'a>> {
    Pieces::of(weight, |tensor| {
        let part = &parts[tensor.part];
        part.slice(tensor.span()).map_err(|fault| part.fail(fault))
    })
}

/// Adds the pairs of one file; files of one model repeat each other's.
fn keep_pairs(
    metadata: &mut Metadata,
    pairs: Vec<(String, String)>,
) -> std::result::Result<(), Fault> {
    let mut own = HashSet::new();
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
