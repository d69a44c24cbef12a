//! What `convert` leaves behind when it is refused or stopped: nothing.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{checkpoint, config, run, stderr, stdout, text, weights};
use crate::common::tokkata;

/// The character that stands for a byte in byte-level vocabularies.
fn letter(byte: u8) -> char {
    let plain = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..);
    let nth = (0..byte).filter(|&b| !plain(b)).count() as u32;
    match plain(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + nth).expect("a letter"),
    }
}

/// A byte-level tokenizer that joins two l and cuts text as told.
fn tokenizer(cut: &serde_json::Value) -> String {
    let mut vocab: serde_json::Map<_, _> = (0..=255u8)
        .map(|byte| (letter(byte).to_string(), byte.into()))
        .collect();
    vocab.insert("ll".to_owned(), 256.into());
    let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": cut.is_null()});
    let steps: Vec<_> = [cut.clone(), bytes.clone()]
        .into_iter()
        .filter(|s| !s.is_null())
        .collect();
    serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null,
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["l l"]},
    })
    .to_string()
}

/// A tokenizer with bytes to fall back on, whose normaliser puts a space before every text; whether its decoder takes it
/// away again is another matter.
fn prepending(strips: bool) -> String {
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["\u{2581}", "a", "b", "\u{2581}a", "ab"].map(str::to_owned);
    let tokens = std::iter::once("<unk>".to_owned())
        .chain(bytes)
        .chain(words);
    let vocab: serde_json::Map<_, _> = tokens
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect();
    let mut decoders = vec![
        serde_json::json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        serde_json::json!({"type": "ByteFallback"}),
        serde_json::json!({"type": "Fuse"}),
    ];
    let strip = serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    decoders.extend(strips.then_some(strip));
    serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["\u{2581} a", "a b"], "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true},
    })
    .to_string()
}

/// Names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |e: std::io::Result<std::fs::DirEntry>| e.expect("an entry").file_name();
    entries
        .map(|e| name(e).to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_tokenizer_that_no_name_stands_for_is_refused() {
    let (from, to) = (checkpoint("llama"), tempfile::tempdir().expect("a folder"));
    let output = to.path().join("m.gguf");
    let convert = |cut: &serde_json::Value| {
        std::fs::write(from.path().join("tokenizer.json"), tokenizer(cut)).expect("a file");
        run(&["convert", text(from.path()), text(&output)])
    };
    let odd = serde_json::json!({"type": "Split", "pattern": {"String": "l"}, "behavior": "Isolated", "invert": false});
    let refused = convert(&odd);
    let error = stderr(&refused);
    assert_eq!(
        (refused.status.code(), error.lines().count()),
        (Some(1), 1),
        "{error}"
    );
    let said = [
        text(from.path()),
        "no name of GGUF",
        "use the directory itself",
    ];
    assert!(said.iter().all(|words| error.contains(words)), "{error}");
    assert_eq!(names(to.path()), [""; 0]);
    // The same vocabulary, cut as the readers of a file without a name cut it.
    let written = convert(&serde_json::Value::Null);
    assert!(written.status.success(), "{}", stderr(&written));
    assert_eq!(names(to.path()), ["m.gguf"]);
}

#[test]
fn a_space_that_is_put_before_texts_stays_though_no_decoder_takes_it_away() {
    for strips in [true, false] {
        let (from, to) = (checkpoint("llama"), tempfile::tempdir().expect("a folder"));
        std::fs::write(from.path().join("tokenizer.json"), prepending(strips)).expect("a file");
        let output = to.path().join("m.gguf");
        let written = run(&["convert", text(from.path()), text(&output)]);
        assert!(written.status.success(), "{}", stderr(&written));
        for asked in ["ab a", "a", " b", "ba ab"] {
            let ids = |model: &Path| stdout(&["tokenize", "-m", text(model), "-p", asked]);
            let expected = ids(from.path());
            assert_eq!(ids(&output), expected, "{asked:?}, strips: {strips}");
        }
        assert!(
            stdout(&["tokenize", "-m", text(&output), "-p", "a"]).contains("260"),
            "a space came before it"
        );
    }
}

/// Widens the checkpoint to two gigabytes of zeros, which take no room on the disk.
fn widen(folder: &Path) {
    let (width, ff, layers) = (1024u64, 4096u64, 32);
    config(folder, |c| {
        c["hidden_size"] = width.into();
        c["intermediate_size"] = ff.into();
        c["num_hidden_layers"] = layers.into();
        c["head_dim"] = 256.into();
        c["num_key_value_heads"] = 4.into();
    });
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    let mut add = |name: String, shape: &[u64]| {
        let end = at + shape.iter().product::<u64>() * 4;
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]});
        header.insert(name, entry);
        at = end;
    };
    for name in ["lm_head", "model.embed_tokens"] {
        add(format!("{name}.weight"), &[96, width]);
    }
    add("model.norm.weight".to_owned(), &[width]);
    for layer in 0..layers {
        let mut own =
            |name: &str, shape: &[u64]| add(format!("model.layers.{layer}.{name}.weight"), shape);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            own(norm, &[width]);
        }
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            own(&format!("self_attn.{name}"), &[width, width]);
        }
        own("mlp.gate_proj", &[ff, width]);
        own("mlp.up_proj", &[ff, width]);
        own("mlp.down_proj", &[width, ff]);
    }
    let header = serde_json::Value::from(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(weights(folder), [&length[..], header.as_bytes()].concat()).expect("a file");
    let file = std::fs::OpenOptions::new()
        .append(true)
        .open(weights(folder));
    let whole = 8 + header.len() as u64 + at;
    file.and_then(|f| f.set_len(whole)).expect("a long file");
}

