//! A model of random weights over bytes and a few words, and answers of it.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::path::Path;

use tokkata::grammar::{Grammar, GrammarSource, Trigger, constrain};
use tokkata::{
    Array, DType, EventKind, FinishReason, Metadata, Model, OpenOptions, Request, Sampling, Value,
};
use tokkata_formats::{GgufWriter, ShardLimit};
use tokkata_ir::sample::uniform;

const N_EMBD: usize = 32;
const N_FF: usize = 64;
/// Words beside the bytes, so that tokens cross the borders of a grammar's parts.
const WORDS: [&str; 12] = [
    "{\"", "\":", "\",", "\"}", "true", "name", "}]", "},", "[{", "12", "ab", "</think>",
];
pub const END: u32 = 256 + WORDS.len() as u32;
const N_VOCAB: usize = END as usize + 1;

/// The characters that byte-level vocabularies write bytes as.
fn byte_chars() -> Vec<String> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let shown = (0..256).map(|byte| {
        let code = if printable(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).expect("a character").to_string()
    });
    shown.collect()
}

fn metadata() -> Metadata {
    let mut tokens: Vec<String> = byte_chars();
    tokens.extend(WORDS.map(str::to_owned));
    tokens.push("<end>".to_owned());
    let mut kinds = vec![1; N_VOCAB];
    kinds[END as usize] = 3;
    let mut meta = Metadata::default();
    meta.insert("general.architecture", "llama".into());
    for (key, value) in [
        ("context_length", 512),
        ("embedding_length", N_EMBD as u32),
        ("block_count", 1),
        ("feed_forward_length", N_FF as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 16),
        ("vocab_size", N_VOCAB as u32),
    ] {
        meta.insert(format!("llama.{key}"), Value::U32(value));
    }
    let eps = Value::F32(1e-5);
    meta.insert("llama.attention.layer_norm_rms_epsilon", eps);
    meta.insert("tokenizer.ggml.model", "gpt2".into());
    meta.insert("tokenizer.ggml.pre", "gpt-2".into());
    meta.insert(
        "tokenizer.ggml.tokens",
        Value::Array(Array::Str(tokens.into_iter().map(Into::into).collect())),
    );
    meta.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    meta.insert("tokenizer.ggml.merges", Value::Array(Array::Str(vec![])));
    meta.insert("tokenizer.ggml.eos_token_id", Value::U32(END));
    meta.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    meta
}

fn write_model(path: &Path) {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("token_embd.weight".into(), vec![N_VOCAB, N_EMBD]),
        ("output_norm.weight".into(), vec![N_EMBD]),
        ("output.weight".into(), vec![N_VOCAB, N_EMBD]),
    ];
    for (name, shape) in [
        ("attn_norm", vec![N_EMBD]),
        ("attn_q", vec![N_EMBD, N_EMBD]),
        ("attn_k", vec![N_EMBD, N_EMBD]),
        ("attn_v", vec![N_EMBD, N_EMBD]),
        ("attn_output", vec![N_EMBD, N_EMBD]),
        ("ffn_norm", vec![N_EMBD]),
        ("ffn_gate", vec![N_FF, N_EMBD]),
        ("ffn_up", vec![N_FF, N_EMBD]),
        ("ffn_down", vec![N_EMBD, N_FF]),
    ] {
        tensors.push((format!("blk.0.{name}.weight"), shape));
    }
    let mut writer = GgufWriter::new(path, metadata()).expect("a file");
    for (name, shape) in &tensors {
        writer.declare(name, DType::F32, shape).expect("a tensor");
    }
    let mut output = writer.create(ShardLimit::Whole).expect("a file");
    for (seed, (_, shape)) in tensors.iter().enumerate() {
        output.write(&contents(shape, seed as u64)).expect("bytes");
    }
    output.finish().expect("a file");
}

fn contents(shape: &[usize], seed: u64) -> Vec<u8> {
    let n: usize = shape.iter().product();
    let scale = (12.0 / shape[shape.len() - 1] as f32).sqrt();
    let value = |i| match shape {
        [_] => 1.0,
        _ => (uniform(seed, i) as f32 / u64::MAX as f32 - 0.5) * scale,
    };
    (0..n as u64).flat_map(|i| value(i).to_le_bytes()).collect()
}

pub struct Tiny {
    pub model: Model,
    _dir: tempfile::TempDir,
}

pub fn tiny() -> Tiny {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tiny.gguf");
    write_model(&path);
    let options = OpenOptions {
        threads: Some(1),
        rows: 64,
        ..OpenOptions::default()
    };
    let model = Model::open(&path, &options).expect("a model");
    Tiny { model, _dir: dir }
}

impl Tiny {
    pub fn grammar(&self, source: GrammarSource, trigger: Trigger) -> Grammar {
        let grammar = self.model.checkpoint().grammar(source, trigger);
        grammar.expect("a grammar")
    }

    /// A request whose tokens are drawn from all.
    pub fn warm(&self, seed: u64, tokens: usize) -> Request {
        let mut request = self.model.request(vec![65, 66]).expect("a tokenizer");
        request.sampling = Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed,
            ..Sampling::default()
        };
        request.stop.max_tokens = Some(tokens);
        request
    }

    pub fn request(&self, grammar: &Grammar, seed: u64) -> Request {
        let mut request = self.warm(seed, 300);
        constrain(&mut request, grammar);
        request
    }

    /// Tokens, text and how the answer ended.
    pub fn answer(&mut self, request: Request) -> (Vec<u32>, String, FinishReason) {
        let (mut tokens, mut text) = (Vec::new(), Vec::new());
        for event in self.model.generate(request, None).expect("a request") {
            match event.expect("an answer") {
                EventKind::Token { id, text: t, .. } => {
                    tokens.push(id);
                    text.extend(t);
                }
                EventKind::Finished {
                    text: t, reason, ..
                } => {
                    text.extend(t);
                    return (tokens, String::from_utf8(text).expect("UTF-8"), reason);
                }
                _ => {}
            }
        }
        panic!("the answer does not end");
    }
}
