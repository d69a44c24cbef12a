"""From a model's parameters to tensors of a golden: names by gguf's table, shapes and conventions undone."""

import re

import gguf
import numpy as np
import torch

ARCHS = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


# What gguf's table of names does not know.
RENAME = [
    (r".*layers\.(\d+)\..*shared_experts?\.(gate|up|down)_proj", r"blk.\1.ffn_\2_shexp"),
    (r".*layers\.(\d+)\..*experts\.gate_up_proj\.", r"blk.\1.ffn_gate_up_exps."),
    (r".*layers\.(\d+)\..*experts\.down_proj\.", r"blk.\1.ffn_down_exps."),
    (r".*layers\.(\d+)\..*(e_score_correction_bias|expert_bias)(es)?\.weight$", r"blk.\1.exp_probs_b.bias"),
    (r".*layers\.(\d+)\.(mlp|block_sparse_moe)\.(gate|router|router\.gate)\.weight$", r"blk.\1.ffn_gate_inp.weight"),
    (r".*layers\.(\d+)\..*attn_sub_norm", r"blk.\1.attn_sub_norm"),
    (r".*layers\.(\d+)\..*ffn_sub_norm", r"blk.\1.ffn_sub_norm"),
    (r".*layers\.(\d+)\.self_attn\.([qkv])_proj", r"blk.\1.attn_\2"),
    (r".*layers\.(\d+)\.self_attn\.(gate|g)_proj", r"blk.\1.attn_gate"),
    (r".*layers\.(\d+)\.self_attn\.o_proj", r"blk.\1.attn_output"),
    (r".*layers\.(\d+)\.self_attn\.([qk])_norm", r"blk.\1.attn_\2_norm"),
]


def fill(model, golden, family):
    """Writes every parameter; the names of those that found no tensor."""
    layers = golden.key("block_count")
    table = gguf.get_tensor_name_map(ARCHS.get(golden.arch, ARCHS["qwen3moe"]), layers)
    missing = []
    state = dict(model.named_parameters())
    state.update((n, b) for n, b in model.named_buffers() if n.endswith("_bias"))
    for name, parameter in state.items():
        value = find(name, golden, family, table)
        if value is None and name.endswith(".bias") and not "norm" in name:
            # The golden has no such tensor; a bias of zero is none.
            with torch.no_grad():
                parameter.zero_()
        elif value is None:
            if not any(re.search(skip, name) for skip in family.skip):
                missing.append(name)
        if value is None:
            continue
        value = torch.from_numpy(np.ascontiguousarray(value))
        if value.shape != parameter.shape and value.numel() == parameter.numel() and 1 in (*value.shape, *parameter.shape):
            value = value.reshape(parameter.shape)
        if value.shape != parameter.shape:
            raise ValueError(f"{name} is {tuple(parameter.shape)}, the golden's is {tuple(value.shape)}")
        with torch.no_grad():
            parameter.copy_(value)
    return missing


def find(name, golden, family, table):
    """The value of a parameter, or nothing."""
    for pattern, make in family.folds:
        match = re.search(pattern, name)
        if match:
            return make(golden, *match.groups())
    target = canonical(name, family, table)
    if target is None:
        return None
    value = tensor(golden, target)
    if value is None:
        return None
    for pattern, change in family.changes:
        if re.search(pattern, target):
            value = change(value)
    return value


def canonical(name, family, table):
    name = name.replace("language_model.", "").replace("model.model.", "model.")
    if not name.endswith((".weight", ".bias")):
        name += ".weight"
    for pattern, replacement in [*family.rename, *RENAME]:
        changed = re.sub(pattern, replacement, name)
        if changed != name:
            return changed
    return table.get_name(name, try_suffixes=(".weight", ".bias"))


def tensor(golden, name):
    """A tensor, also where the golden keeps a fused one apart or the other way round."""
    if golden.has(name):
        return golden.get(name)
    parts = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps")}
    for fused, split in parts.items():
        if f".{fused}." in name:
            names = [name.replace(fused, s) for s in split]
            if all(golden.has(n) for n in names):
                return np.concatenate([golden.get(n) for n in names], axis=1 if "exps" in fused else 0)
        for i, part in enumerate(split):
            whole = name.replace(f".{part}.", f".{fused}.")
            if f".{part}." in name and golden.has(whole) and fused == "attn_qkv":
                return slices(golden, whole)[i]
    if name == "output.weight":
        return golden.get("token_embd.weight")
    return None


def slices(golden, name):
    heads, kv, columns = sizes(golden)
    value = golden.get(name)
    return np.split(value, [heads * columns, (heads + kv) * columns])


def sizes(golden):
    heads = golden.key("attention.head_count")
    kv = golden.key("attention.head_count_kv", heads)
    return heads, kv, golden.key("attention.key_length", golden.key("embedding_length") // heads)


def halves(columns, rotated=None):
    """Undoes the reordering of files whose pairs are adjacent: rows of each head by halves again."""
    def change(value):
        rot = rotated or columns
        heads = value.reshape(-1, columns, *value.shape[1:])
        turned = heads[:, :rot].reshape(heads.shape[0], rot // 2, 2, *value.shape[1:])
        turned = np.swapaxes(turned, 1, 2).reshape(heads.shape[0], rot, *value.shape[1:])
        return np.concatenate([turned, heads[:, rot:]], axis=1).reshape(value.shape)
    return change
