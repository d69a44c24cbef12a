//! Every golden of a Hugging Face checkpoint, from its directory, on every device.

use std::path::Path;

use tokkata_archs::{Registry, ResolveOptions};
use tokkata_backend_cpu::CpuBackend;
use tokkata_conformance::devices;
use tokkata_conformance::golden::Golden;
use tokkata_conformance::hf::{AGREES, HfGolden};
use tokkata_formats::ModelFile;
use tokkata_ir::Device;

fn fault(name: &str, registry: &Registry, device: &dyn Device) -> Result<(), String> {
    let golden = HfGolden::read(&HfGolden::folder(), name)?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    golden.write_directory(folder.path())?;
    let file = ModelFile::open(folder.path()).map_err(|e| e.to_string())?;
    match golden.error(&file, registry, device)? {
        error if error <= AGREES => Ok(()),
        error => Err(format!("NMSE {error:.1e}")),
    }
}

/// The built-in descriptors, or those of a folder, so that one can be worked on without a compiler.
fn registry() -> Registry {
    let mut registry = Registry::builtin();
    let Ok(folder) = std::env::var("TOKKATA_ARCHS") else {
        return registry;
    };
    let entries = std::fs::read_dir(folder).expect("a folder of descriptors");
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        registry.add_file(&path).unwrap_or_else(|e| panic!("{e}"));
    }
    registry
}

