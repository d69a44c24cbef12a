//! A model: which of a repository's files it is made of, and all of them.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::client::{Ask, Client};
use crate::error::{HubError, Result};
use crate::fetch::Remote;
use crate::repo::choose;
use crate::{Hub, Progress, Wanted};

/// Longest list of files.
const MAX_LIST: u64 = 32 << 20;

/// What a repository holds at a commit.
struct Listing {
    commit: String,
    files: Vec<String>,
}

impl Hub {
    /// The path of a model: a GGUF file, or a directory. What is not in the cache yet is downloaded.
    ///
    /// # Errors
    /// [`HubError`] says what was found, what was expected and what to do.
    pub fn pull(&self, wanted: &Wanted, progress: Progress<'_>) -> Result<PathBuf> {
        if self.offline {
            return self.cached(wanted);
        }
        let client = Client::new(self);
        let listing = client.retry(|| self.listing(&client, wanted))?;
        let files = choose(wanted, &listing.files)?;
        let snapshot = self
            .cache
            .note(&wanted.repo, &wanted.revision, &listing.commit)?;
        for name in &files {
            if snapshot.join(name).is_file() {
                continue;
            }
            let url = format!(
                "{}/{}/resolve/{}/{name}",
                self.endpoint, wanted.repo, listing.commit
            );
            let remote = Remote {
                repo: &wanted.repo,
                name,
                url,
            };
            let hash = remote.fetch(&client, &self.cache, &mut *progress)?;
            self.cache.link(&wanted.repo, &hash, &snapshot, name)?;
        }
        Ok(place(&snapshot, &files))
    }

    /// The path of a model that is in the cache.
    ///
    /// # Errors
    /// A model that is not, or not whole.
    pub fn cached(&self, wanted: &Wanted) -> Result<PathBuf> {
        let missing = || HubError::Offline {
            repo: wanted.repo.clone(),
            cache: self.cache.root().display().to_string(),
        };
        let snapshot = self.cache.snapshot(&wanted.repo, &wanted.revision);
        let snapshot = snapshot.ok_or_else(missing)?;
        let mut names = Vec::new();
        gather(&snapshot, "", &mut names);
        let files = choose(wanted, &names).map_err(|_| missing())?;
        Ok(place(&snapshot, &files))
    }

    fn listing(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Listing> {
        let (repo, revision) = (&wanted.repo, &wanted.revision);
        let url = format!("{}/api/models/{repo}/revision/{revision}", self.endpoint);
        let answer = client.ask(&url, Ask::Get { from: 0 }, |_| {})?;
        let wrong = |found: String| HubError::Answer {
            url: url.clone(),
            found,
            expected: "a commit and a list of files",
        };
        let text = answer
            .into_body()
            .into_with_config()
            .limit(MAX_LIST)
            .read_to_vec();
        let text = text.map_err(|e| HubError::Network {
            url: url.clone(),
            what: e.to_string(),
        })?;
        let json: Value = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        let commit = json["sha"].as_str().filter(|c| plain(c));
        let commit = commit.ok_or_else(|| wrong("no commit".to_owned()))?;
        let files = json["siblings"].as_array();
        let files = files.ok_or_else(|| wrong("no list of files".to_owned()))?;
        let names = files.iter().filter_map(|f| f["rfilename"].as_str());
        Ok(Listing {
            commit: commit.to_owned(),
            files: names.filter(|n| inside(n)).map(str::to_owned).collect(),
        })
    }
}

fn plain(commit: &str) -> bool {
    !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Whether a name stays in its folder.
fn inside(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    !name.contains('\\') && parts.all(|p| matches!(p, Component::Normal(_)))
}

/// A GGUF model is its first file, any other one its folder.
fn place(snapshot: &Path, files: &[String]) -> PathBuf {
    match files.first().filter(|f| f.ends_with(".gguf")) {
        Some(first) => snapshot.join(files.iter().min().unwrap_or(first)),
        None => snapshot.to_owned(),
    }
}

/// Names of the files in a snapshot, with their folders.
fn gather(folder: &Path, prefix: &str, out: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = entry.path();
        match path.is_dir() {
            true => gather(&path, &format!("{prefix}{name}/"), out),
            false if path.is_file() => out.push(format!("{prefix}{name}")),
            false => {}
        }
    }
    out.sort();
}
