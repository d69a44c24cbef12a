"""Writes fixtures of packed weights: random pieces, and their elements by a restatement of each packing in NumPy.

    python packed.py FOLDER         every fixture: a directory each of config.json, model.safetensors, want.safetensors
    python packed.py --mlx FOLDER   the same for MLX, packed and unpacked by MLX itself

Every element is F32: codes and scales are widened first, then multiplied.
"""

import json
import os
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
RNG = np.random.default_rng(7)


def raw(name, *shape, dtype=np.uint32):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def scales(*shape, dtype=np.float16):
    return RNG.uniform(0.01, 1.0, shape).astype(dtype)


def stream(words, bits, n):
    """Values of a little-endian bit stream in the last axis of 32-bit words."""
    bytes_ = np.ascontiguousarray(words.astype("<u4")).view(np.uint8)
    flags = np.unpackbits(bytes_, axis=-1, bitorder="little")[..., : n * bits]
    flags = flags.reshape(*flags.shape[:-1], n, bits).astype(np.uint32)
    return (flags << np.arange(bits, dtype=np.uint32)).sum(-1)


def e4m3(codes):
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def e8m0(codes):
    return np.ldexp(np.float32(1), codes.astype(np.int32) - 127).astype(np.float32)


def finite_e4m3(*shape):
    codes = raw("e4m3", *shape, dtype=np.uint8)
    return np.where((codes & 0x7F) == 0x7F, 0, codes).astype(np.uint8)


def low_first(bytes_):
    return np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(*bytes_.shape[:-1], -1)


def repeat(values, group):
    return np.repeat(values, group, axis=-1).astype(np.float32)


FIXTURES = {}


def fixture(name, config):
    def keep(make):
        FIXTURES[name] = (config, make)
        return make
    return keep


