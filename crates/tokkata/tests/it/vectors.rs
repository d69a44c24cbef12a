//! Vectors of texts against llama.cpp's, alone and in company. `golden/vectors.json` holds, for each model and
//! pooling, what llama.cpp gives for the ids of the model's golden (F32 cache, no flash attention, GELU computed).

use std::num::NonZeroU32;

use crate::common::{checkpoint, golden, nmse, options, put, set};
use serde_json::Value;
use tokkata::{Array, Checkpoint, Labels, Model, OpenOptions, Pooling, Purpose};
use tokkata_conformance::golden::Golden;

/// Models and how each is changed.
const MODELS: &[(&str, &str)] = &[
    ("bert", "classifier"),
    ("bert", "labels"),
    ("nomic-bert", ""),
    ("nomic-bert-moe", ""),
    ("jina-bert-v2", ""),
    ("jina-bert-v3", ""),
    ("modern-bert", "labels"),
    ("neo-bert", ""),
    ("eurobert", ""),
    ("gemma-embedding", ""),
    ("gemma-embedding", "dense"),
    ("llama-embed", ""),
    ("llama", ""),
    ("qwen3", "labels"),
    ("mamba", ""),
];

fn model(name: &str, change: &str) -> (Checkpoint, Golden) {
    let mut golden = golden(name);
    if matches!(change, "labels" | "classifier") {
        let labels = ["no", "perhaps", "yes"].map(Into::into).to_vec();
        let labels = tokkata::Value::Array(Array::Str(labels));
        set(&mut golden, "classifier.output_labels", labels);
        put(&mut golden, "cls.output.weight", &[3, 64]);
        if name != "qwen3" {
            put(&mut golden, "cls.output.bias", &[3]);
        }
    }
    if change == "classifier" {
        put(&mut golden, "cls.weight", &[64, 64]);
        put(&mut golden, "cls.bias", &[64]);
    }
    if change == "dense" {
        put(&mut golden, "dense_2.weight", &[96, 64]);
        put(&mut golden, "dense_3.weight", &[64, 96]);
        set(&mut golden, "dense_2_feat_in", tokkata::Value::U32(64));
        set(&mut golden, "dense_2_feat_out", tokkata::Value::U32(96));
        set(&mut golden, "dense_3_feat_in", tokkata::Value::U32(96));
        set(&mut golden, "dense_3_feat_out", tokkata::Value::U32(64));
    }
    let label = format!("{name}+{change}");
    (checkpoint(&label, &golden), golden)
}

/// The vectors of texts, each model being opened for just these texts.
fn embed(name: &str, change: &str, pooling: Pooling, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let (checkpoint, _) = model(name, change);
    let options = options().for_texts(&checkpoint, Some(pooling), texts);
    let mut model = Model::load(checkpoint, &options.expect("texts that fit"), None).expect(name);
    model.embed(texts).expect(name)
}

