//! Type mixes against digests of llama.cpp's choices, and the options on top of them.

#[path = "support/inputs.rs"]
#[allow(dead_code)]
mod inputs;

use tokkata_core::DType;
use tokkata_quant::mix::{
    Choice, MixOptions, ModelFacts, Override, PRESETS, Preset, TensorFacts, mix,
};

/// The made-up models of `make_mix_goldens.py`.
struct Model {
    architecture: String,
    kind: String,
    layers: usize,
    heads: u64,
    kv_heads: u64,
    experts: u64,
    embd: u64,
    ff: u64,
}

type Tensors = Vec<(String, [u64; 3])>;

impl Model {
    fn facts(&self) -> ModelFacts<'_> {
        ModelFacts {
            architecture: &self.architecture,
            n_layers: self.layers,
            n_experts: self.experts as usize,
            n_heads: self.heads as usize,
            n_kv_heads: self.kv_heads as usize,
        }
    }

    fn tensors(&self) -> Tensors {
        let mut all = vec![
            ("token_embd.weight".into(), [self.embd, 32000, 1]),
            ("output_norm.weight".into(), [self.embd, 1, 1]),
        ];
        if self.kind != "tied" {
            all.push(("output.weight".into(), [self.embd, 32000, 1]));
        }
        (0..self.layers).for_each(|n| self.layer(n, &mut all));
        all
    }

    fn layer(&self, n: usize, all: &mut Tensors) {
        let (embd, ff, kv) = (self.embd, self.ff, self.kv_heads * (self.embd / self.heads));
        let mut add = |part: &str, shape| all.push((format!("blk.{n}.{part}.weight"), shape));
        add("attn_norm", [embd, 1, 1]);
        if self.kind == "recurrent" {
            add("time_mix_key", [embd, embd, 1]);
            add("time_mix_w1", [embd, 64, 1]);
            return add("channel_mix_value", [ff, embd, 1]);
        }
        if self.kind == "fused" {
            add("attn_qkv", [embd, embd + 2 * kv, 1]);
        } else {
            add("attn_q", [embd, embd, 1]);
            add("attn_k", [embd, kv, 1]);
            add("attn_v", [embd, kv, 1]);
        }
        add("attn_output", [embd, embd, 1]);
        let (suffix, depth) = if self.kind == "experts" {
            ("_exps", self.experts)
        } else {
            ("", 1)
        };
        if self.kind == "experts" {
            add("ffn_gate_inp", [embd, self.experts, 1]);
            add("ffn_down_shexp", [ff, embd, 1]);
        }
        add(&format!("ffn_gate{suffix}"), [embd, ff, depth]);
        add(&format!("ffn_up{suffix}"), [embd, ff, depth]);
        add(&format!("ffn_down{suffix}"), [ff, embd, depth]);
    }
}

fn facts(tensors: &Tensors) -> Vec<TensorFacts<'_>> {
    tensors
        .iter()
        .map(|(name, shape)| TensorFacts {
            name,
            shape,
            dtype: DType::F16,
        })
        .collect()
}

fn golden(line: &str) -> (Model, u32, &str) {
    let fields: Vec<&str> = line.split(' ').collect();
    let number = |i: usize| fields[i].parse().expect("a number");
    let model = Model {
        architecture: fields[0].into(),
        layers: number(1) as usize,
        heads: number(2),
        kv_heads: number(3),
        experts: number(4),
        embd: number(5),
        ff: number(6),
        kind: fields[7].into(),
    };
    (model, number(8) as u32, fields[9])
}

