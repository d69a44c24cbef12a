//! Walking a JSON file, with the path to each place for error messages.

use serde_json::Value;

use crate::tokenizer::error::TokenizerError;

/// Parses `bytes` as the file `name`.
pub(super) fn parse(name: &str, bytes: &[u8]) -> Result<Value, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|e| TokenizerError::malformed(name, e))
}

/// A place in a file.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    pub(super) fn root(name: &str, value: &'a Value) -> Self {
        Node {
            path: name.to_owned(),
            value,
        }
    }

    /// The member `key`; null where there is none.
    pub(super) fn get(&self, key: &str) -> Node<'a> {
        let value = self.value.get(key).unwrap_or(&Value::Null);
        Node {
            path: format!("{}: {key}", self.path),
            value,
        }
    }

    pub(super) fn need(&self, key: &str) -> Result<Node<'a>, TokenizerError> {
        let node = self.get(key);
        if node.is_null() {
            Err(TokenizerError::Missing { key: node.path })
        } else {
            Ok(node)
        }
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(super) fn str(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    pub(super) fn bool(&self) -> Option<bool> {
        self.value.as_bool()
    }

    pub(super) fn array(&self) -> Option<Vec<Node<'a>>> {
        let path = |i: usize| format!("{}[{i}]", self.path);
        let items = self.value.as_array()?.iter().enumerate();
        Some(
            items
                .map(|(i, value)| Node {
                    path: path(i),
                    value,
                })
                .collect(),
        )
    }

    pub(super) fn need_str(&self) -> Result<&'a str, TokenizerError> {
        self.str().ok_or_else(|| self.wrong("a string"))
    }

    pub(super) fn need_u32(&self) -> Result<u32, TokenizerError> {
        let number = self.value.as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| self.wrong("a token id"))
    }

    pub(super) fn need_usize(&self) -> Result<usize, TokenizerError> {
        let number = self.value.as_u64().and_then(|n| usize::try_from(n).ok());
        number.ok_or_else(|| self.wrong("a count"))
    }

    pub(super) fn need_array(&self) -> Result<Vec<Node<'a>>, TokenizerError> {
        self.array().ok_or_else(|| self.wrong("a list"))
    }

    /// The member `type`, which tells what the object is.
    pub(super) fn kind(&self) -> Result<&'a str, TokenizerError> {
        self.need("type")?.need_str()
    }

    pub(super) fn wrong(&self, expected: &'static str) -> TokenizerError {
        TokenizerError::WrongType {
            key: self.path.clone(),
            expected,
        }
    }

    pub(super) fn unsupported(&self, what: impl std::fmt::Display) -> TokenizerError {
        TokenizerError::unsupported(self.path.clone(), what)
    }
}
