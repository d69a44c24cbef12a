//! Model directories from the command line: converted there and back, and refused by name when they are bad.

mod convert;
mod packed;

use std::path::{Path, PathBuf};

use crate::common::{run, stderr, stdout};
use tokkata_conformance::hf::HfGolden;
use tokkata_formats::ModelFile;

/// The directory of a golden's checkpoint.
fn checkpoint(name: &str) -> tempfile::TempDir {
    let golden = HfGolden::read(&HfGolden::folder(), name).expect("a golden");
    let folder = tempfile::tempdir().expect("a folder");
    golden.write_directory(folder.path()).expect("a directory");
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// More than an indexer chooses of, in the goldens that have one.
const IDS: &str = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20";

/// Logits of a model for a few tokens.
fn logits(model: &Path, to: &Path) -> Vec<u8> {
    logits_on("cpu", model, to)
}

fn logits_on(device: &str, model: &Path, to: &Path) -> Vec<u8> {
    let model = text(model);
    stdout(&[
        "logits",
        "-m",
        model,
        "--device",
        device,
        "--ids",
        IDS,
        "-t",
        "1",
        "-o",
        text(to),
    ]);
    let file = ModelFile::open(to).expect("logits");
    file.data(file.tensor("logits").expect("a tensor"))
        .expect("bytes")
        .to_vec()
}

#[test]
fn a_directory_becomes_gguf_and_safetensors_with_equal_numbers() {
    for name in [
        "llama",
        "qwen35",
        "gpt-oss",
        "mamba2",
        "deepseek32",
        "deepseek4",
        "dots3note",
        "glm-dsa",
        "glm5-next",
        "hy_v4",
        "minimax-m3",
    ] {
        let (from, to) = (checkpoint(name), tempfile::tempdir().expect("a folder"));
        let at = |file: &str| to.path().join(file);
        let (gguf, back) = (at("m.gguf"), at("back.safetensors"));
        stdout(&[
            "convert",
            text(from.path()),
            text(&gguf),
            "--outtype",
            "f32",
        ]);
        stdout(&["convert", text(&gguf), text(&back)]);
        assert_eq!(
            logits(from.path(), &at("a.safetensors")),
            logits(&gguf, &at("b.safetensors")),
            "{name}"
        );
        let (gguf, back) = (
            ModelFile::open(&gguf).expect("GGUF"),
            ModelFile::open(&back).expect("safetensors"),
        );
        assert_eq!(gguf.tensors().len(), back.tensors().len());
        for tensor in gguf.tensors() {
            // Other programs look experts up by numbers of this type alone.
            let listed = tensor.name.contains("tid2eid");
            assert_eq!(tensor.dtype.name() == "I32", listed, "{}", tensor.name);
            let other = back.tensor(&tensor.name).expect(&tensor.name);
            assert_eq!(
                gguf.data(tensor).expect("bytes"),
                back.data(other).expect("bytes"),
                "{}",
                tensor.name
            );
        }
    }
}

/// YaRN's frequencies by the formula of its authors, with the ends of the ramp rounded or not.
fn yarn(truncate: bool) -> Vec<f32> {
    let (n, base, trained, factor) = (16.0f64, 10_000.0f64, 4096.0f64, 32.0f64);
    let turn = |beta: f64| n * (trained / (beta * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
    let (low, high) = match truncate {
        true => (turn(32.0).floor(), turn(1.0).ceil()),
        false => (turn(32.0), turn(1.0)),
    };
    let one = |i: u32| {
        let plain = base.powf(-2.0 * f64::from(i) / n);
        let ramp = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
        (plain / factor * ramp + plain * (1.0 - ramp)) as f32
    };
    (0..8).map(one).collect()
}

#[test]
fn yarn_rounds_only_where_the_configuration_says_so() {
    let folder = checkpoint("gpt-oss");
    for (told, truncate) in [(Some(true), true), (None, true), (Some(false), false)] {
        config(folder.path(), |c| {
            let scaling = &mut c["rope_parameters"];
            scaling["factor"] = 32.into();
            scaling["original_max_position_embeddings"] = 4096.into();
            scaling["truncate"] = told.into();
        });
        let checkpoint = tokkata::Checkpoint::open(folder.path(), &[]).expect("a model");
        let spec = checkpoint.spec(64).expect("it is read");
        let want = tables(&spec);
        assert!(want.contains(&yarn(truncate)), "{told:?}: {want:?}");
        assert!(!want.contains(&yarn(!truncate)), "{told:?}");
    }
}

/// The tables of floats in a specification.
fn tables(spec: &tokkata::ModelSpec) -> Vec<Vec<f32>> {
    let floats = |data: &tokkata::ConstData| match data {
        tokkata::ConstData::F32(values) => Some(values.clone()),
        _ => None,
    };
    spec.consts.iter().filter_map(floats).collect()
}

/// What the command says of a directory after a change: one line that names the directory.
fn refusal(what: &str, change: impl Fn(&Path)) -> String {
    let folder = checkpoint("llama");
    change(folder.path());
    let output = run(&["plan", "-m", text(folder.path())]);
    let error = stderr(&output);
    println!("{what}: {error}");
    assert_eq!(
        (output.status.code(), error.lines().count()),
        (Some(1), 1),
        "{what}: {error}"
    );
    assert!(error.contains(text(folder.path())), "{what}: {error}");
    error
}

fn config(folder: &Path, change: impl Fn(&mut serde_json::Value)) {
    let path = folder.join("config.json");
    let text = std::fs::read(&path).expect("a configuration");
    let mut json = serde_json::from_slice(&text).expect("JSON");
    change(&mut json);
    std::fs::write(path, json.to_string()).expect("a file");
}

fn weights(folder: &Path) -> PathBuf {
    folder.join("model.safetensors")
}

/// Two shards, one of them written twice under two names where asked for, and an index of what is where.
fn shards(folder: &Path, second: Option<&str>) {
    let bytes = std::fs::read(weights(folder)).expect("weights");
    let names = ModelFile::open(folder).expect("a model");
    let names: Vec<String> = names.tensors().iter().map(|t| t.name.clone()).collect();
    std::fs::remove_file(weights(folder)).expect("it was there");
    std::fs::write(folder.join("one.safetensors"), &bytes).expect("a shard");
    if let Some(second) = second {
        std::fs::write(folder.join(second), &bytes).expect("a shard");
    }
    let place = |(i, name): (usize, &String)| {
        let file = if i == 0 {
            "two.safetensors"
        } else {
            "one.safetensors"
        };
        (name.clone(), serde_json::Value::from(file))
    };
    let map: serde_json::Map<_, _> = names.iter().enumerate().map(place).collect();
    let index = serde_json::json!({ "weight_map": map });
    std::fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .expect("an index");
}

/// Changes the header's text without moving the data behind it.
fn header(folder: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let bytes = std::fs::read(weights(folder)).expect("weights");
    let at = bytes
        .windows(from.len())
        .position(|w| w == from.as_bytes())
        .expect("it is there");
    let bytes = [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat();
    std::fs::write(weights(folder), bytes).expect("a file");
}

/// Says that the header has so many bytes.
fn length(folder: &Path, bytes: u64) {
    let mut file = std::fs::read(weights(folder)).expect("weights");
    file[..8].copy_from_slice(&bytes.to_le_bytes());
    std::fs::write(weights(folder), file).expect("a file");
}

#[test]
fn bad_directories_are_refused_by_name() {
    let says =
        |error: &str, words: &[&str]| assert!(words.iter().all(|w| error.contains(w)), "{error}");
    says(
        &refusal("a missing shard", |f| shards(f, None)),
        &["two.safetensors"],
    );
    says(
        &refusal("a tensor in two shards", |f| {
            shards(f, Some("two.safetensors"));
        }),
        &["expected it once"],
    );
    says(
        &refusal("a header longer than any", |f| length(f, 1 << 40)),
        &[
            "model.safetensors",
            "a safetensors header of 1099511627776 bytes",
        ],
    );
    says(
        &refusal("a header longer than the file", |f| {
            let size = weights(f).metadata().expect("weights").len();
            length(f, size - 7);
        }),
        &["model.safetensors", "the safetensors header"],
    );
    says(
        &refusal("a shape that its bytes contradict", |f| {
            header(f, "[96,64]", "[96,65]");
        }),
        &["model.safetensors", "24960 bytes for shape [96, 65] of F32"],
    );
    says(
        &refusal("a type that its bytes contradict", |f| {
            header(f, "\"F32\"", "\"F64\"");
        }),
        &["model.safetensors", "of F64"],
    );
    says(
        &refusal("an unknown quantisation", |f| {
            config(f, |c| {
                c["quantization_config"] = serde_json::json!({"quant_method": "quip", "bits": 2});
            });
        }),
        &["quip"],
    );
    says(
        &refusal("a setting that nobody knows", |f| {
            config(f, |c| c["logit_softening"] = 2.into());
        }),
        &["logit_softening to 2"],
    );
    says(
        &refusal("another activation", |f| {
            config(f, |c| c["hidden_act"] = "gelu".into());
        }),
        &["hidden_act"],
    );
    says(
        &refusal("an unknown class", |f| {
            config(f, |c| c["architectures"][0] = "Foo".into());
        }),
        &["Foo"],
    );
    says(
        &refusal("no JSON", |f| {
            std::fs::write(f.join("config.json"), "{").expect("a file");
        }),
        &["config.json"],
    );
    says(
        &refusal("no weights", |f| {
            std::fs::remove_file(weights(f)).expect("it was there");
        }),
        &["no safetensors file"],
    );
}