fn check(device: &dyn Device) {
    let registry = registry();
    let names = Golden::list(&HfGolden::folder()).expect("goldens");
    assert!(names.len() >= 122, "found {} goldens", names.len());
    let only = std::env::var("TOKKATA_GOLDEN").ok();
    let names = names
        .iter()
        .filter(|n| only.as_ref().is_none_or(|o| o == *n));
    let faults: Vec<String> = names
        .filter_map(|name| Some(format!("{name}: {}", fault(name, &registry, device).err()?)))
        .collect();
    let on = device.name();
    assert!(
        faults.is_empty(),
        "{} on {on}:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn every_device_agrees_with_transformers() {
    devices().iter().for_each(|device| check(device.as_ref()));
}

#[test]
fn goldens_are_small() {
    let names = Golden::list(&HfGolden::folder()).expect("goldens");
    let size = |path: &Path| path.metadata().map_or(0, |m| m.len());
    for name in names {
        let path = HfGolden::folder().join(format!("{name}.json"));
        assert!(size(&path) < 50_000, "{name} has {} bytes", size(&path));
    }
}

/// A directory of a golden, changed, and what the descriptors say about it.
fn refusal(name: &str, change: impl Fn(&mut HfGolden)) -> String {
    let mut golden = HfGolden::read(&HfGolden::folder(), name).expect("a golden");
    change(&mut golden);
    let folder = tempfile::tempdir().expect("a folder");
    golden.write_directory(folder.path()).expect("a directory");
    let file = ModelFile::open(folder.path()).expect("a model");
    match Registry::builtin().resolve(&file, &ResolveOptions { ctx: 16 }) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_would_change_numbers_is_refused_by_name() {
    let set = |key: &'static str, value: serde_json::Value| {
        move |g: &mut HfGolden| g.config[key] = value.clone()
    };
    let no = |text: String, part: &str| assert!(text.contains(part), "{text}");
    no(
        refusal("llama", set("logit_softening", 2.into())),
        "logit_softening to 2",
    );
    no(
        refusal("llama", set("hidden_act", "gelu".into())),
        "hidden_act to \"gelu\", expected \"silu\"",
    );
    no(
        refusal("llama", set("architectures", ["Foo"].as_slice().into())),
        "class Foo",
    );
    no(
        refusal("llama", set("num_hidden_layers", 1e9.into())),
        "block_count to 1000000000",
    );
    no(
        refusal("llama", set("num_attention_heads", 3.into())),
        "attn",
    );
    no(
        refusal("qwen2", set("use_sliding_window", true.into())),
        "use_sliding_window to true",
    );
    let rope = |g: &mut HfGolden| g.config["rope_parameters"]["rope_type"] = "dynamic".into();
    no(refusal("llama", rope), "rope_type");
    let nested = |g: &mut HfGolden| g.config["rope_parameters"]["new_knob"] = 3.into();
    no(refusal("llama", nested), "rope_parameters.new_knob");
    no(
        refusal("llama", |g| drop(g.tensors.remove(3))),
        "blk.0.ffn_down.weight",
    );
    let twist = |g: &mut HfGolden| g.tensors[3].shape.reverse();
    no(
        refusal("llama", twist),
        "blk.0.ffn_down.weight has shape [96, 64], expected [64, 96]",
    );
    let rename = |g: &mut HfGolden| {
        let mut more = g.tensors[0].clone();
        more.name = "model.layers.0.mlp.extra.weight".to_owned();
        g.tensors.push(more);
    };
    no(
        refusal("llama", rename),
        "such as model.layers.0.mlp.extra.weight",
    );
    assert_eq!(refusal("llama", |_| {}), "accepted");
}

/// What a family's rules require of its settings.
#[test]
fn settings_beyond_a_family_are_refused() {
    let cases: [(&str, &str, serde_json::Value, &str); 17] = [
        (
            "falcon-h1",
            "mamba_norm_before_gate",
            true.into(),
            "norm_before_gate",
        ),
        (
            "falcon-h1",
            "attention_bias",
            true.into(),
            "attention_bias to true",
        ),
        (
            "gemma3n",
            "altup_active_idx",
            1.into(),
            "altup_active_idx to 1",
        ),
        (
            "gemma3n+sparse",
            "activation_sparsity_pattern",
            0.4.into(),
            "more than half",
        ),
        (
            "gemma4",
            "num_kv_shared_layers",
            3.into(),
            "one that slides",
        ),
        (
            "nemotron_h_moe",
            "time_step_limit",
            [0.1, 0.2].as_slice().into(),
            "time_step_limit",
        ),
        (
            "phimoe",
            "num_experts_per_tok",
            3.into(),
            "num_experts_per_tok to 3",
        ),
        ("mimo2", "swa_head_dim", 16.into(), "sliding layers"),
        (
            "deepseek2+glm",
            "mlp_layer_types",
            ["sparse", "dense"].as_slice().into(),
            "behind others",
        ),
        (
            "deepseek32",
            "mlp_layer_types",
            ["sparse", "dense"].as_slice().into(),
            "behind others",
        ),
        ("deepseek32", "index_n_heads", 0.into(), "0 heads of 64"),
        (
            "glm-dsa",
            "indexer_types",
            ["shared", "full", "full", "full"].as_slice().into(),
            "none before it chooses",
        ),
        (
            "glm-dsa",
            "indexer_rope_interleave",
            false.into(),
            "indexer_rope_interleave to false",
        ),
        (
            "deepseek4",
            "mlp_layer_types",
            ["moe", "hash_moe", "moe", "moe"].as_slice().into(),
            "listed by token stand behind others",
        ),
        (
            "hy_v4",
            "rope_parameters",
            serde_json::json!({"rope_type": "yarn", "rope_theta": 10000, "factor": 4}),
            "rotation is scaled",
        ),
        (
            "dots3note",
            "swa_q_lora_rank",
            16.into(),
            "another rank of queries",
        ),
        (
            "deepseek4",
            "norm_topk_prob",
            false.into(),
            "norm_topk_prob to false",
        ),
    ];
    for (name, key, value, part) in cases {
        let text = refusal(name, |g| g.config[key] = value.clone());
        assert!(text.contains(part), "{name}, {key}: {text}");
    }
    let rate =
        |g: &mut HfGolden| g.config["compress_rates"]["heavily_compressed_attention"] = 4.into();
    let text = refusal("deepseek4", rate);
    assert!(text.contains("compress_rates of layers"), "{text}");
    let nested = [
        ("minimax-m3", "swiglu_limit", "swiglu_limit to 6"),
        ("minimax-m3", "rotary_dim", "rotary_dim and"),
        ("glm5-next", "linear_num_heads", "another number of heads"),
    ];
    for (name, key, part) in nested {
        let six = |g: &mut HfGolden| g.config["text_config"][key] = 6.into();
        let text = refusal(name, six);
        assert!(text.contains(part), "{text}");
    }
    let types = |g: &mut HfGolden| {
        g.config["text_config"]["layer_types"][1] = "full_attention".into();
    };
    let text = refusal("minimax-m3", types);
    assert!(text.contains("not those with experts"), "{text}");
    let theta = |g: &mut HfGolden| g.config["text_config"]["layer_rope_theta"][1] = 5.into();
    let text = refusal("muse-glimmer", theta);
    assert!(text.contains("layer_rope_theta"), "{text}");
    let head = |g: &mut HfGolden| g.config["per_layer_config"]["3"]["rope_theta"] = 5.into();
    let text = refusal("gemma4", head);
    assert!(text.contains("per_layer_config.3.rope_theta"), "{text}");
}

/// Layers whose heads differ cannot share keys, whatever a descriptor says.
#[test]
fn keys_are_shared_by_layers_alike() {
    let mut golden = HfGolden::read(&HfGolden::folder(), "gemma4").expect("a golden");
    golden.config["num_kv_shared_layers"] = 5.into();
    golden.config["use_double_wide_mlp"] = false.into();
    for tensor in &mut golden.tensors {
        let wide = |d: &mut usize| *d = if *d == 192 { 96 } else { *d };
        tensor.shape.iter_mut().for_each(wide);
    }
    let folder = tempfile::tempdir().expect("a folder");
    golden.write_directory(folder.path()).expect("a directory");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../archs/archs/gemma4.toml");
    let text = std::fs::read_to_string(path).expect("a descriptor");
    let lax = text.replace("(num_kv_shared_layers ?? 0) == 0 ||", "1 ||");
    let mut registry = Registry::builtin();
    registry
        .add_text("gemma4.toml", &lax)
        .expect("a descriptor");
    let file = ModelFile::open(folder.path()).expect("a model");
    let error = registry.resolve(&file, &ResolveOptions { ctx: 16 });
    let error = error.expect_err("layers of other heads").to_string();
    assert!(error.contains("layer 2 keeps"), "{error}");
}

/// Settings as published checkpoints write them, where Transformers writes others.
#[test]
fn published_spellings_mean_the_same() {
    let cases = [
        (
            "nemotron_h_moe",
            r#"{"layers_block_type": null, "hybrid_override_pattern": "ME*E", "num_hidden_layers": 4}"#,
        ),
        (
            "nemotron_h",
            r#"{"layers_block_type": null, "hybrid_override_pattern": "M-*-", "num_hidden_layers": 4}"#,
        ),
        (
            "kimi-linear",
            r#"{"layer_types": null, "mlp_layer_types": null, "first_k_dense_replace": 1, "linear_head_dim": null,
                "linear_num_heads": null, "linear_conv_kernel_dim": null, "mla_use_nope": true, "linear_attn_config":
                {"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4, "full_attn_layers": [4], "kda_layers": [1, 2, 3]}}"#,
        ),
        (
            "gemma4",
            r#"{"per_layer_config": null, "global_head_dim": 32}"#,
        ),
        (
            "gemma4+moe",
            r#"{"per_layer_config": null, "global_head_dim": 32, "num_global_key_value_heads": 1}"#,
        ),
        (
            "mimo2",
            r#"{"layer_types": null, "mlp_layer_types": null, "hybrid_layer_pattern": [0, 1, 1], "swa_num_key_value_heads": 4,
                "rope_parameters": null, "rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.334,
                "sliding_window": 7, "sliding_window_size": 7, "rms_norm_eps": null, "layernorm_epsilon": 1e-5,
                "routed_scaling_factor": null, "moe_layer_freq": [0, 1, 1]}"#,
        ),
        (
            "hunyuan_vl",
            r#"{"text_config": {"rope_parameters": null, "rope_theta": 10000, "rope_scaling": {"type": "xdrope", "alpha": 1000,
                "factor": 1, "mscale": 1, "xdrope_section": [2, 2, 2, 2]}}}"#,
        ),
        (
            "deepseek2+glm",
            r#"{"mlp_layer_types": null, "first_k_dense_replace": 1}"#,
        ),
        (
            "deepseek32",
            r#"{"mlp_layer_types": null, "layer_types": null, "rope_parameters": null, "rope_theta": 10000,
                "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 4, "mscale": 1, "mscale_all_dim": 1,
                "original_max_position_embeddings": 16, "type": "yarn"}, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
                "moe_layer_freq": 1, "ep_size": 1, "num_nextn_predict_layers": 1}"#,
        ),
        (
            "glm-dsa",
            r#"{"indexer_types": null, "index_topk_freq": 2, "index_skip_topk_offset": 1, "mlp_layer_types": null,
                "layer_types": null, "indexer_rope_interleave": true, "head_dim": 24, "moe_router_dtype": "float32"}"#,
        ),
        (
            "glm-dsa",
            r#"{"indexer_types": null, "index_topk_pattern": "FSFS"}"#,
        ),
        (
            "minimax-m3",
            r#"{"text_config": {"layer_types": null, "mlp_layer_types": null, "index_n_heads": null, "index_head_dim": null,
                "index_block_size": null, "index_topk_blocks": null, "index_local_blocks": null, "hidden_act": "swigluoai",
                "rope_parameters": null, "rope_theta": 10000, "partial_rotary_factor": 0.5, "use_qk_norm": true,
                "qk_norm_type": "per_head", "use_gemma_norm": true, "attention_output_gate": false, "n_shared_experts": 1,
                "scoring_func": "sigmoid", "use_routing_bias": true, "moe_layer_freq": [0, 1, 1], "num_mtp_modules": 7,
                "sparse_attention_config": {"use_sparse_attention": true, "sparse_index_dim": 24, "sparse_num_index_heads": 2,
                "sparse_topk_blocks": 2, "sparse_block_size": 4, "sparse_score_type": "max", "sparse_init_block": 0,
                "sparse_local_block": 1, "sparse_disable_index_value": [0, 1, 1], "sparse_attention_freq": [0, 1, 1]}}}"#,
        ),
        (
            "deepseek4",
            r#"{"layer_types": null, "mlp_layer_types": null, "compress_rates": null, "compress_ratios": [0, 4, 128, 4, 0],
                "num_hash_layers": 1, "partial_rotary_factor": null, "rope_parameters": null, "topk_method": "noaux_tc",
                "expert_dtype": "fp4", "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 4,
                "original_max_position_embeddings": 16, "type": "yarn"}}"#,
        ),
        (
            "glm5-next",
            r#"{"text_config": {"linear_head_dim": null, "linear_num_heads": null, "linear_conv_kernel_dim": null,
                "linear_lower_bound": null, "mhc": true, "mla_use_nope": true, "index_kpool_compress": true,
                "first_k_dense_replace": 1, "mlp_layer_types": null, "linear_attn_config": {"head_dim": 16, "num_heads": 4,
                "short_conv_kernel_size": 4, "gate_lower_bound": -2.0, "safe_gate": true, "kda_layers": [1]}}}"#,
        ),
        (
            "hy_v4",
            r#"{"layer_types": ["deepseek_sparse_attention"], "mlp_layer_types": null, "first_k_dense_replace": 1}"#,
        ),
        (
            "dots3note",
            r#"{"per_layer_config": null, "mlp_layer_types": null, "first_k_dense_replace": 1, "use_dsa": true,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
                "sliding_window": null, "sliding_window_size": 6, "rope_parameters": null, "rope_theta": 80000000,
                "swa_rope_theta": 100, "shared_experts_intermediate_size": null, "moe_shared_expert_intermediate_size": 48,
                "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 24, "swa_kv_lora_rank": 20,
                "swa_head_dim": 20, "swa_qk_nope_head_dim": 12, "swa_qk_rope_head_dim": 8, "swa_v_head_dim": 12,
                "apply_mla_qkv_lora_rescale": true, "k_rope_only_layernorm": true, "normalization": "RMSNorm"}"#,
        ),
    ];
    for (name, changes) in cases {
        let mut golden = HfGolden::read(&HfGolden::folder(), name).expect("a golden");
        let changes: serde_json::Value = serde_json::from_str(changes).expect("JSON");
        overlay(&mut golden.config, &changes);
        let folder = tempfile::tempdir().expect("a folder");
        golden.write_directory(folder.path()).expect("a directory");
        let path = folder.path().join("config.json");
        let text = std::fs::read_to_string(&path).expect("a configuration");
        // Python writes it bare.
        let bare = text.replace(r#"{"__float__":"Infinity"}"#, "Infinity");
        std::fs::write(&path, bare).expect("a configuration");
        let file = ModelFile::open(folder.path()).expect("a model");
        let error = golden.error(&file, &Registry::builtin(), &CpuBackend);
        assert!(matches!(error, Ok(e) if e <= AGREES), "{name}: {error:?}");
    }
}

