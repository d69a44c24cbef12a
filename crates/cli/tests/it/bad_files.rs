//! Bad model files: one line that names the file, exit code 1, within an address space of 1 GiB.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{made_up, stderr, stdout};
use tokkata::archs::Registry;
use tokkata::{DType, Metadata, ModelFile, Value};
use tokkata_formats::{GgufWriter, ShardLimit};

/// Runs the command under a limit of 1 GiB of address space, where the shell can set one.
fn limited(args: &[&str]) -> Output {
    let tokkata = env!("CARGO_BIN_EXE_tokkata");
    if !cfg!(target_os = "linux") {
        return Command::new(tokkata).args(args).output().unwrap();
    }
    let script = "ulimit -v 1048576; exec \"$0\" \"$@\"";
    Command::new("sh")
        .args(["-c", script, tokkata])
        .args(args)
        .output()
        .unwrap()
}

fn refused(path: &Path, args: &[&str]) -> String {
    let name = path.to_str().unwrap();
    let output = limited(&[args, &["-m", name]].concat());
    let text = stderr(&output);
    assert_eq!(
        (output.status.code(), text.lines().count()),
        (Some(1), 1),
        "{name}: {text}"
    );
    assert!(
        text.starts_with("tokkata: ") && text.contains(name),
        "{text}"
    );
    text
}

#[test]
fn what_is_no_model_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let cases = [
        dir.path().join("missing.gguf"),
        dir.path().to_owned(),
        file("empty.gguf", b""),
        file("zip.gguf", b"PK\x03\x04 and so on"),
        file("version.gguf", b"GGUF\x09\0\0\0"),
        file(
            "counts.gguf",
            &[&b"GGUF\x03\0\0\0"[..], &[0xff; 16]].concat(),
        ),
    ];
    for path in &cases {
        for command in ["inspect", "plan"] {
            refused(path, &[command]);
        }
        refused(path, &["complete", "-p", "x"]);
        refused(
            path,
            &["logits", "--ids", "1", "-o", "never-written.safetensors"],
        );
    }
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let (dir, model) = made_up("q4_0");
    let whole = std::fs::read(&model).unwrap();
    let cut = dir.path().join("cut.gguf");
    let header = (0..1800).step_by(97);
    for at in header.chain([whole.len() / 2, whole.len() - 1]) {
        std::fs::write(&cut, &whole[..at]).unwrap();
        refused(
            &cut,
            &["logits", "--ids", "1", "-o", "never-written.safetensors"],
        );
    }
}

#[test]
fn a_context_that_does_not_fit_is_named_before_anything_is_allocated() {
    let (_dir, model) = made_up("q4_0");
    let text = refused(
        &model,
        &[
            "logits",
            "--ids",
            "1",
            "-o",
            "never-written.safetensors",
            "-c",
            "2000000000",
        ],
    );
    assert!(
        text.contains("a context of 2000000000 tokens needs") && text.contains("are available"),
        "{text}"
    );
}

