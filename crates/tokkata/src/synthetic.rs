//! Models of true shapes with random contents, for timing.

mod classes;

use std::path::Path;

use tokkata_core::{DType, Metadata, Value};
use tokkata_formats::{GgufWriter, ShardLimit};
use tokkata_ir::sample::uniform;
use tokkata_quant::mix::{MixOptions, ModelFacts, Preset, TensorFacts, mix};
use tokkata_quant::quantize;

use crate::error::{Error, Result};
use classes::{CLASSES, Class};

/// Random rows that a tensor's contents repeat.
const ROWS: usize = 16;
/// Rows up to which a tensor's are all different: routers must not take one expert for another.
const DISTINCT_ROWS: usize = 256;

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    arch: &'static str,
    n_embd: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    n_ff: usize,
    n_vocab: usize,
    tied: bool,
    rope_base: f32,
    n_ctx: u32,
    /// Experts of a layer and how many a token goes through; 0 of a dense model.
    n_experts: usize,
    n_used: usize,
    /// Multi-token-prediction layers behind the others.
    n_heads_ahead: usize,
}

macro_rules! shapes {
    ($($name:literal $arch:literal $embd:literal $layers:literal $heads:literal $kv:literal $dim:literal $ff:literal
       $vocab:literal $tied:literal $base:literal $ctx:literal $experts:literal $used:literal $ahead:literal;)*) => {
        const SHAPES: &[Shape] = &[$(Shape {
            name: $name, arch: $arch, n_embd: $embd, n_layers: $layers, n_heads: $heads, n_kv_heads: $kv,
            head_dim: $dim, n_ff: $ff, n_vocab: $vocab, tied: $tied, rope_base: $base, n_ctx: $ctx,
            n_experts: $experts, n_used: $used, n_heads_ahead: $ahead,
        },)*];
    };
}

shapes! {
    "qwen3-0.6b"     "qwen3" 1024 28 16 8 128  3072 151936 true  1e6   40960 0 0 0;
    "qwen3-4b"       "qwen3" 2560 36 32 8 128  9728 151936 true  1e6   40960 0 0 0;
    "qwen3-8b"       "qwen3" 4096 36 32 8 128 12288 151936 false 1e6   40960 0 0 0;
    "llama-3.2-1b"   "llama" 2048 16 32 8  64  8192 128256 true  5e5 131072 0 0 0;
    "llama-3.1-8b"   "llama" 4096 32 32 8 128 14336 128256 false 5e5 131072 0 0 0;
    "tinyllama-1.1b" "llama" 2048 22 32 4  64  5632  32000 false 1e4     2048 0 0 0;
    "smollm2-135m"   "llama"  576 30  9 3  64  1536  49152 true  1e5     8192 0 0 0;
    "qwen3-30b-a3b-6l" "qwen3moe" 2048 6 32 4 128 768 151936 false 1e6 40960 128 8 0;
    "tiny-moe"       "qwen3moe" 256  2  4 2  64   256    512 true  1e4   2048 8 2 0;
    "tiny"           "llama"  256  2  4 2  64   512    512 true  1e4     2048 0 0 0;
    "qwen3-0.6b-mtp"   "hy_v3" 1024 28 16 8 128  3072 151936 true  1e6  40960 0 0 1;
    "llama-3.2-1b-mtp" "hy_v3" 2048 16 32 8  64  8192 128256 true  5e5 131072 0 0 1;
    "llama-3.1-8b-mtp" "hy_v3" 4096 32 32 8 128 14336 128256 false 5e5 131072 0 0 1;
    "tiny-mtp"       "hy_v3"  256  2  4 2  64   512    512 true  1e4     2048 0 0 1;
}

/// What chooses experts, kept in `f32` by every mix.
const ROUTER: &str = "ffn_gate_inp";
/// Experts that tokens go to, whatever they are.
const EXPERTS_BY_TOKEN: &str = "tid2eid";
/// Parts of the names of small matrices, kept in `f32` by every mix.
const SMALL: [&str; 3] = ["_ape.", "hc_", "indexer.proj"];

/// A model to be made up: a known shape in a named mix of types.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    kind: Kind,
    preset: &'static Preset,
}

/// How a shape is known.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// By its sizes, all layers alike.
    Plain(&'static Shape),
    /// By its list of tensors.
    Listed(&'static Class),
}

impl Kind {
    fn all() -> impl Iterator<Item = Self> {
        let plain = SHAPES.iter().map(Kind::Plain);
        plain.chain(CLASSES.iter().map(Kind::Listed))
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Plain(s) => s.name,
            Kind::Listed(c) => c.name,
        }
    }

    fn arch(self) -> &'static str {
        match self {
            Kind::Plain(s) => s.arch,
            Kind::Listed(c) => c.arch,
        }
    }
}

