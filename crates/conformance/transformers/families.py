"""Which model of Transformers stands for a golden, and how their conventions differ."""

from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from names import halves, sizes


@dataclass
class Family:
    model_type: str
    # Configuration entries: values, or functions of the golden.
    more: dict[str, Any] = field(default_factory=dict)
    # Patterns of canonical names and what is undone there.
    changes: list[tuple[str, Callable]] = field(default_factory=list)
    # Patterns of parameters and how their value is made.
    folds: list[tuple[str, Callable]] = field(default_factory=list)
    # Patterns of parameters and canonical names, where gguf's table has none.
    rename: list[tuple[str, str]] = field(default_factory=list)
    # Entries that the configuration does not take.
    without: tuple[str, ...] = ()
    # Parameters that may stay as they are.
    skip: tuple[str, ...] = ()
    # Tensors that Transformers has no place for and that do nothing.
    ignore: tuple[str, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)
    model: Callable = AutoModelForCausalLM.from_config

    def config(self, golden):
        entries = {k: v for k, v in common(golden).items() if v is not None and k not in self.without}
        for key, value in self.more.items():
            entries[key] = value(golden) if callable(value) else value
        return AutoConfig.for_model(self.model_type, **entries)


def common(g):
    """What most configurations call the same."""
    heads = g.key("attention.head_count")
    embd = g.key("embedding_length")
    columns = g.key("attention.key_length", embd // (heads if isinstance(heads, int) else heads[0]))
    rotated = g.key("rope.dimension_count", columns)
    rms, norm = g.key("attention.layer_norm_rms_epsilon"), g.key("attention.layer_norm_epsilon")
    eps = rms or norm
    return dict(
        vocab_size=g.vocabulary(), hidden_size=embd, num_hidden_layers=g.key("block_count"),
        num_attention_heads=heads, num_key_value_heads=g.key("attention.head_count_kv", heads), head_dim=columns,
        intermediate_size=g.key("feed_forward_length"), rms_norm_eps=eps, layer_norm_eps=norm or rms,
        layer_norm_epsilon=norm or rms, norm_eps=eps, norm_epsilon=norm or rms,
        max_position_embeddings=g.key("context_length", 256),
        rope_parameters=rope(g, rotated / columns), tie_word_embeddings=not g.has("output.weight"),
        attention_bias=g.has("blk.0.attn_q.bias") or g.has("blk.0.attn_qkv.bias"), mlp_bias=g.has("blk.0.ffn_up.bias"),
        sliding_window=g.key("attention.sliding_window"), num_experts=g.key("expert_count"),
        num_local_experts=g.key("expert_count"), n_routed_experts=g.key("expert_count"),
        num_experts_per_tok=g.key("expert_used_count"), moe_intermediate_size=g.key("expert_feed_forward_length"),
        pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )


def rope(g, partial):
    found = dict(rope_type="default", rope_theta=g.key("rope.freq_base", 10000.0), partial_rotary_factor=partial)
    if g.key("rope.scaling.type") == "yarn":
        found.update(rope_type="yarn", factor=g.key("rope.scaling.factor"),
                     original_max_position_embeddings=g.key("rope.scaling.original_context_length"))
    elif g.key("rope.scaling.type") == "linear" and g.key("rope.scaling.factor", 1.0) not in (0.0, 1.0):
        found.update(rope_type="linear", factor=g.key("rope.scaling.factor"))
    return found


def two_ropes(g):
    """One rotation for each kind of layer."""
    windowed = dict(rope_type="default", rope_theta=g.key("rope.freq_base_swa", 10000.0))
    return dict(full_attention=rope(g, 1.0), sliding_attention=windowed)


def norms_plus_one(pattern=r"norm\.weight$"):
    return [(pattern, lambda w: w - 1)]


def kinds(g, windowed="sliding_attention", full="full_attention"):
    """Layer types by the golden's pattern of windows."""
    pattern = g.key("attention.sliding_window_pattern")
    return [windowed if w else full for w in pattern]


def every_third(g):
    return ["sliding_attention" if i % 3 else "full_attention" for i in range(g.key("block_count"))]


QK = [(r"attn_[qk]\.", halves(16))]
PLUS = norms_plus_one()
BLK = r"layers\.(\d+)\."


def shared(g):
    """Width of the shared experts."""
    return g.key("expert_shared_feed_forward_length", g.key("expert_feed_forward_length", g.key("feed_forward_length")))


def scale(g):
    return g.key("expert_weights_scale", 1.0)


def normed(g):
    return bool(g.key("expert_weights_norm", False))


def gemma(**more):
    return dict(hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, **more)


def by_head(fused):
    """Rows of Q, K and V of one head after the other instead of all Q first."""
    def make(g, layer, part):
        value = g.get(f"blk.{layer}.attn_qkv.{part}")
        heads = g.key("attention.head_count")
        apart = value.reshape(3, heads, -1, *value.shape[1:])
        return np.swapaxes(apart, 0, 1).reshape(value.shape)
    return [(fused, make)]


def by_group(fused):
    """Rows of the query heads of one key head, then its key, then its value."""
    def make(g, layer, part):
        value = g.get(f"blk.{layer}.attn_qkv.{part}")
        heads, kv, columns = sizes(g)
        q, k, v = np.split(value, [heads * columns, (heads + kv) * columns])
        parts = [q.reshape(kv, -1, columns, *value.shape[1:])]
        parts += [x.reshape(kv, 1, columns, *value.shape[1:]) for x in (k, v)]
        return np.concatenate(parts, axis=1).reshape(value.shape)
    return [(fused, make)]


TRANSPOSED = [(r"(attn_qkv|attn_output|ffn_up|ffn_down)\.weight", np.transpose)]


def xielu(g, layer, name):
    """The slopes before their softplus, which files keep as metadata."""
    return np.array([g.metadata[f"xielu.alpha_{name}"][int(layer)]])


def latent(g, layer):
    """Keys and values of the latent, which files keep apart and the keys transposed."""
    k, v = g.get(f"blk.{layer}.attn_k_b.weight"), g.get(f"blk.{layer}.attn_v_b.weight")
    return np.concatenate([np.swapaxes(k, 1, 2), v], axis=1).reshape(-1, k.shape[1])


def turned(columns, rotated):
    """Rotated columns at the end of each head, by halves again."""
    def change(value):
        heads = value.reshape(-1, columns, *value.shape[1:])
        tail = halves(rotated)(heads[:, -rotated:].reshape(-1, *value.shape[1:]))
        tail = tail.reshape(heads.shape[0], rotated, *value.shape[1:])
        return np.concatenate([heads[:, :-rotated], tail], axis=1).reshape(value.shape)
    return change


def bert(**more):
    return dict(model=AutoModel.from_config, skip=("pooler",), **more)


FAMILIES = {
    "llama+second": Family("llama", changes=QK),
    "llama+moe-second": Family("mixtral", changes=QK),
    "qwen2+second": Family("qwen2"),
    "qwen2moe+second": Family("qwen2_moe", dict(norm_topk_prob=False, decoder_sparse_step=1, shared_expert_intermediate_size=shared)),
    "qwen3+second": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe", dict(norm_topk_prob=True, decoder_sparse_step=1)),
    "gemma": Family("gemma", dict(hidden_activation="gelu_pytorch_tanh"), changes=PLUS),
    "gemma2+second": Family("gemma2", dict(gemma(layer_types=kinds), attn_logit_softcapping=lambda g: g.key("attn_logit_softcapping"), final_logit_softcapping=lambda g: g.key("final_logit_softcapping"), rope_parameters=lambda g: rope(g, 1.0)), changes=PLUS),
    "gemma3+second": Family("gemma3_text", dict(gemma(layer_types=kinds), final_logit_softcapping=lambda g: g.key("final_logit_softcapping"), rope_parameters=lambda g: two_ropes(g)), changes=PLUS),
    "phi2": Family("phi"),
    "phi3+second": Family("phi3"),
    "starcoder2": Family("starcoder2"),
    "stablelm+second": Family("stablelm", dict(use_qkv_bias=False)),
    "olmo": Family("olmo", dict(clip_qkv=lambda g: g.key("attention.clamp_kqv")), changes=QK),
    "olmoe": Family("olmoe", dict(norm_topk_prob=False)),
    "granite+second": Family("granite", dict(attention_multiplier=lambda g: g.key("attention.scale"), embedding_multiplier=lambda g: g.key("embedding_scale"), residual_multiplier=lambda g: g.key("residual_scale"), logits_scaling=lambda g: g.key("logit_scale")), changes=QK),
    "command-r+second": Family("cohere", dict(logit_scale=lambda g: g.key("logit_scale"))),
    "cohere2+second": Family("cohere2", dict(layer_types=kinds, logit_scale=lambda g: g.key("logit_scale"))),
    "gpt2+second": Family("gpt2", dict(activation_function="gelu_new", n_inner=lambda g: g.key("feed_forward_length"), n_positions=lambda g: g.shapes["position_embd.weight"][0]), changes=TRANSPOSED),
    "gptneox+second": Family("gpt_neox", dict(hidden_act="gelu_new", use_parallel_residual=False), folds=by_head(r"layers\.(\d+)\.attention\.query_key_value\.(weight|bias)")),
    "bloom+second": Family("bloom", rename=[(r".*word_embeddings_layernorm", "token_embd_norm"), (r".*h\.(\d+)\.post_attention_layernorm", r"blk.\1.ffn_norm")], folds=by_head(r"h\.(\d+)\.self_attention\.query_key_value\.(weight|bias)")),
    "mpt+second": Family("mpt", dict(attn_config=lambda g: dict(clip_qkv=g.key("attention.clamp_kqv")))),
    "falcon+second": Family("falcon", without=("head_dim", "num_key_value_heads"), more=dict(num_kv_heads=2, new_decoder_architecture=True, ffn_hidden_size=lambda g: g.key("feed_forward_length")), folds=by_group(r"h\.(\d+)\.self_attention\.query_key_value\.(weight|bias)"), rename=[(r".*h\.(\d+)\.ln_attn", r"blk.\1.attn_norm_2"), (r".*h\.(\d+)\.ln_mlp", r"blk.\1.attn_norm")]),
    "nemotron+second": Family("nemotron", changes=norms_plus_one()),
    "deepseek2+second": Family("deepseek_v3", without=("head_dim",), more=dict(q_lora_rank=lambda g: g.key("attention.q_lora_rank"), kv_lora_rank=lambda g: g.key("attention.kv_lora_rank"), qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4, rope_parameters=lambda g: rope(g, 1.0), n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=normed, routed_scaling_factor=scale), folds=[(r"layers\.(\d+)\.self_attn\.kv_b_proj", latent)]),
    "smollm3": Family("smollm3", dict(no_rope_layers=[1, 1, 1, 0]), changes=QK),
    "exaone4+second": Family("exaone4", dict(layer_types=["full_attention"] * 4, sliding_window=None)),
    "exaone-moe+second": Family("exaone_moe", dict(layer_types=kinds, num_shared_experts=1, first_k_dense_replace=1, mlp_layer_types=["dense", "sparse", "sparse", "sparse"], routed_scaling_factor=scale, norm_topk_prob=normed, n_group=1, topk_group=1)),
    "glm4+second": Family("glm4", rename=[(r".*layers\.(\d+)\.post_self_attn_layernorm", r"blk.\1.post_attention_norm"), (r".*layers\.(\d+)\.post_mlp_layernorm", r"blk.\1.post_ffw_norm"), (r".*layers\.(\d+)\.post_attention_layernorm", r"blk.\1.ffn_norm")]),
    "glm4moe+second": Family("glm4_moe", dict(use_qk_norm=True, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=normed, routed_scaling_factor=scale)),
    "seed_oss": Family("seed_oss"),
    "jais2": Family("jais2"),
    "ernie4_5+second": Family("ernie4_5"),
    "ernie4_5-moe+second": Family("ernie4_5_moe", dict(moe_num_shared_experts=1, moe_k=3, moe_num_experts=8, moe_layer_start_index=1)),
    "hunyuan-dense+second": Family("hunyuan_v1_dense"),
    "hunyuan-moe+second": Family("hunyuan_v1_moe", dict(moe_topk=3)),
    "arcee+second": Family("arcee", changes=QK),
    "apertus+second": Family("apertus", folds=[(r"layers\.(\d+)\.mlp\.act_fn\.alpha_([pn])", xielu)]),
    "afmoe+second": Family("afmoe", dict(layer_types=kinds, num_dense_layers=1, num_shared_experts=1, route_scale=scale, mup_enabled=True)),
    "bitnet+second": Family("bitnet", dict(hidden_act="silu")),
    "dots1+second": Family("dots1", dict(n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=normed, routed_scaling_factor=scale, layer_types=["full_attention"] * 4, sliding_window=None)),
    "minimax-m2+second": Family("minimax_m2"),
    "bert": Family("bert", dict(hidden_act="gelu", type_vocab_size=2), **bert()),
    "nomic-bert+second": Family("nomic_bert", dict(type_vocab_size=2), rename=[(r".*layers\.(\d+)\.post_attention_layernorm", r"blk.\1.attn_output_norm"), (r".*layers\.(\d+)\.post_mlp_layernorm", r"blk.\1.layer_output_norm")], **bert()),
    "mellum": Family("mellum", dict(layer_types=kinds, rope_parameters=lambda g: two_ropes(g))),
    "mamba": Family("mamba", without=("intermediate_size",), more=dict(state_size=lambda g: g.key("ssm.state_size"), expand=2, conv_kernel=4, time_step_rank=lambda g: g.key("ssm.time_step_rank")), rename=[(r".*layers\.(\d+)\.mixer\.A_log\.weight", r"blk.\1.ssm_a"), (r".*layers\.(\d+)\.mixer\.D\.weight", r"blk.\1.ssm_d")], changes=[("ssm_a", lambda a: np.log(-a))]),
}
