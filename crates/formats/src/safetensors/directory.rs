//! Directories of safetensors files, with the configuration and tokenizer beside them.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Fault, FormatError, Quoted, Result};

pub(super) const CONFIG: &str = "config.json";
/// Longest configuration: real ones stay below a tenth of it, and each byte may cost 36 of memory.
const MAX_CONFIG: u64 = 4 << 20;
/// Longest tokenizer or template file.
const MAX_SIDE_FILE: u64 = 256 << 20;

/// The files beside the tensors of a model directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    config: serde_json::Value,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self> {
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
        names.sort_unstable();
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
pub(super) fn list(path: &Path) -> Result<Vec<String>> {
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
        let meta = std::fs::metadata(path).map_err(Fault::open)?;
        if !meta.is_file() {
            let advice = "put a plain file there";
            return Err(Fault::NotAFile {
                found: "a directory, pipe or device",
                advice,
            });
        }
        let file = std::fs::File::open(path).map_err(Fault::open)?;
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

pub(super) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path, limit: u64) -> Result<T> {
    let bytes = quote_nonfinite(read_file(path, limit)?);
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

/// Python writes infinities and NaN bare, which JSON does not know: they become texts.
fn quote_nonfinite(bytes: Vec<u8>) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let word_at = |at: usize| WORDS.iter().find(|w| bytes[at..].starts_with(w));
    if !(0..bytes.len()).any(|at| word_at(at).is_some()) {
        return bytes;
    }
    let (mut out, mut at, mut inside) = (Vec::with_capacity(bytes.len() + 64), 0, false);
    while at < bytes.len() {
        let word = if inside { None } else { word_at(at) };
        let len = match (word, bytes[at]) {
            (Some(word), _) => word.len(),
            (None, b'\\') if inside => 2,
            (None, _) => 1,
        };
        inside ^= bytes[at] == b'"';
        let quote: &[u8] = if word.is_some() { b"\"" } else { b"" };
        let end = (at + len).min(bytes.len());
        out.extend([quote, &bytes[at..end], quote].concat());
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::quote_nonfinite;

    #[test]
    fn bare_infinities_become_texts() {
        let text = |json: &str| String::from_utf8(quote_nonfinite(json.into())).expect("UTF-8");
        assert_eq!(
            text(r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN}"#),
            r#"{"a": [0.0, "Infinity"], "b": "-Infinity", "c": "NaN"}"#
        );
        let inside = r#"{"NaN": "to \" Infinity", "é": [1]}"#;
        assert_eq!(text(inside), inside);
        assert_eq!(text(r#"["\\", NaN"#), r#"["\\", "NaN""#);
    }
}
