//! A small model of speech against openai's code: rows, searches, transcripts.
//! `crates/conformance/data/speech/goldens.py` wrote what is compared.

use std::sync::Arc;

use serde_json::Value;
use tokkata::audio::{Bands, Mix, Recording, Source};
use tokkata::speech::{Heard, Room, Sound, Transcriber, Whole, Work};
use tokkata::transcript::Options;
use tokkata::{Checkpoint, DType, Feed, FeedLogits, Model, ModelFile, OpenOptions, RowKind};
use tokkata_conformance::speech;

use crate::signals::signal;

fn checkpoint() -> Checkpoint {
    let file = ModelFile::from_named_bytes("small.bin", speech::file()).unwrap();
    Checkpoint::new(file, &[]).unwrap()
}

fn options(device: &str) -> OpenOptions {
    OpenOptions {
        device: Some(device.to_owned()),
        kv: DType::F32,
        seqs: 12,
        logit_rows: 64,
        threads: Some(2),
        ..OpenOptions::default()
    }
}

/// Squares of differences by squares of values.
fn nmse(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        let pairs = ours.iter().zip(theirs);
        pairs.map(|(a, b)| f(f64::from(*a), f64::from(*b))).sum()
    };
    sum(&|a, b| (a - b).powi(2)) / sum(&|_, b| b * b)
}

#[test]
fn rows_are_those_of_openai() {
    let golden = include_bytes!("../speech/rows.f32").chunks_exact(4);
    let golden: Vec<f32> = golden
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let tokens = [
        50_258, 50_259, 50_359, 50_363, 400, 1234, 40_000, 7, 256, 50_257,
    ];
    let source = Source::samples("bursts", signal("bursts", 80_000));
    let recording = Recording::measure(source, Mix::Mean, Bands::slaney(80)).unwrap();
    let mut window = recording.windows().window(0, 500).unwrap();
    window.resize(3000 * 80, 0.0);
    for device in ["cpu", "ref"] {
        let mut model = Model::load(checkpoint(), &options(device), None).unwrap();
        let program = model.program();
        let encoder = program.plans.iter().find(|p| p.output("hidden").is_some());
        let hidden = encoder.and_then(|p| p.output("hidden")).unwrap();
        let engine = model.engine();
        let session = engine.open_session(0);
        let fed = engine.encode(session, &window, &[hidden]).unwrap();
        let rows = engine.read(&fed, hidden, None).unwrap();
        let encoded: Vec<f32> = rows.chunks(64).step_by(41).flatten().copied().collect();
        drop(fed);
        let logits = engine.logits_port().unwrap();
        let feed = Feed {
            session,
            tokens: &tokens,
            rows: RowKind::Prompt,
            logits: FeedLogits::All,
        };
        let fed = engine.feed(&[feed], &[logits]).unwrap();
        let rows = engine.read(&fed, logits, None).unwrap();
        let decoded: Vec<f32> = rows
            .chunks(51_865)
            .flat_map(|r| r.iter().step_by(101))
            .copied()
            .collect();
        let (one, two) = golden.split_at(encoded.len());
        let found = (nmse(&encoded, one), nmse(&decoded, two));
        println!(
            "| {device}: encoder beside openai's | {:.1e} | 1e-9 |",
            found.0
        );
        println!(
            "| {device}: logits beside openai's | {:.1e} | 1e-9 |",
            found.1
        );
        assert!(found.0 <= 1e-9 && found.1 <= 1e-9, "{device}: {found:?}");
    }
}