struct Planned {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
}

impl Synthetic {
    /// Reads `SHAPE:MIX`, such as `qwen3-0.6b:q4_0`.
    ///
    /// # Errors
    /// [`Error::Synthetic`] lists the known names.
    pub fn parse(text: &str) -> Result<Self> {
        let (shape, mix) = text.split_once(':').unwrap_or((text, "q4_0"));
        let found = Kind::all().find(|k| k.name().eq_ignore_ascii_case(shape));
        let kind = found.ok_or_else(|| Error::Synthetic {
            found: text.to_owned(),
            expected: format!("SHAPE:MIX with a shape of {}", Self::shapes().join(", ")),
        })?;
        let preset = Preset::from_name(mix).ok_or_else(|| Error::Synthetic {
            found: mix.to_owned(),
            expected: "a mix of types such as q4_0, q4_k_m, q8_0 or f16".to_owned(),
        })?;
        Ok(Synthetic { kind, preset })
    }

    /// Names of the known shapes.
    #[must_use]
    pub fn shapes() -> Vec<&'static str> {
        Kind::all().map(Kind::name).collect()
    }

    /// `SHAPE MIX` as people write it.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.kind.name(), self.preset.name)
    }

    /// Writes the model to `path`; `progress` hears of bytes written and bytes in all.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path, progress: impl Fn(u64, u64)) -> Result<()> {
        let tensors = self.tensors();
        let mut writer = GgufWriter::new(path, self.metadata())?;
        for t in &tensors {
            writer.declare(&t.name, t.dtype, &t.shape)?;
        }
        let total = writer.data_bytes();
        let mut output = writer.create(ShardLimit::Whole)?;
        let mut done = 0;
        for (seed, t) in tensors.iter().enumerate() {
            let rows: usize = t.shape[..t.shape.len() - 1].iter().product();
            let distinct = if rows <= DISTINCT_ROWS { rows } else { ROWS };
            let pattern = contents(t, distinct, seed as u64)?;
            let row_bytes = pattern.len() / distinct;
            let rare = self.rare_rows(&t.name, rows);
            let nothing = vec![0; if rare > 0 { pattern.len() } else { 0 }];
            for (count, pattern) in [(rows - rare, &pattern), (rare, &nothing)] {
                let mut left = count;
                while left > 0 {
                    let now = left.min(distinct);
                    output.write(&pattern[..now * row_bytes])?;
                    left -= now;
                    done += (now * row_bytes) as u64;
                }
            }
            progress(done, total);
        }
        output.finish()?;
        Ok(())
    }

    /// Last rows of a tensor that are zero: where heads guess, three quarters of the output matrix, since texts rarely have
    /// most tokens of a large vocabulary.
    fn rare_rows(&self, name: &str, rows: usize) -> usize {
        match self.kind {
            Kind::Plain(s) if s.n_heads_ahead > 0 => {
                let output = if s.tied {
                    "token_embd.weight"
                } else {
                    "output.weight"
                };
                if name == output { rows - rows / 4 } else { 0 }
            }
            _ => 0,
        }
    }

    fn metadata(&self) -> Metadata {
        let mut meta = Metadata::default();
        meta.insert("general.architecture", self.kind.arch().into());
        let name = format!("{} random", self.kind.name());
        meta.insert("general.name", Value::from(name.as_str()));
        meta.insert("general.file_type", Value::U32(self.preset.file_type));
        let mut set = |key: &str, value: Value| {
            meta.insert(format!("{}.{key}", self.kind.arch()), value);
        };
        match self.kind {
            Kind::Plain(shape) => shape.settings(&mut set),
            Kind::Listed(class) => {
                let all = class.settings.iter().copied().flatten();
                all.for_each(|&(key, setting)| set(key, setting.value()));
            }
        }
        meta.insert("tokenizer.ggml.model", "no_vocab".into());
        meta
    }

    fn tensors(&self) -> Vec<Planned> {
        let mut all = match self.kind {
            Kind::Plain(shape) => shape.tensors(),
            Kind::Listed(class) => class.tensors().map(|(n, shape)| plan(&n, shape)).collect(),
        };
        self.choose(&mut all);
        all
    }

    /// Gives matrices the types of the mix.
    fn choose(&self, tensors: &mut [Planned]) {
        let model = match self.kind {
            Kind::Plain(s) => ModelFacts {
                architecture: s.arch,
                n_layers: s.n_layers,
                n_experts: s.n_experts,
                n_heads: s.n_heads,
                n_kv_heads: s.n_kv_heads,
            },
            Kind::Listed(c) => ModelFacts {
                architecture: c.arch,
                n_layers: c.count("block_count"),
                n_experts: c.count("expert_count"),
                n_heads: c.count("attention.head_count"),
                n_kv_heads: c.count("attention.head_count_kv"),
            },
        };
        let dims: Vec<Vec<u64>> = tensors
            .iter()
            .map(|t| t.shape.iter().rev().map(|&d| d as u64).collect())
            .collect();
        let facts: Vec<TensorFacts<'_>> = tensors
            .iter()
            .zip(&dims)
            .map(|(t, shape)| TensorFacts {
                name: &t.name,
                shape,
                dtype: t.dtype,
            })
            .collect();
        let choices = mix(self.preset, &model, &facts, &MixOptions::default());
        for (t, choice) in tensors.iter_mut().zip(choices) {
            if t.dtype == DType::F16 || t.shape.len() == 1 {
                t.dtype = choice.dtype;
            }
        }
    }
}

