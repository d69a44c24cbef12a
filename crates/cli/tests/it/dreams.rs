//! The command on a real little model. `golden/dreams.json` holds llama.cpp's greedy continuations (F32 cache, no
//! flash attention), 60 tokens each.

use std::io::Read;
use std::process::Stdio;

use crate::common::{run, stderr, stdout, testdata, tokkata};
use serde_json::Value;

const MODEL: &str = "models/dreams-260k.gguf";

fn model(test: &str) -> Option<String> {
    Some(testdata(test, MODEL)?.to_str().expect("UTF-8").to_owned())
}

fn greedy(device: &str) {
    let Some(model) = model("greedy") else { return };
    let goldens: Vec<Value> = serde_json::from_str(include_str!("../golden/dreams.json")).unwrap();
    assert!(goldens.len() >= 20);
    for golden in goldens {
        let prompt = golden["prompt"].as_str().unwrap();
        let args = [
            "complete", "-m", &model, "-p", prompt, "-n", "60", "--temp", "0", "-ctk", "f32",
        ];
        let text = stdout(&[&args[..], &["--device", device]].concat());
        assert_eq!(
            text,
            golden["text"].as_str().unwrap(),
            "{prompt:?} on {device}"
        );
    }
}

#[test]
fn greedy_text_is_llama_cpps_on_ref() {
    greedy("ref");
}

#[test]
fn greedy_text_is_llama_cpps_on_cpu() {
    greedy("cpu");
}

#[test]
fn a_second_turn_computes_only_its_new_tokens() {
    let Some(model) = model("a_second_turn") else {
        return;
    };
    let args = [
        "complete",
        &model,
        "-p",
        "Once upon a time",
        "-p",
        " The end",
        "-n",
        "10",
        "--temp",
        "0",
    ];
    let text = stdout(&[&args[..], &["-o", "json"]].concat());
    let turns: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let of = |turn: usize, name: &str| turns[turn][name].as_u64().unwrap();
    assert_eq!(
        (of(0, "reused_tokens"), of(0, "computed_tokens")),
        (0, of(0, "prompt_tokens"))
    );
    assert_eq!(
        of(1, "reused_tokens"),
        of(0, "prompt_tokens") + 9,
        "all but the newest token"
    );
    assert_eq!(
        of(1, "computed_tokens"),
        of(1, "prompt_tokens") - of(1, "reused_tokens")
    );
    assert_eq!(turns[0]["finish_reason"], "length");
}

#[test]
fn a_seed_decides_the_text_and_a_random_one_is_shown() {
    let Some(model) = model("a_seed_decides") else {
        return;
    };
    let args = ["complete", "-m", &model, "-p", "Light", "-n", "30"];
    let first = run(&args);
    let note = stderr(&first);
    let seed = note
        .trim()
        .strip_prefix("seed: ")
        .expect("the seed is shown");
    let again = run(&[&args[..], &["-s", seed]].concat());
    assert_eq!(first.stdout, again.stdout);
    assert_eq!(stderr(&again), "");
    let other = run(&[&args[..], &["-s", "77"]].concat());
    assert_ne!(first.stdout, other.stdout);
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let Some(model) = model("stop_strings") else {
        return;
    };
    let args = [
        "complete",
        "-m",
        &model,
        "-p",
        "Once upon a time",
        "-n",
        "60",
        "--temp",
        "0",
    ];
    assert_eq!(
        stdout(&[&args[..], &["-r", "petals"]].concat()),
        ", pixels unfolding like "
    );
}

#[test]
fn a_full_context_is_named() {
    let Some(model) = model("a_full_context") else {
        return;
    };
    let output = run(&[
        "complete", "-m", &model, "-p", "a", "-n", "90", "--temp", "0", "-c", "32",
    ]);
    assert!(output.status.success());
    assert_eq!(
        stderr(&output),
        "the context of 32 tokens is full; use a larger one (-c) or --context-shift\n"
    );
    let long = "the dream ".repeat(100);
    let output = run(&["complete", "-m", &model, "-p", &long]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the context holds 128"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let Some(model) = model("a_closed_pipe") else {
        return;
    };
    let args = [
        "complete",
        "-m",
        &model,
        "-p",
        "a",
        "-n",
        "100",
        "--temp",
        "0",
        "--ignore-eos",
    ];
    let mut child = tokkata()
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
}

#[test]
fn tokens_there_and_back() {
    let Some(model) = model("tokens_there_and_back") else {
        return;
    };
    let ids = stdout(&["tokenize", &model, "--ids", "-p", "Once upon a time"]);
    assert!(
        ids.starts_with("[1, ") && ids.ends_with("]\n") && ids.lines().count() == 1,
        "{ids}"
    );
    assert_eq!(
        stdout(&["detokenize", "-m", &model, "--ids", ids.trim()]),
        "Once upon a time"
    );
}

#[test]
fn logits_do_not_depend_on_chunks_or_neighbours() {
    let Some(model) = model("logits_do_not_depend") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, more: &[&str]| {
        let path = dir.path().join(name);
        let args = [
            "logits",
            "-m",
            &model,
            "--ids",
            "1,2,3,4,5,6,7,8,9",
            "-o",
            path.to_str().unwrap(),
        ];
        let output = run(&[&args[..], more].concat());
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(0), ""),
            "{more:?}"
        );
        std::fs::read(path).unwrap()
    };
    let want = write("whole", &["--device", "ref"]);
    let header_len = u64::from_le_bytes(want[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&want[8..8 + header_len]).unwrap();
    assert_eq!(header["logits"]["shape"], serde_json::json!([9, 512]));
    assert_eq!(header["logits"]["dtype"], "F32");
    for block in ["1", "16", "9"] {
        for more in [
            &["--chunk", "2"][..],
            &["--chunk", "1", "--sequences", "3"],
            &["--sequences", "2"],
        ] {
            let args = [more, &["--device", "ref", "--block-size", block]].concat();
            assert!(write("parts", &args) == want, "{args:?}");
        }
    }
    let alone = write("cpu", &["--device", "cpu", "-t", "1"]);
    assert!(write("cpu3", &["--device", "cpu", "--sequences", "3", "-t", "2"]) == alone);
}

#[test]
fn inspect_and_plan_read_the_header() {
    let Some(model) = model("inspect_and_plan") else {
        return;
    };
    let text = stdout(&["inspect", &model]);
    assert!(
        text.contains("architecture   llama") && text.contains("parameters     230976"),
        "{text}"
    );
    let object: Value = serde_json::from_str(&stdout(&["inspect", &model, "-o", "json"])).unwrap();
    assert_eq!(object["metadata"]["llama.block_count"], 4);
    let plan = stdout(&["plan", "-m", &model]);
    for word in [
        "attention",
        "logits",
        "weights",
        "GB/s",
        "GFLOP/s",
        "tokens/s",
    ] {
        assert!(plan.contains(word), "{word}: {plan}");
    }
}