/// The model that `demo/speech` made, and the sentence that it made for this.
#[test]
fn our_own_model_writes_what_was_said_and_when() {
    let at = |name| format!("{}/../../demo/speech/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(at("small-speech.bin")).unwrap();
    let file = ModelFile::from_named_bytes("small-speech.bin", bytes).unwrap();
    let checkpoint = Checkpoint::new(file, &[]).unwrap();
    let room = Room {
        windows: 2,
        hypotheses: 5,
        words: true,
    };
    let mut transcriber = Transcriber::load(checkpoint, &options("cpu"), room, None).unwrap();
    let work = |source| Work {
        sound: Sound::Recording(Recording::measure(source, Mix::Mean, Bands::slaney(80)).unwrap()),
        options: Options {
            words: true,
            ..Options::default()
        },
        detect: true,
        dropped: Arc::default(),
    };
    let silence = Source::samples("silence", vec![0.0; 80_000]);
    let works = vec![work(Source::file(at("hello.wav"))), work(silence)];
    let all = transcribed(&mut transcriber, works);
    assert_eq!(all[0].text.trim(), "hello open door six seven");
    assert_eq!(all[0].language, "en");
    // Where espeak-ng began each word; the first one's may reach into the silence before it.
    let words: Vec<f64> = all[0]
        .segments
        .iter()
        .flat_map(|s| &s.words)
        .map(|w| w.start)
        .collect();
    for (found, said) in words.iter().zip([0.27, 0.62, 1.05, 1.31, 1.75]).skip(1) {
        assert!((found - said).abs() <= 0.06, "{found} {said}");
    }
    assert_eq!(all[1].text.trim(), "");
}

/// The options of a golden, from those of openai's code.
fn asked(golden: &Value) -> (Options, bool) {
    let o = &golden["options"];
    let number = |key: &str| o[key].as_f64().map(|x| x as f32);
    let clips = o["clip_timestamps"].as_str().unwrap_or_default();
    let options = Options {
        language: o["language"].as_str().unwrap_or("en").to_owned(),
        translate: o["task"] == "translate",
        temperatures: vec![0.0],
        best_of: 1,
        beams: o["beam_size"].as_u64().map(|b| b as usize),
        patience: number("patience").unwrap_or(1.0),
        length_penalty: number("length_penalty"),
        ratio: number("compression_ratio_threshold"),
        logprob: number("logprob_threshold"),
        no_speech: number("no_speech_threshold"),
        carry: o["condition_on_previous_text"].as_bool().unwrap_or(true),
        prompt: o["initial_prompt"].as_str().map(str::to_owned),
        carry_prompt: o["carry_initial_prompt"] == true,
        no_timestamps: o["without_timestamps"] == true,
        clips: clips.split(',').filter_map(|c| c.parse().ok()).collect(),
        words: o["word_timestamps"] == true,
        skip_silence: o["hallucination_silence_threshold"].as_f64(),
        ..Options::default()
    };
    let detect = o.get("language").is_some_and(Value::is_null);
    (options, detect)
}

fn work(golden: &Value) -> Work {
    let samples = golden["samples"].as_u64().unwrap() as usize;
    let kind = golden["signal"].as_str().unwrap();
    let source = Source::samples(kind, signal(kind, samples));
    let (options, detect) = asked(golden);
    Work {
        sound: Sound::Recording(Recording::measure(source, Mix::Mean, Bands::slaney(80)).unwrap()),
        options,
        detect,
        dropped: Arc::default(),
    }
}

fn transcribed(transcriber: &mut Transcriber, works: Vec<Work>) -> Vec<Whole> {
    let mut all: Vec<Option<Whole>> = vec![None; works.len()];
    let mut works = works.into_iter();
    transcriber
        .transcribe(&mut |_| works.next().into(), &mut |i, heard| {
            match heard {
                Heard::Done(whole) => all[i] = Some(whole),
                Heard::Failed(error) => panic!("{error}"),
                _ => {}
            }
            true
        })
        .unwrap();
    all.into_iter().map(Option::unwrap).collect()
}

fn compare(ours: &Whole, golden: &Value) {
    let about = format!(
        "{} {} {}",
        golden["signal"], golden["samples"], golden["options"]
    );
    assert_eq!(
        ours.language,
        golden["language"].as_str().unwrap(),
        "{about}"
    );
    let theirs = golden["segments"].as_array().unwrap();
    for (i, (a, b)) in ours.segments.iter().zip(theirs).enumerate() {
        let tokens: Vec<u64> = a.tokens.iter().map(|&t| u64::from(t)).collect();
        let expected: Vec<u64> = b["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t.as_u64().unwrap())
            .collect();
        assert_eq!(tokens, expected, "{about}: tokens of segment {i}");
        assert_eq!(
            a.seek as u64,
            b["seek"].as_u64().unwrap(),
            "{about}: seek of segment {i}"
        );
        let near = |key: &str, x: f64, most: f64| {
            let y = b[key].as_f64().unwrap();
            assert!(
                (x - y).abs() <= most,
                "{about}: {key} of segment {i}: {x} {y}"
            );
        };
        near("start", a.start, 1e-9);
        near("end", a.end, 1e-9);
        near("avg_logprob", a.avg_logprob.into(), 1e-4);
        near("no_speech_prob", a.no_speech.into(), 1e-4);
        near("compression_ratio", a.ratio, 1e-9);
        if let Some(words) = b["words"].as_array() {
            let own: Vec<(&str, f64, f64)> = a
                .words
                .iter()
                .map(|w| (w.word.as_str(), w.start, w.end))
                .collect();
            let theirs: Vec<(&str, f64, f64)> = words
                .iter()
                .map(|w| {
                    (
                        w[0].as_str().unwrap(),
                        w[1].as_f64().unwrap(),
                        w[2].as_f64().unwrap(),
                    )
                })
                .collect();
            assert_eq!(own, theirs, "{about}: words of segment {i}");
        }
    }
    assert_eq!(ours.segments.len(), theirs.len(), "{about}");
    assert_eq!(ours.text, golden["text"].as_str().unwrap(), "{about}");
}

#[test]
#[ignore = "a minute; `cargo xtask speech` runs it"]
fn transcripts_are_those_of_openai_alone_and_side_by_side() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/speech/transcripts.json");
    let golden = std::fs::read_to_string(path).expect("what goldens.py wrote");
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let goldens = golden["transcripts"].as_array().unwrap();
    let room = Room {
        windows: 4,
        hypotheses: 3,
        words: true,
    };
    let mut transcriber = Transcriber::load(checkpoint(), &options("cpu"), room, None).unwrap();
    let all = transcribed(&mut transcriber, goldens.iter().map(work).collect());
    // Where two tokens are all but equally likely, rounding decides.
    let settled = |golden: &Value| golden["gap"].as_f64().is_none_or(|gap| gap > 5e-5);
    let mut compared = 0;
    for (ours, golden) in all.iter().zip(goldens).filter(|g| settled(g.1)) {
        compare(ours, golden);
        compared += 1;
    }
    println!(
        "| transcripts beside openai's, {compared} of {} | equal | equal |",
        all.len()
    );
    for golden in goldens.iter().take(2) {
        compare(
            &transcribed(&mut transcriber, vec![work(golden)])[0],
            golden,
        );
    }
}
