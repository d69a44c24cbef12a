//! Shapes of models whose layers differ: their widths are those of a family, the numbers of layers and experts are cut
//! down, so that what their attention costs can be timed on small machines.

use tokkata_core::{Array, Value};

/// A setting's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Setting {
    Count(u32),
    Number(f32),
    Flag(bool),
    Counts(&'static [u32]),
}

impl Setting {
    pub(super) fn value(self) -> Value {
        match self {
            Setting::Count(n) => Value::U32(n),
            Setting::Number(x) => Value::F32(x),
            Setting::Flag(b) => Value::Bool(b),
            Setting::Counts(n) => Value::Array(Array::U32(n.to_vec())),
        }
    }
}

/// A model as its file lists it.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) name: &'static str,
    pub(super) arch: &'static str,
    /// Below the architecture's prefix.
    pub(super) settings: &'static [&'static [(&'static str, Setting)]],
    /// Layers (first, one past the last; `None` outside of layers), name behind the layer, shape.
    pub(super) tensors: &'static [&'static [Tensor]],
}

type Tensor = (Option<(usize, usize)>, &'static str, &'static [usize]);

impl Class {
    /// A setting that is a count; 0 where there is none.
    pub(super) fn count(&self, key: &str) -> usize {
        let mut all = self.settings.iter().copied().flatten();
        let found = all.find_map(|&(name, setting)| match setting {
            Setting::Count(n) if name == key => Some(n as usize),
            _ => None,
        });
        found.unwrap_or(0)
    }

    /// Names and shapes of all tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, &'static [usize])> {
        let all = self.tensors.iter().copied().flatten();
        all.flat_map(|&(layers, name, shape)| {
            let of_layer = move |il| (format!("blk.{il}.{name}"), shape);
            let whole = layers.is_none().then(|| (name.to_owned(), shape));
            let (first, end) = layers.unwrap_or((0, 0));
            whole.into_iter().chain((first..end).map(of_layer))
        })
    }
}

const fn count(n: u32) -> Setting {
    Setting::Count(n)
}

const fn number(x: f32) -> Setting {
    Setting::Number(x)
}

const ALL: Option<(usize, usize)> = Some((0, 2));
const FIRST: Option<(usize, usize)> = Some((0, 1));
const SECOND: Option<(usize, usize)> = Some((1, 2));

/// Eight experts as wide as a family's, of which two are used.
const MOE: &[(&str, Setting)] = &[
    ("expert_count", count(8)),
    ("expert_used_count", count(2)),
    ("expert_shared_count", count(1)),
    ("expert_weights_norm", Setting::Flag(true)),
    ("expert_weights_scale", number(2.5)),
];

const COMMON: &[(&str, Setting)] = &[
    ("vocab_size", count(4096)),
    ("context_length", count(131_072)),
    ("embedding_length", count(2048)),
    ("feed_forward_length", count(4096)),
    ("expert_feed_forward_length", count(1024)),
    ("attention.layer_norm_rms_epsilon", number(1e-6)),
    ("rope.freq_base", number(1e4)),
];

const ENDS: &[Tensor] = &[
    (None, "token_embd.weight", &[4096, 2048]),
    (None, "output_norm.weight", &[2048]),
    (None, "output.weight", &[4096, 2048]),
    (ALL, "attn_norm.weight", &[2048]),
    (ALL, "ffn_norm.weight", &[2048]),
];

const DENSE_FFN: &[Tensor] = &[
    (FIRST, "ffn_gate.weight", &[4096, 2048]),
    (FIRST, "ffn_down.weight", &[2048, 4096]),
    (FIRST, "ffn_up.weight", &[4096, 2048]),
];

const EXPERTS: &[Tensor] = &[
    (SECOND, "ffn_gate_inp.weight", &[8, 2048]),
    (SECOND, "exp_probs_b.bias", &[8]),
    (SECOND, "ffn_gate_exps.weight", &[8, 1024, 2048]),
    (SECOND, "ffn_down_exps.weight", &[8, 2048, 1024]),
    (SECOND, "ffn_up_exps.weight", &[8, 1024, 2048]),
    (SECOND, "ffn_gate_shexp.weight", &[1024, 2048]),
    (SECOND, "ffn_down_shexp.weight", &[2048, 1024]),
    (SECOND, "ffn_up_shexp.weight", &[1024, 2048]),
];

/// Latent attention of half of DeepSeek V3's heads.
const LATENT: &[(&str, Setting)] = &[
    ("block_count", count(2)),
    ("leading_dense_block_count", count(1)),
    ("expert_gating_func", count(2)),
    ("attention.head_count", count(64)),
    ("attention.head_count_kv", count(1)),
    ("attention.key_length", count(576)),
    ("attention.value_length", count(512)),
    ("attention.q_lora_rank", count(1536)),
    ("attention.kv_lora_rank", count(512)),
    ("attention.key_length_mla", count(192)),
    ("attention.value_length_mla", count(128)),
    ("rope.dimension_count", count(64)),
];

