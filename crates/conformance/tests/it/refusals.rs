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

#[test]
fn drafters_that_do_not_fit() {
    let eagle = |set: &[(&str, &str)], without| refusal("eagle3+heads", set, without);
    assert_eq!(
        eagle(&[("u32 draft.eagle3.target_hidden_size", "32")], None),
        "\"target_hidden_size\": found 32 columns, expected the 64 of the model's stream"
    );
    let layers = |list| eagle(&[("[i32] draft.eagle3.target_layers", list)], None);
    assert_eq!(
        layers("[0,2,5]"),
        "\"target_layers\": found the layers [0.0, 2.0, 5.0], expected 3 of the 4 that the model has"
    );
    assert_eq!(
        layers("[0,2]"),
        "\"target_layers\": found the layers [0.0, 2.0], expected 3 of the 4 that the model has"
    );
    assert_eq!(
        eagle(&[], Some("draft.fc.weight")),
        "the file lacks the tensor fc.weight [64, 192]"
    );
    let narrow = refusal("eagle3+own+heads", &[], Some("draft.token_embd.weight"));
    assert_eq!(
        narrow,
        "n_embd: found 32 columns, expected 64 to borrow the model's token table"
    );
    let block = |set: &[(&str, &str)]| refusal("dflash+heads", set, None);
    assert_eq!(
        block(&[("u32 draft.tokenizer.ggml.mask_token_id", "64")]),
        "\"block_size\": found 5 tokens of a block, masked by token 64"
    );
    assert_eq!(
        block(&[("u32 draft.dflash.hyper_connection.count", "4")]),
        "architecture 'dflash': it is a DSpark drafter for DeepSeek V4, expected a plain DFlash one"
    );
    assert_eq!(
        block(&[("str draft.general.architecture", "gemma4-assistant")]),
        "architecture 'gemma4-assistant' cannot be run: it is a draft model that reads the cache of another model"
    );
    assert_eq!(
        block(&[("str draft.general.architecture", "qwen3")]),
        "architecture 'qwen3' cannot be run: it does not guess for other models by their states"
    );
}
