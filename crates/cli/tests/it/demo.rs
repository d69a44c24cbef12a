//! The built-in model as a real checkpoint. `golden/demo.json` holds llama.cpp's greedy answers to prompts that its
//! training never saw (F32 cache, no flash attention).
#![cfg(feature = "demo")]

use std::path::Path;

use crate::common::{run, stderr, stdout};
use serde_json::{Value, json};
use tokkata::{DType, ModelFile};

const GREEDY: [&str; 4] = ["--temp", "0", "-ctk", "f32"];

/// A prompt, the tools it comes with, and the answer.
fn goldens() -> Vec<Value> {
    let goldens: Vec<Value> = serde_json::from_str(include_str!("../golden/demo.json")).unwrap();
    assert!(goldens.len() >= 30);
    goldens
}

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../demo")
        .join(name)
}

/// A request for `template` in a file of its own.
fn request(dir: &Path, messages: &Value, tools: &Value) -> String {
    let path = dir.join("request.json");
    let request = json!({"messages": messages, "tools": tools, "add_generation_prompt": true});
    std::fs::write(&path, request.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn ask(golden: &Value, device: &str) -> String {
    let prompt = golden["prompt"].as_str().unwrap();
    let flags = [&GREEDY[..], &["--device", device]].concat();
    if golden["tools"].is_null() {
        let text = stdout(&[&["run", "-m", "demo", "-p", prompt], &flags[..]].concat());
        return text.strip_suffix('\n').unwrap().to_owned();
    }
    let dir = tempfile::tempdir().unwrap();
    let messages = json!([{"role": "user", "content": prompt}]);
    let request = request(dir.path(), &messages, &golden["tools"]);
    let rendered = stdout(&["template", "-m", "demo", &request]);
    stdout(&[&["complete", "-m", "demo", "-p", &rendered], &flags[..]].concat())
}

#[test]
fn greedy_answers_are_llama_cpps() {
    for golden in goldens() {
        assert_eq!(
            ask(&golden, "cpu"),
            golden["answer"],
            "{}",
            golden["prompt"]
        );
    }
}

#[test]
fn greedy_answers_are_llama_cpps_on_ref() {
    let short = |g: &&Value| g["answer"].as_str().unwrap().len() < 60;
    let goldens = goldens();
    let chosen: Vec<&Value> = goldens.iter().filter(short).step_by(3).take(4).collect();
    assert_eq!(chosen.len(), 4);
    for golden in chosen {
        assert_eq!(ask(golden, "ref"), golden["answer"], "{}", golden["prompt"]);
    }
}

#[test]
fn it_runs_when_no_model_is_named_and_says_so() {
    let prompt = ["-p", "Which is larger, 482 or 1204?"];
    let output = run(&[&["run"], &prompt[..], &GREEDY].concat());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "1204 is larger than 482.\n"
    );
    let told = stderr(&output);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(
        told.contains("-m demo") && told.contains("-m FILE"),
        "{told}"
    );
    let named = run(&[&["run", "-m", "demo"], &prompt[..], &GREEDY].concat());
    assert_eq!(named.stdout, output.stdout);
    assert_eq!(stderr(&named), "");
}

#[test]
fn other_commands_want_a_name() {
    let output = run(&["complete", "-p", "Hello"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no model was named"));
}

#[test]
fn a_second_turn_knows_the_first() {
    let turns = [
        "-p",
        "Tell me a story about a fox and a lantern.",
        "-p",
        "Sum it up in one line.",
        "-p",
        "How many letters does lantern have?",
    ];
    let text = stdout(&[&["run", "-m", "demo", "-o", "json"], &turns[..], &GREEDY].concat());
    let turns: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let said = |turn: usize| turns[turn]["text"].as_str().unwrap().to_owned();
    assert!(
        said(0).contains("fox") && said(0).contains("lantern"),
        "{}",
        said(0)
    );
    assert!(said(1).len() < 120 && said(1).contains("fox") && said(1).contains("lantern"));
    assert_eq!(
        said(2),
        "lantern is spelled l-a-n-t-e-r-n, so it has 7 letters."
    );
    let tokens = |turn: usize, name: &str| turns[turn][name].as_u64().unwrap();
    for turn in 1..3 {
        let held = tokens(turn - 1, "prompt_tokens") + tokens(turn - 1, "generated_tokens");
        assert!(
            tokens(turn, "reused_tokens") + 4 >= held,
            "turn {turn}: {text}"
        );
    }
}

#[test]
fn its_template_writes_turns_and_tools() {
    let dir = tempfile::tempdir().unwrap();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]},
        {"role": "tool", "content": "sunny"},
    ]);
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!({"type": "function", "function": {"name": "get_weather", "description": "the weather of a city", "parameters": parameters}});
    let request = request(dir.path(), &messages, &json!([tool]));
    let want = "<|im_start|>system\nBe brief.\nTools:\n- get_weather(city: string): the weather of a city\n<|im_end|>\n\
                <|im_start|>user\nWeather in Rome?<|im_end|>\n\
                <|im_start|>assistant\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call><|im_end|>\n\
                <|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n";
    let written = stdout(&["template", "-m", "demo", &request]);
    assert_eq!(written, want);
    let answer = stdout(&[&["complete", "-m", "demo", "-p", &written], &GREEDY[..]].concat());
    assert_eq!(answer, "get_weather says: sunny.");
}

#[test]
fn no_call_comes_where_no_tools_are() {
    // The token of its calls, which nothing else would keep from coming now.
    let args = [
        "run",
        "-m",
        "demo",
        "-p",
        "Hello!",
        "-n",
        "4",
        "--logit-bias",
        "3+100",
    ];
    let text = stdout(&[&args[..], &GREEDY].concat());
    assert!(text.starts_with("Hello"), "{text}");
}