/// Replaces settings, table by table.
fn overlay(config: &mut serde_json::Value, changes: &serde_json::Value) {
    for (key, value) in changes.as_object().into_iter().flatten() {
        match value {
            serde_json::Value::Object(_) if config[key].is_object() => {
                overlay(&mut config[key], value);
            }
            _ => config[key] = value.clone(),
        }
    }
}

/// Settings of every kind that make no sense end in an error, never in a panic.
#[test]
fn no_setting_makes_a_panic() {
    let odd = [
        "-1",
        "0",
        "1e300",
        "0.5",
        "4294967296",
        "\"x\"",
        "null",
        "[]",
        "[1, \"a\"]",
        "{}",
    ];
    for name in [
        "llama+llama3",
        "mixtral",
        "deepseek2",
        "mamba2",
        "gpt-oss",
        "qwen3next",
        "falcon",
        "t5",
        "deepseek4",
        "glm-dsa",
    ] {
        let golden = HfGolden::read(&HfGolden::folder(), name).expect("a golden");
        let folder = tempfile::tempdir().expect("a folder");
        golden.write_directory(folder.path()).expect("a directory");
        let registry = Registry::builtin();
        let keys: Vec<String> = golden
            .config
            .as_object()
            .expect("settings")
            .keys()
            .cloned()
            .collect();
        for (key, value) in keys.iter().flat_map(|k| odd.iter().map(move |v| (k, v))) {
            let mut config = golden.config.clone();
            config[key] = serde_json::from_str(value).expect("JSON");
            std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
            if let Ok(file) = ModelFile::open(folder.path()) {
                // Whether it is refused is another test's matter.
                let _ = registry.resolve(&file, &ResolveOptions { ctx: 16 });
            }
        }
    }
}
