//! Names of tensors as these files have them, and as GGUF files do.

/// The one family that the container holds.
pub(super) const FAMILY: &str = "whisper";

const BLOCK: &[(&str, &str)] = &[
    ("attn_ln", "attn_norm"),
    ("attn.query", "attn_q"),
    ("attn.key", "attn_k"),
    ("attn.value", "attn_v"),
    ("attn.out", "attn_output"),
    ("cross_attn_ln", "cross_attn_norm"),
    ("cross_attn.query", "cross_attn_q"),
    ("cross_attn.key", "cross_attn_k"),
    ("cross_attn.value", "cross_attn_v"),
    ("cross_attn.out", "cross_attn_output"),
    ("mlp_ln", "ffn_norm"),
    ("mlp.0", "ffn_up"),
    ("mlp.2", "ffn_down"),
];

const WHOLE: &[(&str, &str)] = &[
    ("encoder.positional_embedding", "enc.position_embd.weight"),
    ("encoder.conv1.weight", "enc.conv1.weight"),
    ("encoder.conv1.bias", "enc.conv1.bias"),
    ("encoder.conv2.weight", "enc.conv2.weight"),
    ("encoder.conv2.bias", "enc.conv2.bias"),
    ("encoder.ln_post.weight", "enc.output_norm.weight"),
    ("encoder.ln_post.bias", "enc.output_norm.bias"),
    ("decoder.positional_embedding", "dec.position_embd.weight"),
    ("decoder.token_embedding.weight", "token_embd.weight"),
    ("decoder.ln.weight", "dec.output_norm.weight"),
    ("decoder.ln.bias", "dec.output_norm.bias"),
];

/// The name in a GGUF file; `None` for one that these files never have.
pub(super) fn canonical(stored: &str) -> Option<String> {
    if let Some((_, name)) = WHOLE.iter().find(|w| w.0 == stored) {
        return Some((*name).to_owned());
    }
    let (side, rest) = match stored.split_once(".blocks.")? {
        ("encoder", rest) => ("enc", rest),
        ("decoder", rest) => ("dec", rest),
        _ => return None,
    };
    let (layer, rest) = rest.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (base, part) = rest.rsplit_once('.')?;
    let (_, name) = BLOCK.iter().find(|b| b.0 == base)?;
    matches!(part, "weight" | "bias").then(|| format!("{side}.blk.{layer}.{name}.{part}"))
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn names_are_those_of_gguf() {
        let name = |stored| canonical(stored).unwrap_or_default();
        assert_eq!(name("encoder.blocks.3.mlp.0.bias"), "enc.blk.3.ffn_up.bias");
        let cross = name("decoder.blocks.11.cross_attn.key.weight");
        assert_eq!(cross, "dec.blk.11.cross_attn_k.weight");
        assert_eq!(name("decoder.ln.bias"), "dec.output_norm.bias");
        assert_eq!(canonical("decoder.blocks.x.mlp.0.bias"), None);
        assert_eq!(canonical("decoder.blocks.1.mlp.1.bias"), None);
    }
}