impl Shape {
    fn settings(&self, set: &mut dyn FnMut(&str, Value)) {
        let s = self;
        let uint = |n: usize| Value::U32(n as u32);
        set("context_length", Value::U32(s.n_ctx));
        set("embedding_length", uint(s.n_embd));
        set("block_count", uint(s.n_layers + s.n_heads_ahead));
        set("feed_forward_length", uint(s.n_ff));
        set("attention.head_count", uint(s.n_heads));
        set("attention.head_count_kv", uint(s.n_kv_heads));
        set("attention.key_length", uint(s.head_dim));
        set("attention.value_length", uint(s.head_dim));
        set("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
        set("rope.dimension_count", uint(s.head_dim));
        set("rope.freq_base", Value::F32(s.rope_base));
        set("vocab_size", uint(s.n_vocab));
        if s.n_experts > 0 {
            set("expert_count", uint(s.n_experts));
            set("expert_used_count", uint(s.n_used));
            set("expert_feed_forward_length", uint(s.n_ff));
        }
        if s.n_heads_ahead > 0 {
            set("nextn_predict_layers", uint(s.n_heads_ahead));
            // llama.cpp asks for it although there are no experts.
            set("expert_feed_forward_length", uint(s.n_ff));
        }
    }

    fn tensors(&self) -> Vec<Planned> {
        let s = self;
        let mut all = vec![plan("token_embd.weight", &[s.n_vocab, s.n_embd])];
        all.push(plan("output_norm.weight", &[s.n_embd]));
        if !s.tied {
            all.push(plan("output.weight", &[s.n_vocab, s.n_embd]));
        }
        for layer in 0..s.n_layers + s.n_heads_ahead {
            all.extend(self.layer(layer));
        }
        all
    }

    fn layer(&self, i: usize) -> Vec<Planned> {
        let s = self;
        let (q, kv) = (s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim);
        let mut parts: Vec<(&str, Vec<usize>)> = vec![
            ("attn_norm", vec![s.n_embd]),
            ("attn_q", vec![q, s.n_embd]),
            ("attn_k", vec![kv, s.n_embd]),
            ("attn_v", vec![kv, s.n_embd]),
            ("attn_output", vec![s.n_embd, q]),
            ("ffn_norm", vec![s.n_embd]),
        ];
        let (to, from) = (vec![s.n_ff, s.n_embd], vec![s.n_embd, s.n_ff]);
        if s.n_experts > 0 {
            let stack = |shape: &[usize]| [&[s.n_experts], shape].concat();
            parts.push((ROUTER, vec![s.n_experts, s.n_embd]));
            parts.push(("ffn_gate_exps", stack(&to)));
            parts.push(("ffn_up_exps", stack(&to)));
            parts.push(("ffn_down_exps", stack(&from)));
        } else {
            parts.extend([("ffn_gate", to.clone()), ("ffn_up", to), ("ffn_down", from)]);
        }
        if s.arch.starts_with("qwen3") || s.n_heads_ahead > 0 {
            parts.push(("attn_q_norm", vec![s.head_dim]));
            parts.push(("attn_k_norm", vec![s.head_dim]));
        }
        if i >= s.n_layers {
            let norms = ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"];
            parts.extend(norms.map(|name| (name, vec![s.n_embd])));
            parts.push(("nextn.eh_proj", vec![s.n_embd, 2 * s.n_embd]));
        }
        let named =
            |(name, shape): (&str, Vec<usize>)| plan(&format!("blk.{i}.{name}.weight"), &shape);
        parts.into_iter().map(named).collect()
    }
}

fn plan(name: &str, shape: &[usize]) -> Planned {
    let dtype = match shape.len() {
        _ if name.contains(EXPERTS_BY_TOKEN) => DType::I32,
        2.. if !name.contains(ROUTER) && !SMALL.iter().any(|part| name.contains(part)) => {
            DType::F16
        }
        _ => DType::F32,
    };
    Planned {
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype,
    }
}

/// `rows` rows: norms of ones, matrices of variance 1 / columns.
fn contents(tensor: &Planned, rows: usize, seed: u64) -> Result<Vec<u8>> {
    let cols = *tensor.shape.last().expect("a tensor has dimensions");
    if tensor.shape.len() == 1 {
        // A state forgets.
        let value: f32 = if tensor.name.ends_with("ssm_a") {
            -1.0
        } else {
            1.0
        };
        return Ok(value.to_le_bytes().repeat(cols));
    }
    if tensor.dtype == DType::I32 {
        // As many different experts as a row has.
        let expert = |i: usize| (i / cols * 3 + i % cols) % 8;
        let experts = (0..rows * cols).map(|i| expert(i) as i32);
        return Ok(experts.flat_map(i32::to_le_bytes).collect());
    }
    let scale = (3.0 / cols as f32).sqrt() / (1 << 23) as f32;
    let value = |i: usize| ((uniform(seed, i as u64) >> 40) as f32 - (1 << 23) as f32) * scale;
    let floats: Vec<f32> = (0..rows * cols).map(value).collect();
    let unusable = |what: String| Error::Synthetic {
        found: format!("{} of {}", tensor.name, tensor.dtype),
        expected: what,
    };
    let row_bytes = tensor.dtype.row_bytes(cols);
    let row_bytes = row_bytes.ok_or_else(|| unusable("rows of whole blocks".to_owned()))?;
    let mut bytes = vec![0; rows * row_bytes];
    let flat = vec![1.0; cols];
    let made = quantize(tensor.dtype, &floats, cols, Some(&flat), &mut bytes);
    made.map_err(|e| unusable(e.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;
    use tokkata_formats::ModelFile;

    /// A made-up model, in a folder that lives as long as it is held.
    fn made(name: &str) -> (TempDir, ModelFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.gguf");
        let model = Synthetic::parse(name).unwrap();
        model.write(&path, |_, _| {}).unwrap();
        (dir, ModelFile::open(&path).unwrap())
    }

    #[test]
    fn a_made_up_model_has_the_mix_of_its_name() {
        let (_dir, file) = made("tiny:q4_k_m");
        let dtype = |name: &str| file.tensor(name).unwrap().dtype;
        assert_eq!(dtype("token_embd.weight"), DType::Q6_K, "a tied head");
        assert_eq!(dtype("blk.0.attn_q.weight"), DType::Q4_K);
        assert_eq!(dtype("blk.0.attn_norm.weight"), DType::F32);
        assert_eq!(file.tensor("token_embd.weight").unwrap().shape, [512, 256]);
    }

    #[test]
    fn experts_are_stacked_and_routers_keep_their_rows_apart() {
        let (_dir, file) = made("tiny-moe:q4_0");
        let experts = file.tensor("blk.1.ffn_down_exps.weight").unwrap();
        assert_eq!(
            (experts.dtype, &experts.shape[..]),
            (DType::Q4_0, &[8, 256, 256][..])
        );
        let router = file.tensor("blk.1.ffn_gate_inp.weight").unwrap();
        assert_eq!(router.dtype, DType::F32);
        let most = SHAPES.iter().map(|s| s.n_experts).max();
        assert!(most <= Some(DISTINCT_ROWS));
    }

    #[test]
    fn heads_stand_behind_the_layers_and_most_tokens_are_rare() {
        let (_dir, file) = made("tiny-mtp:q8_0");
        let head = file.tensor("blk.2.nextn.eh_proj.weight").unwrap();
        assert_eq!(head.shape, [256, 512]);
        assert!(file.tensor("blk.1.nextn.eh_proj.weight").is_none());
        let output = file.tensor("token_embd.weight").unwrap();
        let bytes = file.data(output).unwrap();
        let common = bytes.len() / 4;
        assert!(bytes[common - 272..common].iter().any(|&b| b != 0));
        assert!(bytes[common..].iter().all(|&b| b == 0));
    }

    #[test]
    fn listed_shapes_have_their_tensors_in_every_layer() {
        let (_dir, file) = made("deepseek-v3.2-2l:q4_0");
        let shape = |name: &str| file.tensor(name).map(|t| t.shape.clone());
        assert_eq!(
            shape("blk.1.indexer.attn_q_b.weight"),
            Some(vec![4096, 1536])
        );
        assert_eq!(shape("blk.0.attn_k_b.weight"), Some(vec![64, 512, 128]));
        assert!(shape("blk.1.ffn_gate_exps.weight").is_some());
        assert!(shape("blk.0.ffn_gate_exps.weight").is_none());
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = Synthetic::parse("gpt-9:q4_0").unwrap_err().to_string();
        assert!(
            error.contains("found 'gpt-9:q4_0'") && error.contains("qwen3-0.6b"),
            "{error}"
        );
        assert!(Synthetic::parse("tiny:q9").is_err());
    }
}
