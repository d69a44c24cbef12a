"""Writes fixtures of weights that real libraries packed: packed/library-NAME, as packed.py writes its own.

    python libraries.py FOLDER

Needs torch on the CPU, bitsandbytes, compressed-tensors, autoawq, auto-gptq and gptqmodel. Wanted values are those that the library
itself unpacks. Scales have few bits, so that products are exact in whatever type a library multiplies.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import types

import torch
from safetensors.torch import save, save_file

torch.manual_seed(7)
ROWS, COLS, GROUP = 16, 64, 32
FIXTURES = {}


def fixture(name, package, config):
    def add(make):
        FIXTURES[name] = (package, config, make)
        return make
    return add


def bare(package):
    """A package without what its __init__ imports."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    module = types.ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations)
    sys.modules[package] = module


def few_bits(*shape):
    """Positive numbers of five bits."""
    return torch.randint(16, 32, shape) / 2.0 ** torch.randint(7, 10, shape)


def linear():
    layer = torch.nn.Linear(COLS, ROWS * 2, bias=False)
    layer.weight.data.normal_()
    return layer


def four_bits(kind, nested):
    import bitsandbytes as bnb
    layer = bnb.nn.Linear4bit(128, 40, bias=False, quant_type=kind, compress_statistics=nested, compute_dtype=torch.float32)
    weight = torch.randn(40, 128, dtype=torch.bfloat16)
    layer.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type=kind, compress_statistics=nested, blocksize=64)
    layer = layer.to("cpu")
    layer.weight = layer.weight._quantize("cpu") if layer.weight.quant_state is None else layer.weight
    state = layer.weight.quant_state
    pieces = {"weight": layer.weight.data}
    pieces.update({f"weight.{k}": v for k, v in state.as_dict(packed=True).items()})
    state.dtype = torch.float32
    return pieces, bnb.functional.dequantize_4bit(layer.weight.data, state)


def bnb(**more):
    return dict(quant_method="bitsandbytes", **more)


for kind in ("nf4", "fp4"):
    for nested in (False, True):
        name = f"bitsandbytes-{kind}" + ("-nested" if nested else "")
        config = bnb(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested)
        fixture(name, "bitsandbytes", config)(lambda k=kind, n=nested: four_bits(k, n))


@fixture("bitsandbytes-int8", "bitsandbytes", bnb(load_in_8bit=True))
def _():
    from bitsandbytes import functional
    weight = torch.randn(24, 64, dtype=torch.float16)
    codes, scale, _ = functional.int8_vectorwise_quant(weight)
    return {"weight": codes, "SCB": scale}, functional.int8_vectorwise_dequant(codes, scale).float()


def compressed(format, **weights):
    group = {"targets": ["Linear"], "weights": weights}
    return dict(quant_method="compressed-tensors", format=format, config_groups={"group_0": group})


def compress(config, pieces):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    scheme = QuantizationScheme(**config["config_groups"]["group_0"])
    codec = BaseCompressor.get_value_from_registry(config["format"])
    packed = codec.compress(dict(pieces), scheme)
    return packed, codec.decompress(dict(packed), scheme)["weight"].float()


