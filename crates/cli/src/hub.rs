//! Models from repositories: where the hub and its cache are, by the variables that other programs read.

#[cfg(feature = "hub")]
mod on;
#[cfg(not(feature = "hub"))]
#[path = "hub/off.rs"]
mod on;

#[cfg(feature = "server")]
pub(crate) use on::fetch;
pub(crate) use on::{known, list, pull, remove};

/// The repository and the file of a model of speech that people know by this name.
pub(crate) fn known_speech(name: &str) -> Option<(&'static str, String)> {
    const NAMES: &[&str] = &[
        "tiny",
        "tiny.en",
        "base",
        "base.en",
        "small",
        "small.en",
        "medium",
        "medium.en",
        "large-v1",
        "large-v2",
        "large-v3",
        "large-v3-turbo",
    ];
    let name = match name {
        "large" => "large-v3",
        "turbo" => "large-v3-turbo",
        other => other,
    };
    let base = name.split("-q").next().unwrap_or(name);
    NAMES.contains(&base).then(|| {
        let repository = "ggerganov/whisper.cpp";
        (repository, format!("ggml-{name}.bin"))
    })
}
