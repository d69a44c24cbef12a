//! `transcribe` from outside, on a small model whose weights follow from names: what it says means nothing, but is the same
//! everywhere.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::common::{stderr, tokkata};
use tokkata::audio::wav;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        std::fs::write(folder.at("model.bin"), tokkata_conformance::speech::file()).unwrap();
        for (name, seconds, turn) in [("a.wav", 3, 0.1), ("b.wav", 2, 0.3)] {
            let wav = wav::encode(&tone(seconds, turn), 16_000, 1);
            std::fs::write(folder.at(name), wav).unwrap();
        }
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = tokkata();
        command
            .current_dir(self.0.path())
            .args(["transcribe", "-m", "model.bin", "-l", "en"]);
        command.args(args).output().expect("the command starts")
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

fn tone(seconds: usize, turn: f32) -> Vec<f32> {
    (0..seconds * 16_000)
        .map(|i| (i as f32 * turn).sin() / 3.0 * (1.0 + (i as f32 * 1e-3).sin()))
        .collect()
}

/// Fast, and without silence: nothing is tried again, nothing skipped.
const PLAIN: [&str; 5] = ["-nf", "-bs", "1", "-nth", "2"];

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn formats_are_written_beside_the_recording_and_printed() {
    let folder = Folder::new();
    let flags = [
        &PLAIN[..],
        &[
            "a.wav", "-otxt", "-osrt", "-ovtt", "-olrc", "-ocsv", "-ojf", "-of", "out",
        ],
    ]
    .concat();
    let printed = said(&folder.run(&flags));
    // Words give segments their times.
    assert!(printed.starts_with("[00:00:"), "{printed}");
    let text = folder.text("out.txt");
    assert_eq!(text.lines().count(), printed.lines().count());
    assert!(folder.text("out.srt").starts_with("1\n00:00:"));
    assert!(folder.text("out.vtt").starts_with("WEBVTT\n\n00:00:"));
    assert!(folder.text("out.lrc").starts_with("[by:tokkata]\n[00:"));
    assert!(folder.text("out.csv").starts_with("start,end,text\n"));
    let json: serde_json::Value = serde_json::from_str(&folder.text("out.json")).unwrap();
    assert_eq!(json["result"]["language"], "en");
    let words = json["transcription"][0]["words"].as_array().unwrap();
    assert!(!words.is_empty() && words[0]["end"].is_number());
}

#[test]
fn a_broken_recording_does_not_stop_the_others() {
    let folder = Folder::new();
    std::fs::write(folder.at("broken.wav"), "no sound").unwrap();
    let names = ["a.wav", "broken.wav", "missing.mp3", "b.wav"];
    let output = folder.run(&[&PLAIN[..], &["-nt", "-np", "-otxt"], &names].concat());
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(
        lines[0].contains("broken.wav: found no audio in it"),
        "{told}"
    );
    assert!(lines[1].contains("missing.mp3: cannot be read"), "{told}");
    assert!(
        lines[2].contains("2 of 4 recordings could not be transcribed"),
        "{told}"
    );
    let together = (folder.text("a.wav.txt"), folder.text("b.wav.txt"));
    for (name, text) in [("a.wav", together.0), ("b.wav", together.1)] {
        said(&folder.run(&[&PLAIN[..], &["-np", "-otxt", "-of", "alone", name]].concat()));
        assert_eq!(folder.text("alone.txt"), text, "{name} beside others");
    }
}

#[test]
fn raw_sound_is_heard_as_it_comes() {
    let folder = Folder::new();
    let mut command = tokkata();
    command
        .current_dir(folder.0.path())
        .args(["transcribe", "-m", "model.bin", "-l", "en", "-nt"]);
    let mut child = command
        .args(PLAIN)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let pcm = wav::encode(&tone(3, 0.1), 16_000, 1)[44..].to_vec();
    child.stdin.take().unwrap().write_all(&pcm).unwrap();
    let live = said(&child.wait_with_output().unwrap());
    let file = said(&folder.run(&[&PLAIN[..], &["-nt", "a.wav"]].concat()));
    assert_eq!(live, file);
}

