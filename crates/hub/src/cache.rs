//! Where files are kept: the layout that programs of the hub share.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{HubError, Result};

/// A folder of repositories.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// `user/name`.
    pub repo: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Names in the snapshot of its newest branch.
    pub files: Vec<String>,
    /// Bytes that wait for the rest of their file.
    pub unfinished: u64,
}

impl Cache {
    /// The cache at `root`, which need not exist yet.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Cache { root: root.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn folder(&self, repo: &str) -> PathBuf {
        self.root
            .join(format!("models--{}", repo.replace('/', "--")))
    }

    pub(crate) fn blob(&self, repo: &str, hash: &str) -> PathBuf {
        self.folder(repo).join("blobs").join(hash)
    }

    /// The snapshot that a branch, tag or commit stands for.
    #[must_use]
    pub fn snapshot(&self, repo: &str, revision: &str) -> Option<PathBuf> {
        let folder = self.folder(repo);
        let commit = fs::read_to_string(folder.join("refs").join(revision));
        let commit = commit.unwrap_or_else(|_| revision.to_owned());
        let path = folder.join("snapshots").join(commit.trim());
        path.is_dir().then_some(path)
    }

    /// Notes which commit a revision stands for, and returns the snapshot's folder.
    pub(crate) fn note(&self, repo: &str, revision: &str, commit: &str) -> Result<PathBuf> {
        let folder = self.folder(repo);
        if revision != commit {
            let path = folder.join("refs").join(revision);
            make_parent(&path)?;
            fs::write(&path, commit).map_err(HubError::io(&path, "write"))?;
        }
        let snapshot = folder.join("snapshots").join(commit);
        fs::create_dir_all(&snapshot).map_err(HubError::io(&snapshot, "create"))?;
        Ok(snapshot)
    }

    /// Makes `name` in a snapshot stand for a blob.
    pub(crate) fn link(&self, repo: &str, hash: &str, snapshot: &Path, name: &str) -> Result<()> {
        let path = snapshot.join(name);
        make_parent(&path)?;
        let depth = name.matches('/').count() + 2;
        let target = PathBuf::from("../".repeat(depth)).join("blobs").join(hash);
        let blob = self.blob(repo, hash);
        // Made aside and renamed: others who link or read the same name never find it missing.
        let aside = path.with_file_name(format!("{hash}.{}.link", aside_number()));
        let linked = symlink(&target, &aside);
        // A system without links gets a second name of the same bytes, or a copy.
        let done = linked.or_else(|_| fs::hard_link(&blob, &aside));
        done.or_else(|_| fs::copy(&blob, &aside).map(|_| ()))
            .and_then(|()| fs::rename(&aside, &path))
            .map_err(HubError::io(&path, "link"))
    }

    /// Takes the lock of a file; a second process waits for its turn, or is told where `wait` is not wanted.
    pub(crate) fn lock(&self, repo: &str, hash: &str, wait: bool) -> Result<File> {
        let folder = format!("models--{}", repo.replace('/', "--"));
        let path = self
            .root
            .join(".locks")
            .join(folder)
            .join(format!("{hash}.lock"));
        make_parent(&path)?;
        let file = File::create(&path).map_err(HubError::io(&path, "create"))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) if wait => {
                file.lock().map_err(HubError::io(&path, "lock"))?;
                Ok(file)
            }
            Err(TryLockError::WouldBlock) => Err(HubError::Locked {
                path: path.display().to_string(),
            }),
            Err(TryLockError::Error(e)) => Err(HubError::io(&path, "lock")(e)),
        }
    }

    /// Every repository, sorted.
    ///
    /// # Errors
    /// A cache that cannot be read; one that does not exist is empty.
    pub fn list(&self) -> Result<Vec<Cached>> {
        if !self.root.is_dir() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for name in names(&self.root)? {
            if let Some(repo) = name.strip_prefix("models--") {
                found.push(self.describe(&repo.replacen("--", "/", 1))?);
            }
        }
        found.sort_by(|a, b| a.repo.cmp(&b.repo));
        Ok(found)
    }

    fn describe(&self, repo: &str) -> Result<Cached> {
        let folder = self.folder(repo);
        let (mut bytes, mut unfinished) = (0, 0);
        let blobs = folder.join("blobs");
        for name in if blobs.is_dir() {
            names(&blobs)?
        } else {
            Vec::new()
        } {
            let size = blobs.join(&name).metadata().map_or(0, |m| m.len());
            match name.ends_with(".incomplete") {
                true => unfinished += size,
                false => bytes += size,
            }
        }
        let revisions = folder.join("refs");
        let revisions = if revisions.is_dir() {
            names(&revisions)?
        } else {
            Vec::new()
        };
        let main = revisions
            .iter()
            .find(|r| *r == "main")
            .or(revisions.first());
        let snapshot = main.and_then(|r| self.snapshot(repo, r));
        Ok(Cached {
            repo: repo.to_owned(),
            bytes,
            unfinished,
            files: match snapshot {
                Some(path) => names(&path)?,
                None => Vec::new(),
            },
        })
    }

    /// Deletes a repository and returns how many bytes that freed.
    ///
    /// # Errors
    /// A repository that is not there, or files that cannot be deleted.
    pub fn remove(&self, repo: &str) -> Result<u64> {
        let folder = self.folder(repo);
        if !folder.is_dir() {
            let repo = repo.to_owned();
            return Err(HubError::NotCached { repo });
        }
        let found = self.describe(repo)?;
        fs::remove_dir_all(&folder).map_err(HubError::io(&folder, "delete"))?;
        Ok(found.bytes + found.unfinished)
    }
}

fn names(path: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(path).map_err(HubError::io(path, "list"))?;
    let mut names: Vec<String> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// A number that no other link in the making has, in this process or another.
fn aside_number() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{next}", std::process::id())
}

pub(crate) fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(HubError::io(parent, "create"))
}

#[cfg(unix)]
fn symlink(target: &Path, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
