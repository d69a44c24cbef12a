"""Which model of Transformers stands for a golden, and how their conventions differ."""

from dataclasses import dataclass, field
from typing import Any, Callable

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from names import halves


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
    # Parameters that may stay as they are.
    skip: tuple[str, ...] = ()
    # Buffers to fill.
    buffers: tuple[str, ...] = ()
    # Tensors that Transformers has no place for and that do nothing.
    ignore: tuple[str, ...] = ()
    names: str | None = None
    call: dict[str, Any] = field(default_factory=dict)
    model: Callable = AutoModelForCausalLM.from_config

    def config(self, golden):
        entries = common(golden)
        for key, value in self.more.items():
            entries[key] = value(golden) if callable(value) else value
        entries = {k: v for k, v in entries.items() if v is not None}
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


def norms_plus_one(pattern=r"norm\.weight$"):
    return [(pattern, lambda w: w - 1)]


def kinds(g, windowed="sliding_attention", full="full_attention"):
    """Layer types by the golden's pattern of windows."""
    pattern = g.key("attention.sliding_window_pattern")
    return [windowed if w else full for w in pattern]


QK16 = [(r"attn_[qk]\.", halves(16))]
PLUS = norms_plus_one()


def gemma(**more):
    return dict(hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, layer_types=kinds, **more)


FAMILIES = {
    "llama": Family("llama", changes=QK16),
    "llama+moe": Family("mixtral", changes=QK16),
    "qwen2": Family("qwen2"),
    "qwen2moe": Family("qwen2_moe", dict(norm_topk_prob=False, shared_expert_intermediate_size=lambda g: g.key("expert_shared_feed_forward_length", g.key("feed_forward_length")))),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe", dict(norm_topk_prob=True)),
    "gemma": Family("gemma", dict(hidden_activation="gelu_pytorch_tanh"), changes=PLUS),
    "gemma2": Family("gemma2", gemma(), changes=PLUS),
    "gemma3": Family("gemma3_text", gemma(), changes=PLUS),
    "phi2": Family("phi"),
    "phi3": Family("phi3"),
    "phimoe": Family("phimoe"),
    "starcoder2": Family("starcoder2"),
    "stablelm": Family("stablelm"),
    "olmo": Family("olmo", changes=QK16),
    "olmo2": Family("olmo2"),
    "olmoe": Family("olmoe"),
    "granite": Family("granite", changes=QK16),
    "granitemoe": Family("granitemoe", changes=QK16),
    "command-r": Family("cohere"),
    "cohere2": Family("cohere2", dict(layer_types=kinds)),
    "gpt2": Family("gpt2", dict(activation_function="gelu_new")),
    "gptneox": Family("gpt_neox"),
    "bloom": Family("bloom"),
    "mpt": Family("mpt"),
    "falcon": Family("falcon"),
    "nemotron": Family("nemotron"),
    "deepseek2": Family("deepseek_v3"),
    "mamba": Family("mamba"),
    "mamba2": Family("mamba2"),
    "jamba": Family("jamba"),
    "falcon-h1": Family("falcon_h1"),
    "lfm2": Family("lfm2"),
    "lfm2moe": Family("lfm2_moe"),
    "smollm3": Family("smollm3", changes=QK16),
    "exaone4": Family("exaone4"),
    "glm4": Family("glm4"),
    "glm4moe": Family("glm4_moe"),
    "seed_oss": Family("seed_oss"),
    "ernie4_5": Family("ernie4_5"),
    "ernie4_5-moe": Family("ernie4_5_moe"),
    "hunyuan-dense": Family("hunyuan_v1_dense"),
    "hunyuan-moe": Family("hunyuan_v1_moe"),
    "arcee": Family("arcee", changes=QK16),
    "apertus": Family("apertus"),
    "afmoe": Family("afmoe"),
    "bitnet": Family("bitnet"),
    "dbrx": Family("dbrx"),
    "dots1": Family("dots1"),
    "gpt-oss": Family("gpt_oss"),
    "llama4": Family("llama4_text"),
    "minimax-m2": Family("minimax_m2"),
    "qwen3next": Family("qwen3_next"),
    "modern-bert": Family("modernbert", model=AutoModel.from_config),
    "bert": Family("bert", model=AutoModel.from_config),
    "nomic-bert": Family("nomic_bert", model=AutoModel.from_config),
    "hrm_text": Family("hrm_text"),
    "jais2": Family("jais2"),
    "minicpm3": Family("minicpm3"),
    "mellum": Family("mellum"),
    "laguna": Family("laguna"),
    "hy_v3": Family("hy_v3"),
    "exaone-moe": Family("exaone_moe"),
}