#[test]
fn what_is_cut_follows_from_the_net() {
    let folder = Folder::new();
    for (name, says) in [("all.safetensors", 5.0), ("none.safetensors", -5.0)] {
        let net = tokkata_conformance::speech::constant_silero(says);
        std::fs::write(folder.at(name), net).unwrap();
    }
    let hear = |flags: &[&str]| said(&folder.run(&[&PLAIN[..], &["a.wav"], flags].concat()));
    let whole = hear(&[]);
    assert!(!whole.is_empty());
    assert_eq!(hear(&["--vad", "-vm", "all.safetensors"]), whole);
    assert_eq!(hear(&["--vad", "-vm", "none.safetensors"]), "");
    let surer = ["--vad", "-vm", "all.safetensors", "-vt", "0.9999"];
    assert_eq!(hear(&surer), "");
    let longer = ["--vad", "-vm", "all.safetensors", "-vspd", "3000"];
    assert_eq!(hear(&longer), "");
    let rest = ["-vsd", "200", "-vmsd", "1", "-vp", "0", "-vo", "0.5"];
    let cut = hear(&[&["--vad", "-vm", "all.safetensors"], &rest[..]].concat());
    // One window holds all the pieces, which are heard together then.
    assert_eq!(cut, whole);
    // Flags of lengths go for loudness too.
    assert_eq!(hear(&["--vad"]), whole);
    assert_eq!(hear(&["--vad", "-vspd", "3010"]), "");
}

#[test]
fn mistakes_are_one_line() {
    let folder = Folder::new();
    std::fs::write(folder.at("net.onnx"), b"\x08\x07\x12\x07").unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf");
    let demo = demo.display().to_string();
    let cases: [(&[&str], &str); 9] = [
        (
            &["transcribe", "-m", &demo, "a.wav"],
            "the model does not hear speech, expected one that does; use `run` or `complete`",
        ),
        (
            &["run", "-m", "model.bin", "-p", "Hello"],
            "the model hears speech and does not write by itself; use `transcribe`",
        ),
        (
            &["transcribe", "-m", "model.bin", "-l", "klingon", "a.wav"],
            "found the language 'klingon', expected one that model.bin knows: en zh de",
        ),
        (&["transcribe", "-m", "model.bin"], "no recording was named"),
        (
            &["transcribe", "-m", "model.bin", "--vad", "-"],
            "--vad cuts recordings, and standard input is heard as it comes",
        ),
        (
            &[
                "transcribe",
                "-m",
                "model.bin",
                "--vad",
                "-vm",
                "net.onnx",
                "a.wav",
            ],
            "net.onnx: found an ONNX file, expected silero_vad_16k.safetensors",
        ),
        (
            &[
                "transcribe",
                "-m",
                "model.bin",
                "--vad",
                "-vm",
                "model.bin",
                "a.wav",
            ],
            "model.bin: found a model of the family whisper, expected silero_vad_16k.safetensors",
        ),
        (
            &[
                "transcribe",
                "-m",
                "model.bin",
                "--vad",
                "-vmsd",
                "0.5",
                "a.wav",
            ],
            "expected one second or more",
        ),
        (
            &["transcribe", "a.wav"],
            "no model was named; give -m FILE, or -m base.en, which is downloaded",
        ),
    ];
    for (args, text) in cases {
        let output = tokkata()
            .current_dir(folder.0.path())
            .args(args)
            .output()
            .unwrap();
        let told = stderr(&output);
        assert!(
            !output.status.success() && told.contains(text),
            "{args:?}: {told}"
        );
        assert_eq!(told.lines().count(), 1, "{args:?}: {told}");
    }
}

/// A server's models of a folder, as it lists them before any is loaded.
#[test]
fn models_of_a_folder_are_known_to_hear_by_what_they_hold() {
    let folder = Folder::new();
    std::fs::create_dir(folder.at("models")).unwrap();
    let converted = tokkata()
        .current_dir(folder.0.path())
        .args(["convert", "model.bin", "models/hears.gguf"])
        .output()
        .expect("the command starts");
    said(&converted);
    std::fs::write(folder.at("models/broken.gguf"), "GGUF").unwrap();
    let mut server = tokkata()
        .current_dir(folder.0.path())
        .args(["serve", "--models-dir", "models", "--port", "0"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let lines = BufReader::new(server.stderr.take().expect("its errors")).lines();
    let address = lines.map_while(Result::ok).find_map(|line| {
        let (_, address) = line.split_once("listening on http://")?;
        Some(address.split_whitespace().next()?.to_owned())
    });
    let mut asked = TcpStream::connect(address.expect("it listens")).expect("a connection");
    asked
        .write_all(b"GET /v1/models HTTP/1.0\r\nhost: localhost\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    asked.read_to_string(&mut text).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let (_, body) = text.split_once("\r\n\r\n").expect("a body");
    let listed: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let kind = |name: &str| {
        let models = listed["models"].as_array().expect("a list");
        let found = models.iter().find(|m| m["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {body}"))["capabilities"].clone()
    };
    assert_eq!(kind("hears"), serde_json::json!(["transcription"]));
    assert_eq!(kind("broken"), serde_json::json!(["completion"]));
}
