//! A build with downloads.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use tokkata::Bytes;
use tokkata_hub::{Hub, HubError, Wanted};

use crate::args::{HubArgs, Source, usage};
use crate::console::say;
use crate::progress::Bar;

fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}

fn on(name: &str) -> bool {
    set(name).is_some_and(|v| !matches!(v.to_lowercase().as_str(), "0" | "false" | "no" | "off"))
}

/// The folder of the cache: `HF_HUB_CACHE`, `HF_HOME/hub`, or the usual one below the user's own.
fn cache() -> Result<PathBuf> {
    let own = || {
        let home = set("HOME").or_else(|| set("USERPROFILE"))?;
        let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.unwrap_or_else(|| PathBuf::from(home).join(".cache"));
        Some(cache.join("huggingface").join("hub"))
    };
    let named = set("HF_HUB_CACHE").map(PathBuf::from);
    let home = || Some(PathBuf::from(set("HF_HOME")?).join("hub"));
    named
        .or_else(home)
        .or_else(own)
        .ok_or_else(|| anyhow!("found no home folder, expected HF_HOME to name the cache"))
}

fn hub(flags: &HubArgs) -> Result<Hub> {
    let mut hub = Hub::new(cache()?);
    if let Some(endpoint) = set("HF_ENDPOINT") {
        hub.endpoint = endpoint.trim_end_matches('/').to_owned();
    }
    hub.token = flags.hf_token.clone().or_else(|| set("HF_TOKEN"));
    hub.offline = flags.offline || on("HF_HUB_OFFLINE");
    Ok(hub)
}

/// The path of a model, downloaded if need be, with a bar.
pub(crate) fn pull(source: Source<'_>, flags: &HubArgs) -> Result<PathBuf> {
    let mut bar: Option<(String, Bar)> = None;
    fetch(source, flags, &mut |file, done, total| {
        if bar.as_ref().is_none_or(|b| b.0 != file) {
            bar = Some((file.to_owned(), Bar::new(file)));
        }
        if let Some((_, bar)) = &mut bar {
            bar.set(done, total);
        }
    })
}

/// The same, with `tell` told of each file, its bytes so far and all of them.
pub(crate) fn fetch(
    source: Source<'_>,
    flags: &HubArgs,
    tell: &mut dyn FnMut(&str, u64, u64),
) -> Result<PathBuf> {
    let hub = hub(flags)?;
    let wanted = match source {
        Source::Repo(name, file) => repository(name).map(|wanted| Wanted {
            file: file.map(str::to_owned),
            ..wanted
        }),
        Source::Url(url) => Wanted::from_url(url, &hub.endpoint),
    };
    let wanted = wanted.map_err(|e| usage(e.to_string()))?;
    Ok(hub.pull(&wanted, tell)?)
}

/// A repository by its own name, or by one that people know.
fn repository(name: &str) -> Result<Wanted, HubError> {
    tokkata_hub::known(name).as_deref().unwrap_or(name).parse()
}

/// The repository that a well-known name stands for.
pub(crate) fn known(name: &str) -> Option<String> {
    tokkata_hub::known(name)
}

/// Prints what the cache holds.
pub(crate) fn list() -> Result<()> {
    use std::io::Write;
    let hub = hub(&HubArgs::default())?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let all = hub.cache.list()?;
    if all.is_empty() {
        say("no models are cached; `tokkata pull USER/NAME` downloads one");
    }
    for found in all {
        writeln!(
            out,
            "{:<50} {:>10}",
            found.repo,
            Bytes(found.bytes).to_string()
        )?;
        for file in found.files.iter().filter(|f| f.ends_with(".gguf")) {
            writeln!(out, "  {file}")?;
        }
        if found.unfinished > 0 {
            writeln!(out, "  {} unfinished", Bytes(found.unfinished))?;
        }
    }
    Ok(out.flush()?)
}

/// Deletes a repository from the cache.
pub(crate) fn remove(name: &str) -> Result<()> {
    let wanted = repository(name).map_err(|e| usage(e.to_string()))?;
    let bytes = hub(&HubArgs::default())?.cache.remove(&wanted.repo)?;
    say(&format!("{}: {} freed", wanted.repo, Bytes(bytes)));
    Ok(())
}
