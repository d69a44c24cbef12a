//! A folder of models that a server offers, and what callers may do to it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Result, anyhow, bail};
use tokkata_server::{Kind, Library, Offer};

use super::ServeArgs;
use super::models::{Opener, kind_of};
use crate::args::Source;
use crate::load;

/// Where files lie that callers sent.
const UPLOADS: &str = ".uploads";

/// Whether a path is a folder of models rather than a model in a folder.
pub(super) fn is_folder(path: &Path) -> bool {
    path.is_dir() && !path.join("config.json").is_file()
}

/// A folder, if there is one, and the repositories that callers pull from, if they may.
pub(super) struct Shelf {
    args: Arc<ServeArgs>,
    folder: Option<PathBuf>,
    /// Paths that were pulled, with the repository of each.
    pulled: Mutex<Vec<(PathBuf, String)>>,
    /// What models are asked for, as they were when they last changed.
    kinds: Mutex<HashMap<PathBuf, (Option<SystemTime>, Kind)>>,
}

impl Shelf {
    /// `None` where there is nothing to look at and nobody may pull.
    pub(super) fn new(args: &Arc<ServeArgs>, folder: Option<PathBuf>) -> Result<Option<Self>> {
        if let Some(folder) = folder.as_ref().filter(|f| !f.is_dir()) {
            bail!(
                "{}: is no folder, expected one with models",
                folder.display()
            );
        }
        let is_wanted = folder.is_some() || args.several.allow_pull;
        Ok(is_wanted.then(|| Shelf {
            args: Arc::clone(args),
            folder,
            pulled: Mutex::default(),
            kinds: Mutex::default(),
        }))
    }

    /// One of its models, of which only the head is read.
    fn offer(&self, path: &Path, name: String) -> Offer {
        Opener::unread(&self.args, path, name, self.kind(path)).offer()
    }

    /// What a model is asked for; what cannot be read is told when it is.
    fn kind(&self, path: &Path) -> Kind {
        let head = match path.is_dir() {
            true => &path.join("config.json"),
            false => path,
        };
        let changed = head.metadata().and_then(|m| m.modified()).ok();
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(then, kind)) = kinds.get(path)
            && then == changed
        {
            return kind;
        }
        let checkpoint = load::checkpoint(path, self.args.model.arch_files());
        let kind = checkpoint.map_or(Kind::Text, |checkpoint| kind_of(&checkpoint));
        kinds.insert(path.to_owned(), (changed, kind));
        kind
    }

    /// Where a model of this name lies in the folder.
    fn place(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.as_ref();
        let folder =
            folder.ok_or_else(|| anyhow!("the server has no folder of models (--models-dir)"))?;
        let name = name.strip_suffix(":latest").unwrap_or(name);
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            bail!("found the name '{name}', expected letters, digits and - _ . :");
        }
        Ok(folder.join(format!("{name}.gguf")))
    }

    fn linked(&self, file: &Path, name: &str) -> Result<()> {
        let place = self.place(name)?;
        if place.exists() {
            bail!("there is a model '{name}' already; remove it first");
        }
        if !file.is_file() || file.to_string_lossy().contains("-of-") {
            bail!("the model has several files; copy it on the command line");
        }
        tokkata::ModelFile::open(file)?;
        let linked = std::fs::hard_link(file, &place);
        linked.or_else(|_| std::fs::copy(file, &place).map(|_| ()))?;
        Ok(())
    }

    fn removed(&self, file: &Path) -> Result<()> {
        let repository = {
            let mut pulled = self.pulled.lock().unwrap_or_else(PoisonError::into_inner);
            let found = pulled.iter().position(|(path, _)| path == file);
            found.map(|i| pulled.swap_remove(i).1)
        };
        if let Some(repository) = repository {
            return crate::hub::remove(&repository);
        }
        if file.parent() != self.folder.as_deref() || !file.is_file() {
            bail!("the model is no file of the server's folder; remove it on the command line");
        }
        Ok(std::fs::remove_file(file)?)
    }
}

impl Library for Shelf {
    fn scan(&self) -> Vec<Offer> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let Ok(entries) = std::fs::read_dir(folder) else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        let named = paths.iter().filter_map(|path| Some((path, name_of(path)?)));
        named.map(|(path, name)| self.offer(path, name)).collect()
    }

    fn pull(
        &self,
        name: &str,
        tell: &mut dyn FnMut(&str, u64, u64),
    ) -> std::result::Result<Offer, String> {
        let fetched = crate::hub::fetch(Source::Repo(name, None), self.args.model.hub(), tell);
        let path = fetched.map_err(|e| format!("{e:#}"))?;
        let mut pulled = self.pulled.lock().unwrap_or_else(PoisonError::into_inner);
        pulled.push((path.clone(), name.to_owned()));
        drop(pulled);
        Ok(self.offer(&path, name.to_owned()))
    }

    fn link(&self, file: &Path, name: &str) -> std::result::Result<(), String> {
        self.linked(file, name).map_err(|e| format!("{e:#}"))
    }

    fn remove(&self, file: &Path) -> std::result::Result<(), String> {
        self.removed(file).map_err(|e| format!("{e:#}"))
    }

    fn uploads(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(UPLOADS))
    }
}

/// What a model of a folder is called, if the path is one: files, the first part of those in parts, directories as
/// repositories have them. Projectors of images are no models.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    if file.starts_with('.') || file.starts_with("mmproj") {
        return None;
    }
    if path.is_dir() {
        return path.join("config.json").is_file().then(|| file.to_owned());
    }
    let stem = match file.strip_suffix(".gguf") {
        Some(stem) => stem,
        None => file
            .strip_suffix(".bin")
            .filter(|s| s.starts_with("ggml-"))?,
    };
    match stem.rsplit_once("-of-") {
        None => Some(stem.to_owned()),
        Some((name, _)) => name.strip_suffix("-00001").map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_folder_are_models_by_their_names() {
        let name = |file: &str| name_of(Path::new(file));
        assert_eq!(name("a/b.gguf").as_deref(), Some("b"));
        assert_eq!(name("a/b-00001-of-00003.gguf").as_deref(), Some("b"));
        assert_eq!(name("a/ggml-base.bin").as_deref(), Some("ggml-base"));
        for other in [
            "a/b-00002-of-00003.gguf",
            "a/mmproj-b.gguf",
            "a/.b.gguf",
            "a/b.txt",
            "a/other.bin",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