#[test]
fn vectors_are_llama_cpps() {
    let goldens: Value = serde_json::from_str(include_str!("../golden/vectors.json")).unwrap();
    let goldens = goldens.as_object().unwrap();
    assert!(goldens.len() >= 35, "{} goldens", goldens.len());
    for &(name, change) in MODELS {
        let ids = model(name, change).1.ids();
        let mut seen = 0;
        for (_, pooling) in Pooling::ALL {
            let Some(want) = goldens.get(&format!("{name}+{change}/{}", pooling.name())) else {
                continue;
            };
            let want: Vec<f32> = serde_json::from_value(want.clone()).unwrap();
            let mut got = embed(name, change, pooling, std::slice::from_ref(&ids)).remove(0);
            if pooling == Pooling::None {
                // The golden keeps the first and the last row.
                got.drain(want.len() / 2..got.len() - want.len() / 2);
            }
            let error = nmse(&got, &want);
            assert!(error < 1e-6, "{name}+{change} {pooling:?}: {error:e}");
            seen += 1;
        }
        assert!(seen >= 2, "{name}+{change}: {seen} poolings");
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_in_company() {
    for &(name, change) in MODELS {
        let (_, golden) = model(name, change);
        let ids = golden.ids();
        let texts: Vec<Vec<u32>> = [5, 32, 1, 17, 9].map(|n| ids[..n].to_vec()).into();
        for pooling in [Pooling::None, Pooling::Mean] {
            let together = embed(name, change, pooling, &texts);
            for (text, vector) in texts.iter().zip(together) {
                let alone = embed(name, change, pooling, std::slice::from_ref(text)).remove(0);
                let same = alone
                    .iter()
                    .zip(&vector)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                let n = text.len();
                assert!(
                    same && alone.len() == vector.len(),
                    "{name} {pooling:?}: {n} tokens"
                );
            }
        }
    }
}

#[test]
fn a_causal_model_takes_a_long_text_in_chunks() {
    for name in ["llama", "mamba"] {
        let ids = golden(name).ids();
        for pooling in [Pooling::None, Pooling::Last] {
            let whole = embed(name, "", pooling, std::slice::from_ref(&ids)).remove(0);
            let (checkpoint, _) = model(name, "");
            let small = OpenOptions {
                purpose: Purpose::Vectors(Some(pooling)),
                rows: 7,
                ..options()
            };
            let mut model = Model::load(checkpoint, &small, None).expect(name);
            let chunked = model
                .embed(std::slice::from_ref(&ids))
                .expect(name)
                .remove(0);
            assert!(nmse(&chunked, &whole) < 1e-10, "{name} {pooling:?}");
        }
    }
}

#[test]
fn the_file_says_how_it_is_pooled() {
    let pooling_of = |name: &str, number: Option<u32>| {
        let mut golden = golden(name);
        if let Some(number) = number {
            set(&mut golden, "pooling_type", tokkata::Value::U32(number));
        }
        let vectors = OpenOptions {
            purpose: Purpose::Vectors(None),
            ..options()
        };
        let model = Model::load(checkpoint("pooling", &golden), &vectors, None);
        model.expect(name).pooling().expect("vectors")
    };
    assert_eq!(pooling_of("bert", Some(2)), Pooling::Cls);
    assert_eq!(pooling_of("bert", Some(0)), Pooling::None);
    assert_eq!(pooling_of("llama", Some(1)), Pooling::Mean);
    assert_eq!(pooling_of("modern-bert", Some(4)), Pooling::Rank);
    assert_eq!(
        pooling_of("bert", None),
        Pooling::Mean,
        "rows see the whole text"
    );
    assert_eq!(
        pooling_of("llama", None),
        Pooling::Last,
        "only the last row does"
    );
}

#[test]
fn labels_and_probabilities_come_from_the_file() {
    let (checkpoint, _) = model("bert", "classifier");
    let labels = Labels::of(&checkpoint).expect("labels");
    assert_eq!(labels.name(1), "perhaps");
    let sum: f32 = labels.probabilities(&[0.5, 2.0, -1.0]).iter().sum();
    assert!((sum - 1.0).abs() < 1e-6);
    let (ranker, golden) = model("qwen3", "labels");
    let labels = Labels::of(&ranker).expect("labels");
    let scores = embed("qwen3", "labels", Pooling::Rank, &[golden.ids()]).remove(0);
    assert!(
        (scores.iter().sum::<f32>() - 1.0).abs() < 1e-5,
        "its own softmax"
    );
    assert_eq!(labels.probabilities(&scores), scores);
}

fn refusal(name: &str, pooling: Option<Pooling>, texts: &[Vec<u32>], ctx: u32) -> String {
    let (checkpoint, _) = model(name, "");
    let options = OpenOptions {
        ctx: NonZeroU32::new(ctx),
        ..options()
    };
    let options = options.for_texts(&checkpoint, pooling, texts);
    options.expect_err(name).to_string()
}

#[test]
fn what_cannot_be_embedded_is_refused_by_name() {
    let text = |n: usize| vec![3; n];
    let said = refusal("llama", Some(Pooling::Rank), &[text(3)], 0);
    assert!(said.ends_with("found pooling 'rank', expected one of none, mean, cls, last: the model has no classifier"), "{said}");
    let said = refusal("bert", None, &[text(3), text(9)], 8);
    assert!(
        said.contains("text 2 has 9 tokens and at most 8 fit"),
        "{said}"
    );
    let said = refusal("bert", None, &[text(300)], 0);
    assert!(
        said.contains("text 1 has 300 tokens and at most 256 fit"),
        "{said}"
    );
    let said = refusal("llama", None, &[text(1), vec![]], 0);
    assert!(said.contains("text 2 has no tokens"), "{said}");
    let said = refusal("t5", None, &[text(4)], 0);
    assert!(said.contains("it gives no vectors"), "{said}");
}

#[test]
fn a_model_does_what_it_was_opened_for() {
    let (checkpoint, golden) = model("llama", "");
    let mut model = Model::load(checkpoint, &options(), None).expect("it loads");
    let said = model.embed(&[golden.ids()]).expect_err("text").to_string();
    assert!(said.contains("it was opened for text"), "{said}");
    let (checkpoint, golden) = self::model("bert", "");
    let mut model = Model::load(checkpoint, &options(), None).expect("it loads");
    let request = tokkata::Request {
        prompt: golden.ids(),
        ..tokkata::Request::default()
    };
    let said = model
        .generate(request, None)
        .err()
        .expect("vectors")
        .to_string();
    assert!(said.contains("gives vectors, not text"), "{said}");
}
