//! The choices of `tune`, kept for this build on this processor.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use tokkata::options::default_threads;
use tokkata::tuning;

use crate::console::{Wait, say};
use crate::demo;

/// Why nothing can be kept.
pub(crate) const NO_FOLDER: &str =
    "found no home folder, expected XDG_CACHE_HOME to name the cache";

/// The user's folder of caches.
fn folder() -> Option<PathBuf> {
    let set = |name| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let home = || Some(set("HOME").or_else(|| set("USERPROFILE"))?.join(".cache"));
    Some(set("XDG_CACHE_HOME").or_else(home)?.join("tokkata"))
}

/// What a measurement holds for: this program, as it was built, on a processor like this.
fn key() -> u64 {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    let program = env::current_exe().and_then(fs::metadata);
    if let Ok(program) = program {
        let built = program.modified().ok();
        let built = built.and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        (program.len(), built).hash(&mut hasher);
    }
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lasting = ["model name", "stepping", "flags"];
    let lines = text
        .lines()
        .filter(|l| lasting.iter().any(|name| l.starts_with(name)));
    lines
        .take(lasting.len())
        .for_each(|line| line.hash(&mut hasher));
    hasher.finish()
}

/// Where checks of GPUs are kept for this build.
pub(crate) fn checks() -> Option<PathBuf> {
    Some(folder()?.join(format!("adapter-{:016x}", key())))
}

fn path() -> Option<PathBuf> {
    Some(folder()?.join(format!("tuning-{:016x}", key())))
}

/// Weights that caches hold: how memory is read says nothing of them.
const SMALL_BYTES: u64 = 64 << 20;

/// What was kept; the first time that a model is not small, what a quick check of an idle machine finds, which is kept
/// then. `None` where nothing is known. Nothing is measured for a model that a GPU computes.
pub(crate) fn load(model: &Path, on_gpu: bool) -> Option<String> {
    if let Ok(text) = fs::read_to_string(path()?) {
        return Some(text.trim().to_owned());
    }
    if on_gpu || is_small(model) {
        return None;
    }
    let found = {
        let _wait = Wait::new("measuring this machine");
        tuning::check(default_threads()).ok()??.to_string()
    };
    // Where nothing can be kept there is nothing to gain from measuring again, and nothing is wrong either.
    drop(keep(&found));
    Some(found)
}

/// Whether it is the built-in model, or a file that is no larger than caches.
fn is_small(model: &Path) -> bool {
    let file = fs::metadata(model).ok().filter(fs::Metadata::is_file);
    match file {
        Some(file) => file.len() <= SMALL_BYTES,
        None => model == Path::new(demo::NAME),
    }
}

/// Keeps `text`; gives the file.
pub(crate) fn keep(text: &str) -> Result<PathBuf> {
    let path = path().context(NO_FOLDER)?;
    let failed = || format!("{}: cannot be written", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    fs::write(&path, format!("{text}\n")).with_context(failed)?;
    Ok(path)
}

/// Deletes what was kept, and says where it was.
pub(crate) fn forget() -> Result<()> {
    let Some(path) = path() else { return Ok(()) };
    let name = path.display();
    match fs::remove_file(&path) {
        Ok(()) => say(&format!("{name}: forgotten")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            say(&format!("{name}: nothing was kept"));
        }
        Err(error) => return Err(error).with_context(|| format!("{name}: cannot be deleted")),
    }
    Ok(())
}