def grouped(bits, symmetric):
    config = compressed("pack-quantized", num_bits=bits, type="int", strategy="group", group_size=GROUP, symmetric=symmetric)
    def make():
        pieces = {"weight": torch.randn(ROWS, COLS), "weight_scale": few_bits(ROWS, COLS // GROUP)}
        if not symmetric:
            half = 2 ** (bits - 1)
            pieces["weight_zero_point"] = torch.randint(-half, half, (ROWS, COLS // GROUP)).to(torch.int8)
        return compress(config, pieces)
    fixture(f"compressed-int{bits}-{'symmetric' if symmetric else 'zeros'}", "compressed-tensors", config)(make)


for bits in (4, 8):
    for symmetric in (True, False):
        grouped(bits, symmetric)


FP8 = compressed("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True)
INT8 = compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True)
NVFP4 = compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
                   scale_dtype="torch.float8_e4m3fn")
MXFP4 = compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32, symmetric=True,
                   scale_dtype="torch.uint8")


@fixture("compressed-fp8-row", "compressed-tensors", FP8)
def _():
    return compress(FP8, {"weight": torch.randn(ROWS, COLS), "weight_scale": few_bits(ROWS, 1) / 16})


@fixture("compressed-int8", "compressed-tensors", INT8)
def _():
    return compress(INT8, {"weight": torch.randn(ROWS, COLS), "weight_scale": few_bits(ROWS, 1) / 16})


@fixture("compressed-nvfp4", "compressed-tensors", NVFP4)
def _():
    scale = (few_bits(ROWS, COLS // 16) * 8).to(torch.float8_e4m3fn).float()
    return compress(NVFP4, {"weight": torch.randn(ROWS, COLS), "weight_scale": scale,
                            "weight_global_scale": torch.tensor([4.0])})


def dealt(bits):
    """A layer, scales and zeros as quantisers hand them to a packer: `[rows, groups]`."""
    layer = linear()
    scale = few_bits(ROWS * 2, COLS // GROUP)
    zero = torch.randint(1, 2**bits, (ROWS * 2, COLS // GROUP)).float()
    # Every code is within its bits.
    codes = torch.randint(0, 2**bits, (ROWS * 2, COLS)).float()
    layer.weight.data = (codes - zero.repeat_interleave(GROUP, 1)) * scale.repeat_interleave(GROUP, 1)
    return layer, scale, zero


@fixture("awq", "autoawq", dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm"))
def _():
    bare("awq")
    gemm = importlib.import_module("awq.modules.linear.gemm")
    unpack = importlib.import_module("awq.utils.packing_utils").dequantize_gemm
    layer, scale, zero = dealt(4)
    packed = gemm.WQLinear_GEMM.from_linear(layer, 4, GROUP, scales=scale.t().contiguous(), zeros=zero.t().contiguous())
    pieces = {name: getattr(packed, name).cpu() for name in ("qweight", "qzeros", "scales")}
    return pieces, unpack(*pieces.values(), 4, GROUP).float().t()


def gptq(bits):
    def make():
        bare("auto_gptq")
        bare("auto_gptq.nn_modules")
        module = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda_old")
        layer, scale, zero = dealt(bits)
        packed = module.QuantLinear(bits, GROUP, COLS, ROWS * 2, bias=False, weight_dtype=torch.float32)
        packed.pack(layer, scale, zero.clone(), None)
        names = ("qweight", "qzeros", "scales", "g_idx")
        pieces = {name: getattr(packed, name) for name in names}
        with torch.no_grad():
            # The rows of the identity give the columns of the weight.
            return pieces, packed(torch.eye(COLS)).float().t()
    fixture(f"gptq-{bits}", "auto-gptq", dict(quant_method="gptq", bits=bits, group_size=GROUP, desc_act=False, sym=False))(make)


for bits in (2, 3, 4, 8):
    gptq(bits)


def gptqmodel(bits, form, shuffled):
    """As GPTQModel packs them: with zeros as they are, or one less for the older form; groups in the order of columns or not."""
    def make():
        module = importlib.import_module("gptqmodel.nn_modules.qlinear.torch")
        older = importlib.import_module("gptqmodel.utils.model").convert_gptq_v2_to_v1_format_module
        layer, scale, zero = dealt(bits)
        groups = torch.arange(COLS) // GROUP
        if shuffled:
            groups = groups[torch.randperm(COLS)]
            layer.weight.data = (layer.weight.data * 0).add_(
                (torch.randint(0, 2**bits, (ROWS * 2, COLS)) - zero[:, groups]) * scale[:, groups])
        packed = module.TorchLinear(bits=bits, group_size=GROUP, sym=False, desc_act=shuffled, in_features=COLS,
                                    out_features=ROWS * 2)
        packed.pack_original(layer, scale, zero.int(), groups.int())
        packed.post_init()
        half = packed.scales
        # Codes of eight bits times a scale are more than halves hold.
        packed.scales = half.float()
        want = packed.dequantize_weight().float().t().contiguous()
        packed.scales = half
        if form == "gptq":
            older(packed, types.SimpleNamespace(bits=bits, pack_dtype=torch.int32))
        return {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales", "g_idx")}, want
    name = f"gptqmodel-{form}-{bits}" + ("-shuffled" if shuffled else "")
    config = dict(quant_method="gptq", bits=bits, group_size=GROUP, desc_act=shuffled, sym=False, checkpoint_format=form)
    fixture(name, "gptqmodel", config)(make)


for bits in (2, 3, 4, 8):
    gptqmodel(bits, "gptq_v2", False)
    gptqmodel(bits, "gptq", bits == 4)


def main(folder):
    for name, (package, config, make) in FIXTURES.items():
        version = f"{package} {importlib.metadata.version(package)}"
        try:
            pieces, want = make()
        except Exception as error:
            print(f"{name:<32} {version}: {type(error).__name__}: {error}"[:300])
            continue
        path = os.path.join(folder, "library-" + name)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(dict(model_type="llama", made_by=version, quantization_config=config), f, indent=1)
            f.write("\n")
        save_file({f"a.{k}": v.contiguous() for k, v in pieces.items()}, os.path.join(path, "model.safetensors"))
        with open(os.path.join(path, "want.bin"), "wb") as f:
            f.write(save({"a.weight": want.float().contiguous()}))
        print(f"{name:<32} {version}: {list(want.shape)}")


if __name__ == "__main__":
    main(sys.argv[1])
