"""Compares `embed` of a sentence encoder with the library sentence-transformers.

    python sentences.py TOKKATA DIRECTORY

DIRECTORY is a model directory such as MiniLM's. Both programs read it as it is, then a copy whose weights are F16. The
least cosine over all texts is printed for each.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import sentence_transformers
import torch
from safetensors.torch import load_file, save_file

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A fast auburn fox leapt across a sleeping hound.",
    "embedding models map text to vectors",
    "a",
    "?",
    "Ein Satz auf Deutsch, mit Zahlen: 12345!",
    "Größe, naïveté, coöperate, façade",
    "東京は日本の首都です。",
    "Привет, мир",
    "🙂 emoji and\ttabs\tand  double  spaces",
    "unaffable antidisestablishmentarianism floccinaucinihilipilification",
    "def f(x):\n    return x ** 2",
    "https://example.org/a?b=c&d=e",
    " ".join(f"word{i}" for i in range(60)),
    "How do I bake bread without yeast? " * 8,
]


def halves(folder, to):
    """A copy of a model directory with weights of 16 bits."""
    shutil.copytree(folder, to)
    file = os.path.join(to, "model.safetensors")
    tensors = {k: v.half() if v.is_floating_point() else v for k, v in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})


def ours(program, folder):
    texts = [part for text in TEXTS for part in ("-p", text)]
    done = subprocess.run([program, "embed", "-m", folder, *texts], capture_output=True, text=True, check=True)
    return np.array([entry["embedding"] for entry in json.loads(done.stdout)["data"]])


def theirs(folder):
    model = sentence_transformers.SentenceTransformer(folder, device="cpu").to(torch.float32)
    return model.encode(TEXTS, normalize_embeddings=True).astype(np.float64)


def compare(program, folder, what):
    a, b = ours(program, folder), theirs(folder)
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    print(f"{what:<12} least cosine of {len(TEXTS)} texts {cosines.min():.13f}")


def main(program, folder):
    print(f"sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}")
    compare(program, folder, "as it is")
    with tempfile.TemporaryDirectory() as temporary:
        copy = os.path.join(temporary, "f16")
        halves(folder, copy)
        compare(program, copy, "F16")


if __name__ == "__main__":
    main(*sys.argv[1:])
