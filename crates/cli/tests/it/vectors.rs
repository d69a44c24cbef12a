//! `embed`, `rerank` and `classify` from outside, on a tiny BERT with a vocabulary of words. `golden/vectors.json`
//! holds what llama-embedding prints for it when it computes GELU rather than looking it up. With
//! `TOKKATA_EXPORT=FOLDER` the model is also written there.

use std::path::PathBuf;
use std::process::Stdio;

use crate::common::{run, stderr, stdout, tokkata};
use serde_json::Value as Json;

struct Tiny {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Tiny {
    fn new() -> Self {
        let bytes = tokkata_conformance::words::file();
        if let Some(folder) = std::env::var_os("TOKKATA_EXPORT") {
            std::fs::write(PathBuf::from(folder).join("words.gguf"), &bytes).expect("written");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("words.gguf");
        std::fs::write(&path, bytes).expect("written");
        Tiny { _dir: dir, path }
    }

    fn args<'a>(&'a self, command: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
        let path = self.path.to_str().expect("UTF-8");
        [&[command, "-m", path, "-t", "1"], rest].concat()
    }

    fn json(&self, command: &str, rest: &[&str]) -> Json {
        let text = stdout(&self.args(command, &[rest, &["-o", "json"]].concat()));
        serde_json::from_str(&text).expect("JSON")
    }
}

fn floats(json: &Json) -> Vec<f32> {
    serde_json::from_value(json.clone()).expect("numbers")
}

fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() < 5e-6, "{a} instead of {b}");
    }
}

#[test]
fn vectors_are_those_that_llama_embedding_prints() {
    let tiny = Tiny::new();
    let goldens: Json = serde_json::from_str(include_str!("../golden/vectors.json")).unwrap();
    let goldens = goldens.as_array().unwrap();
    assert!(goldens.len() >= 6);
    for golden in goldens {
        let (text, pooling) = (
            golden["text"].as_str().unwrap(),
            golden["pooling"].as_str().unwrap(),
        );
        let json = tiny.json("embed", &["-p", text, "--pooling", pooling]);
        close(
            &floats(&json["data"][0]["embedding"]),
            &floats(&golden["vector"]),
        );
    }
}

#[test]
fn texts_of_a_file_are_its_lines_and_have_the_bits_of_single_texts() {
    let tiny = Tiny::new();
    let dir = tempfile::tempdir().unwrap();
    let (lines, out) = (
        dir.path().join("lines.txt"),
        dir.path().join("v.safetensors"),
    );
    std::fs::write(
        &lines,
        "the cat sat on the mat\nwho ran?\n\nthe dog is red\n",
    )
    .unwrap();
    let together = tiny.json("embed", &["-f", lines.to_str().unwrap()]);
    let data = together["data"].as_array().unwrap();
    assert_eq!(data.len(), 4, "an empty line is a text too");
    assert_eq!(together["usage"]["prompt_tokens"], 8 + 5 + 2 + 6);
    let alone = tiny.json("embed", &["-p", "the dog is red"]);
    assert_eq!(alone["data"][0]["embedding"], data[3]["embedding"]);
    let sum: f32 = floats(&data[0]["embedding"]).iter().map(|x| x * x).sum();
    assert!((sum - 1.0).abs() < 1e-5);

    let args = [
        "--normalize",
        "none",
        "-f",
        lines.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
    ];
    stdout(&tiny.args("embed", &args));
    let written = std::fs::read(&out).unwrap();
    let piped = run(&tiny.args("embed", &[&args[..4], &["-o", "safetensors"]].concat()));
    assert_eq!(
        piped.stdout, written,
        "standard output gets the bytes of the file"
    );
    let header = u64::from_le_bytes(written[..8].try_into().unwrap()) as usize;
    let json: Json = serde_json::from_slice(&written[8..8 + header]).unwrap();
    assert_eq!(json["embeddings"]["shape"], serde_json::json!([4, 64]));

    let rows = tiny.json("embed", &["-p", "who ran?", "--pooling", "none"]);
    assert_eq!(rows["data"][0]["embedding"].as_array().unwrap().len(), 5);
}