def mlx_affine(bits, group, rows=6, n_groups=2, dtype=np.float16):
    cols = group * n_groups
    words = raw("w", rows, cols * bits // 32)
    s, b = scales(rows, n_groups, dtype=dtype), scales(rows, n_groups, dtype=dtype)
    want = repeat(s.astype(np.float32), group) * stream(words, bits, cols).astype(np.float32)
    return {"weight": words, "scales": s, "biases": b}, want + repeat(b.astype(np.float32), group)


for bits in (2, 3, 4, 5, 6, 8):
    for group in (32, 64, 128):
        FIXTURES[f"mlx-affine-{bits}-{group}"] = (
            dict(quantization=dict(bits=bits, group_size=group)), lambda b=bits, g=group: [("a", *mlx_affine(b, g))])


@fixture("mlx-overrides", dict(quantization={"bits": 4, "group_size": 64, "b": {"bits": 8, "group_size": 32}, "c": False}))
def _():
    plain = scales(4, 8, dtype=np.float32)
    return [("a", *mlx_affine(4, 64)), ("b", *mlx_affine(8, 32, dtype=ml_dtypes.bfloat16)), ("c", {"weight": plain}, plain)]


def mlx_float(codes, words, scale, group):
    return {"weight": words, "scales": scale[0]}, codes * repeat(scale[1], group)


@fixture("mlx-mxfp4", dict(quantization=dict(bits=4, group_size=32, mode="mxfp4")))
def _():
    words, s = raw("w", 5, 8), RNG.integers(100, 140, (5, 2)).astype(np.uint8)
    return [("a", *mlx_float(E2M1[stream(words, 4, 64)], words, (s, e8m0(s)), 32))]


@fixture("mlx-mxfp8", dict(quantization=dict(bits=8, group_size=32, mode="mxfp8")))
def _():
    codes, s = finite_e4m3(5, 64), RNG.integers(100, 140, (5, 2)).astype(np.uint8)
    return [("a", *mlx_float(e4m3(codes), codes.view(np.uint32), (s, e8m0(s)), 32))]


@fixture("mlx-nvfp4", dict(quantization=dict(bits=4, group_size=16, mode="nvfp4")))
def _():
    words, s = raw("w", 5, 8), finite_e4m3(5, 4)
    return [("a", *mlx_float(E2M1[stream(words, 4, 64)], words, (s, e4m3(s)), 16))]


def gptq(bits, group, more, order=None, rows=32, cols=64):
    words, zeros = raw("q", cols * bits // 32, rows, dtype=np.int32), raw("z", cols // group, rows * bits // 32, dtype=np.int32)
    s = scales(cols // group, rows)
    g = np.arange(cols) // group if order is None else order
    q = stream(words.T.view(np.uint32) if False else np.ascontiguousarray(words.T).view(np.uint32), bits, cols).astype(np.float32)
    z = stream(zeros.view(np.uint32), bits, rows).astype(np.float32) + more
    want = s.astype(np.float32)[g].T * (q - z[g].T)
    pieces = {"qweight": words, "qzeros": zeros, "scales": s}
    if order is not None:
        pieces["g_idx"] = order.astype(np.int32)
    return pieces, want.astype(np.float32)


for bits in (2, 3, 4, 8):
    FIXTURES[f"gptq-{bits}"] = (dict(quantization_config=dict(quant_method="gptq", bits=bits, group_size=32)),
                                lambda b=bits: [("a", *gptq(b, 32, 1))])
FIXTURES["gptq-v2-order"] = (
    dict(quantization_config=dict(quant_method="gptq", bits=4, group_size=32, checkpoint_format="gptq_v2", desc_act=True)),
    lambda: [("a", *gptq(4, 32, 0, RNG.permutation(64) // 32))])


@fixture("awq", dict(quantization_config=dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True)))
def _():
    cols, rows = 64, 16
    words, zeros, s = raw("q", cols, rows // 8, dtype=np.int32), raw("z", cols // 32, rows // 8, dtype=np.int32), scales(cols // 32, rows)
    order = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
    plain = lambda w: stream(w.view(np.uint32)[..., None], 4, 8)[..., order].reshape(w.shape[0], -1).astype(np.float32)
    g = np.arange(cols) // 32
    want = s.astype(np.float32)[g] * (plain(words) - plain(zeros)[g])
    return [("a", {"qweight": words, "qzeros": zeros, "scales": s}, np.ascontiguousarray(want.T))]


def fp8(method, name, scale, spread):
    codes = finite_e4m3(40, 48)
    return [("a", {"weight": codes.view(ml_dtypes.float8_e4m3fn), name: scale}, e4m3(codes) * spread(scale.astype(np.float32)))]


blocks = lambda s: np.repeat(np.repeat(s, 16, 0), 32, 1)[:40, :48]
FIXTURES["fp8-block"] = (dict(quantization_config=dict(quant_method="fp8", weight_block_size=[16, 32])),
                         lambda: fp8("fp8", "weight_scale_inv", scales(3, 2, dtype=np.float32), blocks))
FIXTURES["fp8-tensor"] = (dict(quantization_config=dict(quant_method="fp8")),
                          lambda: fp8("fp8", "weight_scale", scales(1, dtype=np.float32), lambda s: s))
FIXTURES["compressed-fp8-row"] = (
    dict(quantization_config={"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}),
    lambda: fp8("ct", "weight_scale", scales(40, 1, dtype=ml_dtypes.bfloat16), lambda s: s))


@fixture("compressed-int8", {"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}}}})
def _():
    q, s = raw("q", 6, 32, dtype=np.int8), scales(6, 1, dtype=np.float32)
    return [("a", {"weight": q, "weight_scale": s}, q.astype(np.float32) * s)]


def packed(symmetric, bits=4, group=32, rows=16, cols=64):
    q = RNG.integers(0, 2**bits, (rows, cols)).astype(np.uint32)
    z = RNG.integers(0, 2**bits, (rows, cols // group)).astype(np.uint32)
    per = 32 // bits
    shifts = (np.arange(per, dtype=np.uint32) * bits).astype(np.uint32)
    words = (q.reshape(rows, -1, per) << shifts).sum(-1, dtype=np.uint32).view(np.int32)
    zero_words = (z.T.reshape(cols // group, -1, per) << shifts).sum(-1, dtype=np.uint32).T.copy().view(np.int32)
    s = scales(rows, cols // group, dtype=ml_dtypes.bfloat16)
    zero = 2 ** (bits - 1) if symmetric else np.repeat(z, group, 1).astype(np.int64)
    want = repeat(s.astype(np.float32), group) * (q.astype(np.int64) - zero).astype(np.float32)
    pieces = {"weight_packed": words, "weight_scale": s, "weight_shape": np.array([rows, cols], np.int64)}
    if not symmetric:
        pieces["weight_zero_point"] = zero_words
    return [("a", pieces, want)]


for bits in (4, 8):
    for symmetric in (True, False):
        FIXTURES[f"compressed-int{bits}-{'symmetric' if symmetric else 'zeros'}"] = (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32, "symmetric": symmetric}}}}},
            lambda b=bits, s=symmetric: packed(s, b))


@fixture("compressed-nvfp4", {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}}}})
def _():
    bytes_, s, g = raw("q", 5, 32, dtype=np.uint8), finite_e4m3(5, 4), np.array([3.5], np.float32)
    want = E2M1[low_first(bytes_)] * repeat(e4m3(s) / g, 16)
    return [("a", {"weight_packed": bytes_, "weight_scale": s.view(ml_dtypes.float8_e4m3fn), "weight_global_scale": g}, want)]


@fixture("mxfp4-experts", dict(quantization_config=dict(quant_method="mxfp4")))
def _():
    bytes_, s = raw("q", 2, 6, 2, 16, dtype=np.uint8), RNG.integers(100, 140, (2, 6, 2)).astype(np.uint8)
    want = E2M1[low_first(bytes_)] * e8m0(s)[..., None]
    return [("a", {"_blocks": bytes_, "_scales": s}, want.reshape(2, 6, 64))]


def smaller_experts():
    words, s = raw("q", 6, 32, dtype=np.int8), RNG.integers(100, 140, (6, 2)).astype(np.uint8)
    codes = finite_e4m3(40, 48)
    powers = RNG.integers(120, 134, (3, 2)).astype(np.uint8)
    as_scales = lambda bytes_: bytes_.view(ml_dtypes.float8_e8m0fnu)
    return [("a", {"weight": words, "scale": as_scales(s)}, repeat(e8m0(s), 32) * E2M1[low_first(words.view(np.uint8))]),
            ("b", {"weight": codes.view(ml_dtypes.float8_e4m3fn), "scale": as_scales(powers)}, e4m3(codes) * blocks(e8m0(powers)))]


def table4(nested, rows=20, cols=48, block=64):
    bytes_, table = raw("q", rows * cols // 2, 1, dtype=np.uint8), np.sort(RNG.uniform(-1, 1, 16)).astype(np.float32)
    n = -(-rows * cols // block)
    codes = np.stack([bytes_[:, 0] >> 4, bytes_[:, 0] & 15], -1).reshape(-1)
    state = dict(quant_type="nf4", blocksize=block, dtype="bfloat16", shape=[rows, cols])
    pieces = {"weight": bytes_, "weight.quant_map": table}
    if nested:
        absmax, outer, map_ = raw("s", n, dtype=np.uint8), scales(-(-n // 256), dtype=np.float32), np.sort(RNG.uniform(-1, 1, 256)).astype(np.float32)
        offset = np.float32(0.25)
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=float(offset))
        pieces.update({"weight.absmax": absmax, "weight.nested_absmax": outer, "weight.nested_quant_map": map_})
        s = map_[absmax] * np.repeat(outer, 256)[:n] + offset
    else:
        s = scales(n, dtype=np.float32)
        pieces["weight.absmax"] = s
    pieces["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    want = table[codes] * np.repeat(s, block)[: rows * cols]
    return [("a", pieces, want.reshape(rows, cols).astype(np.float32))]


for nested in (False, True):
    FIXTURES["bitsandbytes-nf4" + ("-nested" if nested else "")] = (
        dict(quantization_config=dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested)),
        lambda n=nested: table4(n))


@fixture("bitsandbytes-int8", dict(quantization_config=dict(quant_method="bitsandbytes", load_in_8bit=True)))
def _():
    q, s = raw("q", 6, 32, dtype=np.int8), scales(6, dtype=np.float32)
    want = q.astype(np.float32) * s[:, None] * np.float32(1 / 127)
    return [("a", {"weight": q, "SCB": s, "weight_format": np.array(0, np.uint8)}, want)]


FIXTURES["fp8-experts"] = (dict(quantization_config=dict(quant_method="fp8", scale_fmt="ue8m0", weight_block_size=[16, 32])),
                           smaller_experts)


def by_mlx():
    """MLX's own packing of random numbers, and what it makes of it; scales in F32, so that nothing is rounded between."""
    import mlx.core as mx
    made = {}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            w, s, b = mx.quantize(mx.array(RNG.normal(size=(6, 256)).astype(np.float32)), group_size=group, bits=bits)
            want = mx.dequantize(w, s, b, group_size=group, bits=bits)
            made[f"mlx-own-{bits}-{group}"] = (dict(quantization=dict(bits=bits, group_size=group)),
                                               lambda v=(w, s, b, want): [("a", dict(zip(("weight", "scales", "biases"), map(np.array, v))), np.array(v[3]))])
    for mode, group, bits in (("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)):
        w, s, *_ = mx.quantize(mx.array(RNG.normal(size=(6, 256)).astype(np.float32)), group_size=group, bits=bits, mode=mode)
        want = mx.dequantize(w, s, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
        made[f"mlx-own-{mode}"] = (dict(quantization=dict(bits=bits, group_size=group, mode=mode)),
                                   lambda v=(w, s, want): [("a", dict(weight=np.array(v[0]), scales=np.array(v[1])), np.array(v[2]))])
    return made


def main(args):
    fixtures = by_mlx() if args[0] == "--mlx" else FIXTURES
    for name, (config, make) in fixtures.items():
        folder = os.path.join(args[-1], name)
        os.makedirs(folder, exist_ok=True)
        pieces, wants = {}, {}
        for module, parts, want in make():
            joint = lambda key: module + (key if key.startswith("_") else "." + key)
            pieces.update({joint(k): np.ascontiguousarray(v) for k, v in parts.items()})
            whole = module if "_blocks" in parts else module + ".weight"
            wants[whole] = np.ascontiguousarray(want.astype(np.float32))
        save_file(pieces, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        save_file(wants, os.path.join(folder, "want.bin"))
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(dict(model_type="fixture", **config), f)


if __name__ == "__main__":
    main(sys.argv[1:])
