//! What a tensor is for, by its name, and which are never quantised.

use super::TensorFacts;

/// Groups of tensors that mixes tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Output,
    Embedding,
    /// Attention values, also where fused with queries and keys.
    Value,
    Key,
    Query,
    /// What attention hands back to the residual stream.
    Mixed,
    Up,
    Gate,
    Down,
    Other,
}

/// Parts of names, tried in this order.
const PARTS: &[(&str, Role)] = &[
    ("attn_qkv.weight", Role::Value),
    ("attn_kv_b.weight", Role::Value),
    ("attn_v.weight", Role::Value),
    ("attn_k.weight", Role::Key),
    ("attn_q.weight", Role::Query),
    ("attn_output.weight", Role::Mixed),
    ("ffn_up", Role::Up),
    ("ffn_gate", Role::Gate),
    ("ffn_down", Role::Down),
];

impl Role {
    pub(super) const COUNT: usize = Role::Other as usize + 1;

    pub(super) fn of(name: &str) -> Self {
        match name {
            "output.weight" => return Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => return Role::Embedding,
            _ => {}
        }
        PARTS
            .iter()
            .find(|(part, _)| name.contains(part))
            .map_or(Role::Other, |&(_, role)| role)
    }
}

/// The layer a tensor belongs to.
pub(super) fn layer(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("blk.")?;
    rest.split_once('.')?.0.parse().ok()
}

/// Small or sensitive matrices that keep their type, by parts of their names.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Tables by position or token type.
const KEPT_NAMES: &[&str] = &["position_embd.weight", "token_types.weight"];

/// What is particular to an architecture.
#[derive(Clone, Copy)]
pub(super) struct Traits {
    /// Mixes of their own in several presets.
    pub(super) falcon: bool,
    /// Three-dimensional tensors are not all experts.
    pub(super) stacked_attention: bool,
    /// Layers of the size where eight query heads share a value head.
    pub(super) wide_layers: Option<usize>,
    /// That size counts only where heads are grouped.
    pub(super) wide_if_grouped: bool,
    /// More parts of names that keep their type.
    kept: &'static [&'static str],
    /// Parts of names that get at least `Q8_0`.
    pub(super) floor: &'static [&'static str],
}

const ORDINARY: Traits = Traits {
    falcon: false,
    stacked_attention: false,
    wide_layers: None,
    wide_if_grouped: false,
    kept: &[],
    floor: &[],
};

const EXCEPTIONS: &[(&str, Traits)] = &[
    (
        "falcon",
        Traits {
            falcon: true,
            ..ORDINARY
        },
    ),
    (
        "bailingmoe3",
        Traits {
            stacked_attention: true,
            ..ORDINARY
        },
    ),
    (
        "llama",
        Traits {
            wide_layers: Some(80),
            wide_if_grouped: true,
            ..ORDINARY
        },
    ),
    (
        "qwen2",
        Traits {
            wide_layers: Some(80),
            ..ORDINARY
        },
    ),
    (
        "olmo",
        Traits {
            wide_layers: Some(80),
            ..ORDINARY
        },
    ),
    (
        "deci",
        Traits {
            wide_layers: Some(80),
            ..ORDINARY
        },
    ),
    (
        "jais2",
        Traits {
            wide_layers: Some(68),
            ..ORDINARY
        },
    ),
    (
        "glm5-next",
        Traits {
            kept: &[
                "hc_",
                "indexer.attn_q_b",
                "indexer.attn_k",
                "indexer.proj",
                "indexer_compressor_gate",
                "indexer_compressor_ape",
                "ssm_f_a.weight",
                "ssm_f_b.weight",
                "ssm_g_a.weight",
                "ssm_g_b.weight",
                "ssm_beta.weight",
                "attn_kv_a_mqa.weight",
                "attn_k_b.weight",
                "attn_v_b.weight",
            ],
            floor: &["attn_q_a", "attn_q_b", "nextn.eh_proj"],
            ..ORDINARY
        },
    ),
];

impl Traits {
    pub(super) fn of(architecture: &str) -> Self {
        EXCEPTIONS
            .iter()
            .find(|(name, _)| *name == architecture)
            .map_or(ORDINARY, |&(_, traits)| traits)
    }
}

/// Whether a tensor is a matrix, or a stack of them, that mixes may quantise.
pub(super) fn is_quantisable(tensor: &TensorFacts<'_>, traits: &Traits) -> bool {
    // Trailing ones do not make a matrix.
    let matrix = tensor.shape.iter().skip(1).any(|&n| n > 1);
    let kept = |parts: &[&str]| parts.iter().any(|part| tensor.name.contains(part));
    matrix
        && tensor.name.ends_with("weight")
        && !KEPT_NAMES.contains(&tensor.name)
        && !kept(KEPT)
        && !kept(traits.kept)
}
