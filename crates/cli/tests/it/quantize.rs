//! `quantize`, `split` and `merge` on small made-up models.

use std::path::{Path, PathBuf};

use crate::common::{made_up, run, stderr, stdout, tokkata};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn inspect(path: &Path) -> Value {
    serde_json::from_str(&stdout(&["inspect", "-m", text(path), "-o", "json"])).unwrap()
}

/// Names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn type_of(object: &Value, name: &str) -> String {
    let tensors = object["tensors"].as_array().unwrap();
    let found = tensors.iter().find(|t| t["name"] == name);
    found.unwrap()["type"].as_str().unwrap().to_owned()
}

#[test]
fn threads_do_not_change_a_byte_and_norms_stay() {
    let (dir, model) = made_up("f16");
    let out = |n: &str| dir.path().join(format!("q8-{n}.gguf"));
    for n in ["1", "3"] {
        let output = run(&["quantize", text(&model), text(&out(n)), "q8_0", n]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "no bar in a pipe");
    }
    let [one, three] = ["1", "3"].map(|n| std::fs::read(out(n)).unwrap());
    assert!(one == three);
    let object = inspect(&out("1"));
    assert_eq!(object["metadata"]["general.file_type"], 7);
    assert_eq!(object["metadata"]["general.quantization_version"], 2);
    assert_eq!(type_of(&object, "blk.0.attn_q.weight"), "Q8_0");
    assert_eq!(type_of(&object, "blk.0.attn_norm.weight"), "F32");
    assert_eq!(names(dir.path()), ["q8-1.gguf", "q8-3.gguf", "tiny.gguf"]);
}

#[test]
fn flags_choose_types() {
    let (dir, model) = made_up("f16");
    let out = dir.path().join("out.gguf");
    let flags = [
        "--tensor-type",
        "attn_v=q5_1",
        "--token-embedding-type",
        "q4_0",
    ];
    let places = [text(&model), text(&out), "Q8_0"];
    let output = run(&[&["quantize"], &flags[..], &places[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let object = inspect(&out);
    assert_eq!(type_of(&object, "blk.0.attn_v.weight"), "Q5_1");
    assert_eq!(type_of(&object, "blk.0.attn_k.weight"), "Q8_0");
    assert_eq!(type_of(&object, "token_embd.weight"), "Q4_0");
}

#[test]
fn mistakes_are_one_line_and_leave_nothing() {
    let (dir, model) = made_up("q8_0");
    let out = dir.path().join("out.gguf");
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &[text(&model), text(&out), "q9_0"],
            2,
            "found the type 'q9_0'",
        ),
        (&[text(&model), text(&out), "q4_0"], 1, "--allow-requantize"),
        (
            &[text(&model), text(&out), "q4_0", "0"],
            2,
            "a number of threads",
        ),
        (&[text(&model), text(&model), "copy"], 2, "same file"),
        (
            &[text(&model), text(&out), "iq1_s", "--allow-requantize"],
            1,
            "importance matrix",
        ),
    ];
    for (args, code, said) in cases {
        let output = run(&[&["quantize"], args].concat());
        let told = stderr(&output);
        assert_eq!(
            (output.status.code(), told.lines().count()),
            (Some(code), 1),
            "{told}"
        );
        assert!(told.contains(said), "{told}");
    }
    assert_eq!(names(dir.path()), ["tiny.gguf"]);
}

fn parts(dir: &Path, stem: &str) -> Vec<PathBuf> {
    let names = names(dir).into_iter().filter(|n| n.starts_with(stem));
    names.map(|n| dir.join(n)).collect()
}

#[test]
fn split_models_merge_to_the_same_bytes_and_keep_their_files() {
    let (dir, model) = made_up("f16");
    let whole = dir.path().join("whole.gguf");
    stdout(&["quantize", text(&model), text(&whole), "copy"]);
    let cut = dir.path().join("cut");
    stdout(&["split", "--max-tensors", "5", text(&whole), text(&cut)]);
    let files = parts(dir.path(), "cut-");
    assert!(files.len() > 2, "{files:?}");
    let merged = dir.path().join("merged.gguf");
    stdout(&["merge", text(&files[0]), text(&merged)]);
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&merged).unwrap());

    let out = dir.path().join("q8.gguf");
    stdout(&[
        "quantize",
        "--keep-split",
        text(&files[0]),
        text(&out),
        "q8_0",
    ]);
    let kept = parts(dir.path(), "q8-");
    assert_eq!(kept.len(), files.len());
    let count = |path: &Path| inspect(path)["tensors"].as_array().unwrap().len();
    assert_eq!(count(&kept[0]), count(&whole));
}

