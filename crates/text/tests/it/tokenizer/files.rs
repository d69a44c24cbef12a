//! Small files of every format, and files that are wrong.

use serde_json::json;
use tokkata_core::{Array, Metadata, Value};
use tokkata_text::tokenizer::{
    DecodeOptions, EncodeOptions, HfFiles, TokenKind, Tokenizer, TokenizerError,
};

fn strings(texts: &[&str]) -> Value {
    Value::Array(Array::Str(texts.iter().map(|&t| t.into()).collect()))
}

fn metadata(model: &str, tokens: &[&str]) -> Metadata {
    let mut meta = Metadata::default();
    meta.insert("tokenizer.ggml.model", model.into());
    meta.insert("tokenizer.ggml.tokens", strings(tokens));
    meta
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions::default())
}

#[test]
fn files_without_a_tokenizer_say_so() {
    for model in ["none", "no_vocab", "test"] {
        let error = Tokenizer::from_metadata(&metadata(model, &[])).unwrap_err();
        assert_eq!(
            error,
            TokenizerError::NoTokenizer {
                model: model.into()
            }
        );
        let text = format!("this file carries no tokenizer (tokenizer.ggml.model is `{model}`)");
        assert_eq!(error.to_string(), text);
    }
    assert!(matches!(
        Tokenizer::from_metadata(&Metadata::default()),
        Err(TokenizerError::NoTokenizer { .. })
    ));
    assert!(matches!(
        Tokenizer::from_hf(&HfFiles::default()),
        Err(TokenizerError::NoTokenizer { .. })
    ));
}

#[test]
fn unknown_names_are_named() {
    let error = Tokenizer::from_metadata(&metadata("magic", &["a"])).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("tokenizer kind `magic` is not known (known: gpt2,"),
        "{error}"
    );
    let mut meta = metadata("gpt2", &["a"]);
    meta.insert("tokenizer.ggml.merges", strings(&[]));
    meta.insert("tokenizer.ggml.pre", "magic".into());
    let error = Tokenizer::from_metadata(&meta).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pre-tokenizer `magic` (tokenizer.ggml.pre) is not known"
    );
}

#[test]
fn wrong_keys_are_named() {
    let meta = metadata("gpt2", &["a"]);
    let error = Tokenizer::from_metadata(&meta).unwrap_err();
    assert_eq!(
        error,
        TokenizerError::Missing {
            key: "tokenizer.ggml.merges".into()
        }
    );
    let mut meta = metadata("llama", &["a", "b"]);
    meta.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0])));
    let error = Tokenizer::from_metadata(&meta).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`tokenizer.ggml.scores` has 1 entries for 2 tokens"
    );
    meta.insert("tokenizer.ggml.scores", Value::U32(1));
    let error = Tokenizer::from_metadata(&meta).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`tokenizer.ggml.scores` should be an array of numbers"
    );
}

#[test]
fn invalid_utf8_is_refused_with_its_offset() {
    let tokenizer = Tokenizer::from_metadata(&metadata("rwkv", &["a", r"\xc3"])).unwrap();
    let error = tokenizer
        .encode_bytes(b"aa\xc3a", EncodeOptions::default())
        .unwrap_err();
    assert_eq!(error, TokenizerError::InvalidUtf8 { offset: 2 });
    assert_eq!(
        tokenizer
            .encode_bytes(b"aa", EncodeOptions::default())
            .unwrap(),
        [0, 0]
    );
}

#[test]
fn roles_come_from_keys_then_from_texts() {
    let mut meta = metadata(
        "llama",
        &["<unk>", "<s>", "</s>", "<|im_end|>", "<PRE>", "a"],
    );
    meta.insert("tokenizer.ggml.eos_token_id", Value::U32(5));
    meta.insert("tokenizer.ggml.padding_token_id", Value::U32(99));
    let tokenizer = Tokenizer::from_metadata(&meta).unwrap();
    let special = tokenizer.special();
    assert_eq!(
        (special.bos, special.eos, special.eot),
        (Some(1), Some(5), Some(3))
    );
    assert_eq!((special.fim_prefix, special.pad), (Some(4), None));
    assert_eq!(tokenizer.eog(), [2, 3, 5]);
    assert_eq!(tokenizer.token_kind(3), Some(TokenKind::Control));
    assert_eq!(tokenizer.token_kind(99), None);
}