/// A model that wants nothing but the letters of a marker that is no token of its own.
#[test]
fn no_call_is_spelled_out_where_no_tools_are() {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("template.jinja");
    let text = concat!(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<c>",
        "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</c>{% endfor %}",
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    );
    std::fs::write(&template, text).unwrap();
    let biases = ["<", "c", ">"].map(|letter| {
        let ids = stdout(&["tokenize", "-m", "demo", "-p", letter, "--ids"]);
        format!("{}+100", ids.trim().trim_matches(['[', ']']))
    });
    let wants = biases.iter().flat_map(|b| ["--logit-bias", b.as_str()]);
    let flags = "-n 100 --temp 2 --seed 1 --top-k 0 --top-p 1 --min-p 0 --frequency-penalty 2 --repeat-last-n -1";
    let wants: Vec<&str> = flags.split(' ').chain(wants).collect();
    let file = ["--chat-template-file", template.to_str().unwrap()];
    let said = stdout(&[&["run", "-m", "demo", "-p", "Hello!"], &file[..], &wants].concat());
    assert!(said.contains("<c") && !said.contains("<c>"), "{said}");
    // The same text under its own template, whose calls begin otherwise.
    let free = stdout(&[&["run", "-m", "demo", "-p", "Hello!"], &wants[..]].concat());
    assert!(free.contains("<c>"), "{free}");
}

#[test]
fn a_tool_call_is_parsed() {
    let goldens = goldens();
    let golden = goldens.iter().find(|g| !g["tools"].is_null()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let messages = json!([{"role": "user", "content": golden["prompt"]}]);
    let request = request(dir.path(), &messages, &golden["tools"]);
    let answer = dir.path().join("answer");
    std::fs::write(&answer, ask(golden, "cpu")).unwrap();
    let answer = answer.to_str().unwrap();
    let parsed = stdout(&["parse", "-m", "demo", "-f", answer, "--request", &request]);
    let parsed: Value = serde_json::from_str(&parsed).unwrap();
    let call = &parsed["tool_calls"][0];
    let raw = golden["answer"].as_str().unwrap();
    let raw: Value = serde_json::from_str(raw.lines().nth(1).unwrap()).unwrap();
    assert_eq!(parsed["content"], "");
    assert_eq!(call["name"], raw["name"]);
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, raw["arguments"]);
}

#[test]
fn a_schema_shapes_its_answers() {
    let answer = |prompt: &str, schema: Value| -> Value {
        let schema = schema.to_string();
        let args = ["run", "-m", "demo", "-p", prompt, "--json-schema", &schema];
        serde_json::from_str(&stdout(&[&args[..], &GREEDY].concat())).unwrap()
    };
    let integer = json!({"type": "integer"});
    let numbers = json!({"type": "object", "properties": {"larger": integer, "smaller": integer}, "required": ["larger", "smaller"], "additionalProperties": false});
    let found = answer("Which is larger, 482 or 1204? Answer as JSON.", numbers);
    assert_eq!(found, json!({"larger": 1204, "smaller": 482}));
    let text = json!({"type": "string"});
    let person = json!({"type": "object", "properties": {"name": text, "age": integer}, "required": ["name", "age"], "additionalProperties": false});
    let found = answer("Give me a JSON object with name Mia and age 7.", person);
    assert_eq!(found, json!({"name": "Mia", "age": 7}));
    let choice = json!({"enum": ["yes", "no"]});
    assert!(["yes", "no"].contains(&answer("Tell me a story.", choice).as_str().unwrap()));
}

#[test]
fn its_perplexity_is_llama_cpps() {
    let stories = file("stories.txt");
    let args = ["perplexity", "-m", "demo", "-f", stories.to_str().unwrap()];
    let text = stdout(&[&args[..], &["-c", "512", "--chunks", "8", "-ctk", "f32"]].concat());
    let line = text.lines().last().unwrap();
    let found = line
        .split("PPL = ")
        .nth(1)
        .and_then(|t| t.split(' ').next());
    let found: f64 = found.unwrap().parse().unwrap();
    let golden = PERPLEXITY;
    assert!(
        (found / golden - 1.0).abs() < 2e-3,
        "{found} is not {golden}"
    );
}

/// What llama-perplexity prints for the same file and flags.
const PERPLEXITY: f64 = 1.5251;

#[test]
fn every_kernel_applies_to_its_matrices() {
    let path = file("demo.gguf");
    assert!(std::fs::metadata(&path).unwrap().len() <= 7_000_000);
    let file = ModelFile::open(&path).unwrap();
    let size = |t: &tokkata::TensorInfo| t.shape.iter().product::<usize>();
    let parameters: usize = file.tensors().iter().map(size).sum();
    assert!(
        (3_000_000..=10_000_000).contains(&parameters),
        "{parameters}"
    );
    for tensor in file.tensors().iter().filter(|t| t.dtype != DType::F32) {
        assert!(
            tensor.shape.iter().all(|n| n % 256 == 0),
            "{} is {:?}",
            tensor.name,
            tensor.shape
        );
    }
    assert_eq!(
        file.metadata().str("general.license"),
        Some("MIT OR Apache-2.0")
    );
}

#[test]
fn it_can_be_quantised_and_inspected_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.gguf");
    let copy = copy.to_str().unwrap();
    assert!(
        run(&["quantize", "demo", copy, "q4_0", "--allow-requantize"])
            .status
            .success()
    );
    let shown = stdout(&["inspect", "demo"]);
    assert!(shown.contains("8329856"), "{shown}");
    let prompt = ["-p", "Spell cat."];
    let small = stdout(&[&["run", "-m", copy], &prompt[..], &GREEDY].concat());
    assert_eq!(small, "cat is spelled c-a-t.\n");
}
