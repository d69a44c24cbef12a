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
    assert!(names.len() >= 105, "found {} goldens", names.len());
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
    let cases: [(&str, &str, serde_json::Value, &str); 9] = [
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
    ];
    for (name, key, value, part) in cases {
        let text = refusal(name, |g| g.config[key] = value.clone());
        assert!(text.contains(part), "{name}, {key}: {text}");
    }
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