const LATENT_TENSORS: &[Tensor] = &[
    (ALL, "attn_q_a.weight", &[1536, 2048]),
    (ALL, "attn_q_a_norm.weight", &[1536]),
    (ALL, "attn_q_b.weight", &[64 * 192, 1536]),
    (ALL, "attn_kv_a_mqa.weight", &[576, 2048]),
    (ALL, "attn_kv_a_norm.weight", &[512]),
    (ALL, "attn_k_b.weight", &[64, 512, 128]),
    (ALL, "attn_v_b.weight", &[64, 128, 512]),
    (ALL, "attn_output.weight", &[2048, 64 * 128]),
];

/// Half of the heads of DeepSeek V3.2's indexer.
const INDEXER: &[(&str, Setting)] = &[
    ("attention.indexer.head_count", count(32)),
    ("attention.indexer.key_length", count(128)),
    ("attention.indexer.top_k", count(2048)),
];

const INDEXER_TENSORS: &[Tensor] = &[
    (ALL, "indexer.k_norm.weight", &[128]),
    (ALL, "indexer.k_norm.bias", &[128]),
    (ALL, "indexer.proj.weight", &[32, 2048]),
    (ALL, "indexer.attn_k.weight", &[128, 2048]),
    (ALL, "indexer.attn_q_b.weight", &[32 * 128, 1536]),
];

/// Attention of MiniMax M3's widths: 64 query heads over 4 key heads.
const GROUPED: &[(&str, Setting)] = &[
    ("attention.head_count", count(64)),
    ("attention.head_count_kv", count(4)),
    ("attention.key_length", count(128)),
    ("attention.value_length", count(128)),
    ("rope.dimension_count", count(64)),
];

const GROUPED_TENSORS: &[Tensor] = &[
    (ALL, "attn_q.weight", &[64 * 128, 2048]),
    (ALL, "attn_k.weight", &[4 * 128, 2048]),
    (ALL, "attn_v.weight", &[4 * 128, 2048]),
    (ALL, "attn_output.weight", &[2048, 64 * 128]),
    (ALL, "attn_q_norm.weight", &[128]),
    (ALL, "attn_k_norm.weight", &[128]),
];

/// Layers whose attention reads blocks of 128 positions, 16 for each key head.
const BLOCKS: &[(&str, Setting)] = &[
    ("block_count", count(2)),
    ("leading_dense_block_count", count(1)),
    ("expert_gating_func", count(2)),
    ("attention.indexer.head_count", count(4)),
    ("attention.indexer.key_length", count(128)),
    ("attention.indexer.top_k", count(16)),
    ("attention.indexer.block_size", count(128)),
    ("attention.indexer.local_blocks", count(1)),
];

const BLOCKS_TENSORS: &[Tensor] = &[
    (SECOND, "indexer.q_proj.weight", &[4 * 128, 2048]),
    (SECOND, "indexer.k_proj.weight", &[128, 2048]),
    (SECOND, "indexer.q_norm.weight", &[128]),
    (SECOND, "indexer.k_norm.weight", &[128]),
];

/// Four streams, a window and summaries of 4 and of 128 positions, as DeepSeek V4 mixes them.
const SUMMARIES: &[(&str, Setting)] = &[
    ("block_count", count(4)),
    ("hash_layer_count", count(1)),
    ("expert_gating_func", count(4)),
    ("attention.head_count", count(64)),
    ("attention.head_count_kv", count(1)),
    ("attention.key_length", count(512)),
    ("attention.value_length", count(512)),
    ("attention.q_lora_rank", count(1024)),
    ("attention.output_group_count", count(8)),
    ("attention.output_lora_rank", count(512)),
    ("attention.sliding_window", count(128)),
    (
        "attention.compress_ratios",
        Setting::Counts(&[0, 4, 128, 4]),
    ),
    ("attention.compress_rope_freq_base", number(1.6e5)),
    ("attention.indexer.head_count", count(64)),
    ("attention.indexer.key_length", count(128)),
    ("attention.indexer.top_k", count(512)),
    ("rope.dimension_count", count(64)),
    ("hyper_connection.count", count(4)),
    ("hyper_connection.epsilon", number(1e-6)),
    ("hyper_connection.sinkhorn_iterations", count(20)),
    ("swiglu_clamp_exp", number(10.0)),
    ("swiglu_clamp_shexp", number(10.0)),
];

const FOUR: Option<(usize, usize)> = Some((0, 4));
const LATER: Option<(usize, usize)> = Some((1, 4));
const NARROW: [Option<(usize, usize)>; 2] = [Some((1, 2)), Some((3, 4))];
const WIDE: Option<(usize, usize)> = Some((2, 3));