#[test]
fn ranks_of_base64() {
    // a, b, ' ', ab, aba: "aba" merges as ab+a, though no merge list says so.
    let ranks: String = (0..=255_u8)
        .map(|b| format!("{} {b}\n", base64(&[b])))
        .collect();
    let words = ["ab", "aba"].iter().zip(256..);
    let words: String = words
        .map(|(w, rank)| format!("{} {rank}\n", base64(w.as_bytes())))
        .collect();
    let files = HfFiles {
        tiktoken: Some(format!("{ranks}{words}").into_bytes()),
        ..HfFiles::default()
    };
    let error = Tokenizer::from_hf(&files).unwrap_err();
    assert!(
        error.to_string().contains("a vocabulary of 258 ranks"),
        "{error}"
    );
    let filler = (258..50_256)
        .map(|r: u32| format!("{} {r}\n", base64(&[0xff, 0xff, (r >> 8) as u8, r as u8])));
    let config = json!({ "added_tokens_decoder": { "50256": { "content": "<|end|>", "special": true } },
        "eos_token": "<|end|>" });
    let files = HfFiles {
        tiktoken: Some(format!("{ranks}{words}{}", filler.collect::<String>()).into_bytes()),
        tokenizer_config: Some(config.to_string().into_bytes()),
        ..HfFiles::default()
    };
    let tokenizer = Tokenizer::from_hf(&files).unwrap();
    assert_eq!(plain(&tokenizer, "abab aba"), [256, 256, 32, 257]);
    let parse = EncodeOptions {
        parse_special: true,
        ..EncodeOptions::default()
    };
    assert_eq!(tokenizer.encode("a<|end|>", parse), [97, 50_256]);
    assert_eq!(tokenizer.eog(), [50_256]);
    assert_eq!(tokenizer.token_bytes(257), b"aba");
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |chunk: &[u8]| {
        let word =
            chunk.iter().fold(0_u32, |w, &b| w << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        let digit = |i: usize| DIGITS[(word >> (18 - 6 * i) & 63) as usize] as char;
        (0..4)
            .map(|i| if i <= chunk.len() { digit(i) } else { '=' })
            .collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

#[test]
fn word_lists() {
    let files = HfFiles {
        vocab_txt: Some("[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##able\n!\n".into()),
        ..HfFiles::default()
    };
    let tokenizer = Tokenizer::from_hf(&files).unwrap();
    let all = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert_eq!(tokenizer.encode("Unable! x", all), [2, 4, 5, 6, 1, 3]);
    assert_eq!(
        tokenizer.decode(&[2, 4, 5, 6, 3], DecodeOptions::default()),
        b"unable!"
    );
}

#[test]
fn vocabulary_and_merges() {
    let files = HfFiles {
        vocab_json: Some(br#"{"a":0,"b":1,"\u0120":2,"ab":3,"\u0120ab":4}"#.to_vec()),
        merges_txt: Some("#version: 0.2\na b\n\u{120} ab\n".into()),
        ..HfFiles::default()
    };
    let tokenizer = Tokenizer::from_hf(&files).unwrap();
    assert_eq!(plain(&tokenizer, "ab abb"), [3, 4, 1]);
}

#[test]
fn unsupported_parts_are_named() {
    let file = json!({ "pre_tokenizer": { "type": "UnicodeScripts" },
        "model": { "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "a" } });
    let files = HfFiles {
        tokenizer_json: Some(file.to_string().into_bytes()),
        ..HfFiles::default()
    };
    let error = Tokenizer::from_hf(&files).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer.json: pre_tokenizer: pre-tokenizer `UnicodeScripts` is not supported"
    );
}

#[test]
fn hostile_files_are_refused() {
    for bytes in [
        &b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..],
        b"",
        b"\xff",
        b"\x0a\x03\x0a\x09a",
    ] {
        let files = HfFiles {
            tokenizer_model: Some(bytes.to_vec()),
            ..HfFiles::default()
        };
        assert!(Tokenizer::from_hf(&files).is_err(), "{bytes:?}");
    }
    let file =
        json!({ "model": { "type": "BPE", "vocab": { "a": 4_000_000_000_u32 }, "merges": [] } });
    let files = HfFiles {
        tokenizer_json: Some(file.to_string().into_bytes()),
        ..HfFiles::default()
    };
    assert!(matches!(
        Tokenizer::from_hf(&files),
        Err(TokenizerError::Malformed { .. })
    ));
}

#[test]
fn long_runs_take_linear_time() {
    let merges: Vec<String> = (0..12)
        .map(|i| format!("{0} {0}", "a".repeat(1 << i)))
        .collect();
    let tokens: Vec<String> = (0..13).map(|i| "a".repeat(1 << i)).collect();
    let mut meta = metadata(
        "gpt2",
        &tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    meta.insert(
        "tokenizer.ggml.merges",
        strings(&merges.iter().map(String::as_str).collect::<Vec<_>>()),
    );
    let tokenizer = Tokenizer::from_metadata(&meta).unwrap();
    let started = std::time::Instant::now();
    let ids = plain(&tokenizer, &"a".repeat(1 << 20));
    assert_eq!(ids, vec![12; 1 << 8]);
    // A quadratic merge would need hours.
    assert!(started.elapsed().as_secs() < 60);
}
