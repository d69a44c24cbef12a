#!/usr/bin/env python3
"""Writes the golden digests of this crate from llama.cpp's own routines.

    make_goldens.py LLAMA_SRC LLAMA_BUILD [TYPE...]

needs a C compiler, numpy and a static build of llama.cpp (ggml-base). The inputs come from a hash
(`stream`), so only digests are stored; `inputs.rs` makes the same inputs in Rust.
"""
import hashlib
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
BLOCKS = {  # name: (code, elements, bytes)
    "F16": (1, 1, 2), "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "Q8_K": (15, 256, 292),
    "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98),
    "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56),
    "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36), "Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18),
}
DERIVED = {"Q8_K"}  # made on the fly by dot products; no file is quantised to it
NEEDS_IMPORTANCE = {"IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"}
ROWS, WIDTH = 4, 1536
RANDOM_BLOCKS = 512


def stream(label, count):
    """SplitMix64 outputs keyed by the FNV-1a hash of `label`."""
    seed = 0xCBF29CE484222325
    for byte in label.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & (2**64 - 1)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, count + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def random_bytes(label, count):
    return stream(label, (count + 7) // 8).view(np.uint8)[:count].copy()


def gaussian(label, count):
    """Sums of twelve 16-bit uniforms: exact, close to normal, deviation 1."""
    parts = stream(label, count * 3).view(np.uint16).reshape(count, 12)
    total = parts.astype(np.int64).sum(axis=1) - 12 * 32768
    return (total.astype(np.float32) * np.float32(2.0**-16)).astype(np.float32)


def heavy(label, count):
    g = gaussian(label, count)
    return g * g * g


def edges(label, count):
    """Rows of 256 that break careless code; the last half mixes them with noise."""
    x = gaussian(label, count).reshape(-1, 256)
    x[0] = 0
    x[1] = 1
    x[2] = -1
    x[3, 1:] = 0
    x[4] = np.abs(x[4])
    x[5] = -np.abs(x[5])
    x[6, 7] = 1000
    x[7, ::2] = 0
    x[8] *= np.float32(2.0**-40)
    x[9] *= np.float32(2.0**-70)
    x[10] *= np.float32(2.0**10)
    x[11] = np.round(x[11])
    x[12, :128] = 0
    x[13] = np.float32(0.5)
    x[13, ::3] = np.float32(-0.5)
    x[14] = x[14] * np.float32(0.01) + 1
    x[15] = x[15] * np.float32(0.01) - 1
    return x.reshape(-1)


def real(label, count):
    """Rows of the feed-forward output matrix of all-MiniLM-L6-v2, layer 3, as half floats."""
    return np.fromfile(HERE / "goldens" / "minilm_f16.bin", np.float16).astype(np.float32)[:count]


SHAPES = {"gaussian": gaussian, "heavy": heavy, "edges": edges, "real": real}


def importance(label, count):
    u = (stream(label, count) >> np.uint64(48)).astype(np.float32) * np.float32(2.0**-16)
    w = u * u * u * np.float32(64.0)
    w[::97] = 0
    return w


class Oracle:
    def __init__(self, src, build):
        self.dir = tempfile.TemporaryDirectory()
        exe = f"{self.dir.name}/oracle"
        subprocess.run(["cc", "-O2", f"-I{src}/ggml/include", str(HERE / "oracle.c"),
                        f"{build}/ggml/src/libggml-base.a", "-fopenmp", "-lstdc++", "-lm", "-lpthread",
                        "-o", exe], check=True)
        self.proc = subprocess.Popen([exe], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, op, code, rows, width, payload, weights=None):
        self.proc.stdin.write(struct.pack("<6i", op, code, rows, width, weights is not None, len(payload)))
        self.proc.stdin.write(payload + (weights.tobytes() if weights is not None else b""))
        self.proc.stdin.flush()
        size = struct.unpack("<q", self.proc.stdout.read(8))[0]
        return self.proc.stdout.read(size)

    def dequantise(self, name, data):
        code, elems, size = BLOCKS[name]
        return np.frombuffer(self.ask(0, code, 1, len(data) // size * elems, data), np.float32)

    def quantise(self, name, x, weights=None):
        return self.ask(1, BLOCKS[name][0], x.size // WIDTH, WIDTH, x.tobytes(), weights)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:32]


def value_digest(values):
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return digest(bits.tobytes())


def block_inputs(name):
    """Random blocks; every byte value at every place of a tame block; blocks of one byte value."""
    _, elems, size = BLOCKS[name]
    if elems == 1:
        yield "all", np.arange(65536, dtype=np.uint16).view(np.uint8)
        return
    yield "random", random_bytes(f"{name} random", RANDOM_BLOCKS * size)
    base = random_bytes(f"{name} sweep", size) & 0x3B
    sweep = np.tile(base, (size * 256, 1)).reshape(size, 256, size)
    for place in range(size):
        sweep[place, :, place] = np.arange(256)
    yield "sweep", sweep.reshape(-1)
    yield "constant", np.repeat(np.arange(256, dtype=np.uint8), size)


def dequantise_lines(oracle, names):
    for name in names:
        for case, data in block_inputs(name):
            yield f"{name} {case} {value_digest(oracle.dequantise(name, data.tobytes()))}"


def quantise_lines(oracle, names):
    for name in names:
        for shape, make in SHAPES.items():
            x = make(f"quantise {shape}", ROWS * WIDTH)
            for kind in ("plain", "weighted"):
                if name in DERIVED or (kind == "plain" and name in NEEDS_IMPORTANCE):
                    continue
                w = importance("importance", WIDTH) if kind == "weighted" else None
                data = oracle.quantise(name, x, w)
                if name in ("F16", "BF16"):
                    error = 0.0
                else:
                    diff = oracle.dequantise(name, data).astype(np.float64) - x
                    error = float((diff * diff * (np.tile(w, ROWS) if w is not None else 1)).sum())
                yield f"{name} {shape} {kind} {digest(data)} {error:.9e}"


def main():
    oracle = Oracle(sys.argv[1], sys.argv[2])
    names = sys.argv[3:] or list(BLOCKS)
    (HERE / "goldens" / "dequantise.txt").write_text("\n".join(dequantise_lines(oracle, names)) + "\n")
    (HERE / "goldens" / "quantise.txt").write_text("\n".join(quantise_lines(oracle, names)) + "\n")


if __name__ == "__main__":
    main()
