//! Whether windows are cut where nobody speaks, and by which rules.

use serde_json::{Map, Value};
use tokkata::audio::vad::Rules;

use super::{Manners, Texts};
use crate::error::{ApiError, Result};

const STRATEGY: &str = "chunking_strategy";

/// Reads what is asked. `net` says whether the server has a net that tells speech.
pub(super) fn cuts(texts: &mut Texts, manners: Manners, net: bool) -> Result<Option<Rules>> {
    let own = match manners {
        Manners::Inference => whisper_cpp(texts, net)?,
        _ => None,
    };
    match texts.take(STRATEGY).as_deref() {
        None => {}
        Some("auto") => return Ok(Some(own.unwrap_or_default())),
        Some(text) => spread(texts, text)?,
    }
    match texts.take(&part("type")).as_deref() {
        None => Ok(own),
        Some("auto") => Ok(Some(own.unwrap_or_default())),
        Some("server_vad") => server_vad(texts, net).map(Some),
        Some(_) => Err(unknown()),
    }
}

/// A part of the object as a field of a form.
fn part(name: &str) -> String {
    format!("{STRATEGY}[{name}]")
}

fn unknown() -> ApiError {
    ApiError::field(
        STRATEGY,
        "expected auto, or an object of the type server_vad",
    )
}

/// Takes an object in JSON as its fields.
fn spread(texts: &mut Texts, text: &str) -> Result<()> {
    let object: Map<String, Value> = serde_json::from_str(text).map_err(|_| unknown())?;
    if !object.contains_key("type") {
        return Err(unknown());
    }
    let field = |(name, value): (String, Value)| match value {
        Value::String(text) => (part(&name), text),
        other => (part(&name), other.to_string()),
    };
    texts.0.extend(object.into_iter().map(field));
    Ok(())
}

/// OpenAI's object, with the numbers that its API has where none are given.
fn server_vad(texts: &mut Texts, net: bool) -> Result<Rules> {
    let usual = Rules::default();
    Ok(Rules {
        threshold: threshold(texts, &part("threshold"), net)?.unwrap_or(usual.threshold),
        pad_ms: whole(texts, &part("prefix_padding_ms"))?.unwrap_or(300),
        min_silence_ms: whole(texts, &part("silence_duration_ms"))?.unwrap_or(200),
        ..usual
    })
}

/// The fields of whisper.cpp's server.
fn whisper_cpp(texts: &mut Texts, net: bool) -> Result<Option<Rules>> {
    let asked = texts.boolean("vad")?.unwrap_or(false);
    if !asked {
        let stray = texts.0.iter().find(|(name, _)| name.starts_with("vad_"));
        return stray.map_or(Ok(None), |(name, _)| {
            Err(ApiError::field(name.as_str(), "needs vad, which is not on"))
        });
    }
    let usual = Rules::default();
    let seconds = |texts: &mut Texts, name: &str, least: f64| {
        let found: Option<f64> = texts.number(name, "seconds")?;
        match found {
            Some(x) if x.is_nan() || x < least => {
                let text = format!("found {x}, expected {least} seconds or more");
                Err(ApiError::field(name, text))
            }
            other => Ok(other),
        }
    };
    Ok(Some(Rules {
        threshold: threshold(texts, "vad_threshold", net)?.unwrap_or(usual.threshold),
        neg_threshold: None,
        min_speech_ms: whole(texts, "vad_min_speech_duration_ms")?.unwrap_or(usual.min_speech_ms),
        min_silence_ms: whole(texts, "vad_min_silence_duration_ms")?
            .unwrap_or(usual.min_silence_ms),
        max_speech_s: seconds(texts, "vad_max_speech_duration_s", 1.0)?
            .unwrap_or(usual.max_speech_s),
        pad_ms: whole(texts, "vad_speech_pad_ms")?.unwrap_or(usual.pad_ms),
        overlap_s: seconds(texts, "vad_samples_overlap", 0.0)?.unwrap_or(usual.overlap_s),
    }))
}

fn whole(texts: &mut Texts, name: &str) -> Result<Option<u32>> {
    texts.number(name, "milliseconds, a whole number")
}

/// How likely speech has to be, which a net alone can say.
fn threshold(texts: &mut Texts, name: &str, net: bool) -> Result<Option<f64>> {
    let found: Option<f64> = texts.number(name, "a number from 0 to 1")?;
    match found {
        Some(x) if !(0.0..=1.0).contains(&x) => {
            let text = format!("found {x}, expected a number from 0 to 1");
            Err(ApiError::field(name, text))
        }
        Some(_) if !net => Err(ApiError::field(
            name,
            "needs a net that tells speech, and the server has none; start it with --vad-model",
        )),
        other => Ok(other),
    }
}
