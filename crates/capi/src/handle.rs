//! Handles: numbers that stand for things in a table, in the place of addresses.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::status::{Error, FORKED, HANDLE};

/// Things by number. Numbers are never given twice in a process, whatever they stand for.
pub struct Table<T> {
    things: RwLock<Option<HashMap<usize, Arc<T>>>>,
}

/// The next number.
static NEXT: AtomicUsize = AtomicUsize::new(16);

impl<T> Table<T> {
    /// A table without things.
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub const fn new() -> Self {
        Table {
            things: RwLock::new(None),
        }
    }

    /// Keeps a thing, and gives its handle.
    pub fn add<H>(&self, thing: T) -> *mut H {
        let number = NEXT.fetch_add(16, Ordering::Relaxed);
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        let things = things.get_or_insert_default();
        things.insert(number, Arc::new(thing));
        std::ptr::without_provenance_mut(number)
    }

    /// The thing of a handle.
    ///
    /// # Errors
    /// A handle that is none of this table's.
    pub fn get<H>(&self, handle: *const H) -> Result<Arc<T>, Error> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        let thing = things.as_ref().and_then(|t| t.get(&handle.addr()));
        thing.cloned().ok_or_else(|| unknown::<H>(handle.addr()))
    }

    /// Takes a thing out; nothing for a null handle.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn remove<H>(&self, handle: *mut H) -> Result<Option<Arc<T>>, Error> {
        if handle.is_null() {
            return Ok(None);
        }
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        let thing = things.as_mut().and_then(|t| t.remove(&handle.addr()));
        match thing {
            Some(thing) => Ok(Some(thing)),
            None => Err(unknown::<H>(handle.addr())),
        }
    }
}

fn unknown<H>(number: usize) -> Error {
    let kind = std::any::type_name::<H>();
    let kind = kind.rsplit("::").next().unwrap_or(kind);
    let found = match number {
        0 => "found NULL".to_owned(),
        number => format!("found {number:#x}, which was freed or is of another kind"),
    };
    Error::new(HANDLE, format!("{found}, expected a live {kind}"))
}

/// A process, for what cannot be used in its children: threads do not follow a fork.
#[derive(Clone, Copy, Debug)]
pub struct Home(u32);

impl Home {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        Home(std::process::id())
    }

    /// Whether this is that process.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.0 == std::process::id()
    }

    /// Refuses another process.
    ///
    /// # Errors
    /// A process that was forked off.
    pub fn check(self) -> Result<(), Error> {
        let why = "the model was loaded before a fork, and its threads are the parent's; load it in this process";
        match self.is_here() {
            true => Ok(()),
            false => Err(Error::new(FORKED, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing;

    #[test]
    fn a_handle_is_refused_once_it_is_freed() {
        let table: Table<u32> = Table::new();
        let handle: *mut Thing = table.add(7);
        assert_eq!(*table.get(handle).expect("it lives"), 7);
        assert_eq!(table.remove(handle).expect("it lives").as_deref(), Some(&7));
        let error = table.get(handle).expect_err("it was freed");
        assert_eq!(error.code, HANDLE);
        assert!(error.message.ends_with("expected a live Thing"));
        assert!(table.remove(handle).is_err());
        let null = std::ptr::null_mut::<Thing>();
        assert!(table.remove(null).expect("nothing").is_none());
    }
}
