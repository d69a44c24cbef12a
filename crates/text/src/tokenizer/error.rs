//! What can be wrong with a tokenizer file or with a text.

use bstr::BString;

/// Why a tokenizer could not be built or a text not be encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file says that it has no tokenizer; give the model token ids instead of text.
    #[error("this file carries no tokenizer (tokenizer.ggml.model is `{model}`)")]
    NoTokenizer {
        /// The value of the key, or "absent".
        model: BString,
    },
    /// A key that this kind of tokenizer needs is absent.
    #[error("the tokenizer has no `{key}`")]
    Missing {
        /// The full metadata key or JSON path.
        key: String,
    },
    /// A key holds another type than it should.
    #[error("`{key}` should be {expected}")]
    WrongType {
        /// The full metadata key or JSON path.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// Two lists that describe the same tokens differ in length.
    #[error("`{key}` has {found} entries for {expected} tokens")]
    Length {
        /// The metadata key of the wrong list.
        key: String,
        /// Number of tokens.
        expected: usize,
        /// Number of entries found.
        found: usize,
    },
    /// The tokenizer kind is not known.
    #[error("tokenizer kind `{model}` is not known (known: {known})")]
    UnknownModel {
        /// The kind the file names.
        model: BString,
        /// The kinds that can be read.
        known: &'static str,
    },
    /// The splitting rules are not known by name.
    #[error("pre-tokenizer `{pre}` (tokenizer.ggml.pre) is not known")]
    UnknownPre {
        /// The name the file gives.
        pre: BString,
    },
    /// A part of a tokenizer file uses something this engine does not do.
    #[error("{part}: {what} is not supported")]
    Unsupported {
        /// Where in the file.
        part: String,
        /// What it asks for.
        what: String,
    },
    /// A tokenizer file cannot be parsed.
    #[error("{part}: {reason}")]
    Malformed {
        /// Where in the file.
        part: String,
        /// What is wrong there.
        reason: String,
    },
    /// The text to encode is not UTF-8.
    #[error("the text is not UTF-8: first bad byte at offset {offset}")]
    InvalidUtf8 {
        /// Offset of the first byte that is not part of a character.
        offset: usize,
    },
}

impl TokenizerError {
    pub(super) fn malformed(part: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        TokenizerError::Malformed {
            part: part.into(),
            reason: reason.to_string(),
        }
    }

    pub(super) fn unsupported(part: impl Into<String>, what: impl std::fmt::Display) -> Self {
        TokenizerError::Unsupported {
            part: part.into(),
            what: what.to_string(),
        }
    }
}
