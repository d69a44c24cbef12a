//! Bad model files: one line that names the file, exit code 1, within an address space of 1 GiB.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{made_up, stderr, stdout};
use tokkata::archs::Registry;
use tokkata::{Metadata, Value};
use tokkata_formats::GgufWriter;

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

/// A file of an architecture without tensors.
fn of_architecture(dir: &Path, arch: &str) -> std::path::PathBuf {
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
    assert_eq!(count, 15);
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
