//! Speech through HTTP: what a small model hears, as the library hears it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::common::{Reply, options, post_form, start};
use serde_json::Value;
use tokkata::audio::{Bands, Mix, Recording, Silero, Source, wav};
use tokkata::speech::{Heard, Room, Sound, Transcriber, Whole, Work};
use tokkata::transcript::Options;
use tokkata::{Checkpoint, DType, ModelFile, OpenOptions};
use tokkata_server::{Kind, Offer, Opened, ServerOptions, Stock};

fn transcriber() -> Transcriber {
    let file = ModelFile::from_named_bytes("small.bin", tokkata_conformance::speech::file());
    let checkpoint = Checkpoint::new(file.expect("a file"), &[]).expect("a model");
    let options = OpenOptions {
        threads: Some(1),
        kv: DType::F32,
        ..OpenOptions::default()
    };
    let room = Room {
        windows: 2,
        hypotheses: 5,
        words: true,
    };
    Transcriber::load(checkpoint, &options, room, None).expect("a model that hears")
}

fn server() -> &'static str {
    static SERVER: OnceLock<String> = OnceLock::new();
    SERVER.get_or_init(|| serve(options()))
}

/// A server with a net that always says the same.
fn server_with_net(says: f32) -> String {
    let net = tokkata_conformance::speech::constant_silero(says);
    let net = ModelFile::from_safetensors_bytes(net).expect("a file");
    serve(ServerOptions {
        vad: Some(Arc::new(Silero::new(&net).expect("a net"))),
        ..options()
    })
}

fn serve(options: ServerOptions) -> String {
    let speech = Offer {
        id: "whisper".to_owned(),
        aliases: Vec::new(),
        tags: Vec::new(),
        path: PathBuf::from("small.bin"),
        kind: Kind::Speech,
        opener: None,
        opened: Some(Opened::Speech(Box::new(
            transcriber().serve().expect("a thread"),
        ))),
    };
    let offers = vec![Offer::from(crate::common::demo()), speech];
    start(
        options,
        Stock {
            offers,
            library: None,
        },
    )
}

fn samples() -> Vec<f32> {
    crate::signals::signal("chirp", 16_000 * 3)
}

fn sound() -> Vec<u8> {
    wav::encode(&samples(), 16_000, 1)
}

/// Asks with the fewest tries: what a model with random weights says is good to nobody.
fn send(path: &str, fields: &[(&str, &str)]) -> Reply {
    let quick = [
        ("temperature_inc", "0"),
        ("beam_size", "1"),
        ("best_of", "1"),
    ];
    let own = |name: &str| fields.iter().any(|f| f.0 == name);
    let more = quick.iter().filter(|f| !own(f.0));
    let fields: Vec<(&str, &str)> = fields.iter().chain(more).copied().collect();
    post_form(server(), path, &fields, ("a.wav", &sound()))
}

/// The same for the library.
fn quick() -> Options {
    Options {
        temperatures: vec![0.0],
        beams: None,
        best_of: 1,
        ..Options::default()
    }
}

/// What the library hears.
fn heard(options: Options) -> Whole {
    let source = Source::bytes("a.wav", sound());
    let recording = Recording::measure(source, Mix::Mean, Bands::slaney(80)).expect("a recording");
    let mut work = Some(Work {
        sound: Sound::Recording(recording),
        options,
        detect: false,
        dropped: Arc::default(),
    });
    let mut whole = Whole::default();
    let mut on = |_: usize, heard: Heard| {
        if let Heard::Done(done) = heard {
            whole = done;
        }
        true
    };
    let mut all = transcriber();
    all.transcribe(&mut |_| work.take().into(), &mut on)
        .expect("a transcript");
    whole
}

#[test]
fn what_is_heard_is_what_the_library_hears() {
    let own = heard(quick());
    let fields = [("model", "whisper"), ("language", "en")];
    let reply = send("/v1/audio/transcriptions", &fields);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    assert_eq!(reply["text"], own.text.trim());
    assert_eq!(reply["usage"]["seconds"], 3);
    let fields = [
        ("model", "whisper-1"),
        ("language", "en"),
        ("response_format", "text"),
    ];
    let text = send("/v1/audio/transcriptions", &fields);
    assert_eq!(text.text.trim(), own.text.trim());
    for (format, begins) in [("srt", "1\n00:00:"), ("vtt", "WEBVTT\n")] {
        let fields = [
            ("model", "whisper"),
            ("language", "en"),
            ("response_format", format),
        ];
        let reply = send("/v1/audio/transcriptions", &fields);
        assert!(
            reply.text.starts_with(begins) || own.segments.is_empty(),
            "{}",
            reply.text
        );
    }
}

#[test]
fn the_verbose_form_has_words_and_segments_as_asked() {
    let own = heard(Options {
        words: true,
        ..quick()
    });
    let fields = [
        ("model", "whisper"),
        ("language", "en"),
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "word"),
        ("timestamp_granularities[]", "segment"),
    ];
    let reply = send("/v1/audio/transcriptions", &fields).json();
    let words: usize = own.segments.iter().map(|s| s.words.len()).sum();
    assert_eq!(reply["words"].as_array().map(Vec::len), Some(words));
    assert_eq!(
        reply["segments"].as_array().map(Vec::len),
        Some(own.segments.len())
    );
    assert_eq!(
        (&reply["task"], &reply["language"]),
        (&"transcribe".into(), &"english".into())
    );
    assert_eq!(reply["duration"], 3.0);
    let fields = [&fields[..3], &fields[3..4]].concat();
    let reply = send("/v1/audio/transcriptions", &fields).json();
    assert!(reply.get("segments").is_none() && reply["words"].is_array());
    let fields = [
        ("model", "whisper"),
        ("language", "en"),
        ("response_format", "verbose_json"),
    ];
    let reply = send("/v1/audio/transcriptions", &fields).json();
    assert!(reply["segments"].is_array() && reply.get("words").is_none());
}