const SUMMARIES_TENSORS: &[Tensor] = &[
    (None, "token_embd.weight", &[4096, 2048]),
    (None, "output_norm.weight", &[2048]),
    (None, "output.weight", &[4096, 2048]),
    (None, "output_hc_fn.weight", &[4, 8192]),
    (None, "output_hc_base.weight", &[4]),
    (None, "output_hc_scale.weight", &[1]),
    (FOUR, "attn_norm.weight", &[2048]),
    (FOUR, "ffn_norm.weight", &[2048]),
    (FOUR, "attn_sinks.weight", &[64]),
    (FOUR, "attn_q_a.weight", &[1024, 2048]),
    (FOUR, "attn_q_a_norm.weight", &[1024]),
    (FOUR, "attn_q_b.weight", &[64 * 512, 1024]),
    (FOUR, "attn_kv.weight", &[512, 2048]),
    (FOUR, "attn_kv_a_norm.weight", &[512]),
    (FOUR, "attn_output_a.weight", &[8 * 512, 8 * 512]),
    (FOUR, "attn_output_b.weight", &[2048, 8 * 512]),
    (LATER, "attn_compressor_norm.weight", &[512]),
    (WIDE, "attn_compressor_kv.weight", &[512, 2048]),
    (WIDE, "attn_compressor_gate.weight", &[512, 2048]),
    (WIDE, "attn_compressor_ape.weight", &[128, 512]),
    (FOUR, "hc_attn_fn.weight", &[24, 8192]),
    (FOUR, "hc_attn_base.weight", &[24]),
    (FOUR, "hc_attn_scale.weight", &[3]),
    (FOUR, "hc_ffn_fn.weight", &[24, 8192]),
    (FOUR, "hc_ffn_base.weight", &[24]),
    (FOUR, "hc_ffn_scale.weight", &[3]),
    (FOUR, "ffn_gate_inp.weight", &[8, 2048]),
    (FOUR, "ffn_gate_exps.weight", &[8, 1024, 2048]),
    (FOUR, "ffn_down_exps.weight", &[8, 2048, 1024]),
    (FOUR, "ffn_up_exps.weight", &[8, 1024, 2048]),
    (FOUR, "ffn_gate_shexp.weight", &[1024, 2048]),
    (FOUR, "ffn_down_shexp.weight", &[2048, 1024]),
    (FOUR, "ffn_up_shexp.weight", &[1024, 2048]),
    (FIRST, "ffn_gate_tid2eid.weight", &[4096, 2]),
    (LATER, "exp_probs_b.bias", &[8]),
];

/// What the layers with summaries of four positions have besides.
macro_rules! narrow_tensors {
    ($($layers:expr),*) => {
        &[$(
            ($layers, "attn_compressor_kv.weight", &[1024, 2048]),
            ($layers, "attn_compressor_gate.weight", &[1024, 2048]),
            ($layers, "attn_compressor_ape.weight", &[4, 1024]),
            ($layers, "indexer.proj.weight", &[64, 2048]),
            ($layers, "indexer.attn_q_b.weight", &[64 * 128, 1024]),
            ($layers, "indexer_compressor_kv.weight", &[256, 2048]),
            ($layers, "indexer_compressor_gate.weight", &[256, 2048]),
            ($layers, "indexer_compressor_ape.weight", &[4, 256]),
            ($layers, "indexer_compressor_norm.weight", &[128]),
        )*]
    };
}

const NARROW_TENSORS: &[Tensor] = narrow_tensors!(NARROW[0], NARROW[1]);

/// Two layers of latent attention around one of per-channel delta attention, whose inputs mix earlier residuals, and
/// experts behind a narrower map, as in Kimi K3.
const BANKED: &[(&str, Setting)] = &[
    ("block_count", count(3)),
    ("leading_dense_block_count", count(1)),
    ("expert_gating_func", count(2)),
    ("expert_latent_length", count(1024)),
    ("attention.head_count", count(32)),
    ("attention.head_count_kv", Setting::Counts(&[1, 0, 1])),
    ("attention.key_length", count(576)),
    ("attention.value_length", count(512)),
    ("attention.q_lora_rank", count(1536)),
    ("attention.kv_lora_rank", count(512)),
    ("attention.key_length_mla", count(192)),
    ("attention.value_length_mla", count(128)),
    ("attn_res.block_size", count(2)),
    ("activation.situ_beta", number(4.0)),
    ("activation.situ_linear_beta", number(25.0)),
    ("rope.dimension_count", count(64)),
    ("ssm.conv_kernel", count(4)),
    ("kda.head_dim", count(128)),
    ("kda.gate_lower_bound", number(-5.0)),
];

