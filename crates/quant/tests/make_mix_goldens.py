#!/usr/bin/env python3
"""Writes digests of llama.cpp's type mixes for made-up models.

    make_mix_goldens.py LLAMA_SRC LLAMA_BUILD

needs a C++ compiler and a static build of llama.cpp. `mix.rs` makes the same models in Rust.
"""
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# architecture, layers, heads, KV heads, experts, embedding width, feed-forward width, kind
MODELS = [
    ("llama", 32, 32, 8, 0, 4096, 14336, "plain"),
    ("llama", 26, 8, 8, 0, 1024, 2816, "tied"),
    ("llama", 80, 64, 8, 0, 8192, 28672, "plain"),
    ("llama", 32, 32, 8, 8, 4096, 14336, "experts"),
    ("qwen3moe", 48, 32, 4, 128, 2048, 768, "experts"),
    ("falcon", 32, 71, 1, 0, 4544, 18176, "fused"),
    ("gpt2", 12, 12, 12, 0, 768, 3072, "fused"),
    ("bert", 6, 12, 12, 0, 384, 1536, "tied"),
    ("rwkv7", 12, 12, 12, 0, 768, 3072, "recurrent"),
]
FILE_TYPES = [0, 1, 2, 3, *range(7, 33), 36, 37, 38, 40, 41]
Q1_0 = 40
VOCABULARY = 32000


def layer(kind, n, heads, kv, experts, embd, ff):
    head = embd // heads
    yield f"blk.{n}.attn_norm.weight", (embd, 1, 1)
    if kind == "recurrent":
        yield f"blk.{n}.time_mix_key.weight", (embd, embd, 1)
        yield f"blk.{n}.time_mix_w1.weight", (embd, 64, 1)
        yield f"blk.{n}.channel_mix_value.weight", (ff, embd, 1)
        return
    if kind == "fused":
        yield f"blk.{n}.attn_qkv.weight", (embd, embd + 2 * kv * head, 1)
    else:
        yield f"blk.{n}.attn_q.weight", (embd, embd, 1)
        yield f"blk.{n}.attn_k.weight", (embd, kv * head, 1)
        yield f"blk.{n}.attn_v.weight", (embd, kv * head, 1)
    yield f"blk.{n}.attn_output.weight", (embd, embd, 1)
    suffix, depth = ("_exps", experts) if kind == "experts" else ("", 1)
    if kind == "experts":
        yield f"blk.{n}.ffn_gate_inp.weight", (embd, experts, 1)
        yield f"blk.{n}.ffn_down_shexp.weight", (ff, embd, 1)
    yield f"blk.{n}.ffn_gate{suffix}.weight", (embd, ff, depth)
    yield f"blk.{n}.ffn_up{suffix}.weight", (embd, ff, depth)
    yield f"blk.{n}.ffn_down{suffix}.weight", (ff, embd, depth)


def tensors(kind, layers, *sizes):
    embd = sizes[3]
    yield "token_embd.weight", (embd, VOCABULARY, 1)
    yield "output_norm.weight", (embd, 1, 1)
    if kind != "tied":
        yield "output.weight", (embd, VOCABULARY, 1)
    for n in range(layers):
        yield from layer(kind, n, *sizes)


def main():
    src, build = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as tmp:
        exe = f"{tmp}/oracle"
        libs = [f"{build}/{p}" for p in ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a",
                                        "ggml/src/libggml-base.a")]
        subprocess.run(["c++", "-std=c++17", "-O1", f"-I{src}/include", f"-I{src}/ggml/include", f"-I{src}/src",
                        str(HERE / "mix_oracle.cpp"), "-Wl,--start-group", *libs, "-Wl,--end-group",
                        "-fopenmp", "-ldl", "-lpthread", "-o", exe], check=True)
        script, keys = [], []
        for arch, *sizes, kind in MODELS:
            script.append("model " + " ".join(map(str, [arch, *sizes])))
            # llama.cpp visits tensors by layer, then by name, and wants only matrices here.
            named = sorted(tensors(kind, sizes[0], *sizes[1:]), key=lambda t: (block(t[0]), t[0]))
            script += [f"tensor {name} " + " ".join(map(str, dims)) for name, dims in named]
            for file_type in FILE_TYPES:
                if file_type == Q1_0 and sizes[4] % 128:
                    continue  # llama.cpp gives up here
                script.append(f"preset {file_type}")
                keys.append((arch, *sizes, kind, file_type, [name for name, _ in named]))
        out = subprocess.run([exe], input="\n".join(script) + "\n", stdout=subprocess.PIPE, text=True, check=True).stdout
        lines = [line for line in out.splitlines() if line.endswith(" ")]
        assert len(lines) == len(keys), (len(lines), len(keys))
        with open(HERE / "goldens" / "mix.txt", "w") as golden:
            for (*model, file_type, names), line in zip(keys, lines):
                types = dict(zip(names, line.upper().split()))
                text = "".join(f"{name} {types[name]}\n" for name in sorted(names) if types[name] != "-")
                golden.write(" ".join(map(str, model)) + f" {file_type} {hashlib.sha256(text.encode()).hexdigest()[:32]}\n")
                if len(sys.argv) > 3 and sys.argv[3] == f"{model[0]}:{file_type}":
                    print(text)


def block(name):
    return int(name.split(".")[1]) if name.startswith("blk.") else -1


if __name__ == "__main__":
    main()
