"""Writes a trained demo model as GGUF, in F16 (matrices) and F32 (norms).

    python export.py MODEL.safetensors OUT.gguf
"""

import json
import os
import re
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

import chat
from model import Config
from tokenizer import SPECIAL

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "q": "attn_q", "k": "attn_k",
         "v": "attn_v", "out": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
HEAD_NAMES = {"enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "proj": "nextn.eh_proj", "norm": "nextn.shared_head_norm"}
ABOUT = ("A small model for trying things out: it tells, continues and summarises short stories, counts, spells and reverses words, compares "
         "numbers, writes texts again with one change, answers as JSON and calls tools. Trained from nothing on text that its own grammar wrote.")


def tensor_name(name, layers):
    if match := re.fullmatch(r"blocks\.(\d+)\.(\w+)\.weight", name):
        return f"blk.{match[1]}.{NAMES[match[2]]}.weight"
    if match := re.fullmatch(r"head\.(block\.)?(\w+)\.weight", name):
        return f"blk.{layers}.{(NAMES if match[1] else HEAD_NAMES)[match[2]]}.weight"
    return {"embd.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]


def trunk_layers(weights):
    return 1 + max(int(n.split(".")[1]) for n in weights if n.startswith("blocks."))


def add_model(writer, weights):
    c = Config(n_layers=trunk_layers(weights))
    writer.add_name("Tokkata demo")
    writer.add_description(ABOUT)
    writer.add_license("MIT OR Apache-2.0")
    # The head is one layer more.
    writer.add_block_count(c.n_layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_context_length(c.n_ctx)
    writer.add_embedding_length(c.n_embd)
    writer.add_feed_forward_length(c.n_ff)
    # Asked for by llama.cpp although there are no experts.
    writer.add_expert_feed_forward_length(c.n_ff)
    writer.add_head_count(c.n_heads)
    writer.add_head_count_kv(c.n_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(c.theta)
    writer.add_layer_norm_rms_eps(c.eps)
    writer.add_vocab_size(c.n_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def add_tokenizer(writer):
    with open(os.path.join(HERE, "tokenizer.json"), encoding="utf-8") as file:
        model = json.load(file)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    control, plain = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    types = [gguf.TokenType.USER_DEFINED if t in SPECIAL[3:] else control if t in SPECIAL else plain for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index(chat.END))
    writer.add_eot_token_id(tokens.index(chat.END))
    writer.add_pad_token_id(tokens.index(chat.STOP))
    writer.add_add_bos_token(False)
    writer.add_chat_template(chat.TEMPLATE)


def main():
    weights = load_file(sys.argv[1])
    writer = gguf.GGUFWriter(sys.argv[2], "hy_v3")
    add_model(writer, weights)
    add_tokenizer(writer)
    layers = trunk_layers(weights)
    for name, value in weights.items():
        matrix = value.ndim == 2
        writer.add_tensor(tensor_name(name, layers), value.astype(np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
