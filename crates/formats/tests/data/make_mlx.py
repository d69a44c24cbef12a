"""Writes mlx/: `pip install "mlx[cpu]"`, `python make_mlx.py`, then commit the directory."""

import json
from pathlib import Path

import mlx.core as mx

HERE = Path(__file__).parent / "mlx"
CASES = [(f"affine{bits}", {"mode": "affine", "bits": bits, "group_size": 64}) for bits in (2, 3, 4, 5, 6, 8)]
CASES += [("group32", {"mode": "affine", "bits": 4, "group_size": 32})]
CASES += [("group128", {"mode": "affine", "bits": 4, "group_size": 128})]
CASES += [("mxfp4", {"mode": "mxfp4", "bits": 4, "group_size": 32})]
CASES += [("mxfp8", {"mode": "mxfp8", "bits": 8, "group_size": 32})]
CASES += [("nvfp4", {"mode": "nvfp4", "bits": 4, "group_size": 16})]

mx.random.seed(1)
weight = mx.random.normal((3, 128)).astype(mx.bfloat16)
tensors = {"plain.weight": weight}
modules = {"plain": False}
for name, settings in CASES:
    parts = mx.quantize(weight, **settings)
    for part, suffix in zip(parts, ("weight", "scales", "biases")):
        tensors[f"{name}.{suffix}"] = part
    modules[name] = settings

HERE.mkdir(exist_ok=True)
mx.save_safetensors(str(HERE / "model.safetensors"), tensors, metadata={"format": "mlx"})
config = {"model_type": "llama", "quantization": {"group_size": 64, "bits": 4, **modules}}
(HERE / "config.json").write_text(json.dumps(config, indent=1) + "\n")
