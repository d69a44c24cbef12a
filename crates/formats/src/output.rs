//! Files that appear under their name only when whole. What is no regular file is written through.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

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
    /// None where the bytes went straight to the target, which is no regular file.
    temporary: Option<PathBuf>,
    target: PathBuf,
}

/// Files under temporary names.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Removes every file that is not finished, for a program that a signal ends: what is under a final name stays.
pub fn remove_unfinished() {
    for path in std::mem::take(&mut *unfinished()) {
        // Nobody is left to tell; the name says that the file is temporary.
        let _ = std::fs::remove_file(path);
    }
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
        let (file, place) = match special(target)? {
            true => through(target)?,
            false => beside(target)?,
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
        if self.place.temporary.is_some() {
            file.sync_all().map_err(write_fault)?;
        }
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
        if let Some(temporary) = &self.temporary {
            let mut unfinished = unfinished();
            let renamed = std::fs::rename(temporary, &self.target);
            renamed.map_err(Fault::io("rename the finished file"))?;
            unfinished.remove(temporary);
        }
        self.temporary = None;
        Ok(std::mem::take(&mut self.target))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            unfinished().remove(temporary);
            // Nobody is left to tell; the name says that the file is temporary.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// The target itself.
fn through(target: &Path) -> Result<(File, Place), Fault> {
    let file = OpenOptions::new().write(true).open(target);
    let file = file.map_err(Fault::io("write to the target"))?;
    let place = Place {
        temporary: None,
        target: target.to_owned(),
    };
    Ok((file, place))
}

/// A file of a temporary name beside the target, or beside what the target links to.
fn beside(target: &Path) -> Result<(File, Place), Fault> {
    let linked = std::fs::symlink_metadata(target).is_ok_and(|m| m.is_symlink());
    let target = match linked {
        true => target.canonicalize().map_err(|_| Fault::Special {
            found: "a link to nothing",
            advice: "name the file itself",
        })?,
        false => target.to_owned(),
    };
    let temporary = temporary_name(&target)?;
    // Noted first: a signal may come at any time.
    unfinished().insert(temporary.clone());
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary);
    let file = file.map_err(|error| {
        unfinished().remove(&temporary);
        Fault::io("create a file beside the target")(error)
    })?;
    let temporary = Some(temporary);
    Ok((file, Place { temporary, target }))
}

/// Whether bytes go straight to the target, since a file of its name would take its place: pipes and devices that take
/// a stream.
#[cfg(unix)]
fn special(target: &Path) -> Result<bool, Fault> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(kind) = std::fs::metadata(target).map(|m| m.file_type()) else {
        return Ok(false);
    };
    if kind.is_block_device() || kind.is_socket() {
        return Err(Fault::Special {
            found: "a block device or a socket",
            advice: "name a file to write",
        });
    }
    Ok(kind.is_fifo() || kind.is_char_device())
}

#[cfg(not(unix))]
fn special(_: &Path) -> Result<bool, Fault> {
    Ok(false)
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

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::FileTypeExt;
    use std::process::Command;
    use std::sync::PoisonError;

    use super::*;

    /// What one test removes may be another's.
    static TURNS: Mutex<()> = Mutex::new(());

    #[test]
    fn pipes_and_devices_are_written_through() {
        let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).expect("bytes")
        });
        write_file(&pipe, b"abc").expect("it is written");
        assert_eq!(reader.join().expect("a reader"), b"abc");
        let kind = std::fs::metadata(&pipe).expect("it is there").file_type();
        assert!(kind.is_fifo());
        write_file(Path::new("/dev/null"), b"abc").expect("it is written");
        let kind = std::fs::metadata("/dev/null").expect("it is there");
        assert!(kind.file_type().is_char_device());
    }

    #[test]
    fn links_stay_and_their_files_are_replaced() {
        let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, b"old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write_file(&link, b"new").expect("it is written");
        assert!(
            std::fs::symlink_metadata(&link)
                .expect("a link")
                .is_symlink()
        );
        assert_eq!(std::fs::read(&file).expect("a file"), b"new");
        std::fs::remove_file(&file).expect("it goes");
        let error = write_file(&link, b"new").expect_err("a link to nothing");
        assert!(error.to_string().contains("a link to nothing"), "{error}");
    }

    #[test]
    fn what_is_not_finished_can_be_removed() {
        let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a folder");
        let count = || std::fs::read_dir(folder.path()).expect("a folder").count();
        let file = PendingFile::create(&folder.path().join("a")).expect("a file");
        assert_eq!(count(), 1);
        remove_unfinished();
        assert_eq!(count(), 0);
        drop(file);
        write_file(&folder.path().join("b"), b"b").expect("it is written");
        remove_unfinished();
        assert_eq!(count(), 1);
    }
}