#[test]
fn pieces_of_a_stream_add_up_to_its_text() {
    let fields = [("model", "whisper"), ("language", "en"), ("stream", "true")];
    let events = send("/v1/audio/transcriptions", &fields).events();
    let text = |kind: &str, member: &str| {
        let own = events.iter().filter(|e| e["type"] == kind);
        own.map(|e| e[member].as_str().expect("a text").to_owned())
            .collect::<String>()
    };
    let whole = text("transcript.text.done", "text");
    assert_eq!(text("transcript.text.delta", "delta").trim(), whole);
    assert_eq!(whole, heard(quick()).text.trim());
}

#[test]
fn several_recordings_at_once_are_heard_as_each_alone() {
    let alone: Value = send("/v1/audio/translations", &[("model", "whisper")]).json();
    let ask =
        || std::thread::spawn(|| send("/v1/audio/translations", &[("model", "whisper")]).json());
    let all: Vec<_> = (0..4).map(|_| ask()).collect();
    for one in all {
        assert_eq!(one.join().expect("an answer"), alone);
    }
}

#[test]
fn whisper_cpp_s_clients_are_answered() {
    let fields = [
        ("response_format", "json"),
        ("temperature", "0.0"),
        ("temperature_inc", "0.0"),
        ("language", "en"),
    ];
    let reply = send("/inference", &fields);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let own = heard(Options {
        words: true,
        ..quick()
    });
    assert_eq!(reply.json()["text"], own.text.trim());
}

#[test]
fn recordings_are_cut_as_it_is_asked() {
    let (all, none) = (server_with_net(5.0), server_with_net(-5.0));
    let text = |server: &str, path: &str, fields: &[(&str, &str)]| {
        let quick = [
            ("language", "en"),
            ("temperature_inc", "0"),
            ("beam_size", "1"),
            ("best_of", "1"),
            ("model", "whisper"),
        ];
        let fields = [&quick[..], fields].concat();
        let reply = post_form(server, path, &fields, ("a.wav", &sound()));
        assert_eq!(reply.status, 200, "{fields:?}: {}", reply.text);
        reply.json()["text"].as_str().expect("a text").to_owned()
    };
    let object = r#"{"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 500, "prefix_padding_ms": 100}"#;
    let surer = r#"{"type": "server_vad", "threshold": 0.9999}"#;
    let fields = [
        ("chunking_strategy[type]", "server_vad"),
        ("chunking_strategy[threshold]", "0.9999"),
    ];
    let path = "/v1/audio/transcriptions";
    let whole = text(&all, path, &[]);
    assert!(!whole.is_empty());
    for strategy in ["auto", object] {
        let asked = [("chunking_strategy", strategy)];
        assert_eq!(text(&all, path, &asked), whole);
        assert_eq!(text(&none, path, &asked), "");
    }
    assert_eq!(text(&all, path, &[("chunking_strategy", surer)]), "");
    assert_eq!(text(&all, path, &fields), "");
    assert_eq!(text(&none, path, &[]), whole);
    let own = "/inference";
    assert!(!text(&all, own, &[("vad", "true"), ("vad_threshold", "0.5")]).is_empty());
    assert_eq!(
        text(&all, own, &[("vad", "true"), ("vad_threshold", "0.9999")]),
        ""
    );
    assert_eq!(
        text(
            &none,
            own,
            &[("vad", "true"), ("vad_samples_overlap", "0.1")]
        ),
        ""
    );
}

#[test]
fn what_cannot_be_heard_is_refused_by_name() {
    let path = "/v1/audio/transcriptions";
    let threshold = r#"{"type": "server_vad", "threshold": 0.5}"#;
    let more = r#"{"type": "server_vad", "colour": "red"}"#;
    for (field, value, told) in [
        ("chunking_strategy", threshold, "start it with --vad-model"),
        ("chunking_strategy", more, "chunking_strategy[colour]"),
        (
            "chunking_strategy",
            "often",
            "expected auto, or an object of the type server_vad",
        ),
        ("chunking_strategy", "{}", "expected auto"),
        ("language", "xx", "language"),
        ("response_format", "diarized_json", "response_format"),
        ("temperature", "7", "temperature"),
        ("beam_size", "9", "beam_size"),
        ("include[]", "logprobs", "include"),
        ("colour", "red", "colour"),
    ] {
        let reply = send(path, &[("model", "whisper"), (field, value)]);
        assert_eq!(reply.status, 400, "{field}: {}", reply.text);
        assert!(
            reply.json()["error"]["message"]
                .as_str()
                .is_some_and(|m| m.contains(told)),
            "{}",
            reply.text
        );
    }
    let noise = post_form(
        server(),
        path,
        &[("model", "whisper")],
        ("a.wav", b"no sound"),
    );
    assert_eq!(noise.status, 400, "{}", noise.text);
    let text = send(path, &[("model", "demo")]);
    assert_eq!(text.status, 400, "{}", text.text);
    let body =
        serde_json::json!({"model": "whisper", "messages": [{"role": "user", "content": "Hi"}]});
    let speech = crate::common::post_with(server(), "/v1/chat/completions", &body, &[]);
    assert!(
        speech.text.contains("/v1/audio/transcriptions"),
        "{}",
        speech.text
    );
    let plain = crate::common::post_with(server(), path, &body, &[]);
    assert_eq!(plain.status, 415, "{}", plain.text);
    let none = post_form(crate::common::shared(), path, &[], ("a.wav", &sound()));
    assert_eq!(none.status, 501, "{}", none.text);
}
