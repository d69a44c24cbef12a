//! Models cut into several files: `<prefix>-00001-of-00003.gguf` and the `split.*` keys.

use std::path::{Path, PathBuf};

use tokkata_core::{Metadata, Value};

use crate::error::Fault;

/// What one file says about the split it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// This file's place, from 0.
    pub(crate) number: u64,
    /// Number of files.
    pub(crate) count: u64,
    /// Tensors in all files together.
    pub(crate) tensors: Option<u64>,
}

const WHOLE: Split = Split {
    number: 0,
    count: 1,
    tensors: None,
};
const MAX_PARTS: u64 = 65_535;

impl Split {
    pub(crate) fn read(metadata: &Metadata) -> Result<Self, Fault> {
        let Some(count) = whole(metadata, "split.count")? else {
            return Ok(WHOLE);
        };
        let number = whole(metadata, "split.no")?.unwrap_or(0);
        let tensors = whole(metadata, "split.tensors.count")?;
        // A file that was never cut may carry a count of 0.
        let count = count.max(1);
        if number >= count || count > MAX_PARTS {
            return Err(Fault::Split {
                found: format!("split.no {number} of split.count {count}"),
                expected: format!("a number below the count, and at most {MAX_PARTS} files"),
                advice: "split the model again",
            });
        }
        Ok(Self {
            number,
            count,
            tensors,
        })
    }

    /// Refuses a file that is not number `index` of this split.
    pub(crate) fn expect(&self, part: &Split, index: usize) -> Result<(), Fault> {
        if part.number == index as u64 && part.count == self.count {
            return Ok(());
        }
        Err(Fault::Split {
            found: format!(
                "file {} of {} of a split model",
                part.number + 1,
                part.count
            ),
            expected: format!("file {} of {}", index + 1, self.count),
            advice: "copy the missing file again under its own name",
        })
    }
}

fn whole(metadata: &Metadata, key: &'static str) -> Result<Option<u64>, Fault> {
    let Some(value) = metadata.get(key) else {
        return Ok(None);
    };
    let found = || {
        value
            .as_int()
            .map_or("no whole number".to_owned(), |n: i64| n.to_string())
    };
    let expected = "a whole number of zero or more";
    let bad = || Fault::KeyValue {
        key,
        found: found(),
        expected,
    };
    Value::as_uint(value).map(Some).ok_or_else(bad)
}

/// The names of all files of the split that `path`, being number `split.number`, belongs to.
pub(crate) fn sibling_paths(path: &Path, split: &Split) -> Result<Vec<PathBuf>, Fault> {
    let suffix = |number: u64| format!("-{:05}-of-{:05}.gguf", number + 1, split.count);
    let name = path.file_name().and_then(|n| n.to_str());
    let Some(prefix) = name.and_then(|n| n.strip_suffix(&suffix(split.number))) else {
        return Err(Fault::Split {
            found: "a file of a split model under another name".to_owned(),
            expected: format!("a name ending in {}", suffix(split.number)),
            advice: "rename the files so that the others can be found, or merge them",
        });
    };
    Ok((0..split.count)
        .map(|n| path.with_file_name(format!("{prefix}{}", suffix(n))))
        .collect())
}
