//! A tiny BERT with a vocabulary of words and a classifier of three classes: vectors and scores of texts, from numbers that
//! nobody owns.

use tokkata_core::{Array, Value};

use crate::generate::gguf;
use crate::golden::Golden;

const WORDS: &str =
    "[PAD] [UNK] [CLS] [SEP] [MASK] ▁the ▁cat ▁dog ▁sat ▁ran ▁red ▁on ▁mat s ▁is ▁what ▁who";

/// The model as a GGUF file.
///
/// # Panics
/// The golden that it is made of is missing.
#[must_use]
pub fn file() -> Vec<u8> {
    let mut golden = Golden::read(&Golden::folder(), "bert").expect("golden");
    let mut words: Vec<String> = WORDS.split(' ').map(str::to_owned).collect();
    words.extend((words.len()..64).map(|i| format!("▁w{i}")));
    let strings =
        |all: &[String]| Value::Array(Array::Str(all.iter().map(|w| w.as_str().into()).collect()));
    let mut kinds = vec![1; 64];
    kinds[..5].fill(3);
    let labels = ["no", "perhaps", "yes"].map(str::to_owned);
    let keys = [
        ("tokenizer.ggml.model", Value::from("bert")),
        ("tokenizer.ggml.pre", Value::from("jina-v2-en")),
        ("tokenizer.ggml.tokens", strings(&words)),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.unknown_token_id", Value::U32(1)),
        ("tokenizer.ggml.bos_token_id", Value::U32(2)),
        ("tokenizer.ggml.eos_token_id", Value::U32(3)),
        ("tokenizer.ggml.seperator_token_id", Value::U32(3)),
        ("bert.pooling_type", Value::U32(1)),
        ("bert.classifier.output_labels", strings(&labels)),
    ];
    for (key, value) in keys {
        golden.metadata.insert(key, value);
    }
    golden
        .tensors
        .push(("cls.output.weight".to_owned(), vec![3, 64]));
    golden.tensors.push(("cls.output.bias".to_owned(), vec![3]));
    gguf(&golden).expect("a golden makes a model")
}
