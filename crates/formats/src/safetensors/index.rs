//! The index of a model in several safetensors files.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::header::Pairs;
use crate::error::{Fault, Quoted};
use crate::model::Contents;

/// Most files of one model.
const MAX_FILES: usize = 4096;

/// Which file holds which tensor.
#[derive(Deserialize)]
pub(super) struct Index {
    weight_map: Pairs,
}

impl Index {
    /// The files that it names, in order of first mention.
    pub(super) fn files(&self) -> Result<Vec<String>, Fault> {
        let (mut files, mut seen) = (Vec::new(), HashSet::new());
        for (_, file) in &self.weight_map.0 {
            if !seen.insert(file) {
                continue;
            }
            if !plain_name(file) || files.len() == MAX_FILES {
                let found = format!("the file name {}", Quoted::new(file));
                return clash(
                    found,
                    format!("at most {MAX_FILES} names of files beside the index"),
                );
            }
            files.push(file.clone());
        }
        Ok(files)
    }

    /// Refuses an index and files that tell different stories.
    pub(super) fn agree(&self, files: &[String], contents: &Contents) -> Result<(), Fault> {
        let mut held = holders(files, contents)?;
        for (name, file) in &self.weight_map.0 {
            let tensor = Quoted::new(name);
            match held.remove(name.as_str()) {
                Some(own) if own == file => {}
                Some(own) => {
                    return clash(format!("tensor {tensor} in {own}"), format!("it in {file}"));
                }
                None => return clash(format!("no tensor {tensor}"), format!("it once in {file}")),
            }
        }
        match held.into_iter().next() {
            None => Ok(()),
            Some((name, file)) => {
                let expected = "tensors of the index only".to_owned();
                clash(format!("tensor {} in {file}", Quoted::new(name)), expected)
            }
        }
    }
}

/// The file that holds each tensor.
fn holders<'a>(
    files: &'a [String],
    contents: &'a Contents,
) -> Result<HashMap<&'a str, &'a str>, Fault> {
    let plain = contents.tensors.iter().map(|t| (t.name.as_str(), t.part));
    let other = contents.other.iter().map(|t| (t.name.as_str(), t.part));
    let pieces = contents.packed.iter().flat_map(|weight| &weight.pieces);
    let pieces = pieces.map(|(_, t)| (t.name.as_str(), t.part));
    let mut held = HashMap::new();
    for (name, part) in plain.chain(other).chain(pieces) {
        let file = files[part].as_str();
        if let Some(first) = held.insert(name, file) {
            let found = format!("tensor {} in {first} and {file}", Quoted::new(name));
            return clash(found, "it once".to_owned());
        }
    }
    Ok(held)
}

fn clash<T>(found: String, expected: String) -> Result<T, Fault> {
    let advice = "download the index and every file again";
    Err(Fault::Split {
        found,
        expected,
        advice,
    })
}

/// Whether a name stays in its directory.
fn plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let normal = matches!(parts.next(), Some(Component::Normal(_)));
    normal && parts.next().is_none() && !name.contains(|c: char| c == '\\' || c.is_control())
}
