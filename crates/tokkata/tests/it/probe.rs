//! Logits of decoders and of multi-token-prediction heads against llama.cpp's. `golden/drafts.json` holds those of
//! the heads: row i pairs token i with the state after token i − 1 (F32 cache, no flash attention), every 8th row.

use crate::common::{checkpoint, golden, nmse, options, put, set};
use serde_json::Value as Json;
use tokkata::probe::{Probe, ProbeInput, Probed};
use tokkata::{Array, Value};
use tokkata_conformance::golden::Golden;

/// A golden with a head behind its trunk: a copy of the last layer's tensors, and the head's own.
fn with_head(name: &str) -> Golden {
    let mut golden = golden(name);
    let key = |k: &str| format!("{}.{k}", golden.arch());
    let layers = golden.metadata.uint(&key("block_count")).expect("layers") as usize;
    let (last, own) = (format!("blk.{}.", layers - 1), format!("blk.{layers}."));
    let copies: Vec<(String, Vec<usize>)> = golden
        .tensors
        .iter()
        .filter_map(|(n, shape)| Some((own.clone() + n.strip_prefix(&last)?, shape.clone())))
        .collect();
    golden.tensors.extend(copies);
    for (n, shape) in [
        ("eh_proj", vec![64, 128]),
        ("enorm", vec![64]),
        ("hnorm", vec![64]),
        ("shared_head_norm", vec![64]),
    ] {
        put(&mut golden, &format!("{own}nextn.{n}.weight"), &shape);
    }
    let longer = |value: &Value| match value {
        Value::Array(Array::U32(v)) if v.len() == layers => Some(Value::Array(Array::U32(
            [&v[..], &v[layers - 1..]].concat(),
        ))),
        Value::Array(Array::I32(v)) if v.len() == layers => Some(Value::Array(Array::I32(
            [&v[..], &v[layers - 1..]].concat(),
        ))),
        _ => None,
    };
    // Sections of a rotation are as many as the layers by chance.
    let per_layer = |key: &str| !key.ends_with("dimension_sections");
    let changed: Vec<(String, Value)> = golden
        .metadata
        .iter()
        .filter(|(k, _)| per_layer(k))
        .filter_map(|(k, v)| Some((k.to_owned(), longer(v)?)))
        .collect();
    for (key, value) in changed {
        golden.metadata.insert(key, value);
    }
    set(&mut golden, "block_count", Value::U32(layers as u32 + 1));
    set(&mut golden, "nextn_predict_layers", Value::U32(1));
    golden
}

fn probe(name: &str, golden: &Golden, input: ProbeInput<'_>) -> Result<Probed, String> {
    let checkpoint = checkpoint(name, golden);
    let probe = Probe::load(&checkpoint, &options(), input, None);
    probe.and_then(Probe::run).map_err(|e| e.to_string())
}

#[test]
fn a_decoder_reads_what_its_encoder_wrote() {
    let golden = golden("t5");
    let (ids, encoder_ids) = (golden.decoder_ids(), golden.ids());
    let input = ProbeInput {
        ids: &ids,
        encoder_ids: &encoder_ids,
        drafts: 0,
    };
    let got = probe("t5", &golden, input).expect("logits").logits;
    let width = got.len() / ids.len();
    let got = tokkata_conformance::golden::sample(&got, width, golden.stride);
    assert!(nmse(&got, &golden.want) < 1e-6);
    let said = probe(
        "t5",
        &golden,
        ProbeInput {
            encoder_ids: &[],
            ..input
        },
    )
    .expect_err("no encoder tokens");
    assert!(said.contains("it has an encoder"), "{said}");
    let said = probe("llama", &crate::common::golden("llama"), input).expect_err("no encoder");
    assert!(said.contains("it has no encoder"), "{said}");
}

#[test]
fn heads_predict_what_llama_cpps_predict() {
    let goldens: Json = serde_json::from_str(include_str!("../golden/drafts.json")).unwrap();
    let names = ["qwen35", "qwen3next", "deepseek2"];
    for (name, (drafts, width)) in names.map(|name| (name, first_head(name))) {
        let want: Vec<f32> = serde_json::from_value(goldens[name].clone()).expect(name);
        let rows = drafts.chunks(width).step_by(8);
        let got: Vec<f32> = rows.flatten().copied().collect();
        let error = nmse(&got, &want);
        assert!(error < 1e-6, "{name}: {error:e}");
    }
}

/// Logits of the head, and their width; two heads are more than there are.
fn first_head(name: &str) -> (Vec<f32>, usize) {
    let golden = with_head(name);
    let ids = golden.ids();
    let input = ProbeInput {
        ids: &ids,
        encoder_ids: &[],
        drafts: 1,
    };
    let label = format!("{name}+head");
    let said = probe(&label, &golden, ProbeInput { drafts: 2, ..input }).expect_err("one head");
    assert!(
        said.contains("fewer multi-token-prediction heads"),
        "{said}"
    );
    let mut probed = probe(&label, &golden, input).expect(name);
    let width = probed.logits.len() / ids.len();
    (probed.drafts.remove(0), width)
}
