//! Files that can only be read in ranges.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokkata_formats::{ModelFile, ReadRanges};

/// A file in memory that counts what is read of it.
struct Counted {
    bytes: Arc<[u8]>,
    size: u64,
    read: Arc<AtomicU64>,
}

impl ReadRanges for Counted {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let from = self.bytes.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(from.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

fn demo() -> Arc<[u8]> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf");
    std::fs::read(path).expect("the model in the box").into()
}

fn by_ranges(bytes: &Arc<[u8]>, size: u64) -> (tokkata_formats::Result<ModelFile>, Arc<AtomicU64>) {
    let read = Arc::new(AtomicU64::new(0));
    let file = Counted {
        bytes: Arc::clone(bytes),
        size,
        read: Arc::clone(&read),
    };
    (ModelFile::from_ranges("picked.gguf", Box::new(file)), read)
}

#[test]
fn a_file_is_the_same_by_ranges_and_its_tensors_are_read_when_asked_for() {
    let bytes = demo();
    let whole = ModelFile::from_bytes(Arc::clone(&bytes)).expect("a model");
    let (file, read) = by_ranges(&bytes, bytes.len() as u64);
    let file = file.expect("a model");
    assert_eq!(file.size_bytes(), whole.size_bytes());
    assert_eq!(file.tensors(), whole.tensors());
    assert!(file.metadata().iter().eq(whole.metadata().iter()));
    assert!(read.load(Ordering::Relaxed) <= 1 << 20, "only the header");
    let tensor = file.tensors().last().expect("tensors");
    let mut rows = vec![0; 512];
    file.read_at(tensor, 64, &mut rows).expect("a range");
    let expected = whole.data(tensor).expect("data");
    assert_eq!(rows, expected[64..64 + 512]);
    assert!(file.read_at(tensor, tensor.bytes, &mut rows).is_err());
    // Nothing can be lent that is not in memory.
    assert!(file.data(tensor).is_err() && file.shared(tensor).is_err());
}

#[test]
fn a_header_that_is_longer_than_the_first_read_is_read_on() {
    let mut long = Vec::new();
    long.extend(b"GGUF");
    long.extend(3u32.to_le_bytes());
    long.extend(0u64.to_le_bytes());
    long.extend(1u64.to_le_bytes());
    let text = "x".repeat(3 << 20);
    for part in ["general.description", &text] {
        if part.len() > 100 {
            long.extend(8u32.to_le_bytes());
        }
        long.extend((part.len() as u64).to_le_bytes());
        long.extend(part.as_bytes());
    }
    let long: Arc<[u8]> = long.into();
    let (file, read) = by_ranges(&long, long.len() as u64);
    let file = file.expect("a model");
    let found = file.metadata().str("general.description");
    assert_eq!(found, Some(&*text));
    assert_eq!(read.load(Ordering::Relaxed), long.len() as u64);
}

#[test]
fn a_file_that_ends_early_is_named() {
    let bytes = demo();
    let (file, _) = by_ranges(&bytes, bytes.len() as u64 - 1000);
    let error = file.expect_err("tensors leave it").to_string();
    assert!(
        error.starts_with("picked.gguf: ") && error.contains("copy it again"),
        "{error}"
    );
    let nothing: Arc<[u8]> = Arc::from([]);
    assert!(by_ranges(&nothing, 0).0.is_err());
}
