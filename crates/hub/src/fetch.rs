//! One file: what the hub says of it, and its bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::client::{Ask, Client, header};
use crate::error::{HubError, Result};
use crate::{Cache, Progress};

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 18;

/// A file of a repository at one commit.
pub(crate) struct Remote<'a> {
    pub(crate) repo: &'a str,
    pub(crate) name: &'a str,
    pub(crate) url: String,
}

/// What the hub says of a file.
struct Facts {
    hash: String,
    bytes: Option<u64>,
}

impl Remote<'_> {
    /// The hash of the file, which is in the cache afterwards.
    pub(crate) fn fetch(
        &self,
        client: &Client<'_>,
        cache: &Cache,
        progress: Progress<'_>,
    ) -> Result<String> {
        let facts = client.retry(|| self.facts(client))?;
        let blob = cache.blob(self.repo, &facts.hash);
        let _lock = cache.lock(self.repo, &facts.hash, true)?;
        // Another process may have finished it while this one waited.
        if !blob.is_file() {
            crate::cache::make_parent(&blob)?;
            let part = blob.with_file_name(format!("{}.incomplete", facts.hash));
            client.retry(|| self.download(client, &facts, &part, &mut *progress))?;
            self.check_hash(&facts, &part)?;
            fs::rename(&part, &blob).map_err(HubError::io(&blob, "rename"))?;
        }
        Ok(facts.hash)
    }

    /// Hash and length: of a large file they stand in the first answer, which redirects to where the bytes are.
    fn facts(&self, client: &Client<'_>) -> Result<Facts> {
        let (mut linked, mut bytes) = (None, None);
        let answer = client.ask(&self.url, Ask::Head, |answer| {
            linked = linked.take().or_else(|| header(answer, "x-linked-etag"));
            let size = header(answer, "x-linked-size").and_then(|s| s.parse().ok());
            bytes = bytes.or(size);
        })?;
        let tag = linked
            .or_else(|| header(&answer, "etag"))
            .unwrap_or_default();
        let hash = tag.trim_start_matches("W/").trim_matches('"').to_owned();
        let plain = !hash.is_empty() && hash.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !plain {
            return Err(HubError::Answer {
                url: self.url.clone(),
                found: format!("the etag '{tag}'"),
                expected: "the file's hash",
            });
        }
        let own = header(&answer, "content-length").and_then(|s| s.parse().ok());
        let bytes = bytes.or(own);
        Ok(Facts { hash, bytes })
    }

    /// Appends what is missing to the bytes that are there.
    fn download(
        &self,
        client: &Client<'_>,
        facts: &Facts,
        part: &Path,
        progress: Progress<'_>,
    ) -> Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(part);
        let file = file.as_mut().map_err(|e| HubError::Io {
            path: part.display().to_string(),
            action: "create",
            source: std::io::Error::new(e.kind(), e.to_string()),
        })?;
        let mut have = file.metadata().map_or(0, |m| m.len());
        if facts.bytes == Some(have) {
            return Ok(());
        }
        if facts.bytes.is_some_and(|bytes| have > bytes) {
            have = restart(file, part)?;
        }
        let answer = client.ask(&self.url, Ask::Get { from: have }, |_| {})?;
        let status = answer.status().as_u16();
        if have > 0 && (status != 206 || !starts_at(&answer, have)) {
            have = restart(file, part)?;
        }
        if status == 416 || status == 206 && !starts_at(&answer, have) {
            // The next attempt begins at the start.
            let what = format!("the server sent other bytes than those from {have} on");
            let url = self.url.clone();
            return Err(HubError::Network { url, what });
        }
        self.copy(
            answer.into_body().into_reader(),
            (file, part),
            (have, facts.bytes),
            progress,
        )
    }

    fn copy(
        &self,
        mut from: impl Read,
        (file, part): (&mut File, &Path),
        (mut have, bytes): (u64, Option<u64>),
        progress: Progress<'_>,
    ) -> Result<()> {
        let mut chunk = vec![0; CHUNK];
        progress(self.name, have, bytes.unwrap_or(0));
        loop {
            let read = from.read(&mut chunk).map_err(|e| HubError::Network {
                url: self.url.clone(),
                what: format!("the connection broke after {have} bytes ({e})"),
            })?;
            if read == 0 {
                break;
            }
            file.write_all(&chunk[..read])
                .map_err(HubError::io(part, "write"))?;
            have += read as u64;
            progress(self.name, have, bytes.unwrap_or(0));
        }
        match bytes.filter(|&expected| expected != have) {
            None => Ok(()),
            Some(expected) => Err(HubError::Length {
                url: self.url.clone(),
                found: have,
                expected,
            }),
        }
    }

    /// Large files are named by their SHA-256; of others the hub tells a hash of something else.
    fn check_hash(&self, facts: &Facts, part: &Path) -> Result<()> {
        let is_sha256 = facts.hash.len() == 64 && facts.hash.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_sha256 {
            return Ok(());
        }
        let found = hash_of(part)?;
        if found == facts.hash.to_lowercase() {
            return Ok(());
        }
        fs::remove_file(part).map_err(HubError::io(part, "delete"))?;
        Err(HubError::Hash {
            url: self.url.clone(),
            found,
            expected: facts.hash.clone(),
        })
    }
}

fn restart(file: &mut File, part: &Path) -> Result<u64> {
    file.set_len(0).map_err(HubError::io(part, "empty"))?;
    file.seek(SeekFrom::Start(0))
        .map_err(HubError::io(part, "empty"))
}

fn starts_at(answer: &ureq::http::Response<ureq::Body>, at: u64) -> bool {
    let range = header(answer, "content-range").unwrap_or_default();
    range.starts_with(&format!("bytes {at}-"))
}

fn hash_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(HubError::io(path, "read"))?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        let read = file.read(&mut chunk).map_err(HubError::io(path, "read"))?;
        if read == 0 {
            return Ok(base16ct::lower::encode_string(&hash.finalize()));
        }
        hash.update(&chunk[..read]);
    }
}