#[test]
fn ctrl_c_leaves_no_file_and_no_part_of_one() {
    let (from, to) = (checkpoint("llama"), tempfile::tempdir().expect("a folder"));
    widen(from.path());
    let output = to.path().join("m.gguf");
    let mut command = tokkata();
    command.args([
        "convert",
        text(from.path()),
        text(&output),
        "--outtype",
        "q4_k_m",
    ]);
    let child = command
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let start = Instant::now();
    let begun = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries
            .flatten()
            .any(|e| e.metadata().is_ok_and(|m| m.len() > 0))
    };
    while !begun(to.path()) {
        assert!(
            start.elapsed() < Duration::from_secs(50),
            "nothing is written"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        !output.exists(),
        "a file that is not whole has its name already"
    );
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status();
    assert!(sent.expect("kill").success());
    let ended = child.wait_with_output().expect("an end");
    let error = stderr(&ended);
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert!(error.contains("stopped; nothing was written"), "{error}");
    assert_eq!(names(to.path()), [""; 0]);
}

#[test]
fn a_vocabulary_is_held_against_the_embedding() {
    let (from, to) = (checkpoint("llama"), tempfile::tempdir().expect("a folder"));
    let output = to.path().join("m.gguf");
    for size in [7u64, (1 << 31) - 1] {
        config(from.path(), |c| c["vocab_size"] = size.into());
        let refused = run(&["convert", text(from.path()), text(&output)]);
        let error = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{error}");
        let said = format!("sets vocab_size to {size}, expected 96");
        assert!(error.contains(&said), "{error}");
        assert_eq!(names(to.path()), [""; 0]);
    }
}

#[test]
fn a_gguf_file_comes_back_from_safetensors() {
    let (folder, model) = crate::common::made_up("f16");
    let at = |name: &str| folder.path().join(name);
    let there = run(&["convert", text(&model), text(&at("m.safetensors"))]);
    assert!(there.status.success(), "{}", stderr(&there));
    let logits = |model: &Path, out: &Path| {
        let output = run(&[
            "logits",
            "-m",
            text(model),
            "--ids",
            "1,2,3",
            "-o",
            text(out),
        ]);
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read(out).expect("logits")
    };
    assert_eq!(
        logits(&at("m.safetensors"), &at("a")),
        logits(&model, &at("b"))
    );
    let (folder, model) = crate::common::made_up("q4_0");
    let output = folder.path().join("m.safetensors");
    let refused = run(&["convert", text(&model), text(&output)]);
    let error = stderr(&refused);
    assert!(
        error.contains(text(&model)) && error.contains("--outtype f16"),
        "{error}"
    );
}
