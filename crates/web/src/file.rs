//! A file that the page reads.

use std::cell::RefCell;
use std::io::{Error, ErrorKind};

use js_sys::{Function, Uint8Array};
use tokkata::ReadRanges;
use wasm_bindgen::{JsCast, JsValue};

thread_local! {
    /// What reads each file: there is one thread, and functions of a page belong to it.
    static READERS: RefCell<Vec<Function>> = const { RefCell::new(Vec::new()) };
}

/// A file of which `read(offset, length)` gives a `Uint8Array`, or throws.
pub(crate) struct PageFile {
    reader: usize,
    size: u64,
}

impl PageFile {
    pub(crate) fn new(read: Function, size: u64) -> Self {
        let reader = READERS.with_borrow_mut(|readers| {
            readers.push(read);
            readers.len() - 1
        });
        PageFile { reader, size }
    }
}

impl ReadRanges for PageFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let read = READERS.with_borrow(|readers| readers.get(self.reader).cloned());
        let read = read.ok_or(ErrorKind::NotFound)?;
        let (from, length) = (offset as f64, buf.len() as f64);
        let read = read.call2(&JsValue::NULL, &from.into(), &length.into());
        let read = read.map_err(|why| Error::other(said(&why)))?;
        let bytes: Uint8Array = read
            .dyn_into()
            .map_err(|_| Error::other("the page gave no bytes"))?;
        if bytes.length() as usize != buf.len() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.copy_to(buf);
        Ok(())
    }
}

/// What was thrown, as text.
fn said(why: &JsValue) -> String {
    let error = why.dyn_ref::<js_sys::Error>();
    error.map_or_else(
        || why.as_string().unwrap_or_default(),
        |error| error.message().into(),
    )
}
