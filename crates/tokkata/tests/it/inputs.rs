//! Models that read more than a prompt, and models that do more than write: encoder–decoders answer through the
//! engine, embeddings stand in the place of tokens, and vectors come from the weights that write.

use std::sync::Arc;

use crate::common::{checkpoint, golden, options, set};
use tokkata::probe::{Probe, ProbeInput};
use tokkata::{
    Array, EncoderInput, EventKind, Media, Model, OpenOptions, Pooling, Purpose, Request,
    RequestId, Sampling, StopRules, Value,
};
use tokkata_conformance::golden::Golden;

fn greedy(prompt: &[u32]) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: Sampling::greedy(),
        stop: StopRules {
            max_tokens: Some(12),
            ..StopRules::default()
        },
        logprobs: Some(0),
        ..Request::default()
    }
}

/// Tokens and bits of their probabilities.
type Answer = (Vec<u32>, Vec<u32>);

/// Every answer, while all requests share the model.
fn answers(model: &mut Model, requests: Vec<Request>) -> Vec<Answer> {
    let engine = model.engine();
    let ids: Vec<RequestId> = requests
        .into_iter()
        .map(|request| engine.submit(request).expect("it fits"))
        .collect();
    let mut answers = vec![Answer::default(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            let at = ids.iter().position(|&id| id == event.request);
            let answer = &mut answers[at.expect("a request")];
            match event.kind {
                EventKind::Token { id, logprobs, .. } => {
                    answer.0.push(id);
                    let bits = logprobs.map(|l| l.picked.logprob.to_bits());
                    answer.1.extend(bits);
                }
                EventKind::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
    answers
}

fn many() -> OpenOptions {
    OpenOptions {
        seqs: 4,
        rows: 40,
        ..options()
    }
}

#[test]
fn an_encoder_decoder_answers_through_the_engine() {
    for name in ["t5", "t5+plain"] {
        let golden = golden(name);
        let ids = golden.ids();
        let request = |n: usize| Request {
            encoder: Some(EncoderInput::Tokens(ids[..n].to_vec())),
            ..greedy(&golden.decoder_ids()[..5])
        };
        let lengths = [32, 1, 17, 9, 30, 4];
        let load = || Model::load(checkpoint(name, &golden), &many(), None).expect(name);
        let together = answers(&mut load(), lengths.map(request).into());
        for (n, answer) in lengths.into_iter().zip(&together) {
            let alone = answers(&mut load(), vec![request(n)]).remove(0);
            assert_eq!(&alone, answer, "{name}: {n} rows alone and in company");
            let all = [&golden.decoder_ids()[..5], &answer.0].concat();
            let input = ProbeInput {
                ids: &all,
                encoder_ids: &ids[..n],
                drafts: 0,
            };
            let probe = Probe::load(&checkpoint(name, &golden), &options(), input, None);
            let logits = probe.and_then(Probe::run).expect(name).logits;
            let width = logits.len() / all.len();
            for (i, &token) in answer.0.iter().enumerate() {
                let row = &logits[(4 + i) * width..][..width];
                let best = (0..width).max_by(|&a, &b| row[a].total_cmp(&row[b]));
                assert_eq!(best, Some(token as usize), "{name}: token {i}");
            }
        }
        assert!(together.iter().any(|a| a.0 != together[0].0), "{name}");
    }
}

#[test]
fn embeddings_of_the_table_are_its_tokens() {
    for name in ["llama", "gemma3", "falcon-h1"] {
        let golden = golden(name);
        let ids = golden.ids();
        let table = golden.tensors.iter().find(|t| t.0 == "token_embd.weight");
        let (table, shape) = table.expect("a table");
        let table = tokkata_conformance::generate::values(table, shape);
        let width = table.len() / golden.vocabulary();
        let rows = |from: usize, to: usize| -> Arc<[f32]> {
            let row = |&id: &u32| &table[id as usize * width..][..width];
            ids[from..to].iter().flat_map(row).copied().collect()
        };
        let embeds = OpenOptions {
            embeds: true,
            ..many()
        };
        let mut model = Model::load(checkpoint(name, &golden), &embeds, None).expect(name);
        let media = |at: usize, end: usize| Media {
            at,
            rows: rows(at, end),
            hash: at as u64,
            span: false,
        };
        let shown = Request {
            media: vec![media(3, 20), media(25, 32)],
            ..greedy(&ids)
        };
        let got = answers(&mut model, vec![greedy(&ids), shown]);
        assert_eq!(got[0], got[1], "{name}");
    }
    let golden = golden("llama");
    let mut model = Model::load(checkpoint("llama", &golden), &many(), None).expect("it loads");
    let shown = Request {
        media: vec![Media {
            at: 0,
            rows: vec![0.0; 64].into(),
            hash: 0,
            span: false,
        }],
        ..greedy(&golden.ids())
    };
    let refused = model.engine().submit(shown).unwrap_err().to_string();
    assert_eq!(refused, "the model was not loaded to read embeddings");
}

/// A model of one layer, whose keys and values follow from their tokens and places alone.
fn one_layer(name: &str) -> Golden {
    let mut golden = golden(name);
    set(&mut golden, "block_count", Value::U32(1));
    golden.tensors.retain(|(name, _)| {
        let layer = name.strip_prefix("blk.").and_then(|n| n.split('.').next());
        layer.is_none_or(|layer| layer == "0")
    });
    let layers = |value: &Value| match value {
        Value::Array(Array::U32(v)) if v.len() > 1 => Some(Value::Array(Array::U32(v[..1].into()))),
        Value::Array(Array::I32(v)) if v.len() > 1 => Some(Value::Array(Array::I32(v[..1].into()))),
        Value::Array(Array::Bool(v)) if v.len() > 1 => {
            Some(Value::Array(Array::Bool(v[..1].into())))
        }
        _ => None,
    };
    let changed: Vec<(String, Value)> = golden
        .metadata
        .iter()
        .filter(|(key, _)| !key.ends_with("dimension_sections"))
        .filter_map(|(key, value)| Some((key.to_owned(), layers(value)?)))
        .collect();
    for (key, value) in changed {
        golden.metadata.insert(key, value);
    }
    golden
}

#[test]
fn a_shifted_context_is_that_of_its_tokens_in_their_new_places() {
    // Rotations of whole heads and parts of them, in halves and neighbours, over channels, in windows, beside latents,
    // and none at all.
    for name in [
        "llama",
        "qwen3",
        "gptneox",
        "gemma3",
        "qwen2vl",
        "deepseek2",
        "bloom",
        "cohere2",
    ] {
        let golden = one_layer(name);
        let ids = golden.ids();
        let options = OpenOptions {
            ctx: std::num::NonZeroU32::new(64),
            block_size: std::num::NonZeroU32::new(8),
            ..many()
        };
        let load = || Model::load(checkpoint(name, &golden), &options, None).expect(name);
        let mut model = load();
        let session = model.open_session();
        let request = Request {
            shift: Some(8),
            stop: StopRules {
                max_tokens: Some(120),
                ..StopRules::default()
            },
            ..greedy(&ids)
        };
        let engine = model.engine();
        let id = engine.submit_to(session, request).expect(name);
        let mut drawn: Vec<(u32, f32)> = Vec::new();
        while !engine.is_idle() {
            for event in engine.step() {
                match event.kind {
                    EventKind::Token { id, logprobs, .. } => {
                        drawn.push((id, logprobs.expect("it was asked for").picked.logprob));
                    }
                    EventKind::Failed(error) => panic!("{name}: {error}"),
                    _ => {}
                }
            }
        }
        assert_eq!(drawn.len(), 120, "{name}");
        let _ = id;
        // What it holds now, the last tokens of the answer but the newest at its end, is read anew.
        let held = model.engine().session_tokens(session).to_vec();
        let (last, logprob) = drawn[119];
        let tail: Vec<u32> = drawn[100..119].iter().map(|d| d.0).collect();
        assert!(held.ends_with(&tail) && held.len() < 64, "{name}");
        assert_eq!(held[..8], ids[..8], "{name}: the beginning stays");
        let mut fresh = load();
        let again = fresh.engine().submit(Request {
            stop: StopRules {
                max_tokens: Some(1),
                ..StopRules::default()
            },
            ..greedy(&held)
        });
        let again = again.expect(name);
        let mut got = None;
        while !fresh.engine().is_idle() {
            for event in fresh.engine().step() {
                if let EventKind::Token { id, logprobs, .. } = event.kind {
                    got = logprobs.map(|l| (id, l.picked.logprob));
                }
            }
        }
        let _ = again;
        let (token, fresh) = got.expect("a token");
        assert_eq!(token, last, "{name}");
        assert!(
            (fresh - logprob).abs() < 1e-4,
            "{name}: {fresh} for {logprob}"
        );
    }
    let refused = |name: &str| {
        let golden = golden(name);
        let mut model = Model::load(checkpoint(name, &golden), &many(), None).expect(name);
        let request = Request {
            shift: Some(0),
            ..greedy(&golden.ids())
        };
        model.engine().submit(request).unwrap_err().to_string()
    };
    assert_eq!(
        refused("gpt2"),
        "the context of this model cannot be shifted: its positions are learned"
    );
    assert_eq!(
        refused("hunyuan-dense"),
        "the context of this model cannot be shifted: its keys are changed after they are turned"
    );
}

#[test]
fn one_copy_of_the_weights_writes_and_gives_vectors() {
    for (name, pooling) in [
        ("llama", Pooling::Last),
        ("gemma3", Pooling::Mean),
        ("mamba", Pooling::None),
    ] {
        let golden = golden(name);
        let ids = golden.ids();
        let open = |purpose| {
            let options = OpenOptions { purpose, ..many() };
            Model::load(checkpoint(name, &golden), &options, None).expect(name)
        };
        let texts = [ids.clone(), ids[..7].to_vec()];
        let mut writer = open(Purpose::Text);
        let mut reader = open(Purpose::Vectors(Some(pooling)));
        let mut both = open(Purpose::Both(Some(pooling)));
        let written = answers(&mut writer, vec![greedy(&ids)]);
        let vectors = reader.embed(&texts).expect(name);
        for _ in 0..2 {
            assert_eq!(answers(&mut both, vec![greedy(&ids)]), written, "{name}");
            assert_eq!(both.embed(&texts).expect(name), vectors, "{name}");
        }
        assert!(writer.embed(&texts).is_err());
        let sizes = [&writer, &reader, &both].map(Model::memory_bytes);
        assert!(sizes[2] < sizes[0] + sizes[1] / 2, "{name}: {sizes:?}");
    }
}
