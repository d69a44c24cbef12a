//! The words that fields of a descriptor take, for messages.

/// The blocks that `run` names.
pub(crate) const BLOCKS: [&str; 15] = [
    "attention",
    "cross",
    "mla",
    "ffn",
    "moe",
    "linear",
    "mamba",
    "rwkv6",
    "rwkv7",
    "channel_mix",
    "delta",
    "short_conv",
    "lightning",
    "laurel",
    "summary",
];

/// The activations.
const ACTS: [&str; 13] = [
    "silu",
    "gelu",
    "gelu_erf",
    "gelu_quick",
    "relu",
    "relu2",
    "sigmoid",
    "tanh",
    "softplus",
    "xielu",
    "situ",
    "swish_alpha",
    "identity",
];

/// The words of a field.
pub(crate) fn of(field: &str) -> &'static [&'static str] {
    match field {
        "stack" => &["decoder", "encoder", "diffusion", "encoder_decoder"],
        "run" => &BLOCKS,
        "act" => &ACTS,
        "clamp" => &["before", "after", "before_plus_one", "up_tanh"],
        "form" | "moe.form" => &["gated", "fused", "plain", "auto"],
        "moe.router_input" => &["experts", "layer_input", "stream"],
        "moe.score" => &["softmax", "sigmoid", "logits", "sqrt_softplus"],
        "attention.qkv" => &["auto", "fused", "split"],
        "attention.bias" => &["optional", "required", "none", "ignore"],
        "window.kind" => &["window", "chunk", "symmetric"],
        "mamba.layout" => &["xz", "zxbcdt", "head_zx"],
        "mamba.dt_b_c_norm" => &["none", "weighted", "weightless"],
        "delta.flavour" => &["gdn", "kda"],
        "skip" => &["stream", "normed"],
        "source" => &["stream", "layer_input", "previous", "beside"],
        "head.output" => &["tied", "fallback", "untied", "none"],
        "head.pool" => &["none", "mean", "cls", "last"],
        "rope.pairing" => &["adjacent", "halves", "none"],
        "rope.scaling.type" => &["none", "linear", "yarn", "longrope"],
        "loop.store" => &["0", "1", "2"],
        "per" => &["row", "head", "distinct"],
        "kind" => &["rms", "layer", "l2"],
        _ => &[],
    }
}
