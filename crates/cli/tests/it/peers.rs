//! What people type who know other programs: flags that are understood, and mistakes that are explained.
#![cfg(feature = "demo")]

use std::io::Write;
use std::process::Stdio;

use crate::common::{run, stderr, stdout, tokkata};

const PROMPT: [&str; 4] = ["-p", "Which is larger, 482 or 1204?", "--temp", "0"];
const ANSWER: &str = "1204 is larger than 482.\n";

fn refused(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(
        output.status.code(),
        Some(2),
        "{args:?}: {}",
        stderr(&output)
    );
    stderr(&output)
}

#[test]
fn flags_that_a_processor_cannot_use_change_nothing() {
    let flags = [
        &["-ngl", "99"][..],
        &["-fa", "on"],
        &["-fa"],
        &["-cnv"],
        &["-st"],
        &["-tb", "2"],
        &["-ot", "exps=CPU"],
        &[
            "-ctkd",
            "f16",
            "--spec-type",
            "ngram-mod",
            "--draft-max",
            "4",
        ],
        &["-md", "draft.gguf"],
        &["-mg", "0"],
        &["--no-mmap", "--mlock", "--jinja", "--no-display-prompt"],
        &["--chat-template", "chatml"],
        &["--samplers", "top_k;top_p;min_p;temperature"],
        &["--keep", "-1", "--no-warmup", "-t", "-1", "-v", "-e", "-i"],
    ];
    for more in flags {
        let args = [&["run", "-m", "demo"], &PROMPT[..], more].concat();
        assert_eq!(stdout(&args), ANSWER, "{more:?}");
    }
}

#[test]
fn no_conversation_continues_the_text() {
    let args = ["-m", "demo", "-p", "Once", "-n", "8", "--temp", "0"];
    let plain = stdout(&[&["complete"], &args[..]].concat());
    assert_eq!(stdout(&[&["run", "-no-cnv"], &args[..]].concat()), plain);
    let chat = ["-st", "--chat-template", "chatml"];
    let output = run(&[&["complete"], &args[..], &chat].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), plain);
    assert!(stderr(&output).contains("--chat-template is not used: the text goes on as it stands"));
    let escaped = ["-m", "demo", "-p", r"a\nb", "-n", "4", "--temp", "0", "-e"];
    let meant = ["-m", "demo", "-p", "a\nb", "-n", "4", "--temp", "0"];
    assert_eq!(
        stdout(&[&["complete"], &escaped[..]].concat()),
        stdout(&[&["complete"], &meant[..]].concat())
    );
}

#[test]
fn bench_takes_the_flags_of_llama_bench() {
    let sizes = ["-p", "8", "-n", "4", "-r", "1", "-o", "json"];
    let flags = [
        "bench", "-m", "demo", "-fa", "1", "-mmp", "0", "-ngl", "0", "-sm", "none",
    ];
    let text = stdout(&[&flags[..], &sizes].concat());
    let rows: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(rows.as_array().map(Vec::len), Some(2), "{text}");
}

#[test]
fn the_last_of_a_flag_counts() {
    let args = ["complete", "-m", "demo", "-p", "Year: ", "--temp", "0"];
    let once = stdout(&[&args[..], &["-n", "3"]].concat());
    let again = ["-n", "40", "--predict", "3", "--temp", "0"];
    assert_eq!(stdout(&[&args[..], &again].concat()), once);
}

