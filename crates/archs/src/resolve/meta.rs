//! Metadata that remembers which of its keys were asked for.

use std::cell::RefCell;
use std::collections::BTreeSet;

use tokkata_core::{Array, Metadata, Value};

/// A file's metadata, as rules see it.
pub(crate) struct Meta<'a> {
    values: &'a Metadata,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Meta<'a> {
    pub(crate) fn new(values: &'a Metadata) -> Self {
        Meta {
            values,
            read: RefCell::default(),
        }
    }

    fn note(&self, key: &str) {
        self.read.borrow_mut().insert(key.to_owned());
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.note(key);
        self.values.get(key)
    }

    pub(crate) fn uint(&self, key: &str) -> Option<u64> {
        self.note(key);
        self.values.uint(key)
    }

    pub(crate) fn array(&self, key: &str) -> Option<&'a Array> {
        self.note(key);
        self.values.array(key)
    }

    /// Every key that was asked for.
    pub(crate) fn into_read(self) -> BTreeSet<String> {
        self.read.into_inner()
    }
}