#[test]
fn standard_input_and_separators_are_read() {
    let tiny = Tiny::new();
    let mut child = tokkata()
        .args(tiny.args("embed", &["--stdin", "--separator", "<#>"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"the cat<#>the dog\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let json: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["data"].as_array().unwrap().len(), 2);
}

#[test]
fn documents_come_best_first() {
    let tiny = Tiny::new();
    let documents = [
        "-p",
        "the dog ran",
        "-p",
        "the cat sat on the mat",
        "-p",
        "red",
    ];
    let query = ["--query", "who sat?"];
    let json = tiny.json("rerank", &[&query[..], &documents[..]].concat());
    let results = json["results"].as_array().unwrap();
    let scores: Vec<f64> = results
        .iter()
        .map(|r| r["relevance_score"].as_f64().unwrap())
        .collect();
    assert!(
        scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b),
        "{scores:?}"
    );
    // [CLS] query [SEP] document: this vocabulary adds no end.
    let pair = tiny.json(
        "embed",
        &[
            "--pooling",
            "rank",
            "-p",
            "who sat? [SEP] the cat sat on the mat",
        ],
    );
    assert_eq!(json["usage"]["prompt_tokens"], 3 * 5 + 3 + 6 + 1);
    assert_eq!(
        pair["usage"]["prompt_tokens"],
        5 + 6 + 1,
        "embed adds one at the end"
    );
    let text = stdout(&tiny.args(
        "rerank",
        &[&query[..], &documents[..], &["--top-n", "1"]].concat(),
    ));
    let best = results[0]["index"].as_u64().unwrap() as usize;
    let line: Vec<&str> = text.trim_end().split('\t').collect();
    assert_eq!(
        line[1..],
        [best.to_string().as_str(), documents[2 * best + 1]]
    );
}

#[test]
fn labels_come_from_the_file_and_sum_to_one() {
    let tiny = Tiny::new();
    let json = tiny.json("classify", &["-p", "the cat is red", "-p", "who ran?"]);
    let data = json["data"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    let scores = data[0]["scores"].as_array().unwrap();
    let sum: f64 = scores.iter().map(|s| s["score"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-5);
    let raw = tiny.json("embed", &["-p", "the cat is red", "--pooling", "rank"]);
    let raw = floats(&raw["data"][0]["embedding"]);
    let best = (0..3).max_by(|&a, &b| raw[a].total_cmp(&raw[b])).unwrap();
    assert_eq!(data[0]["label"], ["no", "perhaps", "yes"][best]);
    let text = stdout(&tiny.args("classify", &["-p", "the cat is red"]));
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn mistakes_get_one_line() {
    let tiny = Tiny::new();
    let long = "the ".repeat(300);
    let cases: [(&str, &[&str], i32, &str); 5] = [
        (
            "embed",
            &["-p", &long],
            1,
            "text 1 has 302 tokens and at most 256 fit",
        ),
        (
            "embed",
            &["-p", "x", "--pooling", "max"],
            2,
            "found 'max', expected one of none, mean, cls, last, rank",
        ),
        (
            "embed",
            &["-p", "x", "-o", "v.csv"],
            2,
            "found 'v.csv', expected json, safetensors",
        ),
        ("embed", &[], 2, "no text was given"),
        ("complete", &["-p", "the"], 1, "gives vectors, not text"),
    ];
    for (command, args, code, said) in cases {
        let output = run(&tiny.args(command, args));
        let text = stderr(&output);
        assert_eq!(
            (output.status.code(), text.lines().count()),
            (Some(code), 1),
            "{text}"
        );
        assert!(text.contains(said), "{text}");
    }
}