#[test]
fn inspect_tells_bits_and_memory() {
    let (_dir, model) = made_up("f16");
    let memory = |ctx: &str| {
        let args = ["inspect", "-m", text(&model), "-c", ctx, "-o", "json"];
        let object: Value = serde_json::from_str(&stdout(&args)).unwrap();
        let bits = object["bits_per_weight"].as_f64().unwrap();
        assert!((16.0..17.0).contains(&bits), "{bits}");
        object["memory"]["cache_bytes"].as_u64().unwrap()
    };
    assert_eq!(memory("2048"), 2 * memory("1024"));
}

#[test]
fn inspect_tells_what_no_rule_reads() {
    let (dir, model) = made_up("f16");
    let bytes = std::fs::read(&model).unwrap();
    // A key of the same length that no descriptor knows, in place of one that has a default.
    let (known, unknown) = (&b"llama.rope.freq_base"[..], &b"llama.rope.freq_bass"[..]);
    let at = bytes.windows(known.len()).position(|w| w == known).unwrap();
    let mut changed = bytes.clone();
    changed[at..at + known.len()].copy_from_slice(unknown);
    let other = dir.path().join("other.gguf");
    std::fs::write(&other, changed).unwrap();
    let unread = |path: &Path| {
        let object = inspect(path);
        let keys = object["unread_metadata"].as_array().unwrap().iter();
        keys.map(|k| k.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (before, after) = (unread(&model), unread(&other));
    let new: Vec<_> = after.iter().filter(|k| !before.contains(k)).collect();
    assert_eq!(new, ["llama.rope.freq_bass"]);
    let shown = stdout(&["inspect", text(&other)]);
    let line = shown.lines().find(|l| l.contains("freq_bass"));
    assert!(line.unwrap().ends_with("(not read)"), "{shown}");
    let known = shown.lines().find(|l| l.contains("llama.block_count"));
    assert!(!known.unwrap().ends_with("(not read)"), "{shown}");
}

/// Mounts a file system of 1 MB, or says that this cannot be done here.
fn small_disk(test: &str, at: &Path) -> bool {
    std::fs::create_dir_all(at).unwrap();
    let mut mount = std::process::Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(at);
    let mounted = mount.output().is_ok_and(|o| o.status.success());
    if !mounted {
        eprintln!("skipped {test}: no tmpfs can be mounted here");
    }
    mounted
}

#[test]
fn a_full_disk_leaves_nothing() {
    let (dir, model) = made_up("f32");
    assert!(std::fs::metadata(&model).unwrap().len() > 1 << 20);
    let disk = dir.path().join("disk");
    if !small_disk("a_full_disk_leaves_nothing", &disk) {
        return;
    }
    let out = disk.join("out.gguf");
    let output = run(&["quantize", text(&model), text(&out), "copy"]);
    let left = names(&disk);
    let unmounted = std::process::Command::new("umount").arg(&disk).status();
    assert!(unmounted.unwrap().success());
    let told = stderr(&output);
    assert_eq!(
        (output.status.code(), told.lines().count()),
        (Some(1), 1),
        "{told}"
    );
    assert!(left.is_empty(), "{left:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupt_leaves_nothing() {
    let (dir, model) = made_up("f32");
    let out = dir.path().join("out.gguf");
    let args = ["quantize", text(&model), text(&out), "iq3_s", "1"];
    let mut child = tokkata().args(args).spawn().unwrap();
    while child.try_wait().unwrap().is_none() && names(dir.path()).len() < 2 {
        std::thread::yield_now();
    }
    let kill = std::process::Command::new("kill");
    { kill }
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(names(dir.path()), ["tiny.gguf"]);
}
