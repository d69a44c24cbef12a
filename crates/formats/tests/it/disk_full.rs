//! Writing to a disk that is full.

use std::path::Path;
use std::process::Command;

use tokkata_core::{DType, Metadata};
use tokkata_formats::{Fault, FormatError, GgufWriter, SafetensorsWriter, ShardLimit};

/// A file system of one megabyte, unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    /// `None`, after saying that the test is skipped, where mounting is not allowed.
    fn mount(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(dir.path());
        if mount.output().is_ok_and(|done| done.status.success()) {
            return Some(Self(dir));
        }
        eprintln!("skipped: {test} (a tmpfs cannot be mounted here)");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

const SHAPE: [usize; 2] = [64, 8192];

fn fill(mut write: impl FnMut(&[u8]) -> Result<(), FormatError>) -> Result<(), FormatError> {
    let row = [7; 4 * 8192];
    (0..64).try_for_each(|_| write(&row))
}

fn check(test: &str, run: impl FnOnce(&Path) -> Result<(), FormatError>) {
    let Some(small) = Small::mount(test) else {
        return;
    };
    let target = small.path().join("model");
    std::fs::write(&target, b"the old file").unwrap();
    let error = run(&target).unwrap_err();
    assert!(matches!(*error.fault, Fault::DiskFull), "{error}");
    assert!(error.to_string().contains("the disk is full"));
    assert_eq!(std::fs::read(&target).unwrap(), b"the old file");
    assert_eq!(std::fs::read_dir(small.path()).unwrap().count(), 1);
}

#[test]
fn a_full_disk_leaves_no_gguf_file() {
    check("a_full_disk_leaves_no_gguf_file", |target| {
        let mut writer = GgufWriter::new(target, Metadata::default())?;
        writer.declare("a", DType::F32, &SHAPE)?;
        let mut output = writer.create(ShardLimit::Whole)?;
        fill(|row| output.write(row))?;
        output.finish().map(drop)
    });
}

#[test]
fn a_full_disk_leaves_no_safetensors_file() {
    check("a_full_disk_leaves_no_safetensors_file", |target| {
        let mut writer = SafetensorsWriter::new(target, []);
        writer.declare("a", DType::F32, &SHAPE)?;
        let mut output = writer.create()?;
        fill(|row| output.write(row))?;
        output.finish().map(drop)
    });
}
