//! Files that appear under their name only when whole.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Fault, FormatError};

const BUFFER_BYTES: usize = 1 << 20;

/// A file being written under a temporary name beside its target. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct PendingFile {
    file: BufWriter<File>,
    place: Place,
}

/// A whole file, still under its temporary name. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Place {
    temporary: PathBuf,
    target: PathBuf,
    renamed: bool,
}

/// Writes a file of these bytes, which exists only when it is whole.
///
/// # Errors
/// A name that cannot be written to, or a full disk.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), FormatError> {
    let write = || {
        let mut file = PendingFile::create(path)?;
        file.write_all(bytes).map_err(write_fault)?;
        file.close()?.rename()
    };
    let written: Result<PathBuf, Fault> = write();
    written
        .map(drop)
        .map_err(|fault| FormatError::new(&path.display().to_string(), fault))
}

impl PendingFile {
    pub(crate) fn create(target: &Path) -> Result<Self, Fault> {
        let temporary = temporary_name(target)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary);
        let file = file.map_err(Fault::io("create a file beside the target"))?;
        let place = Place {
            temporary,
            target: target.to_owned(),
            renamed: false,
        };
        Ok(Self {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            place,
        })
    }

    /// Writes everything through to the disk.
    pub(crate) fn close(self) -> Result<Place, Fault> {
        let file = self
            .file
            .into_inner()
            .map_err(|error| write_fault(error.into_error()))?;
        file.sync_all().map_err(write_fault)?;
        Ok(self.place)
    }
}

impl Write for PendingFile {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Place {
    /// Gives the file its name, replacing an earlier file of that name.
    pub(crate) fn rename(mut self) -> Result<PathBuf, Fault> {
        let renamed = std::fs::rename(&self.temporary, &self.target);
        renamed.map_err(Fault::io("rename the finished file"))?;
        self.renamed = true;
        Ok(std::mem::take(&mut self.target))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.renamed {
            // Nobody is left to tell; the name says that the file is temporary.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// A name beside `target` that no other writer uses.
fn temporary_name(target: &Path) -> Result<PathBuf, Fault> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let advice = "name a file to write";
    let name = target.file_name().filter(|_| !target.is_dir());
    let Some(name) = name else {
        return Err(Fault::NotAFile {
            found: "a directory",
            advice,
        });
    };
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".{}-{number}.part", std::process::id()));
    Ok(target.with_file_name(temporary))
}

/// The fault of a failed write, with advice for the usual cause.
pub(crate) fn write_fault(source: std::io::Error) -> Fault {
    match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Fault::DiskFull,
        _ => Fault::Io {
            action: "write the file",
            source,
        },
    }
}
