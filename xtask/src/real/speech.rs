//! Whisper base beside openai's code: languages, texts, tokens, times and words, greedily and with five beams.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Place, Table, golden, ours};
use crate::shell::output;

/// Where openai's own choice hangs on less, another one is no fault.
const NEAR: f64 = 1e-4;
/// How far the mean logarithm of a text's probabilities may be from openai's.
const LOGPROB: f64 = 1e-3;
const SEARCHES: [(&str, &str); 2] = [("greedy", "1"), ("beams", "5")];

pub(super) fn check(place: &Place, table: &mut Table) -> Result<()> {
    let source = place.folder.join("whisper-base-ct2");
    if !source.is_dir() {
        eprintln!("skipped: whisper-base-ct2 is not there");
        return Ok(());
    }
    let model = place.made.join("whisper-base");
    output(
        Command::new("python3")
            .arg(ours("whisper_ct2.py"))
            .arg(&source)
            .arg(&model),
    )?;
    for (sound, known) in golden("speech.json")?.as_object().context("speech.json")? {
        let path = place.folder.join("sounds").join(format!("{sound}.wav"));
        if hash(&path).is_none_or(|h| h != known["sha256"]) {
            eprintln!("skipped: {sound}.wav is not there, or has other samples");
            continue;
        }
        for (search, beams) in SEARCHES {
            let found = heard(place, &model, &path, beams)?;
            let known = &known[search];
            let what = format!("{sound}, {search}");
            let lead = known["lead"].as_f64().unwrap_or_default();
            let (text, good) = match difference(&found, known) {
                None => (summary(&found, known), true),
                Some(parted) => (parted, lead < NEAR),
            };
            table.row(
                &what,
                &text,
                &format!("openai's, whose least lead is {lead:.1e}"),
                good,
            );
        }
    }
    Ok(())
}

/// The hash of a WAV file's samples, which begin behind the word `data` and their length.
fn hash(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let at = bytes.windows(4).position(|w| w == b"data")?;
    let length: [u8; 4] = bytes.get(at + 4..at + 8)?.try_into().ok()?;
    let end = (at + 8)
        .saturating_add(u32::from_le_bytes(length) as usize)
        .min(bytes.len());
    let digest = Sha256::digest(bytes.get(at + 8..end)?);
    Some(digest.iter().map(|b| format!("{b:02x}")).collect())
}

fn heard(place: &Place, model: &Path, sound: &Path, beams: &str) -> Result<Value> {
    let out = place.made("heard");
    let (model, sound) = (model.display().to_string(), sound.display().to_string());
    let args = ["transcribe", "-m", &model, &sound, "-bs", beams];
    place.ask(
        &[
            &args,
            &["-nf", "--word-timestamps", "-ojf", "-of", &out][..],
        ]
        .concat(),
    )?;
    Ok(serde_json::from_str(&fs::read_to_string(format!(
        "{out}.json"
    ))?)?)
}

/// Segments that say something: openai's code keeps the others, emptied.
fn segments(known: &Value) -> impl Iterator<Item = &Value> {
    let all = known["segments"].as_array().into_iter().flatten();
    all.filter(|s| s["text"] != "")
}

/// Seconds as hundredths, which is what both mean.
fn hundredths(value: &Value) -> i64 {
    (value.as_f64().unwrap_or(-1.0) * 100.0).round() as i64
}

/// Where what was heard first parts from what is known.
fn difference(found: &Value, known: &Value) -> Option<String> {
    let language = &found["result"]["language"];
    if language != &known["language"] {
        return Some(format!("{language}, not {}", known["language"]));
    }
    let ours = found["transcription"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if ours.len() != segments(known).count() {
        return Some(format!(
            "{} segments, not {}",
            ours.len(),
            segments(known).count()
        ));
    }
    ours.iter()
        .zip(segments(known))
        .find_map(|(ours, theirs)| parted(ours, theirs))
}

fn parted(ours: &Value, theirs: &Value) -> Option<String> {
    for key in ["text", "tokens"] {
        if ours[key] != theirs[key] {
            return Some(format!("{key} {}, not {}", ours[key], theirs[key]));
        }
    }
    let at = |key: &str| ours["offsets"][key].as_i64().unwrap_or(-1) / 10;
    if (at("from"), at("to")) != (hundredths(&theirs["start"]), hundredths(&theirs["end"])) {
        return Some(format!(
            "{}, not {} to {}",
            ours["offsets"], theirs["start"], theirs["end"]
        ));
    }
    let off = logprob_apart(ours, theirs);
    if off > LOGPROB {
        return Some(format!("a mean logarithm {off:.1e} off"));
    }
    let words = |s: &Value| s["words"].as_array().cloned().unwrap_or_default();
    let (own, others) = (words(ours), words(theirs));
    if own.len() != others.len() {
        return Some(format!("{} words, not {}", own.len(), others.len()));
    }
    let same = |own: &Value, other: &Value| {
        own["word"] == other[0]
            && hundredths(&own["start"]) == hundredths(&other[1])
            && hundredths(&own["end"]) == hundredths(&other[2])
    };
    let pair = own
        .iter()
        .zip(&others)
        .find(|(own, other)| !same(own, other));
    pair.map(|(own, other)| format!("word {own}, not {other}"))
}

fn logprob_apart(ours: &Value, theirs: &Value) -> f64 {
    let (ours, theirs) = (ours["avg_logprob"].as_f64(), theirs["logprob"].as_f64());
    ours.zip(theirs)
        .map_or(f64::INFINITY, |(a, b)| (a - b).abs())
}

fn summary(found: &Value, known: &Value) -> String {
    let ours = found["transcription"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let words: usize = segments(known)
        .map(|s| s["words"].as_array().map_or(0, Vec::len))
        .sum();
    let pairs = ours.iter().zip(segments(known));
    let most = pairs.map(|(a, b)| logprob_apart(a, b)).fold(0.0, f64::max);
    format!(
        "{}, {words} words as openai's, logarithms {most:.1e} off",
        known["language"].as_str().unwrap_or("?")
    )
}