#[test]
fn a_file_that_is_not_there_is_named_once() {
    let output = run(&["run", "-m", "demo", "-p", "a", "--lora", "none.gguf"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert_eq!(told.matches("none.gguf").count(), 1, "{told}");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (args, part) in [
        (
            &["run", "-m", "demo", "--control-vector", "a.gguf"][..],
            "--control-vector cannot be used: vectors that steer a model",
        ),
        (
            &["run", "-m", "demo", "--image", "a.png"],
            "--image cannot be used: an answer follows text alone",
        ),
        (
            &["run", "-m", "demo", "--mirostat", "2"],
            "--mirostat cannot be used",
        ),
        (
            &["run", "-m", "demo", "--port", "8080"],
            "it is for `tokkata serve`",
        ),
        (&["ps"], "nothing stays loaded"),
    ] {
        let told = refused(args);
        assert!(
            told.contains(part) && told.lines().count() == 1,
            "{args:?}: {told}"
        );
    }
}

#[test]
fn mistakes_say_what_was_meant_and_what_is_allowed() {
    let told = refused(&["run", "--mlok"]);
    assert!(
        told.contains("'--mlock'") && told.contains("tokkata run --help"),
        "{told}"
    );
    assert!(!refused(&["sing"]).contains("similar"));
    let told = refused(&["run", "-m", "demo", "--top-p", "7", "-p", "a"]);
    assert!(
        told.contains("--top-p") && told.contains("from 0 to 1"),
        "{told}"
    );
    let told = refused(&["run", "-m", "demo", "--logit-bias", "5+nan", "-p", "a"]);
    assert!(told.contains("--logit-bias 5+nan"), "{told}");
    for threads in ["10000", "4294967295", "0"] {
        for command in ["run", "perplexity", "bench"] {
            let told = refused(&[command, "-m", "demo", "-t", threads, "-p", "1"]);
            assert!(
                told.contains("at most") || told.contains("expected 1 to"),
                "{command}: {told}"
            );
        }
    }
    let told = refused(&["rerank", "-m", "demo"]);
    assert!(
        told.contains("--query") && told.lines().count() > 2,
        "{told}"
    );
    let output = run(&["run", "-m", "demo", "--regex", "[", "-p", "a"]);
    assert!(
        stderr(&output).contains("unclosed character class"),
        "{}",
        stderr(&output)
    );
    let told = refused(&["quantize", "a.gguf", "--tensor-type", "a(=q8_0", "q4_0"]);
    assert!(told.contains("parenthesis"), "{told}");
}

#[test]
fn descriptors_are_explained_with_their_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).expect("a descriptor");
        let output = run(&["archs", "check", path.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let told = check("names = ['x']\n[ropee]\n");
    assert!(
        told.lines().count() > 3 && told.contains("[ropee]\n"),
        "{told}"
    );
    assert!(
        check("names = ['x']\nsteps = [{ run = ['attention', 'fnn'] }]\n")
            .contains("did you mean 'ffn'")
    );
    let shown = stdout(&["archs", "llama"]);
    assert!(shown.contains("LlamaForCausalLM"), "{shown}");
    assert!(shown.contains("Transformers"), "{shown}");
    let speech = stdout(&["archs", "whisper"]);
    assert!(speech.contains("openai/whisper"), "{speech}");
    let output = run(&["archs", "lama"]);
    assert!(stderr(&output).contains("did you mean 'llama'"));
}

#[test]
fn a_pipe_is_one_prompt() {
    let mut child = tokkata()
        .args(["run", "-m", "demo", "--temp", "0", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(b"Which is larger,\n482 or 1204?\n")
        .expect("it is read");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let answers = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(answers.lines().count(), 1, "{answers}");
}

#[test]
fn a_model_without_a_template_goes_on_with_the_text() {
    let Some(model) = crate::common::testdata("without_a_template", "models/dreams-260k.gguf")
    else {
        return;
    };
    let model = model.to_str().expect("UTF-8");
    let args = [
        "-m",
        model,
        "-p",
        "Once upon a time",
        "-n",
        "20",
        "--temp",
        "0",
    ];
    let output = run(&[&["run"], &args[..]].concat());
    assert!(
        stderr(&output).contains("no chat template"),
        "{}",
        stderr(&output)
    );
    let plain = stdout(&[&["complete"], &args[..]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), plain + "\n");
}

#[test]
fn thinking_is_switched_and_bounded() {
    // Whatever the model says after the prompt that the template opens counts as thought.
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}\
                    {% if false %}</think>{{ messages[0].reasoning_content }}{% endif %}";
    let args = [
        "run",
        "-m",
        "demo",
        "-p",
        "Hi",
        "--temp",
        "0",
        "--ignore-eos",
        "-n",
        "24",
        "--chat-template",
        template,
    ];
    let budget = stdout(
        &[
            &args[..],
            &[
                "--reasoning-budget",
                "4",
                "--reasoning-budget-message",
                "ENOUGH",
            ],
        ]
        .concat(),
    );
    let (thought, answer) = budget
        .split_once("ENOUGH\n</think>\n\n")
        .expect("the thought was ended");
    assert!(
        !answer.is_empty() && thought.len() < answer.len(),
        "{budget}"
    );
    let off = stdout(&[&args[..], &["--no-think"]].concat());
    assert!(!off.contains("</think>"), "{off}");
    assert_ne!(stdout(&args), off);
}