#[test]
fn presets_choose_as_llama_cpp_does() {
    let mut wrong = Vec::new();
    for line in include_str!("goldens/mix.txt").lines() {
        let (model, file_type, expected) = golden(line);
        let preset = Preset::from_file_type(file_type).expect("a preset");
        let tensors = model.tensors();
        let facts = facts(&tensors);
        let choices = mix(preset, &model.facts(), &facts, &MixOptions::default());
        let kept =
            |name: &str| name.contains("norm") || name.contains("_w1") || name.contains("_inp");
        let mut lines: Vec<String> = facts
            .iter()
            .zip(&choices)
            .filter(|(t, _)| !kept(t.name))
            .map(|(t, c)| format!("{} {}\n", t.name, c.dtype.name().to_uppercase()))
            .collect();
        lines.sort_by_key(|line| line.split(' ').next().map(str::to_owned));
        if inputs::digest(lines.concat().as_bytes()) != expected {
            wrong.push(format!("{} {}", line, preset.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "differ from llama.cpp:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn goldens_cover_every_preset() {
    for preset in PRESETS {
        let of = include_str!("goldens/mix.txt")
            .lines()
            .filter(|l| golden(l).1 == preset.file_type);
        assert!(of.count() >= 8, "{}", preset.name);
        assert!(std::ptr::eq(
            Preset::from_name(preset.name).expect("by name"),
            preset
        ));
    }
}

const SHAPES: &[(&str, &[u64])] = &[
    ("output.weight", &[4096, 32000]),
    ("token_embd.weight", &[4096, 32000]),
    ("blk.0.attn_v.weight", &[4096, 1024]),
    ("blk.0.ffn_down.weight", &[14336, 4096]),
    ("blk.0.odd.weight", &[4128, 64]),
    ("blk.0.odder.weight", &[100, 64]),
    ("blk.0.attn_norm.weight", &[4096]),
];

fn chosen(preset: &str, options: &MixOptions) -> Vec<Choice> {
    let model = ModelFacts {
        architecture: "llama",
        n_layers: 8,
        n_experts: 0,
        n_heads: 32,
        n_kv_heads: 8,
    };
    let tensor = |&(name, shape): &(&'static str, &'static [u64])| TensorFacts {
        name,
        shape,
        dtype: DType::F32,
    };
    let tensors: Vec<_> = SHAPES.iter().map(tensor).collect();
    mix(
        Preset::from_name(preset).expect("a preset"),
        &model,
        &tensors,
        options,
    )
}

fn dtypes(preset: &str, options: &MixOptions) -> Vec<DType> {
    chosen(preset, options).iter().map(|c| c.dtype).collect()
}

#[test]
fn rows_that_do_not_fit_fall_back() {
    use DType::{F16, F32, Q4_K, Q5_0, Q6_K};
    assert_eq!(
        dtypes("Q4_K", &MixOptions::default()),
        [Q6_K, Q4_K, Q6_K, Q6_K, Q5_0, F16, F32]
    );
    assert_eq!(
        chosen("Q4_K", &MixOptions::default())[4].instead_of,
        Some(Q4_K)
    );
}

#[test]
fn pure_gives_every_matrix_the_base_type() {
    use DType::{F16, F32, Q4_K, Q5_0};
    let options = MixOptions {
        pure: true,
        ..MixOptions::default()
    };
    assert_eq!(
        dtypes("Q4_K_M", &options),
        [Q4_K, Q4_K, Q4_K, Q4_K, Q5_0, F16, F32]
    );
}

#[test]
fn the_user_has_the_last_word() {
    let overrides = ["attn_v=q8_0", r"ffn_(up|down)=Q3_K", "attn=f16"];
    let options = MixOptions {
        output: Some(DType::BF16),
        embedding: Some(DType::Q5_1),
        overrides: overrides
            .map(|o| Override::parse(o).expect("an override"))
            .into(),
        ..MixOptions::default()
    };
    let types = dtypes("Q4_K_M", &options);
    assert_eq!(
        types[..4],
        [DType::BF16, DType::Q5_1, DType::Q8_0, DType::Q3_K]
    );
    let keep = MixOptions {
        keep_output: true,
        ..MixOptions::default()
    };
    assert_eq!(dtypes("Q4_K_M", &keep)[0], DType::F32);
}

#[test]
fn importance_allows_coarser_types_and_is_asked_for() {
    let with = MixOptions {
        has_importance: true,
        ..MixOptions::default()
    };
    assert_eq!(dtypes("IQ4_XS", &MixOptions::default())[3], DType::Q5_K);
    assert_eq!(dtypes("IQ4_XS", &with)[3], DType::IQ4_XS);
    assert_eq!(dtypes("Q4_0", &with)[3], DType::Q4_1);
    let needs: Vec<bool> = chosen("IQ2_XS", &with)
        .iter()
        .map(|c| c.needs_importance)
        .collect();
    assert_eq!(needs, [false, false, false, false, false, false, false]);
    assert!(chosen("IQ3_XXS", &with)[3].needs_importance);
}

#[test]
fn overrides_that_make_no_sense_say_why() {
    let text = |o: &str| Override::parse(o).expect_err("nonsense").to_string();
    assert_eq!(
        text("attn_v"),
        "'attn_v' is not of the form PATTERN=TYPE, such as attn_v=q8_0"
    );
    assert_eq!(
        text("=q4_k"),
        "'=q4_k' is not of the form PATTERN=TYPE, such as attn_v=q8_0"
    );
    assert_eq!(
        text("a=q4_x"),
        "'q4_x' is no element type; use one such as q4_k or f16"
    );
    assert!(text("(=q4_k").starts_with("the pattern of '(=q4_k' is not a regular expression: "));
}
