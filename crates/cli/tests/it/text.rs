//! `template`, `parse`, `tokenize` and `detokenize`.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::common::{run, stderr, stdout, testdata, tokkata};

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

/// Standard output of the command with this on its standard input.
fn piped(args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = tokkata()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    output.stdout
}

#[test]
fn a_template_is_printed_exactly() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = "{{ bos_token }}{{ strftime_now('%d %b %Y') }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{{ mood }}{% if add_generation_prompt %}>\n{% endif %}";
    let template = write(dir.path(), "t.jinja", source);
    let request = write(
        dir.path(),
        "r.json",
        r#"{"messages": [{"role": "user", "content": "hi é"}], "mood": "calm", "bos_token": "<s>", "add_generation_prompt": true}"#,
    );
    let args = [
        "template",
        "--template",
        &template,
        "--now",
        "2024-07-26",
        &request,
    ];
    assert_eq!(stdout(&args), "<s>26 Jul 2024<user>hi é\ncalm>\n");
    let wrong = run(&[
        "template",
        "--template",
        &template,
        "--now",
        "noon",
        &request,
    ]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    assert!(stderr(&wrong).contains("found 'noon', expected YYYY-MM-DD"));
    let absent = run(&["template", "--template", &template]);
    assert_eq!(absent.status.code(), Some(2));
}

#[test]
fn answers_are_split_as_the_template_says() {
    let name = "answers_are_split_as_the_template_says";
    let Some(template) = testdata(name, "templates/Qwen-Qwen3-0.6B.jinja") else {
        return;
    };
    let template = template.to_str().expect("UTF-8");
    let raw = "<think>\nHm.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}\n</tool_call>";
    let out = piped(&["parse", "--template", template], raw.as_bytes());
    let answer: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(answer["reasoning"], "Hm.");
    assert_eq!(answer["content"], "Let me look.");
    assert_eq!(answer["tool_calls"][0]["name"], "now");
    let arguments = answer["tool_calls"][0]["arguments"].as_str();
    let arguments: serde_json::Value =
        serde_json::from_str(arguments.expect("text")).expect("JSON");
    assert_eq!(arguments, serde_json::json!({"zone": "UTC"}));
    let lines = piped(
        &["parse", "--events", "--template", template],
        raw.as_bytes(),
    );
    let lines = String::from_utf8(lines).expect("UTF-8");
    let raws = lines.lines().map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        event["raw"].as_str().expect("text").to_owned()
    });
    assert_eq!(raws.collect::<String>(), raw, "no byte is lost");
}

#[test]
fn ids_are_one_line_and_come_back_as_text() {
    let Some(vocab) = testdata(
        "ids_are_one_line_and_come_back_as_text",
        "vocab/ggml-vocab-llama-bpe.gguf",
    ) else {
        return;
    };
    let vocab = vocab.to_str().expect("UTF-8");
    let dir = tempfile::tempdir().expect("a directory");
    let text = "Hello\\n wörld <|eot_id|>\n\n";
    let file = write(dir.path(), "text", text);
    let ids = stdout(&[
        "tokenize",
        "-m",
        vocab,
        "-f",
        &file,
        "--ids",
        "--show-count",
    ]);
    assert_eq!(ids.lines().count(), 1, "{ids}");
    assert!(
        ids.starts_with("[128000, ") && ids.contains("128009"),
        "{ids}"
    );
    assert_eq!(
        piped(
            &["tokenize", "-m", vocab, "--stdin", "--ids"],
            text.as_bytes()
        ),
        ids.as_bytes(),
        "a file is taken as it is"
    );
    let plain = [
        "tokenize",
        "-m",
        vocab,
        "-f",
        &file,
        "--ids",
        "--no-bos",
        "--no-parse-special",
    ];
    let plain = stdout(&plain);
    assert!(
        !plain.contains("128000") && !plain.contains("128009"),
        "{plain}"
    );
    assert_eq!(
        stdout(&["detokenize", "-m", vocab, "--ids", plain.trim()]),
        text
    );
    let pieces = stdout(&[
        "tokenize",
        "-m",
        vocab,
        "-p",
        "Hello wörld",
        "--pieces",
        "--no-bos",
    ]);
    assert_eq!(pieces.lines().collect::<String>(), "Hello wörld");
    let bad = run(&["tokenize", "-m", vocab, "-f", &write_bytes(dir.path())]);
    assert!(
        stderr(&bad).contains("offset 2") || stderr(&bad).contains("byte 2"),
        "{}",
        stderr(&bad)
    );
}

fn write_bytes(dir: &Path) -> String {
    let path = dir.join("bytes");
    std::fs::write(&path, b"ab\xff").expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}