const THREE: Option<(usize, usize)> = Some((0, 3));
const ROUTED: Option<(usize, usize)> = Some((1, 3));

const BANKED_TENSORS: &[Tensor] = &[
    (None, "token_embd.weight", &[4096, 2048]),
    (None, "output_norm.weight", &[2048]),
    (None, "output.weight", &[4096, 2048]),
    (None, "output_res_score.weight", &[2048]),
    (THREE, "attn_norm.weight", &[2048]),
    (THREE, "ffn_norm.weight", &[2048]),
    (THREE, "attn_res_score.weight", &[2048]),
    (THREE, "ffn_res_score.weight", &[2048]),
    (THREE, "attn_output.weight", &[2048, 4096]),
    (SECOND, "attn_q.weight", &[4096, 2048]),
    (SECOND, "attn_k.weight", &[4096, 2048]),
    (SECOND, "attn_v.weight", &[4096, 2048]),
    (SECOND, "ssm_conv1d_q.weight", &[4096, 1, 4]),
    (SECOND, "ssm_conv1d_k.weight", &[4096, 1, 4]),
    (SECOND, "ssm_conv1d_v.weight", &[4096, 1, 4]),
    (SECOND, "ssm_f_a.weight", &[128, 2048]),
    (SECOND, "ssm_f_b.weight", &[4096, 128]),
    (SECOND, "ssm_beta.weight", &[32, 2048]),
    (SECOND, "ssm_a", &[32]),
    (SECOND, "ssm_dt.bias", &[4096]),
    (SECOND, "ssm_g.weight", &[4096, 2048]),
    (SECOND, "ssm_norm.weight", &[128]),
    (ROUTED, "ffn_routed_down.weight", &[1024, 2048]),
    (ROUTED, "ffn_routed_up.weight", &[2048, 1024]),
    (ROUTED, "ffn_routed_norm.weight", &[1024]),
    (ROUTED, "ffn_gate_inp.weight", &[8, 2048]),
    (ROUTED, "exp_probs_b.bias", &[8]),
    (ROUTED, "ffn_gate_exps.weight", &[8, 1024, 1024]),
    (ROUTED, "ffn_down_exps.weight", &[8, 1024, 1024]),
    (ROUTED, "ffn_up_exps.weight", &[8, 1024, 1024]),
    (ROUTED, "ffn_gate_shexp.weight", &[1024, 2048]),
    (ROUTED, "ffn_down_shexp.weight", &[2048, 1024]),
    (ROUTED, "ffn_up_shexp.weight", &[1024, 2048]),
];

/// What the layers with latent attention have besides.
macro_rules! latent_tensors {
    ($($layers:expr),*) => {
        &[$(
            ($layers, "attn_q_a.weight", &[1536, 2048]),
            ($layers, "attn_q_a_norm.weight", &[1536]),
            ($layers, "attn_q_b.weight", &[32 * 192, 1536]),
            ($layers, "attn_kv_a_mqa.weight", &[576, 2048]),
            ($layers, "attn_kv_a_norm.weight", &[512]),
            ($layers, "attn_k_b.weight", &[32, 512, 128]),
            ($layers, "attn_v_b.weight", &[32, 128, 512]),
            ($layers, "attn_gate.weight", &[4096, 2048]),
        )*]
    };
}

const BANKED_LATENT: &[Tensor] = latent_tensors!(FIRST, WIDE);

pub(super) const CLASSES: &[Class] = &[
    Class {
        name: "deepseek-v3-2l",
        arch: "deepseek2",
        settings: &[COMMON, MOE, LATENT],
        tensors: &[ENDS, DENSE_FFN, EXPERTS, LATENT_TENSORS],
    },
    Class {
        name: "deepseek-v3.2-2l",
        arch: "deepseek32",
        settings: &[COMMON, MOE, LATENT, INDEXER],
        tensors: &[ENDS, DENSE_FFN, EXPERTS, LATENT_TENSORS, INDEXER_TENSORS],
    },
    Class {
        name: "minimax-m3-2l",
        arch: "minimax-m3",
        settings: &[COMMON, MOE, GROUPED, BLOCKS],
        tensors: &[ENDS, DENSE_FFN, EXPERTS, GROUPED_TENSORS, BLOCKS_TENSORS],
    },
    Class {
        name: "deepseek-v4-4l",
        arch: "deepseek4",
        settings: &[COMMON, MOE, SUMMARIES],
        tensors: &[SUMMARIES_TENSORS, NARROW_TENSORS],
    },
    Class {
        name: "kimi-k3-3l",
        arch: "kimi-k3",
        settings: &[COMMON, MOE, BANKED],
        tensors: &[BANKED_TENSORS, DENSE_FFN, BANKED_LATENT],
    },
];