#[test]
fn text_needs_a_tokenizer_and_ids_do_not() {
    let (dir, model) = made_up("q8_0");
    let text = refused(&model, &["complete", "-p", "x"]);
    assert!(text.contains("no tokenizer"), "{text}");
    let out = dir.path().join("l.safetensors");
    let args = [
        "logits",
        "-m",
        model.to_str().unwrap(),
        "--ids",
        "[1, 2]",
        "-o",
        out.to_str().unwrap(),
        "--device",
        "ref",
    ];
    let output = limited(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(out.exists());
    let unknown = refused_ids(&model);
    assert!(unknown.contains("token 600"), "{unknown}");
}

fn refused_ids(model: &Path) -> String {
    let args = [
        "logits",
        "-m",
        model.to_str().unwrap(),
        "--ids",
        "600",
        "-o",
        "never-written.safetensors",
        "--device",
        "ref",
    ];
    let output = limited(&args);
    assert_eq!(output.status.code(), Some(1));
    stderr(&output)
}

/// A made-up model with other metadata, or with tensors of another type of the same size.
fn changed(model: &Path, change: impl Fn(&mut Metadata), dtype: Option<DType>) -> PathBuf {
    let file = ModelFile::open(model).unwrap();
    let mut metadata = file.metadata().clone();
    change(&mut metadata);
    let path = model.with_file_name("changed.gguf");
    let mut writer = GgufWriter::new(&path, metadata).unwrap();
    for t in file.tensors() {
        let dtype = dtype.filter(|_| t.dtype == DType::F32).unwrap_or(t.dtype);
        writer.declare(&t.name, dtype, &t.shape).unwrap();
    }
    let mut output = writer.create(ShardLimit::Whole).unwrap();
    for t in file.tensors() {
        output.write(file.data(t).unwrap()).unwrap();
    }
    output.finish().unwrap();
    path
}

#[test]
fn sizes_and_numbers_are_held_against_the_file() {
    let (_dir, model) = made_up("q8_0");
    let cases = [
        (
            "llama.block_count",
            Value::U32(u32::MAX),
            "expected at most",
        ),
        (
            "llama.rope.dimension_count",
            Value::U32(1 << 31),
            "expected an even number from 2",
        ),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Value::F32(-1.0),
            "found -1",
        ),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Value::F32(f32::INFINITY),
            "found inf",
        ),
        (
            "llama.rope.freq_base",
            Value::F32(-5.0),
            "found -5, expected a number above 0",
        ),
        ("llama.rope.freq_base", Value::F32(f32::NAN), "found NaN"),
    ];
    for (key, value, said) in cases {
        let path = changed(&model, |m| drop(m.insert(key, value.clone())), None);
        let text = refused(&path, &["plan"]);
        assert!(text.contains(said), "{key}: {text}");
    }
    let path = changed(&model, |_| {}, Some(DType::I32));
    let text = refused(&path, &["plan"]);
    assert!(text.contains("has the type I32"), "{text}");
}

#[test]
fn a_missing_key_has_its_name_once() {
    let (_dir, model) = made_up("q8_0");
    let gone = |metadata: &mut Metadata| {
        let kept: Vec<(String, Value)> = metadata
            .iter()
            .filter(|(key, _)| *key != "llama.attention.head_count")
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .collect();
        *metadata = Metadata::default();
        for (key, value) in kept {
            metadata.insert(key, value);
        }
    };
    let text = refused(&changed(&model, gone, None), &["plan"]);
    assert!(
        text.contains("lacks the metadata llama.attention.head_count,"),
        "{text}"
    );
}

#[test]
fn a_word_is_named_with_the_words_that_are_known() {
    let (dir, model) = made_up("q8_0");
    let mine = dir.path().join("mine.toml");
    let text = "names = ['llama']\nextends = 'llama'\n[head]\noutput = 'tide'\n";
    std::fs::write(&mine, text).unwrap();
    let text = refused(&model, &["plan", "--arch-file", mine.to_str().unwrap()]);
    assert!(
        text.contains("found 'tide', expected one of tied, fallback, untied, none"),
        "{text}"
    );
}

/// A file of an architecture without tensors.
fn of_architecture(dir: &Path, arch: &str) -> PathBuf {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", arch.into());
    metadata.insert(format!("{arch}.context_length"), Value::U32(64));
    let path = dir.join("arch.gguf");
    let writer = GgufWriter::new(&path, metadata).unwrap();
    let bytes = writer.to_bytes(std::iter::empty()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn architectures_that_cannot_be_run_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::builtin();
    let listed = stdout(&["archs"]);
    let mut count = 0;
    for name in registry.names() {
        let descriptor = registry.get(name).unwrap();
        let Some(why) = &descriptor.unsupported else {
            continue;
        };
        let path = of_architecture(dir.path(), name);
        let said = format!("architecture '{name}' cannot be run: {why}");
        for args in [
            &["complete", "-p", "x"][..],
            &["plan"],
            &["embed", "-p", "x"],
        ] {
            let text = refused(&path, args);
            assert!(text.contains(&said), "{text}");
        }
        let line = listed.lines().find(|l| l.split(' ').next() == Some(name));
        assert!(line.unwrap().contains(why.as_str()), "{name} is listed");
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn an_unknown_architecture_never_runs_as_another() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["brand-new", "llama5", "LLAMA", "qwen", "bert2"] {
        if Registry::builtin().get(name).is_some() {
            continue;
        }
        let path = of_architecture(dir.path(), name);
        let text = refused(&path, &["run", "-p", "x"]);
        assert!(
            text.contains(&format!("architecture '{name}' is not known")),
            "{text}"
        );
    }
}
