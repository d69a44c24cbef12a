//! Files whose indexers, streams and gates do not fit are refused by the tensor or the rule.

use tokkata_archs::{Registry, ResolveOptions};
use tokkata_conformance::generate;
use tokkata_conformance::golden::{Golden, entry};

/// What is said to a golden's file with other metadata, and without the tensors that end so.
fn refusal(name: &str, set: &[(&str, &str)], without: Option<&str>) -> String {
    let mut golden = Golden::read(&Golden::folder(), name).expect(name);
    for (key, value) in set {
        let (key, value) = entry(key, value).expect(key);
        golden.metadata.insert(key, value);
    }
    golden
        .tensors
        .retain(|t| !without.is_some_and(|w| t.0.ends_with(w)));
    let file = generate::model(&golden).expect(name);
    let resolved = Registry::builtin().resolve(&file, &ResolveOptions { ctx: 32 });
    resolved.expect_err("the file does not fit").to_string()
}

#[test]
fn indexers_that_do_not_fit() {
    let key = |name: &str| format!("u32 {name}");
    let said = |arch: &str, name: &str, value: &str| {
        let set = key(&format!("{arch}.attention.indexer.{name}"));
        refusal(arch, &[(&set, value)], None)
    };
    let none =
        "\"indexer\" of layer 0: 8 heads of 64 choose 0 units of 1 positions, 0 of them always";
    assert_eq!(said("deepseek32", "top_k", "0"), none);
    let wide = "tensor blk.0.indexer.attn_q_b.weight has shape [512, 28], expected [1024, 28] (slowest first)";
    assert_eq!(said("deepseek32", "key_length", "128"), wide);
    let heads = "\"indexer\" of layer 1: 3 heads choose for 2 key heads";
    assert_eq!(said("minimax-m3", "head_count", "3"), heads);
    let types = [("[u32] glm-dsa.attention.indexer.types", "[0,1,1,1]")];
    assert_eq!(
        refusal("glm-dsa", &types, None),
        "\"indexer\" of layer 0: it reads what an earlier layer chose, but none before it chooses"
    );
}

#[test]
fn streams_that_do_not_fit() {
    let count = |value| {
        refusal(
            "deepseek4",
            &[("u32 deepseek4.hyper_connection.count", value)],
            None,
        )
    };
    assert_eq!(
        count("3"),
        "tensor blk.0.hc_attn_fn.weight has shape [24, 256], expected [15, 192] (slowest first)"
    );
    assert_eq!(
        count("1"),
        "\"connected.n\": 1 streams; there must be two or more"
    );
    let every = [("u32 kimi-k3.attn_res.block_size", "0")];
    assert_eq!(
        refusal("kimi-k3", &every, None),
        "\"banked.every\": 0 layers between entries of the bank"
    );
}

#[test]
fn gates_that_are_missing() {
    assert_eq!(
        refusal("hy_v4", &[], Some("attn_gate.weight")),
        "the file lacks the tensor blk.0.attn_gate.weight [4, 64]"
    );
    assert_eq!(
        refusal("deepseek4", &[], Some("attn_compressor_gate.weight")),
        "the file lacks the tensor blk.1.attn_compressor_gate.weight [128, 64]"
    );
}
